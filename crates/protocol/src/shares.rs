//! Shares: which principal makes room where every place is taken and another principal wants one.
//!
//! A principal may take every place while no other wants one. When another does, the principal that
//! holds most gives one up, as long as it then still holds no fewer than the newcomer. So no caller
//! locks out another. Without authentication all callers are one principal, and there are no
//! shares.

use std::collections::BTreeMap;

/// How many places each principal holds.
#[derive(Debug, Default)]
pub struct Shares<'a>(BTreeMap<&'a str, usize>);

impl<'a> FromIterator<&'a str> for Shares<'a> {
    /// Counts places by their principals.
    fn from_iter<I: IntoIterator<Item = &'a str>>(principals: I) -> Self {
        let mut counts = BTreeMap::new();
        for principal in principals {
            *counts.entry(principal).or_insert(0) += 1;
        }
        Self(counts)
    }
}

impl<'a> Shares<'a> {
    fn held_by(&self, principal: &str) -> usize {
        self.0.get(principal).copied().unwrap_or(0)
    }

    /// Returns whether an unused place of `holder` may go to `newcomer`: not if the newcomer holds
    /// more already.
    pub fn may_take_unused(&self, newcomer: &str, holder: &str) -> bool {
        newcomer == holder || self.held_by(holder) >= self.held_by(newcomer)
    }

    /// Returns the principal that gives up a place for `newcomer` although it uses it.
    pub fn over_share(&self, newcomer: &str) -> Option<&'a str> {
        let largest = self.0.iter().max_by_key(|(_, count)| **count);
        let (largest, count) = largest.map(|(principal, count)| (*principal, *count))?;
        (count > self.held_by(newcomer) + 1).then_some(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(held: &[(&'static str, usize)]) -> Shares<'static> {
        held.iter()
            .flat_map(|(holder, count)| std::iter::repeat_n(*holder, *count))
            .collect()
    }

    #[test]
    fn the_principal_that_holds_most_gives_up_a_place() {
        let shares = shares(&[("alice", 8), ("carol", 2)]);
        assert_eq!(shares.over_share("bob"), Some("alice"));
        assert_eq!(shares.over_share("carol"), Some("alice"));
        assert_eq!(
            shares.over_share("alice"),
            None,
            "no principal makes room for itself"
        );
    }

    #[test]
    fn places_that_are_shared_evenly_are_kept() {
        let shares = shares(&[("alice", 2), ("carol", 2)]);
        assert_eq!(shares.over_share("bob"), Some("carol"));
        assert_eq!(shares.over_share("alice"), None);
        assert_eq!(super::Shares::default().over_share("bob"), None);
        let single: Shares<'_> = ["alice", "carol"].into_iter().collect();
        assert_eq!(single.over_share("bob"), None, "its only place is left to each");
    }

    #[test]
    fn a_principal_that_holds_most_takes_no_unused_place_of_another() {
        let shares = shares(&[("alice", 8), ("bob", 2)]);
        assert!(!shares.may_take_unused("alice", "bob"));
        assert!(shares.may_take_unused("bob", "alice") && shares.may_take_unused("alice", "alice"));
        assert!(shares.may_take_unused("dora", "bob"));
    }
}
