//! The routes of open calls: which member has each, and what becomes of its answer.

use crate::aggregate::plan::MemberName;
use crate::exchange::CallKey;
use crate::method::Method;
use crate::vec_map::VecMap;

/// Keys of the conversation's own calls have this bit. Clients count from 1.
const OWN: u64 = 1 << 63;

/// What a call is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A request of the client, whose answer the client gets.
    Client(Method),
    /// The same for updates of a resource.
    Subscribe {
        /// As the member knows it.
        own: String,
        /// As the client wrote it.
        shown: String,
    },
    /// The level of log lines: the client has its answer already.
    Level,
    /// A page of a member's tasks, for this call of the client.
    TaskPage(CallKey),
}

/// The way of one open call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) member: MemberName,
    pub(super) purpose: Purpose,
}

/// The ways of all open calls.
#[derive(Debug, Default)]
pub(super) struct Routes {
    open: VecMap<CallKey, Route>,
    made: u64,
}

impl Routes {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns a key for a call of the conversation's own.
    pub(super) fn new_key(&mut self) -> CallKey {
        self.made += 1;
        CallKey(OWN | self.made)
    }

    pub(super) fn insert(&mut self, call: CallKey, route: Route) {
        self.open.insert(call, route);
    }

    /// Returns the member of a call.
    pub(super) fn member(&self, call: CallKey) -> Option<&MemberName> {
        self.open.get(&call).map(|route| &route.member)
    }

    /// Returns whether this call of the client is at this member.
    pub(super) fn is_at(&self, call: CallKey, member: &str) -> bool {
        call.0 & OWN == 0 && self.member(call).is_some_and(|at| &**at == member)
    }

    /// Takes the route of a call that has ended at this member. No other member can end it.
    pub(super) fn take(&mut self, call: CallKey, member: &str) -> Option<Route> {
        let route = self.open.get(&call)?;
        (&*route.member == member).then(|| self.open.remove(&call))?
    }

    /// Forgets all routes. Returns the calls of the client.
    pub(super) fn take_calls(&mut self) -> Vec<CallKey> {
        let open = std::mem::take(&mut self.open);
        let calls = open.iter().map(|(call, _)| *call);
        calls.filter(|call| call.0 & OWN == 0).collect()
    }

    /// Returns whether a member has open calls.
    pub(super) fn has_any_at(&self, member: &str) -> bool {
        self.open.values().any(|route| &*route.member == member)
    }

    /// Returns the open calls at a member.
    pub(super) fn at(&self, member: &str) -> Vec<CallKey> {
        let open = self.open.iter();
        open.filter(|(_, route)| &*route.member == member)
            .map(|(call, _)| *call)
            .collect()
    }
}
