//! The body of a response that lasts: the lines of a feed, changes of state, and signs of life.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

use crate::gateway::Gateway;
use crate::readers::FeedReader;
use crate::status::Detail;

/// The time between two looks at the state: so often at most a change is sent.
const LOOK: Duration = Duration::from_millis(250);
/// The time between two signs of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// What a sign of life looks like.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heartbeat {
    /// An empty line.
    Line,
    /// A comment in an event stream.
    Comment,
}

/// The state, as often as it changes.
pub(super) struct States {
    gateway: Arc<Gateway>,
    interval: Interval,
    /// What was sent last.
    outline: String,
}

/// The body.
pub(crate) struct FeedBody {
    first: Option<Bytes>,
    reader: Option<FeedReader>,
    states: Option<States>,
    heartbeat: Heartbeat,
    beat: Interval,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl States {
    pub(super) fn of(gateway: Arc<Gateway>) -> Self {
        let mut interval = tokio::time::interval(LOOK);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            gateway,
            interval,
            outline: String::new(),
        }
    }

    fn poll_change(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        while self.interval.poll_tick(context).is_ready() {
            let outline = self.gateway.status(Detail::Sums).outline();
            if outline != self.outline {
                self.outline = outline;
                let snapshot = self.gateway.snapshot(Detail::Sums);
                return Poll::Ready(Bytes::from(format!("event: state\ndata: {snapshot}\n\n")));
            }
        }
        Poll::Pending
    }
}

impl FeedBody {
    /// Returns a body that ends when all connections are closed.
    pub(super) fn new(heartbeat: Heartbeat, mut closing: watch::Receiver<bool>) -> Self {
        let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + HEARTBEAT, HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            first: None,
            reader: None,
            states: None,
            heartbeat,
            beat,
            closed: Box::pin(async move {
                // If the sender is gone, so is the gateway.
                let _ = closing.wait_for(|closing| *closing).await;
            }),
        }
    }

    pub(super) fn beginning(self, first: Bytes) -> Self {
        Self {
            first: Some(first),
            ..self
        }
    }

    pub(super) fn reading(self, reader: FeedReader) -> Self {
        Self {
            reader: Some(reader),
            ..self
        }
    }

    pub(super) fn with_states(self, states: States) -> Self {
        Self {
            states: Some(states),
            ..self
        }
    }

    /// Returns the next bytes; `None` at the end.
    pub(super) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if self.closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if let Some(states) = &mut self.states
            && let Poll::Ready(change) = states.poll_change(context)
        {
            return Poll::Ready(Some(change));
        }
        if let Some(reader) = &self.reader
            && let Poll::Ready(line) = reader.poll_line(context)
        {
            return Poll::Ready(line);
        }
        self.beat.poll_tick(context).map(|_| {
            Some(Bytes::from_static(match self.heartbeat {
                Heartbeat::Line => b"\n",
                Heartbeat::Comment => b":\n\n",
            }))
        })
    }
}
