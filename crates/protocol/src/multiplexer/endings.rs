//! How calls and sessions end: answered, cancelled, given up, closed; and what the server is told of it.

use super::*;

impl Multiplexer {
    /// A call of this session is under way, and may be what the server's next question is about.
    pub(super) fn count_in(&mut self, session: SessionKey, may_ask: bool) {
        if let Some(attached) = self.attached.get_mut(&session) {
            let load = &mut attached.load;
            load.in_flight += 1;
            self.busy_sessions += usize::from(load.in_flight == 1);
            if may_ask {
                load.asking += 1;
                self.asking_sessions += usize::from(load.asking == 1);
            }
        }
    }

    pub(super) fn count_out(&mut self, session: SessionKey, may_ask: bool) {
        let attached = self.attached.get_mut(&session).map(|attached| &mut attached.load);
        if let Some(load) = attached.or_else(|| self.departed.get_mut(&session)) {
            load.in_flight -= 1;
            self.busy_sessions -= usize::from(load.in_flight == 0);
            if may_ask {
                load.asking -= 1;
                self.asking_sessions -= usize::from(load.asking == 0);
            }
            if load.in_flight == 0 {
                self.departed.remove(&session);
            }
        }
    }

    /// Takes a call out of the books because the server is done with it.
    pub(super) fn settle(&mut self, now: Moment, id: WireId) -> Option<Box<InFlight>> {
        self.rouse(id);
        let (session, may_ask, call) = match self.pending.remove(&id)? {
            Pending::Call(call) => (call.session, call.method.may_ask(), Some(call)),
            Pending::Cancelled { session, may_ask, .. } => (session, may_ask, None),
            Pending::Handshake
            | Pending::Listen
            | Pending::Own { .. }
            | Pending::Step { .. }
            | Pending::Background { .. } => return None,
        };
        if let Some(call) = &call {
            self.detach_questions(id, call);
            self.drop_steps(id, call);
        }
        self.count_out(session, may_ask);
        self.resolve_held(now);
        self.admit(now);
        call
    }

    /// Tells the server that nobody wants a call's answer any more. It stays in the books until the server has
    /// answered all the same, or has had time to stop.
    pub(super) fn release(
        &mut self,
        now: Moment,
        id: WireId,
        message: Option<&Message>,
        reason: &str,
    ) -> Option<Box<InFlight>> {
        self.rouse(id);
        let until = now.after(Limits::CANCEL_GRACE);
        self.abandon_task(now, id);
        let pending = self.pending.get_mut(&id)?;
        let Pending::Call(call) = pending else { return None };
        let task = call.pursuit.as_ref().map(|pursuit| pursuit.drives());
        if call.round.is_some() || task == Some(false) || (task.is_some() && self.face.listens()) {
            // The server has answered and keeps nothing: there is only the round to forget.
            self.withdraw_round(id);
            return self.settle(now, id);
        }
        let cancelled = Pending::Cancelled {
            session: call.session,
            may_ask: call.method.may_ask(),
            until,
        };
        let Pending::Call(call) = std::mem::replace(pending, cancelled) else {
            return None;
        };
        // The client's own words may be long; ours are not, so that a cancellation can always be sent.
        let words = message.filter(|message| self.has_room(message.len()));
        if task.is_none() {
            backend_face::write_cancel(self.outgoing.end(), words, id, reason);
        }
        self.drop_steps(id, &call);
        self.wake_by(until);
        self.detach_questions(id, &call);
        self.forsake(&call);
        if call.method.may_ask() {
            // What is held may be this call's, which will not be told from the others any more.
            self.refuse_held();
        }
        Some(call)
    }

    /// A call's questions are still the server's to have answered, but there is no call to keep alive.
    pub(super) fn detach_questions(&mut self, id: WireId, call: &InFlight) {
        if call.open_questions > 0 {
            for question in self
                .questions
                .values_mut()
                .filter(|question| question.wire == Some(id))
            {
                question.wire = None;
            }
        }
    }

