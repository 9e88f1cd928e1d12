//! The end of a destination, as far as those are concerned who want something of it: who may still come in, who is told
//! not to wait any longer, and who takes its place. What ends sessions and children is [`Destination::stop`].

use std::sync::{Arc, Weak};

use protocol::exchange::Principal;
use uuid::Uuid;

use super::Destination;
use crate::reply::Refusal;
use crate::session_port::SessionPort;

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

    /// The destinations that had this name before reloads, newest first, while they drain.
    pub(super) fn draining_predecessors(&self) -> impl Iterator<Item = Arc<Self>> {
        let predecessors = self.predecessors.get().into_iter().flatten();
        predecessors.filter_map(Weak::upgrade)
    }

    /// The session with this id, if it is this principal's: here, or at a predecessor that drains. Returns it with the
    /// destination that has it. New requests are not for draining sessions; see [`Destination::session`].
    pub(crate) fn draining_or_present_session(
        self: &Arc<Self>,
        id: Uuid,
        principal: &Principal,
    ) -> Option<(Arc<Self>, Arc<SessionPort>)> {
        std::iter::once(Arc::clone(self))
            .chain(self.draining_predecessors())
            .find_map(|destination| {
                let port = destination.session(id, principal)?;
                Some((destination, port))
            })
    }

    /// Whether a client may still come back for an answer that it has not read.
    pub(crate) fn has_unread_answers(&self) -> bool {
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        ports.iter().any(|port| port.has_unread_answers())
    }

    /// From now on nobody new is let in. Calls that run may finish; those that wait for a server to take them are
    /// refused, since they would lose only time here.
    pub(crate) fn retire(&self) {
        self.close_door(Closing::Reload);
        for lane in self.lane_list() {
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
