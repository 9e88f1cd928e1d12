//! The streams of the old transport: opened before their session, read until they break.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use protocol::exchange::Principal;
use protocol::time::Moment;
use protocol::wire::sse;
use uuid::Uuid;

use super::super::body::Events;
use super::super::stream_time::StreamTime;
use crate::audit::{AuditRecord, Outcome, Whose};
use crate::clock::Clock;
use crate::destination::Destination;
use crate::guard::limits::Permit;
use crate::reply::Refusal;
use crate::session_port::{Audited, SessionPort};

/// A stream on which nothing was said for this long may have to make room for a new one.
const MAKES_ROOM: Duration = Duration::from_secs(60);
/// Messages that may wait on a stream that has no session: refusals, and the answer to `initialize`.
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

    /// Opens a stream. At the limit, one whose client never said anything makes room.
    pub(super) fn open(
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
        let open: Vec<Arc<OldStream>> = {
            let mut streams = self.lock();
            if streams.len() < limit {
                streams.insert(stream.id, Arc::clone(&stream));
                return Ok(stream);
            }
            streams.values().cloned().collect()
        };
        let silent = open
            .iter()
            .filter(|stream| stream.is_silent() && now.since(stream.opened) > MAKES_ROOM)
            .min_by_key(|stream| stream.opened)
            .ok_or(Refusal::TooManySessions { limit })?;
        {
            let mut streams = self.lock();
            streams.remove(&silent.id);
            streams.insert(stream.id, Arc::clone(&stream));
        }
        silent.end();
        Ok(stream)
    }

    /// The stream with this id, if it is this principal's.
    pub(super) fn find(&self, id: Uuid, principal: &Principal) -> Option<Arc<OldStream>> {
        self.lock()
            .get(&id)
            .filter(|stream| stream.principal == *principal)
            .cloned()
    }

    /// Ends those streams of these principals that have no session; the others end with theirs.
    pub(crate) fn end_of(&self, leaves: impl Fn(&str) -> bool) {
        let streams: Vec<Arc<OldStream>> = self.lock().values().cloned().collect();
        let silent = streams.iter().filter(|stream| stream.is_silent());
        for stream in silent.filter(|stream| leaves(stream.principal.as_str())) {
            stream.end();
        }
    }
}

/// One client's stream.
#[derive(Debug)]
pub(super) struct OldStream {
    id: Uuid,
    principal: Principal,
    opened: Moment,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// What was said before there was a session to say it in.
    early: VecDeque<Bytes>,
    /// Whoever sends the stream waits for one of the two.
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
enum Stage {
    /// Nobody has introduced himself.
    #[default]
    Silent,
    /// The session is there; its events wait for the answer to the introduction.
    Introducing(Arc<SessionPort>),
    /// The events of the session are the events of the stream.
    Reading(Arc<SessionPort>),
    Ended,
}

impl OldStream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Changes the state and wakes whoever sends it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
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

    /// The session of this stream.
    pub(super) fn port(&self) -> Option<Arc<SessionPort>> {
        match &self.lock().stage {
            Stage::Introducing(port) | Stage::Reading(port) => Some(Arc::clone(port)),
            Stage::Silent | Stage::Ended => None,
        }
    }

    /// Gives the stream its session. False: it has one, or has ended.
    pub(super) fn attach(&self, port: &Arc<SessionPort>) -> bool {
        let mut state = self.lock();
        match state.stage {
            Stage::Silent => {
                state.stage = Stage::Introducing(Arc::clone(port));
                true
            }
            Stage::Introducing(_) | Stage::Reading(_) | Stage::Ended => false,
        }
    }

    /// The server would not have this client, who may introduce himself again.
    pub(super) fn detach(&self) {
        let mut state = self.lock();
        match state.stage {
            Stage::Introducing(_) => state.stage = Stage::Silent,
            Stage::Silent | Stage::Reading(_) | Stage::Ended => {}
        }
    }

    /// From now on the events of the session are sent.
    pub(super) fn begin_reading(&self, port: &Arc<SessionPort>) {
        self.change(|state| match state.stage {
            Stage::Introducing(_) => state.stage = Stage::Reading(Arc::clone(port)),
            Stage::Silent | Stage::Reading(_) | Stage::Ended => {}
        });
    }

    /// Says something to the client. False: it can no longer be said.
    pub(super) fn say(&self, data: &Bytes) -> bool {
        enum Said {
            InTheSession(Arc<SessionPort>),
            Early,
            TooLate,
        }
        let said = self.change(|state| match &state.stage {
            Stage::Reading(port) => Said::InTheSession(Arc::clone(port)),
            Stage::Silent | Stage::Introducing(_) if state.early.len() < MAX_EARLY => {
                state.early.push_back(data.clone());
                Said::Early
            }
            Stage::Silent | Stage::Introducing(_) | Stage::Ended => Said::TooLate,
        });
        match said {
            Said::InTheSession(port) => {
                port.say(data);
                true
            }
            Said::Early => true,
            Said::TooLate => false,
        }
    }

