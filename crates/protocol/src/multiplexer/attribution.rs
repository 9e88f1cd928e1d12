//! Attribution: which session a question or log line without an origin is for. The module doc of
//! the multiplexer has the rule.

use crate::backend_face::WireId;
use crate::exchange::{Principal, SessionKey};
use crate::method::Method;

use super::abandoned::{Abandoned, Matter};
use super::ledger::Ledger;
use super::link::{Carrier, Link};
use super::roots::SeveralPrincipals;
use super::state::InFlight;
use super::suspended::Suspended;
use super::unattributed::Unattributed;

/// The session that a message is for, and the call that caused it, if that is known.
pub(super) type Origin = (SessionKey, Option<WireId>);

/// What is known of the calls and principals that may cause what the server sends.
#[derive(Debug, Default)]
pub(super) struct Attribution {
    /// Calls that no client waits for any more and that the server has not answered.
    pub(super) abandoned: Abandoned,
    pub(super) suspended: Suspended,
    pub(super) unattributed: Unattributed,
    users: Users,
    /// The server has asked a question at some time: attribution needs one asking session at a
    /// time.
    has_asked: bool,
    /// The principal that the instance belongs to since then.
    owner: Option<Principal>,
    /// The session whose notification about roots was sent last; a question for roots outside any
    /// call is for it.
    last_notifier: Option<SessionKey>,
}

/// The principals that have used a link. What the server sends outside any call may be about what
/// any of them did.
#[derive(Debug, Default)]
enum Users {
    #[default]
    None,
    One(Principal),
    Several,
}

/// What is to become of the questions that are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolution {
    /// They wait on.
    Wait,
    /// One session at most is left that may have asked.
    Attribute,
    /// It will not be known which session asked.
    Refuse,
}

impl Users {
    fn add(&mut self, principal: &Principal) {
        match self {
            Self::None => *self = Self::One(principal.clone()),
            Self::One(only) if only == principal => {}
            Self::One(_) => *self = Self::Several,
            Self::Several => {}
        }
    }

    fn is_only(&self, principal: &Principal) -> bool {
        matches!(self, Self::One(only) if only == principal)
    }
}

impl Attribution {
    // Facts.

    /// A session is about to be added.
    pub(super) fn handle_session(&mut self, principal: &Principal, ledger: &Ledger) {
        self.users.add(principal);
        if self.has_asked && ledger.sessions.is_empty() {
            self.owner = Some(principal.clone());
        }
    }

    /// A notification of a session about its roots was sent.
    pub(super) fn handle_roots_notice(&mut self, session: SessionKey) {
        self.last_notifier = Some(session);
    }

    /// The server has asked something without an origin, which was attributed to this session if to
    /// any. At the first time the instance becomes that session's principal's, or that of a session
    /// that may have been meant.
    pub(super) fn handle_question(&mut self, found: Option<Origin>, ledger: &Ledger) {
        if std::mem::replace(&mut self.has_asked, true) {
            return;
        }
        let may_be_meant = || {
            let sessions = ledger.sessions.iter();
            sessions.max_by_key(|(_, entry)| entry.is_asking())
        };
        let asked = match found {
            Some((session, _)) => ledger.sessions.get(session),
            None => may_be_meant().map(|(_, entry)| entry),
        };
        self.owner = asked.map(|entry| entry.principal().clone());
    }

    /// No client waits for a call any more that the server may go on with: it stays its
    /// principal's.
    pub(super) fn abandon(&mut self, id: WireId, call: &InFlight, ledger: &mut Ledger, link: &Link) {
        // Where everything about a call comes in its HTTP exchange, that has ended.
        if link.carrier() == Carrier::Posts && link.face().is_silent_after_exchange() {
            return;
        }
        let Some(entry) = ledger.sessions.get(call.session) else {
            return;
        };
        let principal = entry.principal().clone();
        let (may_ask, limit) = (call.method().may_ask(), ledger.limits.abandoned);
        let collapsed = self.abandoned.add(id, call.session, principal, may_ask, limit);
        ledger.counters.overloads += u64::from(collapsed);
    }

    /// The link has ended, and with it everything that the server worked on.
    pub(super) fn lose_link(&mut self, ledger: &Ledger) {
        self.abandoned.clear();
        self.suspended.lose_link();
        self.unattributed.take();
        self.users = Users::default();
        for (_, entry) in ledger.sessions.iter() {
            self.users.add(entry.principal());
        }
    }

