//! The rows of the fault catalogue, and whether a test is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Every row there is. Numbers that are missing were never given, or were given up.
const ROWS: [(char, &[u32]); 9] = [
    (
        'A',
        &[
            1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
        ],
    ),
    (
        'B',
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24,
        ],
    ),
    ('C', &[1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
    ('D', &[1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18]),
    ('E', &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ('F', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ('G', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]),
    ('H', &[1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15]),
    ('R', &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]),
];

pub(crate) fn rows() -> BTreeSet<String> {
    let ids = ROWS.iter().flat_map(|(letter, numbers)| {
        let id = move |number: &u32| format!("{letter}{number}");
        numbers.iter().map(id)
    });
    ids.collect()
}

/// The tests of files, each file read once.
#[derive(Default)]
pub(crate) struct Tests(BTreeMap<PathBuf, BTreeSet<String>>);

impl Tests {
    /// Whether there is a test of this name: `FILE::NAME`, the file in this folder or from the
    /// repository's root.
    pub(crate) fn have(&mut self, place: &str) -> bool {
        let Some((file, name)) = place.split_once("::") else {
            return false;
        };
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = match file.starts_with("crates/") {
            true => package.join("../..").join(file),
            false => package.join("tests").join(file),
        };
        let tests = self.0.entry(path).or_insert_with_key(|path| tests_of(path));
        tests.contains(name)
    }
}

/// The functions of a file that are marked as tests, and the cells of interop columns (`name:
/// scenario behind server;`). None, if the file is not there.
fn tests_of(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| !line.starts_with("//")) {
            if marked {
                names.extend(rest.split('(').next().map(str::to_owned));
            }
            marked = false;
        } else if let Some((name, _)) = line.split_once(": ").filter(|_| line.contains(" behind ")) {
            names.insert(name.to_owned());
        }
    }
    names
}
