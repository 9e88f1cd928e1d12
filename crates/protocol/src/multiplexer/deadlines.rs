//! What happens when nothing happens: calls, waits and questions that took too long.

use super::*;
use crate::delivery::LONGEST_PAUSE;

impl Multiplexer {
    pub fn handle_deadline(&mut self, now: Moment) {
        if self.wake_at.is_none_or(|at| at > now) {
            return;
        }
        self.wake_at = None;
        self.expire_calls(now);
        self.expire_waiting(now);
        self.expire_held(now);
        self.expire_inputs(now);
        self.expire_roots(now);
        let late: Vec<QuestionKey> = self
            .questions
            .iter()
            .filter(|(_, open)| open.deadline <= now)
            .map(|(key, _)| *key)
            .collect();
        for question in late {
            if self.give_late_answer(now, question) {
                continue;
            }
            let session = self.questions.get(&question).map(|open| open.session);
            self.refuse_question(now, question, "the client did not answer in time");
            if let Some(session) = session {
                self.tell(Tell::Withdrawn {
                    session,
                    question,
                    message: None,
                });
            }
        }
        if let Some(at) = self.questions.values().map(|open| open.deadline).min() {
            self.wake_by(at);
        }
        if matches!(self.link, Link::Up) && self.negotiation.is_open() {
            self.negotiate(now);
        }
        self.expire_doubt(now);
        if let Some(at) = self.vigil.next_deadline() {
            self.wake_by(at);
        }
    }

    /// Asks a server that has not answered `call` in time whether it still lives: if it writes nothing at all, it is
    /// given up, at the earliest when the call's own time limit `limit` has passed. A server that waits for a
    /// client's answer itself has a reason to be quiet.
    pub(super) fn doubt(&mut self, now: Moment, call: WireId, limit: Moment) {
        // Over POSTs each request has an exchange of its own: there is no pipe that could be stuck.
        if self.carrier != Carrier::Pipe || !self.questions.is_empty() {
            return;
        }
        let until = now.after(self.limits.ping_timeout()).max(limit);
        if self.vigil.begin_doubt(until, Owed::Call(call), limit) {
            let id = self.own_request(now);
            self.face.write_ping(self.outgoing.end(), id);
        }
        self.wake_by(until);
    }

    fn expire_doubt(&mut self, now: Moment) {
        let Some(owed) = self.vigil.due(now) else {
            return;
        };
        if let Some(until) = self.excuse(owed) {
            self.vigil.postpone(until);
            return;
        }
        self.vigil.end_doubt();
        self.outputs.push_back(Output::Replace { why: owed.why() });
    }

    /// Returns when to look again if the server may be silent because of a call that was sent before the one it
    /// owes, and that is still within its time limit: a server may do one call at a time, and answer no ping
    /// meanwhile.
    fn excuse(&self, owed: Owed) -> Option<Moment> {
        let Owed::Call(id) = owed else { return None };
        let older = self
            .pending
            .range(..id)
            .filter_map(|(_, pending)| pending.as_call());
        older
            .filter(|call| !call.resting && call.round.is_none())
            .map(|call| call.deadline)
            .min()
    }

