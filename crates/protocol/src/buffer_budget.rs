//! One budget for all bytes that wait to be read: kept events, and answers that a connection has
//! not sent yet.
//!
//! A *holder* is one thing that holds such bytes: the event logs of a session, or one answer on a
//! connection. Holders report what they hold; the machine adds it up by principal and in all, and
//! decides what goes when a limit is exceeded:
//!
//! - Over the limit of a principal, that principal loses; over the limit of the gateway, the one
//!   that holds most does.
//! - Events go before answers, since a reader that comes back finds a mark where they were. The
//!   oldest goes first.
//! - An answer can only be freed by closing its connection: the one that has been on its way
//!   longest belongs to the slowest reader. The answer that was reported last is spared, so that
//!   one answer always passes.
//! - As much goes as brings the sum an eighth below the limit, so that the holders are not searched
//!   with every event.
//!
//! Call order: [`BufferBudget::open`], then `handle_*` as the bytes change, then
//! [`BufferBudget::poll_output`] until it gives nothing, and [`BufferBudget::close`] at the end.
//! The bytes that an output names count as freed at once; the holder of events reports what it
//! really holds with [`BufferBudget::handle_dropped`].

use std::collections::{BTreeMap, VecDeque};

use crate::exchange::Principal;
use crate::time::Moment;

/// How many bytes may wait to be read.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In all.
    pub total: usize,
    /// Of one principal; `None` without authentication.
    pub per_principal: Option<usize>,
}

/// Names a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderKey(u64);

/// What a holder holds, and so how its bytes are freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Events, which can be dropped one by one.
    Events,
    /// An answer, which is freed by closing its connection.
    Answer,
}

/// Which limit is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// That of the gateway.
    Total,
    /// That of one principal.
    PerPrincipal,
}

/// What the machine wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// This holder drops its oldest events, at least so many bytes.
    DropEvents {
        /// The holder concerned.
        holder: HolderKey,
        /// How much it drops at least.
        bytes: usize,
        /// The limit that was exceeded.
        exceeded: Exceeded,
    },
    /// The connection of this answer is closed.
    Close {
        /// The holder concerned.
        holder: HolderKey,
        /// The limit that was exceeded.
        exceeded: Exceeded,
    },
}

#[derive(Debug)]
struct Holder {
    principal: Principal,
    held: Held,
    bytes: usize,
    /// Since when its oldest bytes wait.
    since: Moment,
    /// What it could not drop when it was last to; it is not asked again before it holds more.
    fixed: usize,
}

/// The machine.
#[derive(Debug)]
pub struct BufferBudget {
    limits: Limits,
    next: u64,
    holders: BTreeMap<HolderKey, Holder>,
    principals: BTreeMap<Principal, usize>,
    total: usize,
    outputs: VecDeque<Output>,
}

