//! The resources to which the client is subscribed: by member, and under the URIs that the client
//! wrote, qualified or bare.

use std::collections::{BTreeMap, BTreeSet};

use crate::aggregate::plan::MemberName;
use crate::multiplexer::is_part;

/// Subscriptions of one client. Each member has a limit of its own, but a client can write the URI
/// of one resource in many ways.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// The subscriptions of one client.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// By member and by the member's own URI.
    shown: BTreeMap<(MemberName, String), BTreeSet<String>>,
    count: usize,
}

impl Subscriptions {
    /// Adds one. Returns whether there was room for it.
    pub(super) fn add(&mut self, member: &MemberName, own: &str, shown: &str) -> bool {
        let key = (member.clone(), own.to_owned());
        let is_known = self.shown.get(&key).is_some_and(|known| known.contains(shown));
        if is_known {
            return true;
        }
        if self.count >= MAX_SUBSCRIPTIONS {
            return false;
        }
        self.count += 1;
        self.shown.entry(key).or_default().insert(shown.to_owned())
    }

    /// Removes one. Returns whether the member still serves the resource under another URI.
    pub(super) fn remove(&mut self, member: &MemberName, own: &str, shown: &str) -> bool {
        let key = (member.clone(), own.to_owned());
        let Some(known) = self.shown.get_mut(&key) else {
            return false;
        };
        self.count -= usize::from(known.remove(shown));
        if known.is_empty() {
            self.shown.remove(&key);
            return false;
        }
        true
    }

    /// Returns the resources of a member, under its own URIs.
    pub(super) fn of(&self, member: &str) -> Vec<String> {
        let of = self.shown.keys().filter(|(at, _)| &**at == member);
        of.map(|(_, own)| own.clone()).collect()
    }

    /// Returns the URIs under which the client knows an updated resource: as it has subscribed to
    /// it, and qualified if it has not.
    pub(super) fn shown(&self, member: &str, updated: &str, qualified: &str) -> BTreeSet<String> {
        let mut shown = BTreeSet::new();
        for ((at, own), known) in &self.shown {
            if &**at != member || !is_part(updated, own) {
                continue;
            }
            // The resource may be a part of the one to which the client has subscribed.
            let bare = known.contains(own).then(|| updated.to_owned());
            let other = known.iter().any(|uri| uri != own).then(|| qualified.to_owned());
            shown.extend(bare.into_iter().chain(other));
        }
        if shown.is_empty() {
            shown.insert(qualified.to_owned());
        }
        shown
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
