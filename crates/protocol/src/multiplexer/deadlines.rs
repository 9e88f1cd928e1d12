//! Deadlines: calls, waits and questions that took too long.

use std::collections::VecDeque;

use super::link::Carrier;
use super::liveness::{Due, Owed};
use super::state::{Doing, Pending, PendingOpen};
use super::task_polling::TaskPolling;
use super::{Multiplexer, Output};
use crate::backend_face::WireId;
use crate::exchange::{Failure, Tell};
use crate::time::{Moment, earliest};

impl Multiplexer {
    /// Ends what has waited too long.
    pub fn handle_deadline(&mut self, now: Moment) {
        if !self.ledger.outputs.take_deadline(now) {
            return;
        }
        self.expire_calls(now);
        self.expire_waiting(now);
        self.expire_held(now);
        self.expire_undeclared(now);
        self.tasks.expire_inputs(now, &mut self.ledger, &self.link);
        self.roots.expire(now, &mut self.ledger, &self.link);
        for question in self.ledger.questions.find(|open| open.deadline <= now) {
            self.expire_question(now, question);
        }
        if let Some(at) = self.ledger.questions.next_deadline() {
            self.ledger.wake_by(at);
        }
        if self.link.is_up() && self.link.is_initializing() {
            self.negotiate(now);
        }
        self.expire_liveness(now);
        if let Some(at) = self.ledger.liveness.next_deadline() {
            self.ledger.wake_by(at);
        }
    }

    /// Asks a server that has not answered `call` in time whether it still lives: if it writes
    /// nothing at all, it is given up, at the earliest when the call's own time limit `limit` has
    /// passed. A server that waits for a client's answer itself has a reason to be quiet.
    pub(super) fn check_liveness(&mut self, now: Moment, call: WireId, limit: Moment) {
        // Over POSTs each request has an exchange of its own: there is no pipe that could be stuck.
        if self.link.carrier() != Carrier::Pipe || !self.ledger.questions.is_empty() {
            return;
        }
        let answer_by = now.after(self.ledger.limits.ping_timeout());
        if self
            .ledger
            .liveness
            .expect_reply_by(answer_by, Owed::Call(call), limit)
        {
            let id = self.ledger.own_request(now);
            self.link.face().write_ping(self.ledger.outgoing.end(), id);
        }
        if let Some(at) = self.ledger.liveness.next_deadline() {
            self.ledger.wake_by(at);
        }
    }

    /// A call is refused, since too much waits for the server. It has no time limit that could
    /// pass, so the server gets as much time to read or write anything at all. A server that waits
    /// for a client's answer has no reason to read nothing.
    pub(super) fn check_reading(&mut self, now: Moment, reads_events: bool) {
        if self.link.carrier() != Carrier::Pipe {
            return;
        }
        let until = now.after(self.ledger.limits.call_timeout(reads_events));
        let refused = self.ledger.upcoming_wire();
        self.ledger.liveness.expect_reading_by(until, refused);
        self.ledger.wake_by(until);
    }

    fn expire_liveness(&mut self, now: Moment) {
        let owed = match self.ledger.liveness.due(now) {
            None => return,
            Some(Due::Hung(owed)) => owed,
            Some(Due::MaybeBusy(owed)) => {
                if let Some(until) = self.busy_until(owed) {
                    self.ledger.liveness.postpone(owed, until);
                    return;
                }
                owed
            }
        };
        self.ledger.liveness.expect_nothing();
        self.ledger.outputs.push(Output::Replace { why: owed.why() });
    }

    /// Returns when to look again if the server may be silent because of a call that was sent
    /// before the one it owes, and that is still within its time limit: a server may do one call at
    /// a time, and answer no ping and read nothing meanwhile.
    fn busy_until(&self, owed: Owed) -> Option<Moment> {
        let id = match owed {
            Owed::Handshake => return None,
            Owed::Call(id) | Owed::Reading(id) => id,
        };
        let older = self.ledger.calls().take_while(|(older, _)| *older < id);
        older
            .map(|(_, call)| call)
            .filter(|call| !call.asking.is_suspended() && !matches!(call.doing, Doing::Round(_)))
            .map(|call| call.timer.deadline())
            .min()
    }

