//! The committed corpus of a fuzz target, for its twin.

use std::path::Path;

/// Calls the property with each file of the target's corpus.
///
/// # Panics
/// If the corpus cannot be read or is empty, or if the property does not hold.
pub(crate) fn each(target: &str, holds: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{target} has no corpus: {error}"))
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus of {target} is empty");
    for file in files {
        holds(&std::fs::read(&file).expect("the file can be read"));
    }
}
