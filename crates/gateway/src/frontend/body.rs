//! Response bodies: whole ones, and event streams that are read from a session as they are sent.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use protocol::exchange::Principal;
use protocol::message::Written;
use protocol::session::{Reader, Reading};
use tokio::task::AbortHandle;

use super::forwarding::ForwardedBody;
use super::http_sse::OldEvents;
use super::keep_alive::KeepAlive;
use super::modern::ModernRequestEvents;
use super::page::PageEvents;
use crate::buffered::{Buffered, Hold, Piece, SMALL};
use crate::guard::connections::InFlight;
use crate::guard::limits::Permit;
use crate::metrics::StreamKind;
use crate::session_handle::SessionHandle;
use crate::trace::OpenSpan;

/// A response body.
#[derive(Debug)]
pub(crate) struct Body {
    kind: Kind,
    /// The span of its request, which ends with it.
    span: Option<Box<OpenSpan>>,
    /// The request that it answers, which is in flight on its connection for as long.
    in_flight: Option<InFlight<AbortHandle>>,
    /// What counts its bytes, if there may be many.
    counted: Option<Box<Counted>>,
}

/// How the bytes of a body are counted while they wait to be sent.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) buffered: Arc<Buffered>,
    pub(crate) principal: Principal,
    /// What is closed when they wait too long.
    pub(crate) connection: AbortHandle,
}

impl Counted {
    fn hold(&self, bytes: usize) -> Arc<Hold> {
        self.buffered
            .hold_answer(self.principal.clone(), bytes, self.connection.clone())
    }
}

/// The kind of a body. A response is moved often, and each connection has memory for one: large and
/// rare kinds are boxed.
#[derive(Debug)]
enum Kind {
    /// All that there is, or what is left of it.
    Whole(Bytes),
    Pieces(VecDeque<Bytes>),
    /// The same, where what is left is counted until it is sent.
    Held(VecDeque<Bytes>, Arc<Hold>),
    Events(Box<Events>),
    ModernRequest(Box<ModernRequestEvents>),
    Old(Box<OldEvents>),
    /// What a page is shown.
    Page(Box<PageEvents>),
    /// The response of another replica.
    Forwarded(Box<ForwardedBody>),
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::of(Kind::Whole(Bytes::new()))
    }

    pub(crate) fn full(written: Written) -> Self {
        Self::of(match written {
            Written::Whole(bytes) => Kind::Whole(bytes),
            Written::Cut { head, new, tail } => {
                let mut pieces = VecDeque::from([head, new, tail]);
                pieces.retain(|piece| !piece.is_empty());
                Kind::Pieces(pieces)
            }
        })
    }

    pub(crate) fn events(events: Events) -> Self {
        Self::of(Kind::Events(Box::new(events)))
    }

    pub(crate) fn old(events: OldEvents) -> Self {
        Self::of(Kind::Old(Box::new(events)))
    }

    pub(crate) fn modern_request(events: ModernRequestEvents) -> Self {
        Self::of(Kind::ModernRequest(Box::new(events)))
    }

    pub(super) fn page(events: PageEvents) -> Self {
        Self::of(Kind::Page(Box::new(events)))
    }

    pub(super) fn forwarded(body: ForwardedBody) -> Self {
        Self::of(Kind::Forwarded(Box::new(body)))
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            span: None,
            in_flight: None,
            counted: None,
        }
    }

    /// Counts the bytes of a body that is large or has no end. What is small is left alone.
    pub(crate) fn count(&mut self, counted: impl FnOnce() -> Option<Counted>) {
        let large = match &self.kind {
            Kind::Whole(_) | Kind::Pieces(_) => {
                let bytes = self.bytes_left();
                if bytes <= SMALL {
                    return;
                }
                Some(bytes)
            }
            Kind::Held(..) => return,
            Kind::Events(_) | Kind::ModernRequest(_) | Kind::Old(_) | Kind::Page(_) | Kind::Forwarded(_) => {
                None
            }
        };
        let Some(counted) = counted() else {
            return;
        };
        let Some(bytes) = large else {
            self.counted = Some(Box::new(counted));
            return;
        };
        let hold = counted.hold(bytes);
        let pieces = match std::mem::replace(&mut self.kind, Kind::Whole(Bytes::new())) {
            Kind::Whole(bytes) => VecDeque::from([bytes]),
            Kind::Pieces(pieces) => pieces,
            other => {
                self.kind = other;
                return;
            }
        };
        self.kind = Kind::Held(pieces, hold);
    }

    fn bytes_left(&self) -> usize {
        match &self.kind {
            Kind::Whole(bytes) => bytes.len(),
            Kind::Pieces(pieces) | Kind::Held(pieces, _) => pieces.iter().map(Bytes::len).sum(),
            Kind::Events(_) | Kind::ModernRequest(_) | Kind::Old(_) | Kind::Page(_) | Kind::Forwarded(_) => 0,
        }
    }

    /// Keeps the request in flight until the last byte.
    pub(crate) fn keep(&mut self, in_flight: InFlight<AbortHandle>) {
        self.in_flight = Some(in_flight);
    }

    /// Ends a span with the last byte.
    pub(crate) fn carry(&mut self, span: Box<OpenSpan>) {
        self.span = Some(span);
    }
}

