//! The streams of the old transport: opened before their session, read until they break.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::eviction;
use protocol::exchange::Principal;
use protocol::time::Moment;
use uuid::Uuid;

use crate::reply::Refusal;
use crate::session_handle::SessionHandle;

/// Messages that may wait on a stream that has no session: refusals, and the answer to
/// `initialize`.
const MAX_EARLY: usize = 64;

/// The open streams of a destination.
#[derive(Debug, Default)]
pub(crate) struct OldStreams {
    streams: Mutex<HashMap<Uuid, Arc<OldStream>>>,
}

impl OldStreams {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Arc<OldStream>>> {
        self.streams.lock()
    }

    /// Opens a stream. At the limit, one whose client never sent a message is evicted.
    pub(crate) fn open(
        &self,
        principal: Principal,
        now: Moment,
        limit: usize,
    ) -> Result<Arc<OldStream>, Refusal> {
        let stream = Arc::new(OldStream {
            id: Uuid::new_v4(),
            principal,
            opened: now,
            state: Mutex::default(),
        });
        loop {
            let open: Vec<Arc<OldStream>> = {
                let mut streams = self.lock();
                if streams.len() < limit {
                    streams.insert(stream.id, Arc::clone(&stream));
                    return Ok(stream);
                }
                streams.values().cloned().collect()
            };
            let silent = open.iter().filter(|stream| stream.is_silent());
            let silent = eviction::silent_stream_to_end(now, silent.map(|stream| (stream, stream.opened)))
                .ok_or(Refusal::TooManySessions { limit })?;
            // If it has a session by now, or another thread takes its place, the search goes on.
            if silent.end_if_silent() {
                self.lock().remove(&silent.id);
            }
        }
    }

    /// Returns the stream with this id, if it is this principal's.
    pub(crate) fn find(&self, id: Uuid, principal: &Principal) -> Option<Arc<OldStream>> {
        self.lock()
            .get(&id)
            .filter(|stream| stream.principal == *principal)
            .cloned()
    }

    pub(crate) fn remove(&self, id: Uuid) {
        self.lock().remove(&id);
    }

    /// Ends those streams of these principals that have no session; the others end with theirs.
    pub(crate) fn end_of(&self, leaves: impl Fn(&str) -> bool) {
        let streams: Vec<Arc<OldStream>> = self.lock().values().cloned().collect();
        let silent = streams.iter().filter(|stream| stream.is_silent());
        for stream in silent.filter(|stream| leaves(stream.principal.as_str())) {
            stream.end_if_silent();
        }
    }
}

/// One client's stream.
#[derive(Debug)]
pub(crate) struct OldStream {
    pub(crate) id: Uuid,
    pub(crate) principal: Principal,
    pub(crate) opened: Moment,
    state: Mutex<OldStreamState>,
}

#[derive(Debug, Default)]
struct OldStreamState {
    stage: Stage,
    /// The messages that arrived before there was a session.
    early: VecDeque<Bytes>,
    /// The task that sends the stream waits for one of the two.
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
enum Stage {
    /// The client has sent no `initialize` yet.
    #[default]
    Silent,
    /// The session is there; its events wait for the answer to `initialize`.
    Initializing(Arc<SessionHandle>),
    /// The events of the session are the events of the stream.
    Reading(Arc<SessionHandle>),
    Ended,
}

impl OldStream {
    fn lock(&self) -> MutexGuard<'_, OldStreamState> {
        self.state.lock()
    }

