//! The end of a destination: which requests it still accepts, which waiting ones it ends, and which
//! destination takes its place. [`Endpoint::stop`] ends its sessions and children.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use protocol::exchange::Principal;
use uuid::Uuid;

use super::Endpoint;
use crate::reply::Refusal;
use crate::session_handle::SessionHandle;

/// Why a destination comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// A reload has put another in its place.
    Replaced,
    /// The configuration no longer has it.
    Removed,
    Shutdown,
}

impl CloseReason {
    /// Returns the refusal of requests that come too late.
    fn refusal(self) -> Refusal {
        match self {
            Self::Replaced => Refusal::Retired,
            Self::Removed => Refusal::UnknownPath,
            Self::Shutdown => Refusal::Draining,
        }
    }

    /// Returns what becomes of the sessions that are still open.
    pub(super) fn session_end(self) -> SessionEnd {
        match self {
            Self::Replaced | Self::Shutdown => SessionEnd::HandedOver,
            Self::Removed => SessionEnd::Final,
        }
    }

    /// Returns the error text of calls that it ends.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Replaced => "its configuration has changed",
            Self::Removed => "it is no longer configured",
            Self::Shutdown => "the gateway is shutting down",
        }
    }
}

/// Whether a session that ends here may go on elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionEnd {
    Final,
    /// Its record stays: another process, or the next endpoint of this name, may restore it.
    HandedOver,
    /// As `HandedOver`, but at once: open calls end with `owner_lost`, since they may have run.
    Lost,
    /// Another replica has it, and its record.
    Superseded,
}

/// The destinations that a reload has removed or replaced, while they come to their end: the one
/// list of them.
#[derive(Default)]
pub(crate) struct Draining(Mutex<Vec<Arc<Endpoint>>>);

impl std::fmt::Debug for Draining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Each of them holds this list.
        f.debug_struct("Draining").finish_non_exhaustive()
    }
}

impl Draining {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Endpoint>>> {
        self.0.lock()
    }

    pub(crate) fn add(&self, destination: &Arc<Endpoint>) {
        self.lock().push(Arc::clone(destination));
    }

    pub(crate) fn remove(&self, destination: &Arc<Endpoint>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, destination));
    }

    pub(crate) fn all(&self) -> Vec<Arc<Endpoint>> {
        self.lock().clone()
    }

    /// Returns those that had this name, newest first.
    pub(crate) fn named(&self, name: &str) -> Vec<Arc<Endpoint>> {
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

impl Endpoint {
    /// Returns the session with this id, if it is this principal's, and the destination that has
    /// it. What is open is also found at destinations that drain; a new request is not for them.
    pub(crate) fn session_for(
        self: &Arc<Self>,
        wanted: SessionUse,
        id: Uuid,
        principal: &Principal,
    ) -> Option<(Arc<Self>, Arc<SessionHandle>)> {
        self.candidates(wanted).find_map(|destination| {
            let handle = destination.session(id, principal)?;
            Some((destination, handle))
        })
    }

    /// Returns the destinations that may serve a client of this name: this one, and for what is
    /// open those that drain.
    pub(crate) fn candidates(self: &Arc<Self>, wanted: SessionUse) -> impl Iterator<Item = Arc<Self>> {
        let (present, draining) = match wanted {
            SessionUse::NewRequest => (self.is_present().then(|| Arc::clone(self)), Vec::new()),
            SessionUse::FollowUp => (Some(Arc::clone(self)), self.draining_namesakes()),
        };
        present.into_iter().chain(draining)
    }

    /// Returns the other destinations that have had this name and drain, newest first.
    pub(super) fn draining_namesakes(&self) -> Vec<Arc<Self>> {
        let mut named = self.shared.draining.named(&self.name);
        named.retain(|destination| !std::ptr::eq(&**destination, self));
        named
    }

    /// Returns whether no reload has removed or replaced it.
    pub(crate) fn is_present(&self) -> bool {
        match self.close_reason.get() {
            None | Some(CloseReason::Shutdown) => true,
            Some(CloseReason::Replaced | CloseReason::Removed) => false,
        }
    }

    /// Returns whether a client may still come back for an answer that it has not read.
    pub(crate) fn has_unread_answers(&self) -> bool {
        let handles: Vec<Arc<SessionHandle>> = self.sessions().values().cloned().collect();
        handles.iter().any(|handle| handle.has_unread_answers())
    }

    /// Hands over each session whose calls have ended and whose answers were read. Returns how many
    /// that were.
    pub(crate) fn hand_over_served(&self) -> usize {
        let handles: Vec<Arc<SessionHandle>> = self.sessions().values().cloned().collect();
        let mut served = handles;
        served.retain(|handle| handle.kept().is_some() && handle.end_if_served());
        for handle in &served {
            self.close_as(handle, SessionEnd::HandedOver);
        }
        served.len()
    }

    /// Returns whether the one server of the fleet has nothing more to do here.
    pub(crate) fn is_served(&self) -> bool {
        let is_kept = |handle: &Arc<SessionHandle>| handle.kept().is_some();
        self.upstream.open_calls() == 0 && !self.sessions().values().any(is_kept)
    }

    /// Accepts no new clients. Calls that run may finish; those that wait for a server are refused,
    /// since they would only lose time here.
    pub(crate) fn retire(&self, why: CloseReason) {
        self.stop_accepting(why);
        self.upstream.retire();
    }

    pub(super) fn stop_accepting(&self, why: CloseReason) {
        // The first reason is the one that holds.
        let _ = self.close_reason.set(why);
    }

    /// Checks whether new clients are accepted. An endpoint that was found before a reload may be
    /// gone after it.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.upstream.broken().is_some() {
            return Err(Refusal::BrokenDestination);
        }
        match self.close_reason.get() {
            Some(why) => Err(why.refusal()),
            None => Ok(()),
        }
    }
}
