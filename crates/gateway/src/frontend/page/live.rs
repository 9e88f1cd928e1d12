//! The events of a page: the state as it changes, and calls as they end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior};

use super::PageRefusal;
use super::access::{Right, Visitor};
use crate::ended_calls::{Cursor, EndedCalls, PagePlace, Unread};
use crate::frontend::body::Body;
use crate::frontend::respond;
use crate::gateway::Gateway;
use crate::readers::Admitted;
use crate::status::{Detail, Status};

/// The time between two looks: so often at most something is sent.
const LOOK: Duration = Duration::from_millis(250);
/// The looks between two signs of life.
const BEAT: u32 = 60;
/// A browser that lost its stream comes back after this time, in milliseconds.
const BEGINNING: &str = "retry: 1000\n\n";

/// The body of a page's stream.
pub(crate) struct PageEvents {
    gateway: Arc<Gateway>,
    calls: Arc<EndedCalls>,
    cursor: Cursor,
    /// The stream lasts as long as the right to it.
    right: Right,
    /// The number of the state that was sent last.
    version: u64,
    interval: Interval,
    /// Looks since something was sent.
    silent: u32,
    is_new: bool,
    is_over: bool,
    drain: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: (Admitted, PagePlace),
}

impl std::fmt::Debug for PageEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageEvents")
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

/// Returns the events of a page, if there is room for another reader.
pub(super) fn events(
    gateway: &Arc<Gateway>,
    visitor: &Visitor,
    connection: Option<AbortHandle>,
) -> Result<Response<Body>, PageRefusal> {
    let place = connection.and_then(|connection| gateway.readers.admit(connection));
    let Some(place) = place else {
        let text = "too many readers: close another page, `rialto top` or `rialto tap` first";
        return Err(PageRefusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_readers",
            text,
        ));
    };
    let (calls, page) = gateway.shared.recorder.open_page();
    let mut interval = tokio::time::interval(LOOK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let draining = Arc::clone(gateway);
    Ok(respond::events(Body::page(PageEvents {
        gateway: Arc::clone(gateway),
        calls,
        cursor: Cursor::default(),
        right: visitor.right(),
        version: 0,
        interval,
        silent: 0,
        is_new: true,
        is_over: false,
        drain: Box::pin(async move { draining.drain_began().await }),
        _place: (place, page),
    })))
}

impl PageEvents {
    /// Returns the next bytes; `None` at the end.
    pub(crate) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.drain.as_mut().poll(context).is_ready() {
            // The last thing that a page learns is that this gateway ends.
            self.is_over = true;
            let state = state_event(&self.gateway);
            return Poll::Ready(Some(Bytes::from(state)));
        }
        while self.interval.poll_tick(context).is_ready() {
            if !self.right.holds(&self.gateway.config(), SystemTime::now()) {
                // A browser comes back, and is judged as any visitor.
                self.is_over = true;
                return Poll::Ready(None);
            }
            let chunk = self.look();
            if !chunk.is_empty() {
                self.silent = 0;
                return Poll::Ready(Some(chunk));
            }
            self.silent += 1;
            if self.silent >= BEAT {
                self.silent = 0;
                return Poll::Ready(Some(Bytes::from_static(b":\n\n")));
            }
        }
        Poll::Pending
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_over
    }

    /// Returns what is new since the last look.
    fn look(&mut self) -> Bytes {
        let mut chunk = BytesMut::new();
        if self.is_new {
            chunk.extend_from_slice(BEGINNING.as_bytes());
        }
        let gateway = &self.gateway;
        let now = gateway.clock.now();
        let (version, state) = gateway.shown_state.event(
            now,
            || outline(&gateway.status(Detail::Sums)),
            || state_event(gateway),
        );
        if version != self.version {
            self.version = version;
            chunk.extend_from_slice(&state);
        }
        if self.is_new {
            let kept = self.calls.replay(&mut self.cursor);
            write_calls(&mut chunk, &kept, true);
        } else if let Some(unread) = self.calls.read(&mut self.cursor) {
            write_calls(&mut chunk, &unread, false);
        }
        self.is_new = false;
        chunk.freeze()
    }
}

/// Returns a text that is another one whenever something has changed that pages show.
fn outline(status: &Status) -> String {
    let ended: Vec<u64> = status.destinations.values().map(|one| one.ended).collect();
    format!("{}{ended:?}", status.outline())
}

fn state_event(gateway: &Gateway) -> String {
    format!("event: state\ndata: {}\n\n", gateway.snapshot(Detail::Sums))
}

/// Writes ended calls as one event. Their lines are JSON already.
fn write_calls(chunk: &mut BytesMut, unread: &Unread, is_replay: bool) {
    chunk.extend_from_slice(b"event: calls\ndata: {\"calls\":[");
    for (at, line) in unread.lines.iter().enumerate() {
        if at > 0 {
            chunk.extend_from_slice(b",");
        }
        chunk.extend_from_slice(line);
    }
    let rest = format!(
        "],\"skipped\":{},\"since_ms\":{},\"replay\":{is_replay}}}\n\n",
        unread.skipped,
        unread.since.as_millis()
    );
    chunk.extend_from_slice(rest.as_bytes());
}
