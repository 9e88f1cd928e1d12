//! Calls that no client waits for any more and that the server has not answered: cancelled, timed
//! out, or of a session that has ended.
//!
//! Few servers stop when they read `notifications/cancelled`, and most never answer the cancelled
//! call. The server may ask or log because of it at any later time. So an abandoned call belongs to
//! its principal until the server answers it or the link ends, and what could be about it reaches
//! no other principal. The number of these calls is limited: beyond it the oldest is kept only as a
//! mark on its principal, and beyond the limit of marks only as work of an unknown principal, which
//! excludes every principal.

use std::collections::BTreeMap;

use crate::backend_face::WireId;
use crate::exchange::{Principal, SessionKey};

/// What the server sent: any call may log, but only some may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matter {
    Question,
    Log,
}

#[derive(Debug)]
struct AbandonedCall {
    session: SessionKey,
    principal: Principal,
    may_ask: bool,
}

/// The abandoned work of one principal.
#[derive(Debug, Default, Clone, Copy)]
struct Owned {
    calls: usize,
    /// Those of them that may ask.
    asking: usize,
    marked: bool,
    /// A call behind the mark may ask.
    marked_asking: bool,
}

impl Owned {
    const fn may_cause(self, matter: Matter) -> bool {
        match matter {
            Matter::Question => self.asking > 0 || self.marked_asking,
            // A principal without a call or a mark is not kept.
            Matter::Log => true,
        }
    }
}

/// The abandoned calls of one link.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    calls: BTreeMap<WireId, AbandonedCall>,
    owners: BTreeMap<Principal, Owned>,
    /// There is work of principals that are not known any more.
    unknown: bool,
}

