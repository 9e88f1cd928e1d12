//! How a call is put to the server, in the words of its era, or done without it where the wish is one that we keep.

use super::*;
use crate::backend_face::modern::Wish;

/// What became of a call that was to be written for the server.
pub(super) enum Lowered {
    /// It is under way.
    Sent,
    /// It needs no server.
    Done,
    TooMuch(&'static str),
    /// The server is known not to do it.
    Unsupported(&'static str),
    /// The server has no such method.
    NoSuchMethod(&'static str),
}

impl Multiplexer {
    /// A modern call says itself which log lines it wants. It is noted, so that what others want makes no difference to
    /// it; a legacy server must be told before it begins.
    pub(super) fn heed_level(&mut self, now: Moment, session: SessionKey, message: &Message, words: Era) {
        let wanted = match words {
            Era::Modern => message.text(Member::MetaLogLevel),
            Era::Legacy => None,
        };
        let Some(level) = wanted.and_then(|level| LogLevel::parse(&level)) else {
            return;
        };
        self.interests.request_level(session, level);
        if self.offers_logs() {
            self.tell_level(now);
        }
    }

    /// Tells a legacy server the level that its sessions want together, if it has another one.
    pub(super) fn tell_level(&mut self, now: Moment) {
        if self.is_ready()
            && !self.face.listens()
            && let Some(level) = self.interests.retell()
        {
            let id = self.own_request(now);
            legacy::write_set_level(self.outgoing.end(), None, id, level);
        }
    }

    pub(super) fn offers_logs(&self) -> bool {
        self.face.welcome().is_some_and(|welcome| welcome.logs)
    }

    /// Writes a call for the server, or does without it where the wish is one that we keep.
    pub(super) fn lower(
        &mut self,
        session: SessionKey,
        request: &Request,
        message: &Message,
        words: Era,
        id: WireId,
        extra: &[(&'static str, Bytes)],
    ) -> Lowered {
        match request {
            Request::Plain => {}
            Request::Subscribe { uri } => {
                if self.interests.subscriptions(session) >= self.limits.subscriptions {
                    return Lowered::TooMuch("resource subscriptions");
                }
                if self.face.listens() && self.listens_left == 0 {
                    return Lowered::Unsupported(wishes::NO_UPDATES);
                }
                if self.interests.subscribe(session, uri) {
                    return Lowered::Done;
                }
                if let Some(discovery) = self.face.discovery() {
                    // Whoever wanted it first may have given up before the listen for it was acknowledged.
                    if discovery.honours(&Wish::Resource(uri.clone())) {
                        self.interests.confirm(uri);
                        return Lowered::Done;
                    }
                    // The listen that follows asks for it; its acknowledgement is the answer.
                    return Lowered::Sent;
                }
            }
            Request::Unsubscribe { uri } => {
                if self.interests.unsubscribe(session, uri) || self.face.listens() {
                    self.tune();
                    return Lowered::Done;
                }
            }
            Request::Watch { task } => {
                return match self.watch_task(session, task) {
                    Watched::Unknown => Lowered::Unsupported(tasks::NO_TASK),
                    Watched::Granted => Lowered::Done,
                    Watched::Wanted if self.listens_left == 0 => Lowered::Unsupported(wishes::NO_UPDATES),
                    // As for a resource.
                    Watched::Wanted => Lowered::Sent,
                };
            }
            Request::SetLevel { .. } if self.face.listens() && !self.offers_logs() => {
                return Lowered::NoSuchMethod("the server has no log lines to choose from");
            }
            Request::SetLevel { level } => match self.interests.set_level(session, *level) {
                Some(level) if !self.face.listens() => {
                    legacy::write_set_level(self.outgoing.end(), Some(message), id, level);
                    return Lowered::Sent;
                }
                // A modern server is told with every call.
                Some(_) | None => return Lowered::Done,
            },
        }
        let Some(attached) = self.attached.get(&session) else {
            return Lowered::Done;
        };
        let line = Outgoing {
            message,
            words,
            id,
            client: &attached.client,
            level: self.interests.level(session),
            extra,
        };
        let start = self.outgoing.len();
        self.face.write_call(&mut self.outgoing, &line);
        if words == self.face.era() {
            self.note_line(start, id, message.method());
        }
        Lowered::Sent
    }
}
