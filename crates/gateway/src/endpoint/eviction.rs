//! Making room: ends sessions and instances that are no longer used, where a new one finds every place taken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::eviction::{self, InstanceUsage};
use protocol::exchange::{Principal, SessionKey};
use protocol::shares::Shares;

use super::Endpoint;
use crate::instance::{Instance, Unreserved};
use crate::reply::Refusal;
use crate::session_handle::SessionHandle;
use crate::upstream::InstanceKey;

impl Endpoint {
    /// Ends a session if `max_sessions` are open: one that is no longer used, else one of a principal over its share.
    pub(super) fn make_room(&self, newcomer: &Principal) -> Result<(), Refusal> {
        let limit = self.settings.max_sessions;
        let mut handles: Vec<Arc<SessionHandle>> = {
            let sessions = self.sessions();
            if sessions.len() < limit {
                return Ok(());
            }
            sessions.values().cloned().collect()
        };
        // Of sessions in use the newest goes first.
        handles.sort_by_key(|handle| std::cmp::Reverse(handle.key()));
        let newcomer = newcomer.as_str();
        let shares: Shares<'_> = handles.iter().map(|handle| handle.principal()).collect();
        let unused = handles
            .iter()
            .filter(|handle| shares.may_take_unused(newcomer, handle.principal()))
            .map(|handle| (handle, handle.usage()));
        let evicted = eviction::session_to_evict(self.shared.clock.now(), unused).or_else(|| {
            let principal = shares.over_share(newcomer)?;
            let theirs = handles.iter().filter(|handle| handle.principal() == principal);
            eviction::session_to_give_up(theirs.map(|handle| (handle, handle.usage())))
        });
        self.evict(evicted.ok_or(Refusal::TooManySessions { limit })?);
        Ok(())
    }

    /// Ends an instance and its sessions, to make room for another one: one that is no longer used, else one of a
    /// principal over its share.
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
        let newcomer = newcomer.as_str();
        let owners = candidates
            .iter()
            .filter_map(|candidate| candidate.owner.as_deref());
        let shares: Shares<'_> = owners.collect();
        let unused = candidates.iter().filter(|candidate| {
            let owner = candidate.owner.as_deref();
            owner.is_none_or(|owner| shares.may_take_unused(newcomer, owner))
        });
        let usages = unused.map(|candidate| (candidate, usage(candidate)));
        let evicted = eviction::instance_to_evict(self.shared.clock.now(), usages).or_else(|| {
            let principal = shares.over_share(newcomer)?;
            let mut theirs = candidates.iter().rev();
            theirs.find(|candidate| {
                candidate.unreserved.is_some() && candidate.owner.as_deref() == Some(principal)
            })
        });
        let (evicted, unreserved) = evicted
            .and_then(|candidate| Some((candidate, candidate.unreserved?)))
            .ok_or(Refusal::TooManyChildren { limit })?;
        // No new client finds the instance while its sessions end.
        if !self
            .upstream
            .remove_unreserved(&evicted.key, &evicted.instance, unreserved)
        {
            // It was chosen for another client meanwhile: the caller looks again.
            return Ok(());
        }
        for handle in evicted.users.iter().flatten() {
            self.evict(handle);
        }
        evicted.instance.stop();
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
        tracing::debug!(destination = %self.name, session = %handle.hash().as_str(), "evicted to make room");
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
        InstanceKey::Clients { identity, .. } => {
            let (principal, _) = identity.as_ref()?;
            Some(principal.as_str().to_owned())
        }
        InstanceKey::Session(_) => Some(users?.first()?.principal().to_owned()),
        InstanceKey::Unclaimed => None,
    }
}

fn usage(candidate: &EvictionCandidate) -> InstanceUsage {
    match &candidate.users {
        _ if candidate.unreserved.is_none() => InstanceUsage::Busy,
        None => InstanceUsage::Busy,
        Some(sessions) if sessions.is_empty() => candidate
            .instance
            .idle_since()
            .map_or(InstanceUsage::Busy, InstanceUsage::Unused),
        Some(sessions) => InstanceUsage::Sessions(sessions.iter().map(|handle| handle.usage()).collect()),
    }
}
