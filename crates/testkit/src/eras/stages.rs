//! What the client of a pair saw: a pair is played once, however many tests want to know.
//!
//! How it is played is the pair's own affair. One that cannot be played to its end, or that leaves
//! a process behind, fails every cell of it.

use std::collections::BTreeMap;
use std::panic::{self, UnwindSafe};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;

/// By scenario what the client saw, or why there is nothing to see.
pub type Played = Result<Value, String>;

/// The pairs that were played, each with what its client saw.
#[derive(Debug)]
pub struct Stages<Pair>(Mutex<BTreeMap<Pair, Arc<OnceLock<Played>>>>);

impl<Pair: Ord> Default for Stages<Pair> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Pair: Ord> Stages<Pair> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// What the client saw in a scenario.
    ///
    /// # Panics
    /// When the pair could not be played, or the client failed in this scenario.
    pub fn seen_in(&self, pair: Pair, scenario: &str, play: impl FnOnce() -> Played + UnwindSafe) -> Value {
        // A panic here, such as that of a Rialto that leaves a child behind, is for every cell of
        // the pair.
        let play = || {
            panic::catch_unwind(play)
                .unwrap_or_else(|_| Err("see the panic of the test that played it".to_owned()))
        };
        let stage = self.stage(pair);
        let seen = match stage.get_or_init(play) {
            Ok(seen) => &seen[scenario],
            Err(why) => panic!("the pair could not be played: {why}"),
        };
        match seen.get("error") {
            Some(error) => panic!(
                "the client failed in {scenario}: {}",
                error.as_str().unwrap_or_default()
            ),
            None => seen.clone(),
        }
    }

    fn stage(&self, pair: Pair) -> Arc<OnceLock<Played>> {
        let mut stages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(stages.entry(pair).or_default())
    }
}