impl Abandoned {
    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty() && !self.unknown
    }

    /// Returns how many calls and how many principals are kept.
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.calls.len(), self.owners.len())
    }

    /// Adds a call. Returns whether a limit made it, or an older one, lose its place.
    pub(super) fn add(
        &mut self,
        id: WireId,
        session: SessionKey,
        principal: Principal,
        may_ask: bool,
        limit: usize,
    ) -> bool {
        let owned = self.owners.entry(principal.clone()).or_default();
        owned.calls += 1;
        owned.asking += usize::from(may_ask);
        let call = AbandonedCall {
            session,
            principal,
            may_ask,
        };
        self.calls.insert(id, call);
        self.calls.len() > limit && self.collapse_oldest(limit)
    }

    /// Keeps of the oldest call only that its principal has work here.
    fn collapse_oldest(&mut self, marks: usize) -> bool {
        let Some((_, call)) = self.calls.pop_first() else {
            return false;
        };
        let marked = self.owners.values().filter(|owned| owned.marked).count();
        if let Some(owned) = self.owners.get_mut(&call.principal) {
            if owned.marked || marked < marks {
                owned.marked = true;
                owned.marked_asking |= call.may_ask;
            } else {
                self.unknown = true;
            }
        }
        self.disown(&call);
        true
    }

    fn disown(&mut self, call: &AbandonedCall) {
        if let Some(owned) = self.owners.get_mut(&call.principal) {
            owned.calls -= 1;
            owned.asking -= usize::from(call.may_ask);
            if owned.calls == 0 && !owned.marked {
                self.owners.remove(&call.principal);
            }
        }
    }

    /// Handles the server's answer. Returns whether it is that of an abandoned call.
    pub(super) fn handle_answer(&mut self, id: WireId) -> bool {
        let Some(call) = self.calls.remove(&id) else {
            return false;
        };
        self.disown(&call);
        true
    }

    /// Returns whether another principal than this one may have caused it.
    pub(super) fn may_be_of_another(&self, principal: &Principal, matter: Matter) -> bool {
        self.unknown
            || self
                .owners
                .iter()
                .any(|(owner, owned)| owned.may_cause(matter) && owner != principal)
    }

    /// Returns the only principal whose abandoned calls may have caused it.
    pub(super) fn sole_owner(&self, matter: Matter) -> Option<&Principal> {
        let mut owners = self
            .owners
            .iter()
            .filter(|(_, owned)| owned.may_cause(matter))
            .map(|(owner, _)| owner);
        let first = owners.next().filter(|_| !self.unknown)?;
        owners.next().is_none().then_some(first)
    }

    /// Returns the only session whose abandoned calls may have caused it, as far as they are still
    /// known.
    pub(super) fn sole_session(&self, matter: Matter) -> Option<SessionKey> {
        let marked = self.owners.values().any(|owned| owned.marked);
        let mut sessions = self
            .calls
            .values()
            .filter(|call| call.may_ask || matter == Matter::Log)
            .map(|call| call.session);
        let first = sessions.next().filter(|_| !marked && !self.unknown)?;
        sessions.all(|session| session == first).then_some(first)
    }

    /// The link has ended, and with it everything the server worked on.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ann() -> Principal {
        Principal::named("ann")
    }

    fn bob() -> Principal {
        Principal::named("bob")
    }

    fn abandon(abandoned: &mut Abandoned, id: u64, principal: Principal, limit: usize) -> bool {
        abandoned.add(WireId(id), SessionKey(id), principal, true, limit)
    }

    #[test]
    fn abandoned_call_excludes_other_principals_until_it_is_answered() {
        let mut abandoned = Abandoned::default();
        assert!(!abandon(&mut abandoned, 1, ann(), 8));
        assert!(abandoned.may_be_of_another(&bob(), Matter::Question));
        assert!(!abandoned.may_be_of_another(&ann(), Matter::Question));
        assert_eq!(abandoned.sole_session(Matter::Log), Some(SessionKey(1)));
        assert!(abandoned.handle_answer(WireId(1)));
        assert!(!abandoned.handle_answer(WireId(1)));
        assert!(abandoned.is_empty());
    }

    #[test]
    fn call_that_cannot_ask_may_still_log() {
        let mut abandoned = Abandoned::default();
        abandoned.add(WireId(1), SessionKey(1), ann(), false, 8);
        assert!(!abandoned.may_be_of_another(&bob(), Matter::Question));
        assert!(abandoned.may_be_of_another(&bob(), Matter::Log));
    }

    #[test]
    fn principal_may_ask_until_its_last_call_that_may_is_answered() {
        let mut abandoned = Abandoned::default();
        abandoned.add(WireId(1), SessionKey(1), ann(), true, 8);
        abandoned.add(WireId(2), SessionKey(2), ann(), true, 8);
        abandoned.add(WireId(3), SessionKey(3), ann(), false, 8);
        assert_eq!(abandoned.sole_session(Matter::Question), None, "two may ask");
        abandoned.handle_answer(WireId(1));
        assert_eq!(abandoned.sole_session(Matter::Question), Some(SessionKey(2)));
        assert_eq!(abandoned.sole_session(Matter::Log), None, "any may log");
        assert!(abandoned.may_be_of_another(&bob(), Matter::Question));
        abandoned.handle_answer(WireId(2));
        assert!(!abandoned.may_be_of_another(&bob(), Matter::Question));
        assert!(abandoned.may_be_of_another(&bob(), Matter::Log));
        assert_eq!(abandoned.sole_owner(Matter::Question), None);
    }

    #[test]
    fn calls_beyond_the_limit_leave_a_mark_on_their_principal() {
        let mut abandoned = Abandoned::default();
        assert!(!abandon(&mut abandoned, 1, ann(), 1));
        assert!(abandon(&mut abandoned, 2, ann(), 1));
        assert_eq!(abandoned.sizes(), (1, 1));
        assert_eq!(
            abandoned.sole_session(Matter::Question),
            None,
            "call 1 is of another"
        );
        abandoned.handle_answer(WireId(2));
        assert!(abandoned.may_be_of_another(&bob(), Matter::Question));
        assert_eq!(abandoned.sole_owner(Matter::Question), Some(&ann()));
        assert_eq!(abandoned.sole_session(Matter::Question), None);
    }

    #[test]
    fn marks_beyond_the_limit_exclude_every_principal() {
        let mut abandoned = Abandoned::default();
        for (id, name) in ["ann", "bob", "cid", "dan"].into_iter().enumerate() {
            abandon(&mut abandoned, id as u64, Principal::named(name), 2);
        }
        assert_eq!(abandoned.sizes(), (2, 4));
        abandon(&mut abandoned, 9, Principal::named("eve"), 2);
        assert_eq!(abandoned.sizes(), (2, 4), "cid is unknown from now on");
        assert_eq!(abandoned.sole_session(Matter::Question), None);
        assert_eq!(abandoned.sole_owner(Matter::Question), None);
        for name in ["ann", "bob", "cid", "dan", "eve"] {
            assert!(abandoned.may_be_of_another(&Principal::named(name), Matter::Question));
        }
        abandoned.clear();
        assert!(abandoned.is_empty());
    }
}
