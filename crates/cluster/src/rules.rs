//! Which claim wins and what is granted: the comparisons that every engine makes in its atomic
//! step.
//!
//! The engines in memory and in a file call these functions. The scripts of the Redis engine state
//! the same rules in Lua, and the suite runs on all three.

use std::time::Duration;

use crate::record::{NodeId, SessionRecord};
use crate::registry::{Claim, SlotDemand, SlotGrant, TokenDemand, TokenGrant};

const MINUTE: u64 = 60_000_000;

/// What a claim is worth, compared with what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The stored record has the claim's owner and epoch.
    Holds,
    /// It has the claim's epoch and no owner: the claim was released.
    Released,
    /// It has another owner or a higher epoch.
    Superseded(u64),
    /// There is none, or an earlier epoch that the engine fell back to.
    Unknown,
}

pub(crate) fn standing(stored: Option<&SessionRecord>, claim: &Claim) -> Standing {
    let Some(stored) = stored.filter(|stored| stored.epoch >= claim.epoch) else {
        return Standing::Unknown;
    };
    match &stored.owner {
        Some(owner) if stored.epoch == claim.epoch && *owner == claim.owner => Standing::Holds,
        None if stored.epoch == claim.epoch => Standing::Released,
        Some(_) | None => Standing::Superseded(stored.epoch),
    }
}

/// Returns whether a record may be written over what is stored.
pub(crate) fn may_replace(stored: Option<&SessionRecord>, record: &SessionRecord) -> bool {
    stored.is_none_or(|stored| {
        stored.epoch < record.epoch || (stored.epoch == record.epoch && stored.owner == record.owner)
    })
}

/// Returns whether a node may become the owner of what is stored.
pub(crate) fn may_take_over(stored: &SessionRecord, seen: u64, by: &NodeId, owner_lives: bool) -> bool {
    let is_free = match &stored.owner {
        None => true,
        Some(owner) => owner == by || !owner_lives,
    };
    stored.epoch == seen && is_free
}

/// Takes tokens of a bucket: the generic cell rate algorithm. `used` is the time up to which the
/// bucket is used, in microseconds of the engine's clock, as is `now`. Returns the new one.
pub(crate) fn take_tokens(used: u64, now: u64, demand: TokenDemand) -> (u64, TokenGrant) {
    let per_minute = u64::from(demand.per_minute.max(1));
    let cost = |tokens: u64| (tokens * MINUTE).div_ceil(per_minute);
    // A clock that was set back must not close the bucket for longer than a minute.
    let latest = now + 2 * MINUTE;
    let used = used
        .max(now)
        .saturating_add(cost(u64::from(demand.spent)))
        .min(latest);
    let room = (now + MINUTE).saturating_sub(used);
    let left = room * per_minute / MINUTE;
    let granted = left.min(u64::from(demand.want));
    let used = used + cost(granted);
    let left = left - granted;
    let wait = match left {
        0 => (used + cost(1)).saturating_sub(now + MINUTE),
        _ => 0,
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let grant = TokenGrant {
        granted: small(granted),
        left: small(left),
        wait: Duration::from_micros(wait),
    };
    (used, grant)
}

/// Sets the slots of one node. `others` is the sum over the other living nodes.
pub(crate) fn set_slots(before: u32, others: u32, demand: SlotDemand) -> SlotGrant {
    let room = demand.limit.saturating_sub(others);
    let granted = demand.held.max(demand.want.min(room));
    SlotGrant {
        granted,
        before,
        free: room.saturating_sub(granted),
    }
}
