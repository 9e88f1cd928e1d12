//! Which claim wins: the comparisons that every engine makes in its atomic step.
//!
//! The engines in memory and in a file call these functions. The scripts of the Redis engine state
//! the same rules in Lua, and the suite runs on all three.

use crate::record::{NodeId, SessionRecord};
use crate::registry::Claim;

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
