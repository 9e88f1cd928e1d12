//! The end of a destination: which requests it still accepts, which waiting ones it ends, and which
//! destination takes its place. [`Destination::stop`] ends its sessions and children.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use protocol::exchange::Principal;
use uuid::Uuid;

use super::Destination;
use crate::reply::Refusal;
use crate::session_port::SessionPort;

/// Why a destination comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// A reload has put another in its place.
    Replaced,
    /// The configuration no longer has it.
    Removed,
    Shutdown,
}

impl Closing {
    /// What those learn who come too late.
    fn refusal(self) -> Refusal {
        match self {
            Self::Replaced => Refusal::Retired,
            Self::Removed => Refusal::UnknownPath,
            Self::Shutdown => Refusal::Draining,
        }
    }

    /// What those learn whose call it ends.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Replaced => "its configuration has changed",
            Self::Removed => "it is no longer configured",
            Self::Shutdown => "the gateway is shutting down",
        }
    }
}

/// The destinations that a reload has removed or replaced, while they come to their end: the one list of them.
#[derive(Default)]
pub(crate) struct Draining(Mutex<Vec<Arc<Destination>>>);

impl std::fmt::Debug for Draining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Each of them holds this list.
        f.debug_struct("Draining").finish_non_exhaustive()
    }
}

impl Draining {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Destination>>> {
        self.0.lock()
    }

    pub(crate) fn add(&self, destination: &Arc<Destination>) {
        self.lock().push(Arc::clone(destination));
    }

    pub(crate) fn remove(&self, destination: &Arc<Destination>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, destination));
    }

    pub(crate) fn all(&self) -> Vec<Arc<Destination>> {
        self.lock().clone()
    }

    /// Returns those that had this name, newest first.
    pub(crate) fn named(&self, name: &str) -> Vec<Arc<Destination>> {
        let mut named = self.all();
        named.retain(|destination| &*destination.name == name);
        named.reverse();
        named
    }
}

/// What a client wants of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionUse {
    NewRequest,
    /// It reads, answers, cancels or ends what is open already.
    FollowUp,
}

impl Destination {
    /// Returns the session with this id, if it is this principal's, and the destination that has it. What is open is also
    /// found at destinations that drain; a new request is not for them.
    pub(crate) fn session_for(
        self: &Arc<Self>,
        wanted: SessionUse,
        id: Uuid,
        principal: &Principal,
    ) -> Option<(Arc<Self>, Arc<SessionPort>)> {
        self.candidates(wanted).find_map(|destination| {
            let port = destination.session(id, principal)?;
            Some((destination, port))
        })
    }

    /// Returns the destinations that may serve a client of this name: this one, and for what is open those that drain.
    pub(crate) fn candidates(self: &Arc<Self>, wanted: SessionUse) -> impl Iterator<Item = Arc<Self>> {
        let (present, draining) = match wanted {
            SessionUse::NewRequest => (self.is_present().then(|| Arc::clone(self)), Vec::new()),
            SessionUse::FollowUp => (Some(Arc::clone(self)), self.draining_namesakes()),
        };
        present.into_iter().chain(draining)
    }

    /// Returns the other destinations that have had this name and drain, newest first.
    pub(super) fn draining_namesakes(&self) -> Vec<Arc<Self>> {
        let mut named = self.around.draining.named(&self.name);
        named.retain(|destination| !std::ptr::eq(&**destination, self));
        named
    }

    /// Returns whether no reload has removed or replaced it.
    pub(crate) fn is_present(&self) -> bool {
        match self.closing.get() {
            None | Some(Closing::Shutdown) => true,
            Some(Closing::Replaced | Closing::Removed) => false,
        }
    }

    /// Whether a client may still come back for an answer that it has not read.
    pub(crate) fn has_unread_answers(&self) -> bool {
        let ports: Vec<Arc<SessionPort>> = self.sessions().values().cloned().collect();
        ports.iter().any(|port| port.has_unread_answers())
    }

    /// From now on nobody new is let in. Calls that run may finish; those that wait for a server to take them are
    /// refused, since they would lose only time here.
    pub(crate) fn retire(&self, why: Closing) {
        self.close_door(why);
        self.upstream.retire();
    }

    pub(super) fn close_door(&self, why: Closing) {
        // The first reason is the one that holds.
        let _ = self.closing.set(why);
    }

    /// Whether somebody new may come in. What was found before a reload may be gone after it.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.upstream.broken().is_some() {
            return Err(Refusal::BrokenDestination);
        }
        match self.closing.get() {
            Some(why) => Err(why.refusal()),
            None => Ok(()),
        }
    }
}
