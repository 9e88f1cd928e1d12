//! The link to the server comes, goes, and comes again.

use super::*;

impl Multiplexer {
    /// The server runs and can be written to.
    pub fn handle_link_up(&mut self, now: Moment) {
        self.link = Link::Up;
        self.outage = None;
        self.start_report = None;
        if let Some(welcome) = self.face.welcome().map(Arc::clone) {
            // It was only out of reach, and need not be introduced again.
            for Opener { session, call, .. } in std::mem::take(&mut self.openers) {
                self.tell(Tell::Welcome {
                    session,
                    call,
                    welcome: Arc::clone(&welcome),
                });
            }
            self.tune();
            self.admit(now);
            return;
        }
        // A new server is introduced at once if sessions of the old one live on.
        if self.introduces_at_start || !self.openers.is_empty() || !self.attached.is_empty() {
            self.pursue(now);
        }
    }

    /// The server has ended. Calls it was working on have failed; those that waited still wait. Returns whether the
    /// server may have ended because of `server/discover`: the next one is asked `initialize` first.
    pub fn handle_link_down(&mut self, trouble: &Arc<Trouble>) -> bool {
        let was_up = matches!(self.link, Link::Up);
        let ended_at_discover = self.negotiation.handle_link_end() && was_up;
        self.link = Link::Absent;
        self.listens_left = wishes::LISTENS;
        self.missed = false;
        self.face.reset();
        self.vigil = Vigil::default();
        self.outgoing.clear();
        self.known_lines.clear();
        self.being_written = 0;
        for attached in self.attached.values_mut() {
            attached.load = Load::default();
        }
        self.abandoned.clear();
        self.interests.doubt_level();
        self.users = Users::default();
        for attached in self.attached.values() {
            self.users.add(&attached.client.principal);
        }
        self.returning.clear();
        self.resting_calls = 0;
        self.busy_sessions = 0;
        self.asking_sessions = 0;
        self.held.clear();
        self.stop_learning();
        self.tasks.lose_link();
        self.roots.lose_link();
        for (question, open) in std::mem::take(&mut self.questions) {
            self.tell(Tell::Withdrawn {
                session: open.session,
                question,
                message: None,
            });
        }
        for (_, pending) in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Call(call) => {
                    self.forsake(&call);
                    let failure = Failure::Exited(Arc::clone(trouble));
                    self.tell(Tell::Failed {
                        session: call.session,
                        call: call.call,
                        failure,
                    });
                }
                Pending::Handshake
                | Pending::Listen
                | Pending::Own { .. }
                | Pending::Step { .. }
                | Pending::Background { .. } => {}
            }
        }
        if !self.openers.is_empty() || !self.waiting.is_empty() {
            self.outputs.push_back(Output::WantLink);
        }
        ended_at_discover
    }

    /// The server has written to stderr. While it starts this shows that it goes on, so that those who wait for it wait
    /// on, up to [`Limits::MAX_EXTENSIONS`] times as long.
    pub fn handle_stderr(&mut self, now: Moment) {
        if self.is_ready() {
            return;
        }
        let until = self.vigil.extend_start(now, self.limits.start_timeout);
        for opener in &mut self.openers {
            opener.deadline = opener.deadline.max(until);
        }
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.starting) {
            waiting.deadline = waiting.deadline.max(until);
        }
    }

    /// Says what a server that is not ready yet does, for those who wait for it in vain.
    pub fn describe_start(&mut self, report: Arc<Trouble>) {
        self.start_report = Some(report);
    }

    /// A panic has interrupted the machine, so that its books may be wrong. Ends every call it still knows of, and
    /// forgets the link; the caller ends the server.
    pub fn handle_panic(&mut self, trouble: &Arc<Trouble>) {
        self.fail_waiting(&Failure::Exited(Arc::clone(trouble)));
        self.handle_link_down(trouble);
    }

    /// The server cannot be had. Whoever waits is told so.
    pub fn handle_unavailable(&mut self, trouble: &Arc<Trouble>, retry_after: Duration) {
        self.link = Link::Unavailable;
        let failure = Failure::Unavailable {
            trouble: Arc::clone(trouble),
            retry_after,
        };
        self.fail_waiting(&failure);
    }

    /// The server was reached and definitely refuses: those who wait are told why. The next one to come tries again.
    pub fn handle_no_server(&mut self, failure: &Failure) {
        self.link = Link::Absent;
        self.outage = None;
        self.fail_waiting(failure);
    }

    /// The server is taken out of service. What it works on may go on; whoever waits for it has not been begun, and may
    /// as well begin elsewhere.
    pub fn handle_retired(&mut self) {
        self.retired = true;
        self.fail_waiting(&Failure::Retired);
    }

    pub(super) fn fail_waiting(&mut self, failure: &Failure) {
        for Opener { session, call, .. } in std::mem::take(&mut self.openers) {
            self.tell(Tell::Failed {
                session,
                call,
                failure: failure.clone(),
            });
        }
        for Waiting {
            call: Call { session, call, .. },
            ..
        } in std::mem::take(&mut self.waiting)
        {
            self.tell(Tell::Failed {
                session,
                call,
                failure: failure.clone(),
            });
        }
    }

    /// Sends the first messages that are due (see [`crate::negotiation`]).
    pub(super) fn negotiate(&mut self, now: Moment) {
        while let Some(era) = self.negotiation.due(now).filter(|era| self.face.can_begin(*era)) {
            let id = self.next_wire();
            self.face.begin(era, id, self.outgoing.end());
            self.pending.insert(id, Pending::Handshake);
            self.negotiation.handle_sent(now, era);
            if self.carrier == Carrier::Pipe {
                let until = now.after(self.limits.start_timeout);
                self.vigil.begin_doubt(until, Owed::Welcome, until);
                self.wake_by(until);
            }
        }
        if let Some(at) = self.negotiation.next_deadline().filter(|at| *at > now) {
            self.wake_by(at);
        }
    }

    /// The server has answered the first message of an era.
    pub(super) fn handle_handshake(&mut self, now: Moment, era: Era, message: Message) {
        match self.face.handle_answer(era, message) {
            Ok(welcome) => {
                let shown = self.negotiation.handle_welcome(era);
                self.outputs.push_back(Output::Shown(shown));
                self.disown_handshakes(now);
                if std::mem::replace(&mut self.welcomed_before, true) {
                    self.resume(now);
                }
                for Opener { session, call, .. } in std::mem::take(&mut self.openers) {
                    self.tell(Tell::Welcome {
                        session,
                        call,
                        welcome: Arc::clone(&welcome),
                    });
                }
                self.tune();
                self.admit(now);
            }
            Err(refusal) => self.handle_refused(now, era, Refusal::Answer(refusal)),
        }
    }

    /// Another first message may still be under way. Its answer decides nothing any more.
    fn disown_handshakes(&mut self, now: Moment) {
        let until = now.after(self.limits.request_timeout);
        let mut others = self.pending.values_mut();
        if let Some(other) = others.find(|pending| matches!(pending, Pending::Handshake)) {
            *other = Pending::Own { until };
            self.wake_by(until);
        }
    }

    /// The server does not welcome this era. The other one may be due; if none is left, who waits is told.
    pub(super) fn handle_refused(&mut self, now: Moment, era: Era, refusal: Refusal) {
        let (era, refusal) = match self.negotiation.handle_refusal(era, refusal) {
            AfterRefusal::GoOn => return self.negotiate(now),
            AfterRefusal::GiveUp { era, refusal, shown } => {
                self.outputs.push_back(Output::Shown(shown));
                (era, refusal)
            }
        };
        match refusal {
            Refusal::Answer(message) => {
                for Opener { session, call, .. } in std::mem::take(&mut self.openers) {
                    self.detach(session);
                    self.interests.forget(session);
                    self.tell(Tell::Reply {
                        session,
                        call,
                        message: Message::clone(&message),
                        words: era,
                    });
                }
                self.fail_waiting(&Failure::NotWelcomed);
            }
            Refusal::Failure(failure) => self.fail_waiting(&failure),
        }
        if self.attached.is_empty() {
            self.face.forget_introduction();
        }
    }

    /// A restarted server is brought to where its predecessor was, and clients are told to look again.
    pub(super) fn resume(&mut self, now: Moment) {
        let newcomers: BTreeSet<SessionKey> = self.openers.iter().map(|opener| opener.session).collect();
        if self.attached.len() == newcomers.len() {
            return;
        }
        self.face.confirm(None, self.outgoing.end());
        let (resources, level) = self.interests.replay();
        let (resources, level) = if self.face.listens() {
            (Vec::new(), None)
        } else {
            (resources, level)
        };
        if let Some(level) = level {
            let id = self.own_request(now);
            legacy::write_set_level(self.outgoing.end(), None, id, level);
        }
        for uri in resources {
            let id = self.own_request(now);
            legacy::write_subscription(self.outgoing.end(), Method::ResourcesSubscribe, id, &uri);
        }
        let lists = self
            .face
            .welcome()
            .map(|welcome| welcome.changing_lists.clone())
            .unwrap_or_default();
        for list in lists {
            let message = legacy::list_changed(list);
            let sessions: Vec<SessionKey> = self
                .hearing()
                .filter(|session| !newcomers.contains(session))
                .collect();
            for session in sessions {
                self.outputs.push_back(Output::Tell(Tell::Notice {
                    session,
                    message: message.clone(),
                }));
            }
        }
    }
}
