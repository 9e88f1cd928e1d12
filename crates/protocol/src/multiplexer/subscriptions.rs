//! Subscribed resources and log levels of the sessions of one instance.
//!
//! The server knows one client only. It is subscribed to a resource while any session is, and its
//! log level is the most verbose that any session wants; which session receives what is decided
//! here. A session that never chose a level counts as `info`, so that the choice of another one
//! does not silence it.

use std::collections::{BTreeMap, BTreeSet};

use crate::exchange::SessionKey;
use crate::method::LogLevel;

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    resources: BTreeMap<String, Resource>,
    levels: BTreeMap<SessionKey, LogLevel>,
    /// Sessions that could choose a level and have not.
    unchosen: BTreeSet<SessionKey>,
    /// The most verbose level that a single request ever wanted. It is not taken back when the
    /// request ends: the next one like it would only raise it again.
    requested: Option<LogLevel>,
    /// The level that was last sent to the server.
    sent: Option<LogLevel>,
}

#[derive(Debug, Default)]
struct Resource {
    subscribers: BTreeSet<SessionKey>,
    /// The server has confirmed a subscription.
    confirmed: bool,
}

/// A session that never chose a level receives this level and above, independent of other sessions.
const UNCHOSEN_LEVEL: LogLevel = LogLevel::Info;

impl Subscriptions {
    /// Adds a subscription. Returns whether the server has it already, so that nothing need be
    /// sent.
    pub(super) fn subscribe(&mut self, session: SessionKey, uri: &str) -> bool {
        let resource = self.resources.entry(uri.to_owned()).or_default();
        resource.subscribers.insert(session);
        resource.confirmed
    }

    pub(super) fn confirm(&mut self, uri: &str) {
        if let Some(resource) = self.resources.get_mut(uri) {
            resource.confirmed = true;
        }
    }

    /// Removes a subscription. Returns whether another session still has it, so that nothing need
    /// be sent.
    pub(super) fn unsubscribe(&mut self, session: SessionKey, uri: &str) -> bool {
        let Some(resource) = self.resources.get_mut(uri) else {
            return false;
        };
        resource.subscribers.remove(&session);
        if resource.subscribers.is_empty() {
            self.resources.remove(uri);
            return false;
        }
        true
    }

    /// The server does not send updates of a resource.
    pub(super) fn drop(&mut self, uri: &str) {
        self.resources.remove(uri);
    }

    /// Sessions subscribed to a resource or to one that it is a part of (`resources/updated` may
    /// name a sub-resource).
    pub(super) fn subscribers(&self, uri: &str) -> BTreeSet<SessionKey> {
        self.resources
            .iter()
            .filter(|(subscribed, _)| is_part(uri, subscribed))
            .flat_map(|(_, resource)| resource.subscribers.iter().copied())
            .collect()
    }

    pub(super) fn subscriptions(&self, session: SessionKey) -> usize {
        self.resources
            .values()
            .filter(|resource| resource.subscribers.contains(&session))
            .count()
    }

    /// Returns the resources that a session is subscribed to.
    pub(super) fn subscriptions_of(&self, session: SessionKey) -> Vec<String> {
        self.resources
            .iter()
            .filter(|(_, resource)| resource.subscribers.contains(&session))
            .map(|(uri, _)| uri.clone())
            .collect()
    }

    /// Adds a session that may choose a level.
    pub(super) fn attach(&mut self, session: SessionKey) {
        self.unchosen.insert(session);
    }

    /// Sets the session's level. Returns the level to send to the server, if it changes.
    pub(super) fn set_level(&mut self, session: SessionKey, level: LogLevel) -> Option<LogLevel> {
        self.choose_level(session, level);
        self.resend_level()
    }

    /// Sets the session's level, which is sent to the server later.
    pub(super) fn choose_level(&mut self, session: SessionKey, level: LogLevel) {
        self.unchosen.remove(&session);
        self.levels.insert(session, level);
    }

    /// Notes what a session wants for its one request.
    pub(super) fn request_level(&mut self, session: SessionKey, level: LogLevel) {
        self.levels.insert(session, level);
        self.requested = Some(self.requested.map_or(level, |requested| requested.min(level)));
    }

    /// Returns the level that the sessions want together, if any has chosen one.
    fn most_verbose(&self) -> Option<LogLevel> {
        let chosen = self.levels.values().copied().chain(self.requested).min()?;
        match self.unchosen.is_empty() {
            true => Some(chosen),
            false => Some(chosen.min(UNCHOSEN_LEVEL)),
        }
    }

    /// Returns the level to send to the server, if it differs from the last one.
    pub(super) fn resend_level(&mut self) -> Option<LogLevel> {
        // When the last choice has gone, the server goes back to its own default.
        let back = self.sent.map(|_| UNCHOSEN_LEVEL);
        let wanted = self.most_verbose().or(back)?;
        if self.sent == Some(wanted) {
            return None;
        }
        self.sent = Some(wanted);
        self.sent
    }

    /// The server may not have the level that was last sent, so the next one is sent again.
    pub(super) fn forget_sent_level(&mut self) {
        self.sent = None;
    }

