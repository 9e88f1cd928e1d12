//! Listening to a server that sends changes only for an open `subscriptions/listen`.
//!
//! One listen serves all sessions of the instance. When the filters that they want change, a new
//! listen is opened first, and the old one is closed when the server acknowledges the new one, so
//! that nothing is missed.

use std::collections::BTreeSet;

use crate::backend_face::modern::{self, ListenFilter};
use crate::backend_face::{WireId, write_cancel};
use crate::message::Message;

use super::ledger::Ledger;
use super::link::Link;
use super::state::Pending;

/// How often a server that ends Rialto's listens is asked again on one link.
const LISTENS: u32 = 3;

/// The listens of one link.
#[derive(Debug)]
pub(super) struct Listen {
    current: Option<OpenListen>,
    opening: Option<OpenListen>,
    /// How many more listens a server is asked for that refused or ended the last ones.
    left: u32,
    /// A listen was lost: something may have been missed until the next one is acknowledged.
    missed: bool,
}

#[derive(Debug)]
struct OpenListen {
    id: WireId,
    filters: BTreeSet<ListenFilter>,
}

/// What an acknowledged listen comes to.
#[derive(Debug)]
pub(super) struct Acknowledged {
    /// The filters that the server applies, and those that it does not.
    pub(super) honoured: BTreeSet<ListenFilter>,
    pub(super) refused: BTreeSet<ListenFilter>,
    /// Changes may have been missed since the last listen ended.
    pub(super) missed: bool,
}

/// What follows from the end of a listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenEnd {
    /// It did not count any more.
    Ignored,
    /// The subscriptions that wait for an acknowledgement go on waiting, for another listen.
    Retry,
    /// They are refused.
    Refuse,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            current: None,
            opening: None,
            left: LISTENS,
            missed: false,
        }
    }
}

impl Listen {
    /// Returns whether the server has refused or ended so many listens that it is not asked again.
    pub(super) const fn is_given_up(&self) -> bool {
        self.left == 0
    }

    /// Makes what is listened for what is wanted. `None` wants nothing at all.
    pub(super) fn sync(&mut self, wanted: Option<BTreeSet<ListenFilter>>, ledger: &mut Ledger, link: &Link) {
        // At a server that accepts no more listens an open one can still be cancelled.
        let is_given_up = self.is_given_up() && wanted.is_some();
        if !link.is_ready() || is_given_up || !self.must_change(wanted.as_ref(), link) {
            return;
        }
        let mut closed: Vec<WireId> = self.opening.take().into_iter().map(|open| open.id).collect();
        match wanted {
            None => closed.extend(self.current.take().map(|open| open.id)),
            Some(filters) => {
                let id = ledger.next_wire();
                link.face().write_listen(ledger.outgoing.end(), id, &filters);
                ledger.enter(id, Pending::Listen);
                self.opening = Some(OpenListen { id, filters });
            }
        }
        for id in closed {
            write_cancel(ledger.outgoing.end(), None, id, "no longer listened for");
            ledger.remove(id);
        }
    }

    fn must_change(&self, wanted: Option<&BTreeSet<ListenFilter>>, link: &Link) -> bool {
        let newest = self.opening.as_ref().or(self.current.as_ref());
        match wanted {
            None => newest.is_some(),
            Some(filters) => {
                let lists_change = link
                    .server_info()
                    .is_some_and(|server_info| !server_info.changing_lists.is_empty());
                let useful = lists_change || !filters.is_empty();
                newest.map_or(useful, |open| open.filters != *filters)
            }
        }
    }

    /// The server has begun to send for this listen. Returns `None` if it is none that was awaited.
    pub(super) fn handle_acknowledged(
        &mut self,
        id: WireId,
        message: &Message,
        ledger: &mut Ledger,
    ) -> Option<Acknowledged> {
        let OpenListen { filters, .. } = self.opening.take_if(|open| open.id == id)?;
        let named = modern::acknowledged(message);
        let (honoured, refused): (BTreeSet<ListenFilter>, _) =
            filters.into_iter().partition(|filter| named.contains(filter));
        let current = OpenListen {
            id,
            filters: honoured.clone(),
        };
        if let Some(old) = self.current.replace(current) {
            write_cancel(ledger.outgoing.end(), None, old.id, "replaced by a newer listen");
            ledger.remove(old.id);
        }
        Some(Acknowledged {
            honoured,
            refused,
            missed: std::mem::replace(&mut self.missed, false),
        })
    }

    /// Returns whether what comes by this listen counts: the acknowledged one, or the first that is
    /// being opened. While one listen replaces another the server sends everything twice, and a
    /// closed one may still send something.
    pub(super) fn is_current(&self, id: WireId) -> bool {
        let counts = self.current.as_ref().or(self.opening.as_ref());
        counts.is_some_and(|open| open.id == id)
    }

    /// Returns whether this is listened for already. No listen that is opened in place of the
    /// acknowledged one is without it.
    pub(super) fn honours(&self, filter: &ListenFilter) -> bool {
        let has = |listen: &Option<OpenListen>| listen.as_ref().map(|open| open.filters.contains(filter));
        has(&self.current) == Some(true) && has(&self.opening) != Some(false)
    }

    /// The server has ended a listen by an answer, which is an error if it refused it.
    pub(super) fn handle_end(&mut self, id: WireId, is_error: bool) -> ListenEnd {
        if !self.forget(id) {
            return ListenEnd::Ignored;
        }
        // Two may end at once: the one that counts, and the one that was to take its place.
        self.left = self.left.saturating_sub(1);
        self.missed = true;
        if self.opening.is_none() && (is_error || self.is_given_up()) {
            ListenEnd::Refuse
        } else {
            ListenEnd::Retry
        }
    }

    /// The exchange of a listen broke off. It is asked for again, as long as the server
    /// acknowledges now and then.
    pub(super) fn handle_lost(&mut self, id: WireId) -> ListenEnd {
        let is_acknowledged = self.current.as_ref().is_some_and(|open| open.id == id);
        if !self.forget(id) {
            return ListenEnd::Ignored;
        }
        self.missed = true;
        if is_acknowledged {
            self.left = LISTENS;
            ListenEnd::Retry
        } else {
            self.left = self.left.saturating_sub(1);
            ListenEnd::Refuse
        }
    }

    /// Returns whether it was a listen that counted.
    fn forget(&mut self, id: WireId) -> bool {
        self.opening.take_if(|open| open.id == id).is_some()
            || self.current.take_if(|open| open.id == id).is_some()
    }
}