    // Sharing.

    /// Returns whether a principal should use this instance.
    pub(super) fn suits(&self, principal: &Principal, ledger: &Ledger, link: &Link) -> bool {
        !self.has_asked
            || link.carrier() == Carrier::Posts
            || self.owner.as_ref().is_none_or(|owner| owner == principal)
            || (self.abandoned.is_empty()
                && ledger
                    .sessions
                    .iter()
                    .all(|(_, entry)| entry.principal() == principal))
    }

    /// Returns whether the instance belongs to one principal.
    pub(super) fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns whether several principals have used the link.
    pub(super) fn has_several_users(&self) -> bool {
        matches!(self.users, Users::Several)
    }

    /// Returns whether the server has asked before and may ask because of this method.
    pub(super) fn takes_turns(&self, method: Method) -> bool {
        self.has_asked && method.may_ask()
    }

    /// Returns whether a call of another principal keeps this session's calls from their turn.
    pub(super) fn is_occupied(&self, session: SessionKey, ledger: &Ledger) -> bool {
        self.suspended.has_other_principal(session, ledger) || other_principals_ask(session, ledger)
    }

    // Questions and log lines.

    /// Returns the session that a question is for, and which of its calls caused it.
    pub(super) fn of_question(&self, method: Method, ledger: &Ledger) -> Option<Origin> {
        let found = self.likely_origin(method, ledger)?;
        (!self.may_be_of_another_principal(found.0, Matter::Question, ledger)).then_some(found)
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only roots belong to a session and to no call"
    )]
    fn likely_origin(&self, method: Method, ledger: &Ledger) -> Option<Origin> {
        match ledger.sessions.asking() {
            0 => {}
            1 => {
                return newest(ledger, |call| {
                    call.method().may_ask() && !call.asking.is_suspended()
                });
            }
            _ => return None,
        }
        if self.suspended.is_any() {
            return Suspended::sole_session(ledger);
        }
        if self.abandoned.sole_owner(Matter::Question).is_some() {
            let session = self.abandoning_session(Matter::Question, ledger)?;
            let call = newest(ledger, |call| call.session == session);
            return Some((session, call.and_then(|(_, id)| id)));
        }
        // No call is there that may ask, so it may be about anything that was done on this link.
        if ledger.sessions.busy() <= 1
            && let Some(found) = newest(ledger, |_| true)
            && self.is_only_user(found.0, ledger)
        {
            return Some(found);
        }
        if let Some(session) = sole(ledger.sessions.iter().map(|(session, _)| session))
            && self.is_only_user(session, ledger)
        {
            return Some((session, None));
        }
        match method {
            Method::RootsList => self.last_notifier.map(|session| (session, None)),
            _ => None,
        }
    }

    /// Returns the session that a log line is for, and which of its calls caused it.
    pub(super) fn of_log(&self, ledger: &Ledger) -> Option<Origin> {
        let found = self.likely_logger(ledger)?;
        (!self.may_be_of_another_principal(found.0, Matter::Log, ledger)).then_some(found)
    }

    fn likely_logger(&self, ledger: &Ledger) -> Option<Origin> {
        match ledger.sessions.busy() {
            0 => {}
            1 => {
                let (session, id) = newest(ledger, |call| !call.asking.is_suspended())?;
                let same = |call: &InFlight| !call.asking.is_suspended() && call.session == session;
                let several = ledger.calls().filter(|(_, call)| same(call));
                return Some((session, id.filter(|_| several.take(2).count() == 1)));
            }
            _ => return None,
        }
        if self.suspended.is_any() {
            return Suspended::sole_session(ledger);
        }
        if !self.abandoned.is_empty() {
            let session = self.abandoning_session(Matter::Log, ledger);
            return session.map(|session| (session, None));
        }
        self.sole_notified(ledger).map(|session| (session, None))
    }

    /// Returns whether a log line that is about no known call may go to every session: no call
    /// runs, and all sessions are of the only principal that has used the link.
    pub(super) fn may_log_to_all(&self, ledger: &Ledger) -> bool {
        let is_quiet = ledger.sessions.busy() == 0 && !self.suspended.is_any();
        let first = ledger.sessions.iter().next();
        is_quiet && first.is_some_and(|(session, _)| self.is_only_user(session, ledger))
    }

    /// Returns the session for what the server sends because of an abandoned call: the call's own,
    /// or else the only one that its principal has.
    fn abandoning_session(&self, matter: Matter, ledger: &Ledger) -> Option<SessionKey> {
        let own = self.abandoned.sole_session(matter);
        if let Some(session) = own.filter(|session| ledger.sessions.contains(*session)) {
            return Some(session);
        }
        let owner = self.abandoned.sole_owner(matter)?;
        let sessions = ledger.sessions.iter();
        sole(
            sessions
                .filter(|(_, entry)| entry.principal() == owner)
                .map(|(session, _)| session),
        )
    }

    /// Returns whether a call of another principal than this session's may have caused it: one in
    /// flight, one that is suspended, or one that was abandoned.
    pub(super) fn may_be_of_another_principal(
        &self,
        session: SessionKey,
        matter: Matter,
        ledger: &Ledger,
    ) -> bool {
        let Some(entry) = ledger.sessions.get(session) else {
            return true;
        };
        (!self.abandoned.is_empty() && self.abandoned.may_be_of_another(entry.principal(), matter))
            || self.suspended.has_other_principal(session, ledger)
            || other_principals_ask(session, ledger)
    }

    /// Returns whether every session that has used this link is of the same principal as this one.
    fn is_only_user(&self, session: SessionKey, ledger: &Ledger) -> bool {
        let entry = ledger.sessions.get(session);
        entry.is_some_and(|entry| self.users.is_only(entry.principal()))
    }

    /// Returns the only session that receives notifications about no call, if no other principal
    /// has used the link.
    pub(super) fn sole_notified(&self, ledger: &Ledger) -> Option<SessionKey> {
        sole(ledger.sessions.notified()).filter(|session| self.is_only_user(*session, ledger))
    }

    /// Returns the only principal that everything the server sends is for, if any is there. An
    /// error: it could be several.
    pub(super) fn sole_principal(&self, ledger: &Ledger) -> Result<Option<Principal>, SeveralPrincipals> {
        let mut principals = ledger.sessions.iter().map(|(_, entry)| entry.principal());
        let first = principals.next();
        if !principals.all(|principal| Some(principal) == first) {
            return Err(SeveralPrincipals);
        }
        if self.abandoned.is_empty() {
            return Ok(first.cloned());
        }
        match self.abandoned.sole_owner(Matter::Question) {
            Some(owner) if first.is_none_or(|first| first == owner) => Ok(Some(owner.clone())),
            None if first.is_some_and(|first| !self.abandoned.may_be_of_another(first, Matter::Question)) => {
                Ok(first.cloned())
            }
            Some(_) | None => Err(SeveralPrincipals),
        }
    }

    /// Returns whether a question that several sessions' calls may have caused can be held: the
    /// sessions are of one principal, and one of them is not waiting for an answer yet.
    pub(super) fn can_hold(&self, ledger: &Ledger) -> bool {
        let mut asking = ledger.sessions.iter().filter(|(_, entry)| entry.is_asking());
        asking
            .next()
            .is_some_and(|(session, _)| !self.may_be_of_another_principal(session, Matter::Question, ledger))
    }

    /// Returns what is to become of the questions that are held, after a session's calls have
    /// ended.
    pub(super) fn resolution(&self, ledger: &Ledger) -> Resolution {
        match ledger.sessions.asking() {
            0 if self.abandoned.is_empty() => Resolution::Refuse,
            0 | 1 => Resolution::Attribute,
            // All of them may be waiting for an answer, and then none will ever end.
            several if self.unattributed.len() >= several => Resolution::Refuse,
            _ => Resolution::Wait,
        }
    }
}

/// Returns whether a call of another principal is in flight that may ask. A log line needs no
/// more: it is attributed to a call in flight only if all others are suspended.
fn other_principals_ask(session: SessionKey, ledger: &Ledger) -> bool {
    let Some(own) = ledger.sessions.get(session) else {
        return true;
    };
    ledger.sessions.others_ask(session)
        && ledger
            .sessions
            .iter()
            .any(|(_, other)| other.is_asking() && other.principal() != own.principal())
}

/// Returns the newest call in flight of this kind.
fn newest(ledger: &Ledger, wanted: impl Fn(&InFlight) -> bool) -> Option<Origin> {
    let mut newest_first = ledger.calls().rev();
    newest_first
        .find(|(_, call)| wanted(call))
        .map(|(id, call)| (call.session, Some(id)))
}

/// Returns the only item there is.
fn sole<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}
