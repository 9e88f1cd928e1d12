//! Rules for the code of tests: how a test program finds its modules, and how a test waits.

use crate::occurrences;
use crate::shrinking::{Fallen, List};
use crate::source::{self, Source};

/// Returns the files below a folder, with their code.
fn sources(folder: &str) -> Vec<Source> {
    let files = source::files(&source::repository().join(folder), ".rs");
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).expect("the file is text");
        Source {
            path: source::relative(path),
            module: Vec::new(),
            code: source::parts(&text).code,
        }
    };
    files.iter().map(read).collect()
}

#[test]
fn modules_are_found_without_path_attributes() {
    let sources: Vec<Source> = ["crates", "fuzz", "xtask"]
        .into_iter()
        .flat_map(sources)
        .collect();
    let (counts, explain) = occurrences(&sources, &["#[path"]);
    let list = List {
        name: "path_attributes.txt",
        about: "Files with `#[path]`. A test program of several files is `tests/NAME/main.rs`; what several share is in testkit.",
        fallen: Fallen::Fails,
    };
    list.check(&counts, explain);
}

#[test]
fn tests_wait_for_facts() {
    let mut sources = sources("crates");
    sources.retain(|source| source.path.contains("/tests/"));
    assert!(sources.len() > 50, "{}", sources.len());
    let (counts, explain) = occurrences(&sources, &["yield_now(", "sleep(", "spin_loop("]);
    let list = List {
        name: "sleeping_tests.txt",
        about: "Tests that sleep or spin. `wait_until` and `poll_until` of testkit wait for a fact, up to a deadline.",
        fallen: Fallen::Fails,
    };
    list.check(&counts, explain);
}
