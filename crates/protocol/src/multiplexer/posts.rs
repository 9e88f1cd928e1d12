//! A server that is reached by POSTs instead of a pipe.
//!
//! Each request has an exchange of its own there. What comes back on it is known to be about that request, so
//! nobody has to be asked one after the other; and one exchange may fail, be handed back, or find that the server has
//! forgotten its session, while the others go on.

use super::*;
use crate::delivery::{Bundle, Parcel, Post};
use crate::exchange::UpstreamFault;

/// How often a request is said again because the server had forgotten the session. Some servers refuse what they do
/// not like with the same status, and would be introduced to for ever.
const FORGIVEN: u32 = 2;

/// How messages travel to the server and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carrier {
    /// One stream each way: what the server says carries no origin, and if it ends everything ends.
    #[default]
    Pipe,
    /// A POST for each message.
    Posts,
}

impl Multiplexer {
    /// Says how messages travel from now on. Only a silent link can change it.
    pub fn set_carrier(&mut self, carrier: Carrier) {
        self.carrier = carrier;
    }

    /// A client's request was written in its own words, from here to the end: whoever sends it need not read it again.
    pub(super) fn note_line(&mut self, start: usize, id: WireId, method: Method) {
        if self.carrier == Carrier::Posts {
            self.known_lines.push(Known {
                start,
                end: self.outgoing.len(),
                parcel: Parcel::Request { id, method },
            });
        }
    }

    /// Hands over everything that waits to be sent, as lines that are sent one by one.
    pub fn take_posts(&mut self) -> Bundle {
        let known = std::mem::take(&mut self.known_lines);
        Bundle::new(self.take_outgoing(BytesMut::new()), known)
    }

    /// Hands over what waits to be sent if it is one client's request and nothing else: it can leave at once, whoever
    /// brings it.
    pub fn take_lone_post(&mut self) -> Option<Post> {
        let lone = self
            .known_lines
            .pop_if(|known| known.start == 0 && known.end == self.outgoing.len())?;
        let mut line = std::mem::take(&mut self.outgoing).into_whole();
        // Without its line break.
        line.truncate(lone.end - 1);
        Some(Post {
            line: line.freeze(),
            parcel: lone.parcel,
            cancels: None,
        })
    }

    /// The server answers this request with a stream that it can take up again. A legacy client that waits gets one at once:
    /// without it, it could not come back for the answer when it loses its connection. In the modern era nobody comes back,
    /// and the status is to tell what became of the request.
    pub fn handle_begun(&mut self, id: WireId) {
        let id = self.step_of(id);
        let Some(Pending::Call(call)) = self.pending.get_mut(&id) else {
            return;
        };
        if call.words == Era::Legacy && call.patience.take().is_some() {
            let (session, call) = (call.session, call.call);
            self.tell(Tell::Waiting { session, call });
        }
    }

    /// There will be no answer to this request.
    pub fn handle_undelivered(&mut self, now: Moment, id: WireId, failure: Failure) {
        if let Some(era) = self.face.awaits(id) {
            self.pending.remove(&id);
            self.face.abandon(era);
            return self.fail_handshake(now, era, failure);
        }
        if matches!(self.pending.get(&id), Some(Pending::Listen)) {
            self.pending.remove(&id);
            self.handle_listen_lost(now, id);
            return;
        }
        if self.lose_background(id) {
            return;
        }
        let id = self.step_of(id);
        match self.settle(now, id) {
            Some(call) => {
                self.forsake(&call);
                self.tell(Tell::Failed {
                    session: call.session,
                    call: call.call,
                    failure,
                });
            }
            None => {
                self.abandoned.handle_answer(id);
                self.counters.strays += 1;
            }
        }
        self.expire_page(now, id);
    }

    /// The first message of an era has no answer that is a message.
    fn fail_handshake(&mut self, now: Moment, era: Era, failure: Failure) {
        if era == Era::Modern && is_answer(&failure) {
            return self.handle_refused(now, era, Refusal::Failure(failure));
        }
        self.negotiation.handle_unsent(era);
        // The answer to the other one may still come.
        if !self.negotiation.is_open() {
            self.fail_waiting(&failure);
        }
    }

    /// The server has not begun this request because it does not know the session: it waits for another one, unless
    /// that has been tried often enough.
    pub fn handle_forgotten(&mut self, now: Moment, id: WireId) {
        if let Some(Pending::Call(call)) = self.pending.get_mut(&id) {
            call.past.forgotten += 1;
            if call.past.forgotten > FORGIVEN {
                let what = "the server does not know the session that it has just given";
                let failure = Failure::Upstream(Arc::new(Upstream::new(UpstreamFault::Nonsense, what)));
                return self.handle_undelivered(now, id, failure);
            }
        }
        self.handle_returned(now, id);
    }

