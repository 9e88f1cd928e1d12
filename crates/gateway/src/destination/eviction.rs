//! Making room: ends sessions and instances that are no longer used, where a new one finds every place taken.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use protocol::eviction::{self, InstanceUsage};

use super::{Destination, LaneKey};
use crate::lane::Lane;
use crate::reply::Refusal;
use crate::session_port::SessionPort;

impl Destination {
    /// Ends a session if `max_sessions` are open.
    pub(super) fn make_room(&self) -> Result<(), Refusal> {
        let limit = self.settings.max_sessions;
        let ports: Vec<Arc<SessionPort>> = {
            let sessions = self.sessions();
            if sessions.len() < limit {
                return Ok(());
            }
            sessions.values().cloned().collect()
        };
        let sessions = ports.iter().map(|port| (port, port.usage()));
        let evicted = eviction::session_to_evict(self.around.clock.now(), sessions)
            .ok_or(Refusal::TooManySessions { limit })?;
        self.evict(evicted);
        Ok(())
    }

    /// Ends an instance and its sessions, to make room for another one.
    pub(super) fn free_instance(&self, limit: usize) -> Result<(), Refusal> {
        let instances: Vec<(LaneKey, Arc<Lane>)> = {
            let lanes = self.lanes();
            lanes
                .iter()
                .map(|(key, lane)| (key.clone(), Arc::clone(lane)))
                .collect()
        };
        let usages = instances
            .iter()
            .map(|(key, instance)| ((key, instance), usage(instance)));
        let (key, instance) = eviction::instance_to_evict(self.around.clock.now(), usages)
            .ok_or(Refusal::TooManyChildren { limit })?;
        // No new client finds the instance while its sessions end.
        self.lanes().remove(key);
        for port in instance.sessions().unwrap_or_default() {
            self.evict(&port);
        }
        instance.stop();
        Ok(())
    }

    fn evict(&self, port: &Arc<SessionPort>) {
        tracing::debug!(destination = %self.name, session = %port.hash().as_str(), "evicted to make room");
        self.traffic.sessions_evicted.fetch_add(1, Ordering::Relaxed);
        self.close(port);
    }
}

fn usage(instance: &Lane) -> InstanceUsage {
    match instance.sessions() {
        None => InstanceUsage::Busy,
        Some(sessions) if sessions.is_empty() => instance
            .idle_since()
            .map_or(InstanceUsage::Busy, InstanceUsage::Unused),
        Some(sessions) => InstanceUsage::Sessions(sessions.iter().map(|port| port.usage()).collect()),
    }
}
