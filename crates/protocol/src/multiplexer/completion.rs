//! How calls and sessions end: answered, cancelled, abandoned, closed; and which of it is reported
//! to the server.

use std::collections::VecDeque;

use super::Multiplexer;
use super::state::{Doing, InFlight, PendingOpen, Waiting};
use super::task_polling::TaskPolling;
use crate::backend_face::{WireId, write_cancel};
use crate::exchange::{CallKey, Failure, Request, SessionKey, Tell};
use crate::message::Message;
use crate::method::Method;
use crate::time::Moment;

impl Multiplexer {
    /// Removes a call that the server has finished, and sends calls that waited for it.
    pub(super) fn finish_call(&mut self, now: Moment, id: WireId) -> Option<Box<InFlight>> {
        self.attribution.suspended.resume(id, &mut self.ledger);
        let call = self.ledger.take_call(id)?;
        // Its open questions stay: the server may still get their answers.
        self.undeclared.refuse(id, &mut self.ledger, &self.link);
        if let Some(polling) = call.doing.polling() {
            polling.drop_polls(id, &mut self.ledger, &self.link);
        }
        self.ledger
            .sessions
            .count_out(call.session, call.method().may_ask());
        self.resolve_held(now);
        self.admit(now);
        Some(call)
    }

    /// Cancels a call at the server, since no client waits for its answer. The call belongs to its
    /// principal until the server answers it all the same.
    pub(super) fn cancel_at_server(
        &mut self,
        now: Moment,
        id: WireId,
        message: Option<&Message>,
        reason: &str,
    ) -> Option<Box<InFlight>> {
        self.attribution.suspended.resume(id, &mut self.ledger);
        TaskPolling::abandon(now, id, &mut self.ledger, &self.link);
        match self.ledger.call(id)?.doing {
            Doing::Working => {}
            // There is nothing that the server could cancel or answer.
            Doing::Listening => {
                let call = self.finish_call(now, id)?;
                self.revoke_effects(&call);
                return Some(call);
            }
            // The server has answered: there is only the round or the task to forget.
            Doing::Round(_) | Doing::Polled(_) => {
                self.withdraw_round(id);
                return self.finish_call(now, id);
            }
        }
        let call = self.ledger.take_call(id)?;
        // The client's notification may be long; ours is not, so that a cancellation can always be
        // sent.
        let notification = message.filter(|message| self.ledger.has_room(message.len()));
        write_cancel(self.ledger.outgoing.end(), notification, id, reason);
        // Its open questions stay: the server may still get their answers.
        self.undeclared.refuse(id, &mut self.ledger, &self.link);
        self.revoke_effects(&call);
        self.ledger
            .sessions
            .count_out(call.session, call.method().may_ask());
        self.attribution.abandon(id, &call, &mut self.ledger, &self.link);
        self.resolve_held(now);
        self.admit(now);
        Some(call)
    }

    /// A call ended without an answer of the server: its effect on subscriptions and levels is not
    /// assumed.
    pub(super) fn revoke_effects(&mut self, call: &InFlight) {
        match &call.request {
            Request::Subscribe { uri } => {
                self.subscriptions.unsubscribe(call.session, uri);
            }
            Request::SetLevel { .. } => self.subscriptions.forget_sent_level(),
            Request::Plain | Request::Unsubscribe { .. } | Request::Watch { .. } => {}
        }
    }

    pub(super) fn cancel(
        &mut self,
        now: Moment,
        session: SessionKey,
        call: CallKey,
        message: Option<&Message>,
    ) {
        if self.ledger.waiting.remove(session, call) {
            // The server does not know of it.
        } else if let Some(id) = self.ledger.find_call(session, call) {
            let cancelled = self.cancel_at_server(now, id, message, "the client cancelled the request");
            self.check_liveness_after(now, id, cancelled.as_deref());
        } else {
            return;
        }
        self.ledger.tell(Tell::Failed {
            session,
            call,
            failure: Failure::Cancelled,
        });
    }

    /// A client has cancelled a call that had taken long. A server that hangs must be noticed even
    /// if its clients cancel before Rialto's time limit. So it must show activity within the time
    /// of the call.
    fn check_liveness_after(&mut self, now: Moment, id: WireId, call: Option<&InFlight>) {
        if let Some(call) = call
            && call.timer.stream_at().is_none()
            && !matches!(call.doing, Doing::Round(_))
        {
            self.check_liveness(now, id, call.timer.deadline());
        }
    }

    pub(super) fn close(&mut self, now: Moment, session: SessionKey) {
        if !self.ledger.sessions.contains(session) {
            return;
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.ledger.pending_opens)
            .into_iter()
            .partition(|pending_open| pending_open.session == session);
        self.ledger.pending_opens = kept;
        for PendingOpen { call, .. } in gone {
            self.ledger.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
        }
        for Waiting { call, .. } in self.ledger.waiting.take_of(session, |_| true) {
            self.ledger.fail(session, call.call, Failure::SessionEnded);
        }
        for question in self.ledger.questions.find(|open| open.session == session) {
            self.refuse_question(now, question, "the client has gone");
        }
        let calls = self.ledger.calls().filter(|(_, call)| call.session == session);
        let calls: Vec<WireId> = calls.map(|(id, _)| id).collect();
        for id in calls {
            if let Some(call) = self.cancel_at_server(now, id, None, "the session ended") {
                self.check_liveness_after(now, id, Some(&call));
                self.ledger.tell(Tell::Failed {
                    session,
                    call: call.call,
                    failure: Failure::SessionEnded,
                });
            }
        }
        self.detach(session);
        let (orphans, relevel) = self.subscriptions.forget(session);
        self.tasks.unwatch(session);
        self.sync_listen();
        if self.is_ready() {
            for uri in orphans {
                self.send_subscription(now, Method::ResourcesUnsubscribe, &uri);
            }
        }
        if relevel {
            self.tell_level(now);
        }
        self.admit(now);
    }

    pub(super) fn detach(&mut self, session: SessionKey) {
        self.ledger.sessions.remove(session);
    }
}