/// A stream of a session, for as long as its connection lasts.
pub(crate) struct Events {
    handle: Arc<SessionHandle>,
    reader: Reader,
    kind: StreamKind,
    /// Its place among all streams, where it has one.
    _permit: Option<Permit>,
    ended: bool,
    time: KeepAlive,
    /// What to do when the connection is gone.
    on_close: Option<Box<dyn FnOnce(u64) + Send + Sync>>,
    sent: u64,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// Returns the rest of a call's answer.
    pub(crate) fn answer(handle: Arc<SessionHandle>, reader: Reader) -> Self {
        Self::new(handle, reader, StreamKind::Answer, None)
    }

    /// Returns a stream that the client opened to listen.
    pub(crate) fn notices(handle: Arc<SessionHandle>, reader: Reader, permit: Permit) -> Self {
        Self::new(handle, reader, StreamKind::Notices, Some(permit))
    }

    /// Returns all events of a session as one stream, whose permit its session holds.
    pub(crate) fn everything(handle: Arc<SessionHandle>, reader: Reader) -> Self {
        Self::new(handle, reader, StreamKind::Notices, None)
    }

    fn new(handle: Arc<SessionHandle>, reader: Reader, kind: StreamKind, permit: Option<Permit>) -> Self {
        handle.metrics.stream_opened(kind);
        Self {
            handle,
            reader,
            kind,
            _permit: permit,
            ended: false,
            time: KeepAlive::default(),
            on_close: None,
            sent: 0,
        }
    }

    /// `report` learns how many bytes were sent when the stream closes.
    pub(crate) fn on_close(mut self, report: impl FnOnce(u64) + Send + Sync + 'static) -> Self {
        self.on_close = Some(Box::new(report));
        self
    }

    /// Ends after this time, if any; a client that comes back goes on where it was.
    pub(crate) fn for_at_most(mut self, time: Option<Duration>) -> Self {
        self.time = KeepAlive::at_most(time);
        self
    }

    pub(super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.ended |= self.time.is_up(context);
        if self.ended {
            return Poll::Ready(None);
        }
        let mut out = BytesMut::new();
        match self.handle.read(self.reader, &mut out, context.waker()) {
            Reading::Open => {}
            Reading::Ended => self.ended = true,
        }
        if !out.is_empty() {
            self.time.note_sent();
            self.sent += out.len() as u64;
            self.handle
                .metrics
                .bytes_sent
                .fetch_add(out.len() as u64, Relaxed);
            return Poll::Ready(Some(out.freeze()));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        self.time.poll_keep_alive(context).map(Some)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.handle.handle_disconnect(self.reader);
        self.handle.metrics.stream_closed(self.kind);
        if let Some(report) = self.on_close.take() {
            report(self.sent);
        }
    }
}

impl http_body::Body for Body {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        let this = &mut *self;
        let mut hold = None;
        let chunk = match &mut this.kind {
            Kind::Whole(bytes) => {
                let all = std::mem::take(bytes);
                Poll::Ready((!all.is_empty()).then_some(all))
            }
            Kind::Pieces(pieces) => Poll::Ready(pieces.pop_front()),
            Kind::Held(pieces, held) => {
                hold = Some(Arc::clone(held));
                Poll::Ready(pieces.pop_front())
            }
            Kind::Events(events) => events.poll_chunk(context),
            Kind::ModernRequest(events) => events.poll_chunk(context),
            Kind::Old(events) => events.poll_chunk(context),
            Kind::Page(events) => events.poll_chunk(context),
            Kind::Forwarded(body) => body.poll_chunk(context),
        };
        if let (Poll::Ready(Some(bytes)), Some(counted)) = (&chunk, &this.counted)
            && bytes.len() > SMALL
        {
            hold = Some(counted.hold(bytes.len()));
        }
        chunk.map(|chunk| chunk.map(|bytes| Ok(Frame::data(Piece::new(bytes, hold)))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Pieces(pieces) | Kind::Held(pieces, _) => pieces.is_empty(),
            Kind::Events(events) => events.ended,
            Kind::ModernRequest(events) => events.is_ended(),
            Kind::Old(events) => events.is_ended(),
            Kind::Page(events) => events.is_ended(),
            Kind::Forwarded(body) => body.is_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(_) | Kind::Pieces(_) | Kind::Held(..) => {
                SizeHint::with_exact(self.bytes_left() as u64)
            }
            Kind::Events(_) | Kind::ModernRequest(_) | Kind::Old(_) | Kind::Page(_) | Kind::Forwarded(_) => {
                SizeHint::default()
            }
        }
    }
}