    pub(super) fn expire_calls(&mut self, now: Moment) {
        let mut late = Vec::new();
        let mut slow = Vec::new();
        let mut stopped = Vec::new();
        let mut resumed = Vec::new();
        let mut resting = Vec::new();
        let mut polled = Vec::new();
        let mut next = None;
        for (id, pending) in &mut self.pending {
            let call = match pending {
                Pending::Call(call) => call,
                Pending::Own { until } => {
                    if *until <= now {
                        stopped.push(*id);
                    } else {
                        next = earliest(next, Some(*until));
                    }
                    continue;
                }
                Pending::Handshake | Pending::Listen | Pending::Step { .. } | Pending::Background { .. } => {
                    continue;
                }
            };
            if let Some(at) = call.rest_at {
                if at <= now {
                    resting.push(*id);
                } else {
                    next = earliest(next, Some(at));
                }
            }
            if let Some(at) = call.round.as_ref().and_then(|round| round.resume_at) {
                if at <= now {
                    resumed.push(*id);
                } else {
                    next = earliest(next, Some(at));
                }
            }
            if let Some(at) = call.pursuit.as_ref().and_then(|pursuit| pursuit.poll_at) {
                if at <= now {
                    polled.push(*id);
                } else {
                    next = earliest(next, Some(at));
                }
            }
            if call.deadline <= now {
                late.push(*id);
                continue;
            }
            if call.patience.is_some_and(|at| at <= now) {
                call.patience = None;
                slow.push((call.session, call.call));
            }
            next = earliest(next, earliest(Some(call.deadline), call.patience));
        }
        self.wake_at = earliest(self.wake_at, next);
        for (session, call) in slow {
            self.tell(Tell::Waiting { session, call });
        }
        for id in stopped {
            self.call_off(id);
            self.settle(now, id);
            self.expire_page(now, id);
        }
        for id in polled {
            self.poll_task(now, id);
        }
        for id in resumed {
            self.next_round(now, id);
        }
        self.rest(now, resting);
        let oldest = late.iter().min().copied();
        for id in late {
            self.counters.timeouts += 1;
            if let Some(call) = self.release(now, id, None, "no answer within the time limit") {
                let failure = self.limits.timeout_failure(call.reads_events);
                self.tell(Tell::Failed {
                    session: call.session,
                    call: call.call,
                    failure,
                });
            }
        }
        if let Some(id) = oldest {
            self.doubt(now, id, now);
        }
    }

    /// Nobody waits for the answer to a request of our own any more. Over POSTs somebody still carries it, and would
    /// for as long as the server likes.
    pub(super) fn call_off(&mut self, id: WireId) {
        let is_ours = matches!(
            self.pending.get(&id),
            Some(Pending::Own { .. } | Pending::Step { .. })
        );
        if self.carrier == Carrier::Posts && is_ours {
            backend_face::write_cancel(self.outgoing.end(), None, id, "nobody waits for it any more");
        }
    }

    pub(super) fn expire_waiting(&mut self, now: Moment) {
        let start = match &self.outage {
            Some(trouble) => Failure::Unavailable {
                trouble: Arc::clone(trouble),
                retry_after: LONGEST_PAUSE,
            },
            None => Failure::StartTimeout {
                limit: self.limits.start_timeout,
                trouble: self.start_report.clone(),
            },
        };
        let (late, openers): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.openers)
            .into_iter()
            .partition(|opener| opener.deadline <= now);
        self.openers = openers;
        for Opener { session, call, .. } in late {
            self.counters.timeouts += 1;
            self.tell(Tell::Failed {
                session,
                call,
                failure: start.clone(),
            });
        }
        for mut waiting in std::mem::take(&mut self.waiting) {
            let (session, call) = (waiting.call.session, waiting.call.call);
            let expired = waiting.occupied_until.is_some_and(|until| until <= now);
            if expired && !self.is_occupied(session) {
                waiting.occupied_until = None;
            }
            if waiting.deadline <= now || waiting.occupied_until.is_some_and(|until| until <= now) {
                self.counters.timeouts += 1;
                let failure = if waiting.starting {
                    start.clone()
                } else if self.is_occupied(session) {
                    Failure::Occupied
                } else {
                    self.limits.timeout_failure(waiting.call.reads_events)
                };
                self.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
                continue;
            }
            if waiting.patience.is_some_and(|at| at <= now) {
                waiting.patience = None;
                self.tell(Tell::Waiting { session, call });
            }
            let next = earliest(waiting.patience, waiting.occupied_until);
            self.wake_by(earliest(Some(waiting.deadline), next).unwrap_or(waiting.deadline));
            self.waiting.push_back(waiting);
        }
        if let Some(at) = self.openers.iter().map(|opener| opener.deadline).min() {
            self.wake_by(at);
        }
    }
}
