//! The property that a fuzzer and `cargo test` share: every promise is kept for any bytes.

use crate::check;
use crate::run::SimulationRun;

/// # Panics
/// If the judge finds fault with the history that these bytes lead to.
pub(crate) fn holds(tape: &[u8]) {
    let wrongs = check::check(&SimulationRun::on_tape(tape).run());
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}