impl BufferBudget {
    /// Returns a budget that no holder uses yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            holders: BTreeMap::new(),
            principals: BTreeMap::new(),
            total: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Sets other limits, and has freed what exceeds them.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        let principals: Vec<Principal> = self.principals.keys().cloned().collect();
        for principal in principals {
            // No answer is spared: none has just been reported.
            self.make_room(HolderKey(u64::MAX), &principal);
        }
    }

    /// Returns how many bytes wait to be read.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Adds a holder that holds nothing yet.
    pub fn open(&mut self, principal: Principal, held: Held) -> HolderKey {
        let key = HolderKey(self.next);
        self.next += 1;
        let holder = Holder {
            principal,
            held,
            bytes: 0,
            since: Moment::START,
            fixed: 0,
        };
        self.holders.insert(key, holder);
        key
    }

    /// Removes a holder and frees what it held.
    pub fn close(&mut self, key: HolderKey) {
        self.set(key, 0);
        self.holders.remove(&key);
    }

    /// A holder holds so many bytes now, the oldest since this moment.
    pub fn handle_held(&mut self, key: HolderKey, bytes: usize, since: Moment) {
        let Some(holder) = self.holders.get_mut(&key) else {
            return;
        };
        holder.since = since;
        let has_grown = bytes > holder.bytes;
        let principal = holder.principal.clone();
        self.set(key, bytes);
        if has_grown {
            self.make_room(key, &principal);
        }
    }

    /// A holder has dropped events as it was to; this is what is left.
    pub fn handle_dropped(&mut self, key: HolderKey, bytes: usize, since: Moment) {
        if let Some(holder) = self.holders.get_mut(&key) {
            holder.since = since;
            // Only what it holds beyond what it was left with can be asked of it again.
            holder.fixed = if bytes > holder.bytes { bytes } else { 0 };
            self.set(key, bytes);
        }
    }

    /// Returns what is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn set(&mut self, key: HolderKey, bytes: usize) {
        let Some(holder) = self.holders.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut holder.bytes, bytes);
        self.total = self.total - before + bytes;
        let of_principal = self.principals.entry(holder.principal.clone()).or_default();
        *of_principal = *of_principal - before + bytes;
        if *of_principal == 0 {
            self.principals.remove(&holder.principal);
        }
    }

    fn make_room(&mut self, current: HolderKey, principal: &Principal) {
        let of_principal = self.principals.get(principal).copied().unwrap_or(0);
        if let Some(limit) = self.limits.per_principal
            && of_principal > limit
        {
            let excess = of_principal - low(limit);
            self.free(principal, excess, current, Exceeded::PerPrincipal);
        }
        // Each round takes from another principal, or as much as is needed.
        for _ in 0..self.principals.len() {
            if self.total <= self.limits.total {
                return;
            }
            let excess = self.total - low(self.limits.total);
            let largest = self.principals.iter().max_by_key(|(_, bytes)| **bytes);
            let Some(largest) = largest.map(|(principal, _)| principal.clone()) else {
                return;
            };
            if self.free(&largest, excess, current, Exceeded::Total) == 0 {
                return;
            }
        }
    }

    /// Has so many bytes of a principal freed, as far as there are any. Returns how many.
    fn free(
        &mut self,
        principal: &Principal,
        excess: usize,
        current: HolderKey,
        exceeded: Exceeded,
    ) -> usize {
        let mut candidates: Vec<(Held, Moment, HolderKey)> = self
            .holders
            .iter()
            .filter(|(key, holder)| {
                let can_be_freed = match holder.held {
                    Held::Events => holder.bytes > holder.fixed,
                    Held::Answer => **key != current && holder.bytes > 0,
                };
                can_be_freed && holder.principal == *principal
            })
            .map(|(key, holder)| (holder.held, holder.since, *key))
            .collect();
        candidates.sort_unstable();
        let mut freed = 0;
        for (held, _, key) in candidates {
            if freed >= excess {
                break;
            }
            let bytes = self.holders.get(&key).map_or(0, |holder| holder.bytes);
            let going = match held {
                Held::Events => {
                    let going = bytes.min(excess - freed);
                    self.outputs.push_back(Output::DropEvents {
                        holder: key,
                        bytes: going,
                        exceeded,
                    });
                    going
                }
                Held::Answer => {
                    self.outputs.push_back(Output::Close {
                        holder: key,
                        exceeded,
                    });
                    bytes
                }
            };
            self.set(key, bytes - going);
            freed += going;
        }
        freed
    }
}

