//! What a fuzzer and `cargo test` both ask of the simulation: whatever the bytes decide, every promise is kept.

use crate::check;
use crate::world::World;

/// # Panics
/// If the judge finds fault with the history that these bytes lead to.
pub(crate) fn holds(tape: &[u8]) {
    let wrongs = check::check(&World::on_tape(tape).run());
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}