    /// The server refused the session's level.
    pub(super) fn forget_level(&mut self, session: SessionKey) {
        if self.levels.remove(&session).is_some() {
            self.unchosen.insert(session);
        }
        self.sent = None;
    }

    pub(super) fn accepts_level(&self, session: SessionKey, level: Option<LogLevel>) -> bool {
        let Some(level) = level else { return true };
        match self.levels.get(&session) {
            Some(chosen) => level >= *chosen,
            None => (self.sent.is_none() && self.levels.is_empty()) || level >= UNCHOSEN_LEVEL,
        }
    }

    /// Returns the level a session chose.
    pub(super) fn level(&self, session: SessionKey) -> Option<LogLevel> {
        self.levels.get(&session).copied()
    }

    /// Returns all subscribed resources.
    pub(super) fn uris(&self) -> BTreeSet<String> {
        self.resources.keys().cloned().collect()
    }

    /// Forgets a session. Returns the resources that no session wants any more, and whether the
    /// level that they want together may be another one.
    pub(super) fn forget(&mut self, session: SessionKey) -> (Vec<String>, bool) {
        let mut orphans = Vec::new();
        self.resources.retain(|uri, resource| {
            if resource.subscribers.remove(&session) && resource.subscribers.is_empty() {
                orphans.push(uri.clone());
                return false;
            }
            true
        });
        let was_unchosen = self.unchosen.remove(&session);
        let level = self.levels.remove(&session);
        (orphans, was_unchosen || level.is_some())
    }

    /// Returns what must be sent again to a restarted server.
    pub(super) fn replay(&mut self) -> (Vec<String>, Option<LogLevel>) {
        self.sent = self.most_verbose();
        (self.resources.keys().cloned().collect(), self.sent)
    }
}

/// Returns whether a resource is the subscribed one or a part of it.
pub(crate) fn is_part(uri: &str, subscribed: &str) -> bool {
    uri.strip_prefix(subscribed)
        .is_some_and(|rest| rest.is_empty() || subscribed.ends_with('/') || rest.starts_with(['/', '#', '?']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionKey = SessionKey(1);
    const B: SessionKey = SessionKey(2);

    #[test]
    fn only_the_first_subscription_and_the_last_unsubscription_reach_the_server() {
        let mut subscriptions = Subscriptions::default();
        assert!(!subscriptions.subscribe(A, "x:/a"));
        subscriptions.confirm("x:/a");
        assert!(subscriptions.subscribe(B, "x:/a"));
        assert!(subscriptions.unsubscribe(A, "x:/a"));
        assert!(!subscriptions.unsubscribe(B, "x:/a"));
        assert!(
            !subscriptions.subscribe(B, "x:/a"),
            "a new subscription is the server's business again"
        );
    }

    #[test]
    fn updates_of_parts_reach_subscribers_of_the_whole() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.subscribe(A, "x:/a");
        subscriptions.subscribe(B, "x:/ab");
        assert_eq!(subscriptions.subscribers("x:/a/b"), BTreeSet::from([A]));
        assert_eq!(subscriptions.subscribers("x:/ab"), BTreeSet::from([B]));
    }

    #[test]
    fn the_most_verbose_level_is_sent_and_each_session_receives_its_own() {
        let mut subscriptions = Subscriptions::default();
        assert_eq!(
            subscriptions.set_level(A, LogLevel::Warning),
            Some(LogLevel::Warning)
        );
        assert_eq!(subscriptions.set_level(B, LogLevel::Debug), Some(LogLevel::Debug));
        assert_eq!(subscriptions.set_level(A, LogLevel::Error), None);
        assert!(!subscriptions.accepts_level(A, Some(LogLevel::Info)));
        assert!(subscriptions.accepts_level(B, Some(LogLevel::Debug)));
        assert!(!subscriptions.accepts_level(SessionKey(3), Some(LogLevel::Debug)));
        assert_eq!(subscriptions.forget(B), (vec![], true));
        assert_eq!(subscriptions.resend_level(), Some(LogLevel::Error));
    }

    #[test]
    fn session_without_a_choice_counts_as_info() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.attach(A);
        assert_eq!(subscriptions.resend_level(), None, "no session has chosen");
        assert_eq!(subscriptions.set_level(A, LogLevel::Error), Some(LogLevel::Error));
        subscriptions.attach(B);
        assert_eq!(subscriptions.resend_level(), Some(LogLevel::Info));
        assert!(subscriptions.accepts_level(B, Some(LogLevel::Info)));
        assert!(!subscriptions.accepts_level(A, Some(LogLevel::Info)));
        assert_eq!(
            subscriptions.set_level(B, LogLevel::Critical),
            Some(LogLevel::Error)
        );
        subscriptions.forget(A);
        assert_eq!(subscriptions.resend_level(), Some(LogLevel::Critical));
        subscriptions.forget(B);
        assert_eq!(subscriptions.resend_level(), Some(LogLevel::Info));
        assert_eq!(subscriptions.set_level(A, LogLevel::Info), None);
    }
}