/// Where freeing stops, for a limit.
fn low(limit: usize) -> usize {
    limit - limit / 8
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: u64) -> Moment {
        Moment::START.after(Duration::from_secs(second))
    }

    fn named(name: &str) -> Principal {
        Principal::named(name)
    }

    fn budget() -> BufferBudget {
        BufferBudget::new(Limits {
            total: 800,
            per_principal: Some(400),
        })
    }

    /// Opens a holder with these bytes. Returns it with what had to go.
    fn hold(
        budget: &mut BufferBudget,
        principal: &str,
        held: Held,
        bytes: usize,
        second: u64,
    ) -> (HolderKey, Vec<Output>) {
        let key = budget.open(named(principal), held);
        budget.handle_held(key, bytes, at(second));
        (key, std::iter::from_fn(|| budget.poll_output()).collect())
    }

    #[test]
    fn oldest_events_of_a_principal_go_before_its_answers() {
        let mut budget = budget();
        let (answer, none) = hold(&mut budget, "a", Held::Answer, 100, 0);
        assert_eq!(none, []);
        let (newer, _) = hold(&mut budget, "a", Held::Events, 150, 2);
        let (older, _) = hold(&mut budget, "a", Held::Events, 40, 1);
        let (_, gone) = hold(&mut budget, "a", Held::Answer, 130, 3);
        // 420 of 400: it goes down to 350.
        let dropped = |holder, bytes| Output::DropEvents {
            holder,
            bytes,
            exceeded: Exceeded::PerPrincipal,
        };
        assert_eq!(gone, [dropped(older, 40), dropped(newer, 30)]);
        let (_, gone) = hold(&mut budget, "a", Held::Answer, 300, 4);
        let close = Output::Close {
            holder: answer,
            exceeded: Exceeded::PerPrincipal,
        };
        assert_eq!(gone[..2], [dropped(newer, 120), close]);
    }

    #[test]
    fn limits_that_are_set_later_hold_at_once() {
        let mut budget = BufferBudget::new(Limits {
            total: 800,
            per_principal: None,
        });
        let (holder, gone) = hold(&mut budget, "a", Held::Events, 600, 0);
        assert_eq!(gone, []);
        budget.set_limits(Limits {
            total: 800,
            per_principal: Some(400),
        });
        let dropped = Output::DropEvents {
            holder,
            bytes: 250,
            exceeded: Exceeded::PerPrincipal,
        };
        assert_eq!(budget.poll_output(), Some(dropped));
        let (_, gone) = hold(&mut budget, "a", Held::Events, 100, 1);
        assert_eq!(gone.len(), 1, "450 are more than 400");
    }

    #[test]
    fn over_the_limit_of_the_gateway_the_principal_that_holds_most_loses() {
        let mut budget = budget();
        hold(&mut budget, "a", Held::Events, 300, 0);
        let (largest, _) = hold(&mut budget, "b", Held::Events, 390, 5);
        let (_, gone) = hold(&mut budget, "c", Held::Events, 200, 9);
        let dropped = Output::DropEvents {
            holder: largest,
            bytes: 190,
            exceeded: Exceeded::Total,
        };
        assert_eq!(gone, [dropped]);
        assert_eq!(budget.total(), 700);
    }

    #[test]
    fn the_answer_that_was_reported_last_is_spared() {
        let mut budget = budget();
        let (_, gone) = hold(&mut budget, "a", Held::Answer, 5000, 0);
        assert_eq!(gone, []);
        let (second, gone) = hold(&mut budget, "a", Held::Answer, 5000, 1);
        assert_eq!(gone.len(), 1);
        budget.close(second);
        assert_eq!(budget.total(), 0, "a closed connection holds nothing");
    }

    #[test]
    fn holder_that_cannot_drop_more_is_not_asked_again_until_it_holds_more() {
        let mut budget = budget();
        let (key, gone) = hold(&mut budget, "a", Held::Events, 500, 0);
        assert_eq!(gone.len(), 1);
        budget.handle_dropped(key, 500, at(0));
        let (_, gone) = hold(&mut budget, "a", Held::Answer, 10, 1);
        assert_eq!(gone, []);
        budget.handle_held(key, 501, at(0));
        assert!(budget.poll_output().is_some());
    }

    #[test]
    fn nothing_is_left_of_holders_that_are_closed() {
        let mut budget = budget();
        let (key, _) = hold(&mut budget, "a", Held::Events, 100, 0);
        budget.handle_held(key, 20, at(1));
        assert_eq!(budget.total(), 20);
        budget.close(key);
        budget.handle_held(key, 50, at(1));
        assert_eq!(budget.total(), 0);
        assert!(budget.holders.is_empty() && budget.principals.is_empty());
    }

    #[test]
    fn principal_may_hold_exactly_its_limit() {
        let mut budget = budget();
        let (_, gone) = hold(&mut budget, "a", Held::Events, 400, 0);
        assert_eq!(gone, []);
        let (_, gone) = hold(&mut budget, "a", Held::Events, 1, 1);
        assert_eq!(gone.len(), 1);
    }

    #[test]
    fn principals_lose_one_after_another_until_the_limit_holds() {
        let mut budget = BufferBudget::new(Limits {
            total: 800,
            per_principal: None,
        });
        for principal in ["a", "b", "c"] {
            hold(&mut budget, principal, Held::Events, 100, 0);
        }
        budget.set_limits(Limits {
            total: 160,
            per_principal: None,
        });
        let dropped: Vec<usize> = std::iter::from_fn(|| budget.poll_output())
            .map(|output| match output {
                Output::DropEvents { bytes, .. } => bytes,
                Output::Close { .. } => 0,
            })
            .collect();
        assert_eq!(dropped, [100, 60], "it goes down to 140");
    }
}
