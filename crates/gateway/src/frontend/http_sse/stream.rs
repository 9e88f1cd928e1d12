//! The bodies of the old transport's streams.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::wire::sse;

use super::super::body::Events;
use super::super::keep_alive::KeepAlive;
use crate::clock::Clock;
use crate::endpoint::{Endpoint, OldStream, OldStreamStep};
use crate::guard::limits::Permit;
use crate::record::{Record, Subject};

/// The body of the answer that is the stream.
pub(crate) struct OldEvents {
    destination: Arc<Endpoint>,
    stream: Arc<OldStream>,
    clock: Clock,
    /// The path of `public_url`, without a slash at its end.
    public_path: String,
    /// The replica that other ones send the client's messages to.
    process: Option<u64>,
    /// The `endpoint` event has been sent.
    begun: bool,
    /// The session's events, once they may be sent.
    events: Option<Events>,
    ended: bool,
    time: KeepAlive,
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
        destination: Arc<Endpoint>,
        stream: Arc<OldStream>,
        clock: Clock,
        places: [Permit; 2],
    ) -> Self {
        Self {
            destination,
            stream,
            clock,
            public_path: String::new(),
            process: None,
            begun: false,
            events: None,
            ended: false,
            time: KeepAlive::default(),
            sent: 0,
            _places: places,
        }
    }

    /// Names the endpoint below this path, which a proxy in front takes away.
    pub(super) fn behind_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.public_path);
        self
    }

    /// Names the replica that has the stream, where there are others.
    pub(super) fn on_replica(mut self, process: Option<u64>) -> Self {
        self.process = process;
        self
    }

    /// Ends after this time, if any; a client that comes back shows something better.
    pub(super) fn for_at_most(mut self, time: Option<Duration>) -> Self {
        self.time = KeepAlive::at_most(time);
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
        let handle = match self.stream.poll_next(context.waker()) {
            OldStreamStep::Messages(messages) => {
                let mut out = BytesMut::new();
                for data in messages {
                    sse::write_message(&mut out, None, &data);
                }
                self.time.note_sent();
                return Poll::Ready(Some(out.freeze()));
            }
            OldStreamStep::Ended => return Poll::Ready(None),
            OldStreamStep::Session(handle) => Some(handle),
            OldStreamStep::Nothing => None,
        };
        if let Some(handle) = handle {
            let Ok(reader) = handle.listen_to_all() else {
                return Poll::Ready(None);
            };
            let events = self.events.insert(Events::everything(handle, reader));
            return events.poll_chunk(context);
        }
        self.time.poll_keep_alive(context).map(Some)
    }

    /// Returns the `endpoint` event, relative to where the client is: same origin by construction.
    fn endpoint(&self) -> Bytes {
        let mut out = BytesMut::new();
        let (base, name) = (&self.public_path, &self.destination.name);
        let mut place = format!("{base}/{name}/message?sessionId={}", self.stream.id);
        if let Some(process) = self.process {
            place.push_str(&format!("&replica={process:016x}"));
        }
        sse::write_event(&mut out, None, Some("endpoint"), place.as_bytes());
        out.freeze()
    }
}

/// The stream's end is the session's end.
impl Drop for OldEvents {
    fn drop(&mut self) {
        self.destination.old_streams.remove(self.stream.id);
        let latency = self.clock.now().since(self.stream.opened);
        let record = Record::of_closing("GET", 200, latency, self.sent);
        match self.stream.end() {
            Some(handle) => {
                self.destination.close(&handle);
                handle.record(&record);
            }
            None => {
                let subject = Subject {
                    destination: &self.destination.name,
                    session: None,
                    principal: self.stream.principal.as_str(),
                    composed: None,
                    era: None,
                    metrics: &*self.destination.metrics,
                    observed: None,
                };
                self.destination.recorder().record(&subject, &record);
            }
        }
    }
}