    pub(super) fn expire_calls(&mut self, now: Moment) {
        let mut late = Vec::new();
        let mut slow = Vec::new();
        let mut stopped = Vec::new();
        let mut resumed = Vec::new();
        let mut to_suspend = Vec::new();
        let mut polled = Vec::new();
        let mut next = None;
        for (id, pending) in self.ledger.all_pending() {
            let call = match pending {
                Pending::Call(call) => call,
                Pending::Own { until } => {
                    if *until <= now {
                        stopped.push(id);
                    } else {
                        next = earliest(next, Some(*until));
                    }
                    continue;
                }
                Pending::Handshake(_)
                | Pending::Listen
                | Pending::TaskPoll { .. }
                | Pending::Background { .. } => {
                    continue;
                }
            };
            if let Some(at) = call.asking.next_deadline() {
                if at <= now {
                    to_suspend.push(id);
                } else {
                    next = earliest(next, Some(at));
                }
            }
            let (due, at) = match &call.doing {
                Doing::Working | Doing::Listening => (&mut resumed, None),
                Doing::Round(round) => (&mut resumed, round.next_deadline()),
                Doing::Polled(polling) => (&mut polled, polling.next_deadline()),
            };
            if let Some(at) = at {
                if at <= now {
                    due.push(id);
                } else {
                    next = earliest(next, Some(at));
                }
            }
            if call.timer.is_late(now) {
                late.push(id);
                continue;
            }
            if call.timer.take_stream_at(now) {
                slow.push((call.session, call.call));
            }
            next = earliest(next, Some(call.timer.next_deadline()));
        }
        if let Some(at) = next {
            self.ledger.wake_by(at);
        }
        for (session, call) in slow {
            self.ledger.tell(Tell::Waiting { session, call });
        }
        for id in stopped {
            self.link.call_off(id, &mut self.ledger);
            self.finish_call(now, id);
            self.handle_unanswered(now, id);
        }
        for id in polled {
            TaskPolling::poll(now, id, &mut self.ledger, &self.link);
        }
        for id in resumed {
            self.next_round(now, id);
        }
        if !to_suspend.is_empty() {
            for id in to_suspend {
                self.attribution.suspended.suspend(id, &mut self.ledger);
            }
            self.admit(now);
        }
        for &id in &late {
            self.ledger.counters.timeouts += 1;
            if let Some(call) = self.cancel_at_server(now, id, None, "no answer within the time limit") {
                let failure = match self.is_for_listen(call.session, &call.request) {
                    true => self.ledger.limits.own_failure(),
                    false => call.timer.failure(&self.ledger.limits),
                };
                self.ledger.tell(Tell::Failed {
                    session: call.session,
                    call: call.call,
                    failure,
                });
            }
        }
        for id in late {
            self.check_liveness(now, id, now);
        }
    }

    pub(super) fn expire_waiting(&mut self, now: Moment) {
        let start = self.link.wait_failure(&self.ledger.limits);
        let (late, pending_opens): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ledger.pending_opens)
                .into_iter()
                .partition(|pending_open| pending_open.deadline <= now);
        self.ledger.pending_opens = pending_opens;
        for PendingOpen { session, call, .. } in late {
            self.ledger.counters.timeouts += 1;
            self.ledger.tell(Tell::Failed {
                session,
                call,
                failure: start.clone(),
            });
        }
        for mut waiting in self.ledger.waiting.take() {
            let (session, call) = (waiting.call.session, waiting.call.call);
            let expired = waiting.occupied_until.is_some_and(|until| until <= now);
            if expired && !self.attribution.is_occupied(session, &self.ledger) {
                waiting.occupied_until = None;
            }
            if waiting.deadline <= now || waiting.occupied_until.is_some_and(|until| until <= now) {
                self.ledger.counters.timeouts += 1;
                let failure = if waiting.starting {
                    start.clone()
                } else if self.attribution.is_occupied(session, &self.ledger) {
                    Failure::Occupied
                } else {
                    self.ledger.limits.timeout_failure(waiting.call.reads_events)
                };
                self.ledger.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
                continue;
            }
            if waiting.stream_at.is_some_and(|at| at <= now) {
                waiting.stream_at = None;
                self.ledger.tell(Tell::Waiting { session, call });
            }
            let next = earliest(waiting.stream_at, waiting.occupied_until);
            self.ledger
                .wake_by(earliest(Some(waiting.deadline), next).unwrap_or(waiting.deadline));
            self.ledger.waiting.push(waiting);
        }
        if let Some(at) = self
            .ledger
            .pending_opens
            .iter()
            .map(|pending_open| pending_open.deadline)
            .min()
        {
            self.ledger.wake_by(at);
        }
    }
}
