//! The multiplexer's orders to its driver, in the order in which they were given, and when it wants
//! to be woken.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::exchange::Tell;
use crate::message::ScanError;
use crate::negotiation::ShownEras;
use crate::time::{Moment, earliest};

/// An order of the multiplexer.
#[derive(Debug)]
pub enum Output {
    /// Something for a client.
    Tell(Tell),
    /// A client waits for the server: start it, or report that it cannot be started.
    WantLink,
    /// The server shows no activity, or its output cannot be used any more: end it and start
    /// another.
    Replace {
        /// For people.
        why: &'static str,
    },
    /// The server has shown which eras it speaks.
    Shown(ShownEras),
    /// The server wrote a line that is no message. For the log.
    Noise {
        /// The line as it was read.
        line: Bytes,
        /// Why it is no message.
        error: ScanError,
    },
}

/// The queue of orders and the next deadline.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    queue: VecDeque<Output>,
    wake_at: Option<Moment>,
}

impl OutputQueue {
    pub(super) fn push(&mut self, output: Output) {
        self.queue.push_back(output);
    }

    pub(super) fn pop(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }

    /// Has the machine woken at this moment or earlier.
    pub(super) fn wake_by(&mut self, moment: Moment) {
        self.wake_at = earliest(self.wake_at, Some(moment));
    }

    pub(super) const fn next_deadline(&self) -> Option<Moment> {
        self.wake_at
    }

    /// Forgets the deadline if it has passed. Returns whether it has.
    pub(super) fn take_deadline(&mut self, now: Moment) -> bool {
        self.wake_at.take_if(|at| *at <= now).is_some()
    }
}
