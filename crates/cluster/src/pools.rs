//! Buckets and pools of slots, for the engines that hold them in the memory of one process.

use std::collections::{BTreeMap, HashMap};

use crate::record::NodeId;
use crate::registry::{SlotDemand, SlotGrant, TokenDemand, TokenGrant};
use crate::rules;

/// Buckets that may be known before those that are full again are looked for.
const MANY_BUCKETS: usize = 65_536;

/// What replicas have taken of buckets and pools.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// The time up to which each bucket is used.
    buckets: HashMap<String, u64>,
    /// The slots of each node. A pool without slots is not here.
    slots: HashMap<String, BTreeMap<NodeId, u32>>,
}

impl Pools {
    pub(crate) fn take_tokens(&mut self, now: u64, bucket: &str, demand: TokenDemand) -> TokenGrant {
        if self.buckets.len() >= MANY_BUCKETS {
            self.expire(now);
        }
        let used = self.buckets.get(bucket).copied().unwrap_or_default();
        let (used, grant) = rules::take_tokens(used, now, demand);
        self.buckets.insert(bucket.to_owned(), used);
        grant
    }

    pub(crate) fn set_slots(
        &mut self,
        pool: &str,
        node: &NodeId,
        lives: impl Fn(&NodeId) -> bool,
        demand: SlotDemand,
    ) -> SlotGrant {
        let mut nodes = self.slots.remove(pool).unwrap_or_default();
        let before = nodes.remove(node).unwrap_or_default();
        nodes.retain(|other, _| lives(other));
        let others = nodes
            .values()
            .fold(0, |sum: u32, slots| sum.saturating_add(*slots));
        let grant = rules::set_slots(before, others, demand);
        if grant.granted > 0 {
            nodes.insert(node.clone(), grant.granted);
        }
        if !nodes.is_empty() {
            self.slots.insert(pool.to_owned(), nodes);
        }
        grant
    }

    /// Forgets buckets that are full again.
    pub(crate) fn expire(&mut self, now: u64) {
        self.buckets.retain(|_, used| *used > now);
    }
}
