//! The end of a destination, as far as those are concerned who want something of it: who may still come in, who is told
//! not to wait any longer, and who takes its place. What ends sessions and children is [`Destination::stop`].

use std::sync::Arc;

use super::Destination;
use crate::lane::Lane;
use crate::reply::Refusal;

/// Why a destination comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It was removed or replaced.
    Reload,
    Shutdown,
}

impl Closing {
    /// What those learn who come too late.
    fn refusal(self) -> Refusal {
        match self {
            Self::Reload => Refusal::Retired,
            Self::Shutdown => Refusal::Draining,
        }
    }

    /// What those learn whose call it ends.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Reload => "its configuration has changed",
            Self::Shutdown => "the gateway is shutting down",
        }
    }
}

impl Destination {
    /// Takes the place of another, whose clients may still come with answers.
    pub(crate) fn succeed(&self, predecessor: &Arc<Self>) {
        let earlier = predecessor.predecessors.get().into_iter().flatten();
        let living = earlier.filter(|earlier| earlier.strong_count() > 0).cloned();
        let all = std::iter::once(Arc::downgrade(predecessor))
            .chain(living)
            .collect();
        // It is made to take one place, once.
        let _ = self.predecessors.set(all);
    }

    /// From now on nobody new is let in. Calls that run may finish; those that wait for a server to take them are
    /// refused, since they would lose only time here.
    pub(crate) fn retire(&self) {
        self.close_door(Closing::Reload);
        let lanes: Vec<Arc<Lane>> = self.lanes().values().cloned().collect();
        for lane in lanes {
            lane.retire();
        }
    }

    pub(super) fn close_door(&self, why: Closing) {
        // The first reason is the one that holds.
        let _ = self.closing.set(why);
    }

    /// Whether somebody new may come in. What was found before a reload may be gone after it.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.broken.is_some() {
            return Err(Refusal::BrokenDestination);
        }
        match self.closing.get() {
            Some(why) => Err(why.refusal()),
            None => Ok(()),
        }
    }
}
