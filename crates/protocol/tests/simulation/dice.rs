//! Chance that can be thrown again: the same seed gives the same numbers for ever.
//!
//! A tape of bytes may go before the seed: each throw takes one byte while there are some, so that
//! a fuzzer which changes a byte changes one throw.

use std::time::Duration;

/// SplitMix64: tiny, and good enough to pick what happens next.
#[derive(Debug)]
pub(crate) struct Dice {
    state: u64,
    tape: std::vec::IntoIter<u8>,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed,
            tape: Vec::new().into_iter(),
        }
    }

    pub(crate) fn on_tape(tape: &[u8]) -> Self {
        Self {
            tape: Vec::from(tape).into_iter(),
            ..Self::new(0)
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end == 0 {
            return 0;
        }
        if let Some(byte) = self.tape.next() {
            return usize::from(byte) % end;
        }
        (self.next() % end as u64) as usize
    }

    /// True this often in a hundred.
    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        let span = to - from + 1;
        let above = match self.tape.next() {
            // One byte reaches from one end to the other, in steps.
            Some(byte) => u64::from(byte) * span / 256,
            None => self.next() % span,
        };
        Duration::from_millis(from + above)
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(of.len());
        of.get(at)
    }
}
