//! Making room: ends sessions and instances that are no longer used, where a new one finds every
//! place taken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::eviction::{self, HeldInstance, HeldSession, InstanceUsage};
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
        let handles = self.sessions_by_key();
        let held = handles.iter().map(|(key, handle)| HeldSession {
            key: *key,
            principal: handle.principal(),
            usage: handle.usage(),
        });
        let held: Vec<HeldSession<'_, SessionKey>> = held.collect();
        let ended = eviction::session_to_end(self.shared.clock.now(), newcomer.as_str(), &held)
            .and_then(|key| handles.get(&key))
            .ok_or(Refusal::TooManySessions { limit })?;
        self.evict(ended);
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
        // No new client finds the instance while its sessions end.
        if !self
            .upstream
            .remove_unreserved(&ended.key, &ended.instance, unreserved)
        {
            // It was chosen for another client meanwhile: the caller looks again.
            return Ok(());
        }
        for handle in ended.users.iter().flatten() {
            self.evict(handle);
        }
        ended.instance.stop();
        Ok(())
    }

    fn sessions_by_key(&self) -> HashMap<SessionKey, Arc<SessionHandle>> {
        let sessions = self.sessions();
        sessions
            .values()
            .map(|handle| (handle.key(), Arc::clone(handle)))
            .collect()
    }

    fn evict(&self, handle: &Arc<SessionHandle>) {
        tracing::debug!(destination = %self.name, session = %handle.hash().as_str(), "session evicted");
        self.metrics.sessions_evicted.fetch_add(1, Ordering::Relaxed);
        self.close(handle);
    }
}

struct EvictionCandidate {
    key: InstanceKey,
    instance: Arc<Instance>,
    /// `None`: a client is about to be attached.
    unreserved: Option<Unreserved>,
    /// The principal that has it to itself, if one does.
    owner: Option<String>,
    /// The sessions that use it; `None` while a request without a session, or a task, needs it.
    users: Option<Vec<Arc<SessionHandle>>>,
}

fn sessions_of(
    instance: &Instance,
    sessions: &HashMap<SessionKey, Arc<SessionHandle>>,
) -> Option<Vec<Arc<SessionHandle>>> {
    let users = instance.users()?;
    users.iter().map(|key| sessions.get(key).cloned()).collect()
}

fn owner(key: &InstanceKey, users: Option<&[Arc<SessionHandle>]>) -> Option<String> {
    match key {
        InstanceKey::Clients { .. } => key.principal().map(|principal| principal.as_str().to_owned()),
        InstanceKey::Session(_) => Some(users?.first()?.principal().to_owned()),
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
        Some(sessions) => InstanceUsage::Sessions(sessions.iter().map(|handle| handle.usage()).collect()),
    }
}
