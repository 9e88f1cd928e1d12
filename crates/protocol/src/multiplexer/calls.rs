//! The way of a call to the server: whether it may go now, must wait its turn, or does not fit.

use super::*;

impl Multiplexer {
    pub(super) fn call(&mut self, now: Moment, call: Call) {
        if !self.attached.contains_key(&call.session) {
            let Call { session, call, .. } = call;
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
            return;
        }
        let asked_first = self.ask_roots_first(now, &call);
        if !asked_first && self.is_ready() && self.may_go(&call) {
            self.send(now, call, Past::default());
            return;
        }
        if self.retired {
            let Call { session, call, .. } = call;
            return self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::Retired,
            });
        }
        if self.waiting.len() >= self.limits.waiting {
            self.overload(call.session, call.call, "waiting calls");
            return;
        }
        let starting = !self.is_ready();
        let deadline = now.after(if starting {
            self.limits.start_timeout
        } else if asked_first {
            let timeout = self.limits.call_timeout(call.reads_events);
            self.limits.question_timeout.saturating_add(timeout)
        } else {
            self.limits.call_timeout(call.reads_events)
        });
        let patience = now.after(self.limits.patience);
        let occupied = !starting && self.takes_turns(&call) && self.is_occupied(call.session);
        let occupied_until = occupied.then(|| now.after(Limits::OCCUPIED_WAIT));
        self.waiting.push_back(Waiting {
            call,
            deadline,
            starting,
            patience: Some(patience),
            asked_first,
            occupied_until,
            past: Past::default(),
        });
        self.wake_by(occupied_until.unwrap_or(deadline).min(deadline.min(patience)));
        if starting {
            self.pursue(now);
        } else {
            self.learn(now);
        }
    }

    pub(super) fn overload(&mut self, session: SessionKey, call: CallKey, limit: &'static str) {
        self.counters.overloads += 1;
        self.tell(Tell::Failed {
            session,
            call,
            failure: Failure::Overloaded { limit },
        });
    }

    /// Whether a call can be sent now without making the server's next question ambiguous.
    pub(super) fn may_go(&self, call: &Call) -> bool {
        if self.must_learn(call) {
            return false;
        }
        // First come, first served: a call overtakes only those that another principal's client keeps waiting.
        !self.takes_turns(call)
            || (!self.others_ask(call.session)
                && !self.strangers_rest(call.session)
                && self.waiting.iter().all(|waiting| {
                    waiting.call.session == call.session || self.strangers_rest(waiting.call.session)
                }))
    }

    /// Returns whether the server has asked before and may ask because of this call.
    fn takes_turns(&self, call: &Call) -> bool {
        self.inquisitive && call.message.method().may_ask()
    }

    /// Returns whether calls of other sessions are in flight that may ask.
    fn others_ask(&self, session: SessionKey) -> bool {
        let own = self
            .attached
            .get(&session)
            .is_some_and(|attached| attached.load.asking > 0);
        self.asking_sessions > usize::from(own)
    }

    /// Returns whether a call of another principal keeps this session's calls from their turn.
    pub(super) fn is_occupied(&self, session: SessionKey) -> bool {
        self.strangers_rest(session)
            || (self.others_ask(session) && self.strangers_work(session, Matter::Question))
    }

    /// Sends what has waited, in order, as far as the rules allow. A call that waits its turn holds up only those
    /// that have to take turns.
    pub(super) fn admit(&mut self, now: Moment) {
        if !self.is_ready() {
            return;
        }
        if !self.returning.is_empty() {
            self.admit_answers(now);
        }
        if self.waiting.is_empty() {
            return;
        }
        let mut in_turn = true;
        for mut waiting in std::mem::take(&mut self.waiting) {
            if self.awaits_roots(&waiting) || self.awaits_tools(&waiting) {
                self.waiting.push_back(waiting);
                continue;
            }
            if self.takes_turns(&waiting.call) {
                let session = waiting.call.session;
                // One that another principal's client keeps waiting holds up no one else.
                let kept = self.strangers_rest(session);
                if !kept {
                    in_turn &= !self.others_ask(session);
                }
                if kept || !in_turn {
                    if waiting.occupied_until.is_none() && self.is_occupied(session) {
                        let until = now.after(Limits::OCCUPIED_WAIT);
                        waiting.occupied_until = Some(until);
                        self.wake_by(until);
                    }
                    self.waiting.push_back(waiting);
                    continue;
                }
            }
            self.send(now, waiting.call, waiting.past);
        }
        self.learn(now);
    }

    /// Whether this much more may wait for the server to read it. One message always may.
    pub(super) fn has_room(&self, length: usize) -> bool {
        let queued = self.outgoing.len() + self.being_written;
        queued == 0 || queued + length <= self.limits.outgoing_bytes
    }

    pub(super) fn bytes_in_flight(&self) -> usize {
        let calls = self.pending.values().filter_map(Pending::as_call);
        calls.map(|call| call.message.len()).sum()
    }

    pub(super) fn send(&mut self, now: Moment, call: Call, past: Past) {
        if self.judge_task(&call) || self.refuse_mismatch(&call) {
            return;
        }
        let Call {
            session,
            call,
            request,
            message,
            words,
            mirrored: _,
            reads_events,
        } = call;
        if !self.has_room(message.len()) {
            return self.overload(session, call, "bytes waiting for the server");
        }
        if self.pending.len() >= self.limits.in_flight {
            return self.overload(session, call, "calls in flight");
        }
        // Small ones are bounded by their number.
        if message.len() > Limits::SMALL
            && self.bytes_in_flight() + message.len() > self.limits.in_flight_bytes
        {
            return self.overload(session, call, "bytes in flight");
        }
        self.face.confirm(None, self.outgoing.end());
        self.heed_level(now, session, &message, words);
        let id = WireId(self.next_wire);
        let (extra, drives) = self.as_task(session, &message, words);
        match self.lower(session, &request, &message, words, id, &extra) {
            Lowered::Sent => {}
            Lowered::Done => return self.tell(Tell::Done { session, call }),
            Lowered::TooMuch(limit) => return self.overload(session, call, limit),
            Lowered::Unsupported(what) => {
                let failure = Failure::Unsupported { what };
                return self.tell(Tell::Failed {
                    session,
                    call,
                    failure,
                });
            }
            Lowered::NoSuchMethod(what) => {
                let call = Call {
                    session,
                    call,
                    request,
                    message,
                    words,
                    mirrored: None,
                    reads_events,
                };
                return self.reply_error(&call, error_code::METHOD_NOT_FOUND, what, None);
            }
        }
        self.next_wire += 1;
        let method = message.method();
        self.count_in(session, method.may_ask());
        let deadline = self.first_deadline(now, method, reads_events);
        let patience = now.after(self.limits.patience);
        self.pending.insert(
            id,
            Pending::Call(Box::new(InFlight {
                session,
                call,
                method,
                request,
                token: message.raw_copy(Member::MetaProgressToken),
                message,
                words,
                reads_events,
                round: None,
                rounds: 0,
                pursuit: None,
                drives,
                past,
                deadline,
                horizon: now.after(self.limits.longest_call(reads_events)),
                patience: Some(patience),
                open_questions: 0,
                rest_at: None,
                resting: false,
            })),
        );
        self.wake_by(deadline.min(patience));
        self.ask_roots_with(now, id);
        self.tune();
    }

    /// What is added to a call that a legacy server is to do as a task, and whether its client must not notice.
    pub(super) fn as_task(
        &self,
        session: SessionKey,
        message: &Message,
        words: Era,
    ) -> (Vec<(&'static str, Bytes)>, bool) {
        let declared = self
            .attached
            .get(&session)
            .is_some_and(|attached| attached.client.capabilities.takes_tasks());
        let task = || vec![("task", Bytes::from_static(b"{}"))];
        match (self.task_support(message, words), declared) {
            (TaskSupport::Forbidden, _) | (TaskSupport::Optional, false) => (Vec::new(), false),
            (TaskSupport::Optional | TaskSupport::Required, true) => (task(), false),
            (TaskSupport::Required, false) => (task(), true),
        }
    }
}