    /// The server has provably not begun this request: it waits once more, before all others.
    pub fn handle_returned(&mut self, now: Moment, id: WireId) {
        if let Some(era) = self.face.awaits(id) {
            // Whoever waits for the handshake still waits.
            self.pending.remove(&id);
            self.face.abandon(era);
            self.negotiation.handle_unsent(era);
            return;
        }
        match self.pending.get(&id) {
            Some(Pending::Listen) => {
                self.pending.remove(&id);
                return self.handle_listen_lost(now, id);
            }
            Some(Pending::Own { .. }) => {
                self.pending.remove(&id);
                return self.expire_page(now, id);
            }
            Some(Pending::Step { of }) => {
                let of = *of;
                return self.return_step(now, id, of);
            }
            Some(Pending::Background { .. }) => {
                self.lose_background(id);
                return;
            }
            Some(Pending::Call(_) | Pending::Handshake) | None => {}
        }
        let Some(call) = self.settle(now, id) else {
            self.abandoned.handle_answer(id);
            return;
        };
        self.forsake(&call);
        if call.rounds > 0 {
            // What its client answered meanwhile has gone with the request.
            return self.tell(Tell::Failed {
                session: call.session,
                call: call.call,
                failure: Failure::Upstream(Arc::new(Upstream::lost(
                    "the connection was lost between two rounds",
                ))),
            });
        }
        let deadline = now.after(self.limits.start_timeout);
        let at = self.place_among_waiting(call.session, call.call);
        let waiting = Waiting {
            call: Call {
                session: call.session,
                call: call.call,
                request: call.request,
                message: call.message,
                words: call.words,
                mirrored: None,
                reads_events: call.reads_events,
            },
            deadline,
            starting: true,
            patience: call.patience,
            asked_first: false,
            occupied_until: None,
            past: call.past,
        };
        self.waiting.insert(at, waiting);
        self.wake_by(earliest(Some(deadline), call.patience).unwrap_or(deadline));
        if self.is_ready() {
            self.admit(now);
        } else {
            self.pursue(now);
        }
    }

    /// Where a call that came back stands: before everybody else's, and among its own session's in the order in which
    /// they were made.
    fn place_among_waiting(&self, session: SessionKey, call: CallKey) -> usize {
        let earlier = |waiting: &Waiting| waiting.call.session == session && waiting.call.call < call;
        self.waiting.iter().rposition(earlier).map_or(0, |at| at + 1)
    }

    /// The server has forgotten us. It is introduced to once more, for all that waits; what it still works on may go on.
    pub fn handle_session_lost(&mut self, now: Moment) {
        self.face.reset();
        self.negotiation.restart();
        self.pending
            .retain(|_, pending| !matches!(pending, Pending::Handshake));
        self.pursue(now);
    }

    /// The server cannot be reached at the moment. What it still works on may go on; everything else waits, and what
    /// waits for too long is told why.
    pub fn handle_outage(&mut self, trouble: Option<Arc<Trouble>>) {
        self.link = Link::Absent;
        self.outage = trouble;
        if !self.openers.is_empty() || !self.waiting.is_empty() {
            self.outputs.push_back(Output::WantLink);
        }
    }

    /// Whether nothing that would answer this request has come yet.
    pub fn is_unanswered(&self, id: WireId) -> bool {
        match self.pending.get(&id) {
            Some(Pending::Call(call)) => call.round.is_none() && call.pursuit.is_none(),
            Some(
                Pending::Handshake
                | Pending::Listen
                | Pending::Own { .. }
                | Pending::Step { .. }
                | Pending::Background { .. },
            ) => true,
            None => false,
        }
    }

    /// Whose question or log line it is that came in the exchange of this request.
    pub(super) fn origin_of(&self, id: WireId) -> Option<(SessionKey, Option<WireId>)> {
        match self.pending.get(&id) {
            Some(Pending::Call(call)) => Some((call.session, Some(id))),
            // What comes while we wait for the outcome of a call's task is about that call.
            Some(Pending::Step { of }) => match self.pending.get(of) {
                Some(Pending::Call(call)) => Some((call.session, Some(*of))),
                _ => None,
            },
            Some(Pending::Handshake | Pending::Listen | Pending::Own { .. } | Pending::Background { .. })
            | None => None,
        }
    }
}

/// Returns whether a failed `server/discover` was answered by the server: a legacy server may answer a method that it
/// does not know with anything. A server that was not reached, or refuses every credential, has not answered.
fn is_answer(failure: &Failure) -> bool {
    match failure {
        Failure::TooLarge { .. } | Failure::Invalid(_) => true,
        Failure::Upstream(upstream) => match upstream.fault {
            UpstreamFault::Nonsense | UpstreamFault::Refused => true,
            UpstreamFault::Lost | UpstreamFault::Unauthorized | UpstreamFault::Unsafe => false,
        },
        Failure::Timeout { .. }
        | Failure::StartTimeout { .. }
        | Failure::Exited(_)
        | Failure::Unavailable { .. }
        | Failure::Retired
        | Failure::NotWelcomed
        | Failure::Overloaded { .. }
        | Failure::Occupied
        | Failure::Unsupported { .. }
        | Failure::Unanswered { .. }
        | Failure::Cancelled
        | Failure::SessionEnded => false,
    }
}