    /// A call ended without an answer of the server: what it was to bring about is not taken for granted.
    pub(super) fn forsake(&mut self, call: &InFlight) {
        match &call.request {
            Request::Subscribe { uri } => {
                self.interests.unsubscribe(call.session, uri);
            }
            Request::SetLevel { .. } => self.interests.doubt_level(),
            Request::Plain | Request::Unsubscribe { .. } | Request::Watch { .. } => {}
        }
    }

    pub(super) fn find_call(&self, session: SessionKey, call: CallKey) -> Option<WireId> {
        self.pending.iter().rev().find_map(|(id, pending)| {
            let open = pending.as_call()?;
            (open.session == session && open.call == call).then_some(*id)
        })
    }

    pub(super) fn cancel(
        &mut self,
        now: Moment,
        session: SessionKey,
        call: CallKey,
        message: Option<&Message>,
    ) {
        if let Some(at) = self
            .waiting
            .iter()
            .position(|w| w.call.session == session && w.call.call == call)
        {
            self.waiting.remove(at);
        } else if let Some(id) = self.find_call(session, call) {
            let released = self.release(now, id, message, "the client cancelled the request");
            self.doubt_released(now, id, released.as_deref());
        } else {
            return;
        }
        self.tell(Tell::Failed {
            session,
            call,
            failure: Failure::Cancelled,
        });
    }

    /// A client gave up on a call that had taken long. That is no time limit of ours, but a server that hangs must not
    /// be spared because its clients are less patient: it has the call's own time to show that it lives.
    fn doubt_released(&mut self, now: Moment, id: WireId, call: Option<&InFlight>) {
        if let Some(call) = call
            && call.patience.is_none()
            && call.round.is_none()
        {
            self.doubt(now, id, call.deadline);
        }
    }

    pub(super) fn close(&mut self, now: Moment, session: SessionKey) {
        if !self.attached.contains_key(&session) {
            return;
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.openers)
            .into_iter()
            .partition(|opener| opener.session == session);
        self.openers = kept;
        for Opener { call, .. } in gone {
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
        }
        let (gone, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.call.session == session);
        self.waiting = kept;
        for Waiting {
            call: Call { call, .. },
            ..
        } in gone
        {
            self.tell(Tell::Failed {
                session,
                call,
                failure: Failure::SessionEnded,
            });
        }
        let open: Vec<QuestionKey> = self
            .questions
            .iter()
            .filter(|(_, open)| open.session == session)
            .map(|(key, _)| *key)
            .collect();
        for question in open {
            self.refuse_question(now, question, "the client has gone");
        }
        let ids: Vec<WireId> = self
            .pending
            .iter()
            .filter(|(_, pending)| matches!(pending, Pending::Call(call) if call.session == session))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(call) = self.release(now, id, None, "the session ended") {
                self.doubt_released(now, id, Some(&call));
                self.tell(Tell::Failed {
                    session,
                    call: call.call,
                    failure: Failure::SessionEnded,
                });
            }
        }
        self.detach(session);
        let (orphans, level) = self.interests.forget(session);
        self.tasks.unwatch(session);
        self.tune();
        if self.is_ready() && !self.face.listens() {
            for uri in orphans {
                let id = self.own_request(now);
                legacy::write_subscription(self.outgoing.end(), Method::ResourcesUnsubscribe, id, &uri);
            }
            if let Some(level) = level {
                let id = self.own_request(now);
                legacy::write_set_level(self.outgoing.end(), None, id, level);
            }
        }
        self.admit(now);
    }

    pub(super) fn detach(&mut self, session: SessionKey) {
        if let Some(attached) = self.attached.remove(&session)
            && attached.load.in_flight > 0
        {
            self.departed.insert(session, attached.load);
        }
        if self.last_notifier == Some(session) {
            self.last_notifier = None;
        }
    }
}
