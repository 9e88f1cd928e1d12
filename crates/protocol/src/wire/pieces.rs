//! Input in pieces, for tests: wherever it is cut, the same must be read.

use proptest::sample::Index;

/// Cuts the input at the given places, which may come in any order.
pub(super) fn cut<'a>(input: &'a [u8], places: &[Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = places.iter().map(|place| place.index(input.len() + 1)).collect();
    at.extend([0, input.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &input[pair[0]..pair[1]]).collect()
}
