//! Making room: ends sessions and instances that are no longer used, where a new one finds every place taken.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::eviction::{self, InstanceUsage};
use protocol::exchange::{Principal, SessionKey};
use protocol::shares::Shares;

use super::Destination;
use crate::lane::Lane;
use crate::reply::Refusal;
use crate::session_port::SessionPort;
use crate::upstream::LaneKey;

impl Destination {
    /// Ends a session if `max_sessions` are open: one that is no longer used, else one of a principal over its share.
    pub(super) fn make_room(&self, newcomer: &Principal) -> Result<(), Refusal> {
        let limit = self.settings.max_sessions;
        let mut ports: Vec<Arc<SessionPort>> = {
            let sessions = self.sessions();
            if sessions.len() < limit {
                return Ok(());
            }
            sessions.values().cloned().collect()
        };
        // Of sessions in use the newest goes first.
        ports.sort_by_key(|port| std::cmp::Reverse(port.key()));
        let newcomer = newcomer.as_str();
        let shares: Shares<'_> = ports.iter().map(|port| port.principal()).collect();
        let unused = ports
            .iter()
            .filter(|port| shares.may_take_unused(newcomer, port.principal()))
            .map(|port| (port, port.usage()));
        let evicted = eviction::session_to_evict(self.around.clock.now(), unused).or_else(|| {
            let principal = shares.over_share(newcomer)?;
            let theirs = ports.iter().filter(|port| port.principal() == principal);
            eviction::session_to_give_up(theirs.map(|port| (port, port.usage())))
        });
        self.evict(evicted.ok_or(Refusal::TooManySessions { limit })?);
        Ok(())
    }

    /// Ends an instance and its sessions, to make room for another one: one that is no longer used, else one of a
    /// principal over its share.
    pub(super) fn free_instance(&self, limit: usize, newcomer: &Principal) -> Result<(), Refusal> {
        let sessions = self.sessions_by_key();
        let instances = self.upstream.instances().into_iter();
        let instances: Vec<Instance> = instances
            .map(|(key, lane)| {
                let users = sessions_of(&lane, &sessions);
                Instance {
                    owner: owner(&key, users.as_deref()),
                    key,
                    lane,
                    users,
                }
            })
            .collect();
        let newcomer = newcomer.as_str();
        let owners = instances.iter().filter_map(|instance| instance.owner.as_deref());
        let shares: Shares<'_> = owners.collect();
        let unused = instances.iter().filter(|instance| {
            let owner = instance.owner.as_deref();
            owner.is_none_or(|owner| shares.may_take_unused(newcomer, owner))
        });
        let usages = unused.map(|instance| (instance, usage(instance)));
        let evicted = eviction::instance_to_evict(self.around.clock.now(), usages).or_else(|| {
            let principal = shares.over_share(newcomer)?;
            let mut theirs = instances.iter().rev();
            theirs.find(|instance| instance.owner.as_deref() == Some(principal))
        });
        let evicted = evicted.ok_or(Refusal::TooManyChildren { limit })?;
        // No new client finds the instance while its sessions end.
        self.upstream.remove(&evicted.key);
        for port in evicted.users.iter().flatten() {
            self.evict(port);
        }
        evicted.lane.stop();
        Ok(())
    }

    fn sessions_by_key(&self) -> HashMap<SessionKey, Arc<SessionPort>> {
        let sessions = self.sessions();
        sessions
            .values()
            .map(|port| (port.key(), Arc::clone(port)))
            .collect()
    }

    fn evict(&self, port: &Arc<SessionPort>) {
        tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "evicted to make room");
        self.traffic.sessions_evicted.fetch_add(1, Ordering::Relaxed);
        self.close(port);
    }
}

struct Instance {
    key: LaneKey,
    lane: Arc<Lane>,
    /// The principal that has it to itself, if one does.
    owner: Option<String>,
    /// The sessions that use it; `None` while a request without a session, or a task, needs it.
    users: Option<Vec<Arc<SessionPort>>>,
}

fn sessions_of(
    lane: &Lane,
    sessions: &HashMap<SessionKey, Arc<SessionPort>>,
) -> Option<Vec<Arc<SessionPort>>> {
    let users = lane.users()?;
    users.iter().map(|key| sessions.get(key).cloned()).collect()
}

fn owner(key: &LaneKey, users: Option<&[Arc<SessionPort>]>) -> Option<String> {
    match key {
        LaneKey::Clients { identity, .. } => {
            let (principal, _) = identity.as_ref()?;
            Some(principal.as_str().to_owned())
        }
        LaneKey::Session(_) => Some(users?.first()?.principal().to_owned()),
        LaneKey::Unclaimed => None,
    }
}

fn usage(instance: &Instance) -> InstanceUsage {
    match &instance.users {
        None => InstanceUsage::Busy,
        Some(sessions) if sessions.is_empty() => instance
            .lane
            .idle_since()
            .map_or(InstanceUsage::Busy, InstanceUsage::Unused),
        Some(sessions) => InstanceUsage::Sessions(sessions.iter().map(|port| port.usage()).collect()),
    }
}