    /// The stream is over. Gives the session that is over with it.
    pub(super) fn end(&self) -> Option<Arc<SessionPort>> {
        self.change(|state| match std::mem::replace(&mut state.stage, Stage::Ended) {
            Stage::Introducing(port) | Stage::Reading(port) => Some(port),
            Stage::Silent | Stage::Ended => None,
        })
    }
}

/// The body of the answer that is the stream.
pub(crate) struct OldEvents {
    destination: Arc<Destination>,
    stream: Arc<OldStream>,
    clock: Clock,
    /// The path of `public_url`, without a slash at its end.
    public_path: String,
    /// Where to post has been said.
    begun: bool,
    /// The session's events, once they may be sent.
    events: Option<Events>,
    ended: bool,
    time: StreamTime,
    sent: u64,
    /// Its places among all streams and all sessions.
    _places: [Permit; 2],
}

impl std::fmt::Debug for OldEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OldEvents").finish_non_exhaustive()
    }
}

impl OldEvents {
    pub(super) fn new(
        destination: Arc<Destination>,
        stream: Arc<OldStream>,
        clock: Clock,
        places: [Permit; 2],
    ) -> Self {
        Self {
            destination,
            stream,
            clock,
            public_path: String::new(),
            begun: false,
            events: None,
            ended: false,
            time: StreamTime::default(),
            sent: 0,
            _places: places,
        }
    }

    /// Names the endpoint below this path, which a proxy in front takes away.
    pub(super) fn behind_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.public_path);
        self
    }

    /// Ends after this time, if any; a client that comes back shows something better.
    pub(super) fn for_at_most(mut self, time: Option<Duration>) -> Self {
        self.time = StreamTime::at_most(time);
        self
    }

    pub(in super::super) fn is_ended(&self) -> bool {
        self.ended
    }

    pub(in super::super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let chunk = self.poll_any(context);
        match &chunk {
            Poll::Ready(Some(bytes)) => self.sent += bytes.len() as u64,
            Poll::Ready(None) => self.ended = true,
            Poll::Pending => {}
        }
        chunk
    }

    fn poll_any(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.ended || self.time.is_up(context) {
            return Poll::Ready(None);
        }
        if !self.begun {
            self.begun = true;
            return Poll::Ready(Some(self.endpoint()));
        }
        if let Some(events) = &mut self.events {
            return events.poll_chunk(context);
        }
        let mut out = BytesMut::new();
        let port = {
            let mut state = self.stream.lock();
            for data in state.early.drain(..) {
                sse::write_message(&mut out, None, &data);
            }
            match &state.stage {
                Stage::Reading(port) => Some(Arc::clone(port)),
                Stage::Ended if out.is_empty() => return Poll::Ready(None),
                Stage::Silent | Stage::Introducing(_) | Stage::Ended => {
                    state.waker = Some(context.waker().clone());
                    None
                }
            }
        };
        if !out.is_empty() {
            self.time.spoke();
            return Poll::Ready(Some(out.freeze()));
        }
        if let Some(port) = port {
            let Ok(reader) = port.listen_to_all() else {
                return Poll::Ready(None);
            };
            let events = self.events.insert(Events::everything(port, reader));
            return events.poll_chunk(context);
        }
        self.time.poll_keep_alive(context).map(Some)
    }

    /// The first event says where to post, relative to where the client is: same origin by construction.
    fn endpoint(&self) -> Bytes {
        let mut out = BytesMut::new();
        let (base, name) = (&self.public_path, &self.destination.name);
        let place = format!("{base}/{name}/message?sessionId={}", self.stream.id);
        sse::write_event(&mut out, None, Some("endpoint"), place.as_bytes());
        out.freeze()
    }
}

/// The stream's end is the session's end.
impl Drop for OldEvents {
    fn drop(&mut self) {
        self.destination.old_streams.lock().remove(&self.stream.id);
        let latency = self.clock.now().since(self.stream.opened);
        match self.stream.end() {
            Some(port) => {
                self.destination.close(&port);
                port.write_record(&Audited {
                    message: None,
                    reason: None,
                    http_method: "GET",
                    status: 200,
                    outcome: Outcome::Closed,
                    latency,
                    response: None,
                    response_bytes: self.sent,
                });
            }
            None => {
                self.destination.audit().record(&AuditRecord {
                    whose: Whose::These {
                        destination: &self.destination.name,
                        session: None,
                        principal: self.stream.principal.as_str(),
                    },
                    http_method: "GET",
                    mcp_method: None,
                    tool: None,
                    rpc_id: None,
                    status_code: 200,
                    outcome: Outcome::Closed,
                    latency,
                    request_bytes: 0,
                    response_bytes: self.sent,
                    request_body: None,
                    response_body: None,
                });
            }
        }
    }
}