    /// Changes the state and wakes the task that sends the stream.
    fn change<T>(&self, change: impl FnOnce(&mut OldStreamState) -> T) -> T {
        let (changed, waker) = {
            let mut state = self.lock();
            (change(&mut state), state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        changed
    }

    fn is_silent(&self) -> bool {
        matches!(self.lock().stage, Stage::Silent)
    }

    /// Returns the session of this stream.
    pub(crate) fn handle(&self) -> Option<Arc<SessionHandle>> {
        match &self.lock().stage {
            Stage::Initializing(handle) | Stage::Reading(handle) => Some(Arc::clone(handle)),
            Stage::Silent | Stage::Ended => None,
        }
    }

    /// Sets the session of the stream. Returns false if it has one, or has ended.
    pub(crate) fn attach(&self, handle: &Arc<SessionHandle>) -> bool {
        let mut state = self.lock();
        match state.stage {
            Stage::Silent => {
                state.stage = Stage::Initializing(Arc::clone(handle));
                true
            }
            Stage::Initializing(_) | Stage::Reading(_) | Stage::Ended => false,
        }
    }

    /// The server refused the client's `initialize`; the client may send another.
    pub(crate) fn detach(&self) {
        let mut state = self.lock();
        match state.stage {
            Stage::Initializing(_) => state.stage = Stage::Silent,
            Stage::Silent | Stage::Reading(_) | Stage::Ended => {}
        }
    }

    /// From now on the events of the session are sent.
    pub(crate) fn begin_reading(&self, handle: &Arc<SessionHandle>) {
        self.change(|state| match state.stage {
            Stage::Initializing(_) => state.stage = Stage::Reading(Arc::clone(handle)),
            Stage::Silent | Stage::Reading(_) | Stage::Ended => {}
        });
    }

    /// Sends a message to the client. Returns false if it can no longer be sent.
    pub(crate) fn send(&self, data: &Bytes) -> bool {
        enum SendOutcome {
            InTheSession(Arc<SessionHandle>),
            Early,
            TooLate,
        }
        let sent = self.change(|state| match &state.stage {
            Stage::Reading(handle) => SendOutcome::InTheSession(Arc::clone(handle)),
            Stage::Silent | Stage::Initializing(_) if state.early.len() < MAX_EARLY => {
                state.early.push_back(data.clone());
                SendOutcome::Early
            }
            Stage::Silent | Stage::Initializing(_) | Stage::Ended => SendOutcome::TooLate,
        });
        match sent {
            SendOutcome::InTheSession(handle) => {
                handle.send(data);
                true
            }
            SendOutcome::Early => true,
            SendOutcome::TooLate => false,
        }
    }

    /// Returns what the client is to be sent next; the waker is called when there may be more.
    pub(crate) fn poll_next(&self, waker: &Waker) -> OldStreamStep {
        let mut state = self.lock();
        if !state.early.is_empty() {
            return OldStreamStep::Messages(std::mem::take(&mut state.early));
        }
        match &state.stage {
            Stage::Reading(handle) => OldStreamStep::Session(Arc::clone(handle)),
            Stage::Ended => OldStreamStep::Ended,
            Stage::Silent | Stage::Initializing(_) => {
                state.waker = Some(waker.clone());
                OldStreamStep::Nothing
            }
        }
    }

    /// Ends the stream if its client has sent no message. Returns whether it did.
    fn end_if_silent(&self) -> bool {
        self.change(|state| match state.stage {
            Stage::Silent => {
                state.stage = Stage::Ended;
                true
            }
            Stage::Initializing(_) | Stage::Reading(_) | Stage::Ended => false,
        })
    }

    /// Ends the stream. Returns the session that ends with it.
    pub(crate) fn end(&self) -> Option<Arc<SessionHandle>> {
        self.change(|state| match std::mem::replace(&mut state.stage, Stage::Ended) {
            Stage::Initializing(handle) | Stage::Reading(handle) => Some(handle),
            Stage::Silent | Stage::Ended => None,
        })
    }
}

/// What is to be sent on a stream.
pub(crate) enum OldStreamStep {
    /// Messages that came before the session was read.
    Messages(VecDeque<Bytes>),
    /// The events of the session, from now on.
    Session(Arc<SessionHandle>),
    Nothing,
    Ended,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_that_open_streams_keep_to_the_limit() {
        const LIMIT: usize = 3;
        let (streams, minutes) = (OldStreams::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        // Long after those that are open, so that these may be ended.
                        let passed = minutes.fetch_add(2, Ordering::Relaxed);
                        let now = Moment::START.after(Duration::from_secs(60 * passed));
                        // Refused where another thread was here with a later time.
                        let _ = streams.open(Principal::anonymous(), now, LIMIT);
                        let open = streams.lock().len();
                        assert!(open <= LIMIT, "{open} streams, {LIMIT} are allowed");
                    }
                });
            }
        });
    }
}
