//! Making room: ends sessions and instances that are no longer used, where a new one finds every
//! place taken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::eviction::{self, HeldInstance, HeldSession, InstanceUsage, Usage};
use protocol::exchange::{Principal, SessionKey};

use super::Endpoint;
use crate::instance::{Instance, Unreserved};
use crate::reply::Refusal;
use crate::session_handle::SessionHandle;
use crate::upstream::InstanceKey;

impl Endpoint {
    /// Ends a session if `max_sessions` are open: one that is no longer used, else one of a
    /// principal over its share.
    pub(super) fn make_room(&self, newcomer: &Principal) -> Result<(), Refusal> {
        let limit = self.settings.max_sessions;
        if self.sessions().len() < limit {
            return Ok(());
        }
        self.end_one_session(newcomer)
    }

    /// Ends a session to make room for another: one that is no longer used, else one of a principal
    /// over its share.
    pub(crate) fn end_one_session(&self, newcomer: &Principal) -> Result<(), Refusal> {
        let limit = self.settings.max_sessions;
        let handles = self.sessions_by_key();
        let held = handles.iter().map(|(key, handle)| HeldSession {
            key: *key,
            principal: handle.principal(),
            usage: handle.usage(),
        });
        let held: Vec<HeldSession<'_, SessionKey>> = held.collect();
        let ended = eviction::session_to_end(self.shared.clock.now(), newcomer.as_str(), &held)
            .and_then(|key| held.iter().find(|held| held.key == key))
            .ok_or(Refusal::TooManySessions { limit })?;
        // If its client has come back meanwhile, the caller finds no room and looks again.
        if let Some(handle) = handles.get(&ended.key) {
            self.evict(handle, ended.usage);
        }
        Ok(())
    }

    /// Ends an instance and its sessions, to make room for another one: one that is no longer used,
    /// else one of a principal over its share.
    pub(super) fn free_instance(&self, limit: usize, newcomer: &Principal) -> Result<(), Refusal> {
        let sessions = self.sessions_by_key();
        let candidates = self.upstream.instances_by_key().into_iter();
        let candidates: Vec<EvictionCandidate> = candidates
            .map(|(key, instance, unreserved)| {
                let users = sessions_of(&instance, &sessions);
                EvictionCandidate {
                    owner: owner(&key, users.as_deref()),
                    key,
                    instance,
                    unreserved,
                    users,
                }
            })
            .collect();
        let held = candidates.iter().map(|candidate| HeldInstance {
            key: candidate,
            owner: candidate.owner.as_deref(),
            usage: candidate.unreserved.map(|_| usage(candidate)),
        });
        let held: Vec<HeldInstance<'_, &EvictionCandidate>> = held.collect();
        let (ended, unreserved) =
            eviction::instance_to_end(self.shared.clock.now(), newcomer.as_str(), &held)
                .and_then(|candidate| Some((candidate, candidate.unreserved?)))
                .ok_or(Refusal::TooManyChildren { limit })?;
        let mut sessions = ended.users.iter().flatten();
        let are_ended = sessions.all(|(handle, seen)| self.evict(handle, *seen));
        // If a session is in use again, or the instance was chosen for another client, it stays,
        // and the caller looks again.
        if are_ended
            && self
                .upstream
                .remove_unreserved(&ended.key, &ended.instance, unreserved)
        {
            ended.instance.stop();
        }
        Ok(())
    }

    fn sessions_by_key(&self) -> HashMap<SessionKey, Arc<SessionHandle>> {
        let sessions = self.sessions();
        sessions
            .values()
            .map(|handle| (handle.key(), Arc::clone(handle)))
            .collect()
    }

    /// Ends a session, unless its client has begun to use it since this usage was seen. Returns
    /// whether it is over.
    pub(super) fn evict(&self, handle: &Arc<SessionHandle>, seen: Usage) -> bool {
        if !handle.end_if_still(seen) {
            return false;
        }
        tracing::debug!(destination = %self.name, session = %handle.hash().as_str(), "session evicted");
        self.metrics.sessions_evicted.fetch_add(1, Ordering::Relaxed);
        self.close(handle);
        true
    }
}

/// A session, and how far its client used it when it was looked at.
type SeenSession = (Arc<SessionHandle>, Usage);

struct EvictionCandidate {
    key: InstanceKey,
    instance: Arc<Instance>,
    /// `None`: a client is about to be attached.
    unreserved: Option<Unreserved>,
    /// The principal that has it to itself, if one does.
    owner: Option<String>,
    /// The sessions that use it, and how far; `None` while a request without a session, or a task,
    /// needs it.
    users: Option<Vec<SeenSession>>,
}

fn sessions_of(
    instance: &Instance,
    sessions: &HashMap<SessionKey, Arc<SessionHandle>>,
) -> Option<Vec<SeenSession>> {
    let users = instance.users()?;
    let seen = |handle: &Arc<SessionHandle>| (Arc::clone(handle), handle.usage());
    users.iter().map(|key| sessions.get(key).map(seen)).collect()
}

fn owner(key: &InstanceKey, users: Option<&[SeenSession]>) -> Option<String> {
    match key {
        InstanceKey::Clients { .. } => key.principal().map(|principal| principal.as_str().to_owned()),
        InstanceKey::Session(_) => Some(users?.first()?.0.principal().to_owned()),
        InstanceKey::Unclaimed => None,
    }
}

fn usage(candidate: &EvictionCandidate) -> InstanceUsage {
    match &candidate.users {
        None => InstanceUsage::Busy,
        Some(sessions) if sessions.is_empty() => candidate
            .instance
            .idle_since()
            .map_or(InstanceUsage::Busy, InstanceUsage::Unused),
        Some(sessions) => InstanceUsage::Sessions(sessions.iter().map(|(_, usage)| *usage).collect()),
    }
}
