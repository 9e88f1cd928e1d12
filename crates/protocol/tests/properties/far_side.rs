//! The far side of a property: a real multiplexer, and behind it a server that writes anything.
//!
//! Each property brings its own clients; what may happen to a server, and what must hold for any
//! clients, is here.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::backend_face::legacy::ClientHello;
use protocol::exchange::{Ask, BackendError, Tell};
use protocol::message::Message;
use protocol::multiplexer::{Limits, Multiplexer, Output};
use protocol::negotiation::EraPlan;
use protocol::time::Moment;
use protocol::version::Era;

/// Returns the acts of a script: one a line, the first byte is the act.
pub(crate) fn acts(script: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    script
        .split(|byte| *byte == b'\n')
        .take(200)
        .filter_map(|line| line.split_first().map(|(act, rest)| (*act, rest)))
}

/// # Panics
/// If it is no message.
pub(crate) fn message(bytes: &[u8]) -> Message {
    Message::scan(Bytes::copy_from_slice(bytes))
        .unwrap_or_else(|error| panic!("{error}: {}", bytes.escape_ascii()))
}

fn backend_error() -> Arc<BackendError> {
    Arc::new(BackendError {
        what: "exit status 3".into(),
        ..BackendError::default()
    })
}

pub(crate) struct FarSide {
    pub(crate) now: Moment,
    pub(crate) backend: Multiplexer,
    pub(crate) limits: Limits,
}

impl FarSide {
    /// Everything is scarce, so that a short script runs into each limit.
    pub(crate) fn new(client_hello: ClientHello, tasks: usize) -> Self {
        let limits = Limits {
            request_timeout: Duration::from_secs(8),
            stream_timeout: Duration::from_secs(8),
            start_timeout: Duration::from_secs(12),
            stream_after: Duration::from_secs(2),
            question_timeout: Duration::from_secs(15),
            max_message_bytes: 4096,
            in_flight: 6,
            in_flight_bytes: 8000,
            waiting: 4,
            questions: 3,
            subscriptions: 2,
            tasks,
            abandoned: 3,
            outgoing_bytes: 2000,
        };
        Self {
            now: Moment::START,
            backend: Multiplexer::new(limits.clone(), client_hello),
            limits,
        }
    }

    /// What happens to the server, or to time. False: this act is none of its own.
    pub(crate) fn act(&mut self, act: u8, rest: &[u8]) -> bool {
        match act {
            b'u' => self.backend.handle_link_up(self.now),
            b'd' => self.goes_down(),
            b'x' => self.is_unavailable(),
            b's' => self.backend.handle_line(self.now, Bytes::copy_from_slice(rest)),
            b'm' => self.backend.plan_eras(EraPlan::First(Era::Modern)),
            b'y' => self.backend.plan_eras(EraPlan::First(Era::Legacy)),
            b'w' => self.reads(),
            b't' => {
                let millis = rest.first().map_or(1000, |byte| u64::from(*byte) * 100);
                self.now = self.now.after(Duration::from_millis(millis));
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn ask(&mut self, asks: impl IntoIterator<Item = Ask>) {
        for ask in asks {
            self.backend.handle_ask(self.now, ask);
        }
    }

    pub(crate) fn goes_down(&mut self) {
        self.backend.handle_link_down(&backend_error());
    }

    pub(crate) fn is_unavailable(&mut self) {
        self.backend
            .handle_unavailable(&backend_error(), Duration::from_secs(5));
    }

    /// Tells the multiplexer of one deadline that has passed. False: there is none.
    pub(crate) fn meets_a_deadline(&mut self) -> bool {
        let is_due = self.backend.next_deadline().is_some_and(|at| at <= self.now);
        if is_due {
            self.backend.handle_deadline(self.now);
        }
        is_due
    }

    /// Carries out what the multiplexer orders. False: it ordered nothing.
    pub(crate) fn carry(&mut self, mut deliver: impl FnMut(Moment, Tell)) -> bool {
        let mut ordered = false;
        while let Some(output) = self.backend.poll_output() {
            ordered = true;
            match output {
                Output::Tell(tell) => deliver(self.now, tell),
                Output::Replace { .. } => self.goes_down(),
                Output::WantLink | Output::Shown(_) | Output::Noise { .. } => {}
            }
        }
        ordered
    }

    /// Takes everything that was written for the server: whole lines, each one message.
    fn reads(&mut self) {
        let taken = self.backend.take_outgoing(BytesMut::new());
        self.backend.handle_written();
        let Some(lines) = taken.strip_suffix(b"\n") else {
            assert!(taken.is_empty(), "half a line was written");
            return;
        };
        for line in lines.split(|byte| *byte == b'\n') {
            assert!(message(line).is_json_rpc(), "{}", line.escape_ascii());
        }
    }

    /// Checks that nothing is over its limit, but for a few bytes of ours that may always be sent,
    /// and the answer to one more message.
    pub(crate) fn assert_limits(&self, own_bytes: usize) {
        let (backend, limits) = (&self.backend, &self.limits);
        assert!(
            backend.outgoing_bytes() <= limits.outgoing_bytes + own_bytes + limits.max_message_bytes,
            "outgoing bytes"
        );
        assert!(backend.waiting_calls() <= limits.waiting, "waiting calls");
        assert!(backend.open_questions() <= limits.questions, "open questions");
    }

    /// Checks that no call and no question waits.
    pub(crate) fn assert_quiet(&self) {
        assert_eq!(self.backend.open_calls(), 0, "open calls");
        assert_eq!(self.backend.open_questions(), 0, "open questions");
    }

    /// Checks that nothing is left once all clients have gone.
    pub(crate) fn assert_empty(&self) {
        self.assert_quiet();
        assert_eq!(
            (self.backend.sessions(), self.backend.unanswered_requests()),
            (0, 0),
            "left over"
        );
    }
}
