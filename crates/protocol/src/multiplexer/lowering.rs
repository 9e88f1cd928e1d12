//! How a call is written for the server, in the form of its era, or done without it where Rialto
//! keeps what it asks for.

use bytes::Bytes;

use super::Multiplexer;
use super::changes::NO_UPDATES;
use super::link::Carrier;
use super::tasks::{NO_TASK, Watched};
use crate::backend_face::modern::ListenFilter;
use crate::backend_face::{OutgoingRequest, WireId, legacy};
use crate::exchange::{Request, SessionKey};
use crate::message::{Member, Message};
use crate::method::{LogLevel, Method};
use crate::time::Moment;
use crate::version::{ChangeStyle, Era, LogLevelStyle};

/// What became of a call that was to be written for the server.
pub(super) enum Lowered {
    /// It is under way.
    Sent,
    /// The listen that follows asks for it; its acknowledgement is the answer.
    Listened,
    /// It needs no server.
    Done,
    TooMuch(&'static str),
    /// The server is known not to do it.
    Unsupported(&'static str),
    /// The server has no such method.
    NoSuchMethod(&'static str),
}

impl Multiplexer {
    /// Notes the log level that a call itself names. A legacy server must receive it before the
    /// call, by `logging/setLevel`.
    pub(super) fn apply_level(&mut self, now: Moment, session: SessionKey, message: &Message, era: Era) {
        let wanted = match era.log_levels() {
            LogLevelStyle::PerRequest => message.text(Member::MetaLogLevel),
            LogLevelStyle::PerSession => None,
        };
        let Some(level) = wanted.and_then(|level| LogLevel::parse(&level)) else {
            return;
        };
        self.subscriptions.request_level(session, level);
        if self.link.offers_logs() {
            self.tell_level(now);
        }
    }

    /// Sends the level that the sessions want together to a server that keeps one, if it has
    /// another.
    pub(super) fn tell_level(&mut self, now: Moment) {
        match self.link.face().log_levels() {
            LogLevelStyle::PerRequest => {}
            LogLevelStyle::PerSession => {
                if self.link.is_ready()
                    && let Some(level) = self.subscriptions.resend_level()
                {
                    self.send_level(now, level);
                }
            }
        }
    }

    /// Sends a level for all sessions. A server that receives it with every request needs none.
    pub(super) fn send_level(&mut self, now: Moment, level: LogLevel) {
        match self.link.face().log_levels() {
            LogLevelStyle::PerRequest => {}
            LogLevelStyle::PerSession => {
                let id = self.ledger.own_request(now);
                legacy::write_set_level(self.ledger.outgoing.end(), None, id, level);
            }
        }
    }

    /// Subscribes or unsubscribes on Rialto's own account. A server that is listened to needs
    /// neither.
    pub(super) fn send_subscription(&mut self, now: Moment, method: Method, uri: &str) {
        match self.link.face().changes() {
            ChangeStyle::Listen => {}
            ChangeStyle::Unasked => {
                let id = self.ledger.own_request(now);
                legacy::write_subscription(self.ledger.outgoing.end(), method, id, uri);
            }
        }
    }

    /// Writes a call for the server, or does without it where Rialto keeps what it asks for.
    pub(super) fn lower(
        &mut self,
        session: SessionKey,
        request: &Request,
        message: &Message,
        era: Era,
        id: WireId,
        extra: &[(&'static str, Bytes)],
    ) -> Lowered {
        match request {
            Request::Plain => {}
            Request::Subscribe { uri } => {
                if let Some(lowered) = self.lower_subscription(session, uri) {
                    return lowered;
                }
            }
            Request::Unsubscribe { uri } => {
                let is_shared = self.subscriptions.unsubscribe(session, uri);
                match self.link.face().changes() {
                    ChangeStyle::Unasked if !is_shared => {}
                    ChangeStyle::Unasked | ChangeStyle::Listen => {
                        self.sync_listen();
                        return Lowered::Done;
                    }
                }
            }
            Request::Watch { task } => {
                return match self.tasks.watch(session, task, &self.ledger, &self.link) {
                    Watched::Unknown => Lowered::Unsupported(NO_TASK),
                    Watched::Granted => Lowered::Done,
                    Watched::Wanted if self.listen.is_given_up() => Lowered::Unsupported(NO_UPDATES),
                    Watched::Wanted => Lowered::Listened,
                };
            }
            Request::SetLevel { level } => return self.lower_level(session, *level, message, id),
        }
        let Some(entry) = self.ledger.sessions.get(session) else {
            return Lowered::Done;
        };
        let line = OutgoingRequest {
            message,
            era,
            id,
            client: &entry.client,
            level: self.subscriptions.level(session),
            extra,
        };
        let start = self.ledger.outgoing.len();
        self.link.face().write_call(self.ledger.outgoing.outbox(), &line);
        // A client's request in its own words: the sender of a POST need not read it again.
        if self.link.carrier() == Carrier::Posts && era == self.link.face().era() {
            self.ledger.outgoing.note_line(start, id, message.method());
        }
        Lowered::Sent
    }

    /// Subscribes a session. Returns `None` if the server must be sent the request.
    fn lower_subscription(&mut self, session: SessionKey, uri: &str) -> Option<Lowered> {
        if self.subscriptions.subscriptions(session) >= self.ledger.limits.subscriptions {
            return Some(Lowered::TooMuch("resource subscriptions"));
        }
        match self.link.face().changes() {
            ChangeStyle::Unasked => self
                .subscriptions
                .subscribe(session, uri)
                .then_some(Lowered::Done),
            ChangeStyle::Listen if self.listen.is_given_up() => Some(Lowered::Unsupported(NO_UPDATES)),
            ChangeStyle::Listen => {
                if self.subscriptions.subscribe(session, uri) {
                    return Some(Lowered::Done);
                }
                // The first to want it may have given up before the listen for it was acknowledged.
                if self.listen.honours(&ListenFilter::Resource(uri.to_owned())) {
                    self.subscriptions.confirm(uri);
                    return Some(Lowered::Done);
                }
                Some(Lowered::Listened)
            }
        }
    }

    /// Notes the level that a session chooses, and sends it to a server that keeps one.
    fn lower_level(
        &mut self,
        session: SessionKey,
        level: LogLevel,
        message: &Message,
        id: WireId,
    ) -> Lowered {
        match self.link.face().log_levels() {
            LogLevelStyle::PerRequest if !self.link.offers_logs() => {
                Lowered::NoSuchMethod("the server has no log lines to choose from")
            }
            LogLevelStyle::PerRequest => {
                self.subscriptions.set_level(session, level);
                Lowered::Done
            }
            LogLevelStyle::PerSession => match self.subscriptions.set_level(session, level) {
                Some(level) => {
                    legacy::write_set_level(self.ledger.outgoing.end(), Some(message), id, level);
                    Lowered::Sent
                }
                None => Lowered::Done,
            },
        }
    }
}
