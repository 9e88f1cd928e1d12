//! A server that is reached by POSTs instead of a pipe.
//!
//! Each request has an exchange of its own there. What comes back on it is known to be about that
//! request, so sessions need not be asked one after the other; and one exchange may fail, be handed
//! back, or find that the server has forgotten its session, while the others go on.

use std::sync::Arc;

use super::Multiplexer;
use super::link::Carrier;
use super::state::{Pending, Waiting};
use super::task_polling::TaskPolling;
use crate::backend_face::WireId;
use crate::delivery::{PostBatch, PostRequest};
use crate::exchange::{Failure, SessionKey, Tell, Upstream, UpstreamFault};
use crate::negotiation::HandshakeRefusal;
use crate::time::{Moment, earliest};
use crate::version::{Era, LostStream};

/// How often a request is sent again because the server had forgotten the session. Some servers
/// refuse a request itself with the same status, and would cause handshakes without end.
const FORGIVEN: u32 = 2;

impl Multiplexer {
    /// Sets how messages are sent from now on. Only allowed before the first message of a link.
    pub fn set_carrier(&mut self, carrier: Carrier) {
        self.link.set_carrier(carrier);
    }

    /// Hands over everything that waits to be sent, as lines that are sent one by one.
    pub fn take_posts(&mut self) -> PostBatch {
        self.ledger.outgoing.take_posts()
    }

    /// Returns the queued message if it is one client's request and nothing else is queued: the
    /// caller sends it at once.
    pub fn take_lone_post(&mut self) -> Option<PostRequest> {
        self.ledger.outgoing.take_lone_post()
    }

    /// The server answers this request with a stream that can be resumed. A client that can resume
    /// a stream gets one at once, so that it can come back for the response after a lost
    /// connection. Another client gets a plain response with an HTTP status.
    pub fn handle_begun(&mut self, id: WireId) {
        let id = match self.ledger.pending(id) {
            Some(Pending::TaskPoll { of }) => *of,
            Some(_) | None => id,
        };
        let Some(call) = self.ledger.call_mut(id) else {
            return;
        };
        if call.era.lost_streams() == LostStream::Resumed && call.timer.clear_stream_at() {
            let (session, call) = (call.session, call.call);
            self.ledger.tell(Tell::Waiting { session, call });
        }
    }

    /// There will be no answer to this request.
    pub fn handle_undelivered(&mut self, now: Moment, id: WireId, failure: Failure) {
        let id = match self.ledger.take_internal(id) {
            Some(Pending::Handshake(era)) => {
                self.link.forget_first_message(era);
                return self.fail_handshake(now, era, failure);
            }
            Some(Pending::Listen) => return self.handle_listen_lost(now, id),
            Some(Pending::Background { task }) => return self.tasks.handle_background_lost(&task),
            // A call fails if a step of polling its task does.
            Some(Pending::TaskPoll { of }) => of,
            Some(Pending::Call(_) | Pending::Own { .. }) | None => id,
        };
        match self.finish_call(now, id) {
            Some(call) => {
                self.revoke_effects(&call);
                self.ledger.tell(Tell::Failed {
                    session: call.session,
                    call: call.call,
                    failure,
                });
            }
            None => {
                self.attribution.abandoned.handle_answer(id);
                self.ledger.counters.strays += 1;
            }
        }
        self.handle_unanswered(now, id);
    }

    /// The first message of an era has no answer that is a message.
    fn fail_handshake(&mut self, now: Moment, era: Era, failure: Failure) {
        match HandshakeRefusal::by_failure(era, failure) {
            Ok(refusal) => self.handle_refused(now, era, refusal),
            Err(failure) => {
                // The answer to the other one may still come.
                if !self.link.handle_unsent(era) {
                    self.fail_waiting(&failure);
                }
            }
        }
    }

    /// The server has not begun this request because it does not know the session: it waits for
    /// another one, unless that has been tried often enough.
    pub fn handle_forgotten(&mut self, now: Moment, id: WireId) {
        if let Some(call) = self.ledger.call_mut(id) {
            call.past.forgotten += 1;
            if call.past.forgotten > FORGIVEN {
                let what = "the server does not know the session that it has just given";
                let failure = Failure::Upstream(Arc::new(Upstream::new(UpstreamFault::Invalid, what)));
                return self.handle_undelivered(now, id, failure);
            }
        }
        self.handle_returned(now, id);
    }

    /// The server has provably not begun this request: it waits once more, before all others.
    pub fn handle_returned(&mut self, now: Moment, id: WireId) {
        match self.ledger.take_internal(id) {
            Some(Pending::Handshake(era)) => {
                // Calls that wait for the handshake still wait.
                self.link.forget_first_message(era);
                self.link.handle_unsent(era);
                return;
            }
            Some(Pending::Listen) => return self.handle_listen_lost(now, id),
            Some(Pending::TaskPoll { of }) => {
                return TaskPolling::return_poll(now, id, of, &mut self.ledger);
            }
            Some(Pending::Background { task }) => return self.tasks.handle_background_lost(&task),
            Some(Pending::Call(_) | Pending::Own { .. }) | None => {}
        }
        if let Some(Pending::Own { .. }) = self.ledger.pending(id) {
            self.ledger.remove(id);
            return self.handle_unanswered(now, id);
        }
        let Some(call) = self.finish_call(now, id) else {
            self.attribution.abandoned.handle_answer(id);
            return;
        };
        self.revoke_effects(&call);
        if call.rounds > 0 {
            // What its client answered meanwhile has gone with the request.
            return self.ledger.tell(Tell::Failed {
                session: call.session,
                call: call.call,
                failure: Failure::Upstream(Arc::new(Upstream::lost(
                    "the connection was lost between two rounds",
                ))),
            });
        }
        let deadline = now.after(self.ledger.limits.start_timeout);
        let (stream_at, past) = (call.timer.stream_at(), call.past);
        let waiting = Waiting {
            deadline,
            starting: true,
            stream_at,
            asked_first: false,
            occupied_until: None,
            past,
            call: call.into_call(),
        };
        self.ledger.waiting.put_back(waiting);
        self.ledger
            .wake_by(earliest(Some(deadline), stream_at).unwrap_or(deadline));
        if self.is_ready() {
            self.admit(now);
        } else {
            self.ensure_link(now);
        }
    }

    /// Returns whether nothing that would answer this request has come yet.
    pub fn is_unanswered(&self, id: WireId) -> bool {
        match self.ledger.pending(id) {
            Some(Pending::Call(call)) => call.doing.is_working(),
            Some(
                Pending::Handshake(_)
                | Pending::Listen
                | Pending::Own { .. }
                | Pending::TaskPoll { .. }
                | Pending::Background { .. },
            ) => true,
            None => false,
        }
    }

    /// Whose question or log line it is that came in the exchange of this request.
    pub(super) fn origin_of(&self, id: WireId) -> Option<(SessionKey, Option<WireId>)> {
        match self.ledger.pending(id) {
            Some(Pending::Call(call)) => Some((call.session, Some(id))),
            // What comes while we wait for the outcome of a call's task is about that call.
            Some(Pending::TaskPoll { of }) => self.ledger.call(*of).map(|call| (call.session, Some(*of))),
            Some(
                Pending::Handshake(_) | Pending::Listen | Pending::Own { .. } | Pending::Background { .. },
            )
            | None => None,
        }
    }
}
