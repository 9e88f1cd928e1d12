//! The links of a conversation: at which members it is a user, and how far each link is.

use std::sync::Arc;

use crate::aggregate::plan::MemberName;
use crate::aggregate::rewriting::Speaker;
use crate::aggregate::view::View;
use crate::exchange::CallKey;

/// How far a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The conversation is no user there.
    Closed,
    /// The instance was asked to open it, by this call.
    Opening(CallKey),
    Open,
    /// Its server refused the handshake, so that the next ask opens it again.
    Refused,
}

/// One member, as a conversation uses it.
#[derive(Debug)]
pub(super) struct Link {
    member: MemberName,
    stage: Stage,
    /// The newest view that has the member, and its position there.
    view: Arc<View>,
    at: usize,
    /// The plan has the member no more: the link is closed when its calls have ended.
    is_leaving: bool,
}

impl Link {
    pub(super) fn member(&self) -> &MemberName {
        &self.member
    }

    /// Returns whether the conversation is a user there.
    pub(super) fn is_attached(&self) -> bool {
        self.stage != Stage::Closed
    }

    /// Returns whether the server has opened it.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns whether an ask would find no user there.
    pub(super) fn must_open(&self) -> bool {
        matches!(self.stage, Stage::Closed | Stage::Refused)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Returns the member as its messages name it.
    pub(super) fn speaker(&self) -> Option<Speaker<'_>> {
        self.view.speaker(self.at)
    }

    /// Returns whether the member accepts a log level, as far as that is known.
    pub(super) fn logs(&self) -> bool {
        self.view
            .offer(self.at)
            .is_none_or(|offer| offer.server_info().logs)
    }

    /// Notes that the instance is asked to open it.
    pub(super) fn handle_asked(&mut self, call: CallKey) {
        self.stage = Stage::Opening(call);
    }

    /// Handles that the server has opened it. Returns whether this was awaited.
    pub(super) fn handle_opened(&mut self, call: CallKey) -> bool {
        let is_awaited = self.stage == Stage::Opening(call);
        if is_awaited {
            self.stage = Stage::Open;
        }
        is_awaited
    }

    /// Handles the end of a call that may be the opening. Returns whether it was.
    pub(super) fn handle_refused(&mut self, call: CallKey) -> bool {
        let is_awaited = self.stage == Stage::Opening(call);
        if is_awaited {
            self.stage = Stage::Refused;
        }
        is_awaited
    }

    pub(super) fn close(&mut self) {
        self.stage = Stage::Closed;
    }
}

/// The links of a conversation. Few, so they stand in a vector.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

impl Links {
    pub(super) fn get(&self, member: &str) -> Option<&Link> {
        self.0.iter().find(|link| &*link.member == member)
    }

    pub(super) fn get_mut(&mut self, member: &str) -> Option<&mut Link> {
        self.0.iter_mut().find(|link| &*link.member == member)
    }

    /// Returns the link to a member of a view, which is made if there is none.
    pub(super) fn entry(&mut self, view: &Arc<View>, at: usize) -> Option<&mut Link> {
        let member = view.plan().members().get(at)?.name();
        let known = self.0.iter().position(|link| link.member == *member);
        let place = known.unwrap_or_else(|| {
            self.0.push(Link {
                member: member.clone(),
                stage: Stage::Closed,
                view: Arc::clone(view),
                at,
                is_leaving: false,
            });
            self.0.len() - 1
        });
        self.0.get_mut(place)
    }

    /// Returns the links at which the conversation is a user.
    pub(super) fn open(&self) -> impl Iterator<Item = &Link> {
        self.0.iter().filter(|link| link.is_attached())
    }

    /// Returns the links through which nothing can be asked until they are opened again.
    pub(super) fn lost(&self) -> impl Iterator<Item = &Link> {
        self.0.iter().filter(|link| link.must_open())
    }

    /// Speaks of members by another view. Members that it lacks are about to leave.
    pub(super) fn handle_view(&mut self, view: &Arc<View>) {
        for link in &mut self.0 {
            let at = view.position(&link.member);
            link.is_leaving = at.is_none();
            if let Some(at) = at {
                (link.view, link.at) = (Arc::clone(view), at);
            }
        }
    }
}
