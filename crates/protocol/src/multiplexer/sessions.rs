//! The sessions of an instance, and how many calls the server works on for each.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::exchange::{Client, Principal, SessionKey};
use crate::version::Era;

/// One session.
#[derive(Debug)]
pub(super) struct SessionEntry {
    pub(super) client: Arc<Client>,
    pub(super) era: Era,
    /// Wants notifications that are about none of its calls.
    pub(super) wants_notifications: bool,
    load: Load,
}

/// How many calls the server works on for a session. Suspended calls are not counted.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    in_flight: u32,
    /// Those of them that may ask something.
    asking: u32,
}

impl SessionEntry {
    pub(super) fn new(client: Arc<Client>, era: Era, wants_notifications: bool) -> Self {
        Self {
            client,
            era,
            wants_notifications,
            load: Load::default(),
        }
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.client.principal
    }

    /// Returns whether the server works on a call of this session that may ask.
    pub(super) const fn is_asking(&self) -> bool {
        self.load.asking > 0
    }
}

/// The sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    entries: BTreeMap<SessionKey, SessionEntry>,
    /// How many sessions are busy, and how many have calls in flight that may ask.
    busy: usize,
    asking: usize,
}

impl Sessions {
    pub(super) fn get(&self, session: SessionKey) -> Option<&SessionEntry> {
        self.entries.get(&session)
    }

    pub(super) fn contains(&self, session: SessionKey) -> bool {
        self.entries.contains_key(&session)
    }

    /// Adds a session. One that is opened again keeps the count of its calls.
    pub(super) fn insert(&mut self, session: SessionKey, mut entry: SessionEntry) {
        if let Some(before) = self.entries.get(&session) {
            entry.load = before.load;
        }
        self.entries.insert(session, entry);
    }

    pub(super) fn remove(&mut self, session: SessionKey) {
        self.entries.remove(&session);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionKey, &SessionEntry)> {
        self.entries.iter().map(|(session, entry)| (*session, entry))
    }

    /// Returns the sessions that want notifications which are about none of their calls.
    pub(super) fn notified(&self) -> impl Iterator<Item = SessionKey> {
        self.iter()
            .filter(|(_, entry)| entry.wants_notifications)
            .map(|(session, _)| session)
    }

    /// Returns how many sessions have calls in flight.
    pub(super) const fn busy(&self) -> usize {
        self.busy
    }

    /// Returns how many sessions have calls in flight that may ask.
    pub(super) const fn asking(&self) -> usize {
        self.asking
    }

    /// Returns whether calls of other sessions are in flight that may ask.
    pub(super) fn others_ask(&self, session: SessionKey) -> bool {
        let own = self.get(session).is_some_and(SessionEntry::is_asking);
        self.asking > usize::from(own)
    }

    /// The server begins to work on a call of this session, or goes on with it.
    pub(super) fn count_in(&mut self, session: SessionKey, may_ask: bool) {
        if let Some(SessionEntry { load, .. }) = self.entries.get_mut(&session) {
            load.in_flight += 1;
            self.busy += usize::from(load.in_flight == 1);
            if may_ask {
                load.asking += 1;
                self.asking += usize::from(load.asking == 1);
            }
        }
    }

    /// The server no longer works on a call of this session.
    pub(super) fn count_out(&mut self, session: SessionKey, may_ask: bool) {
        if let Some(SessionEntry { load, .. }) = self.entries.get_mut(&session) {
            load.in_flight -= 1;
            self.busy -= usize::from(load.in_flight == 0);
            if may_ask {
                load.asking -= 1;
                self.asking -= usize::from(load.asking == 0);
            }
        }
    }

    /// The link has ended, and with it all work.
    pub(super) fn lose_link(&mut self) {
        for entry in self.entries.values_mut() {
            entry.load = Load::default();
        }
        self.busy = 0;
        self.asking = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_that_is_opened_again_keeps_the_count_of_its_calls() {
        let session = SessionKey(1);
        let entry = || {
            let client = Client::declaring(Principal::anonymous(), None, None);
            SessionEntry::new(Arc::new(client), Era::Legacy, true)
        };
        let mut sessions = Sessions::default();
        sessions.insert(session, entry());
        sessions.count_in(session, true);
        sessions.insert(session, entry());
        assert!(sessions.get(session).is_some_and(SessionEntry::is_asking));
        sessions.count_out(session, true);
        assert_eq!((sessions.busy(), sessions.asking()), (0, 0));
    }
}
