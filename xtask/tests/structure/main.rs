//! Rules about the source that no compiler holds: what may name what, and in which words.
//!
//! The text of the repository is read, nothing is built. Each rule that does not hold everywhere
//! yet has a list of its exceptions beside this file, and such a list may only shrink (see
//! `shrinking`).

mod architecture;
mod dependencies;
mod imports;
mod shrinking;
mod source;
mod test_code;
mod toolchain;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use shrinking::{Counts, Fallen, List};
use source::Source;

/// The crates that users run.
const PRODUCT: [&str; 5] = [
    "crates/protocol/src",
    "crates/oauth/src",
    "crates/cluster/src",
    "crates/gateway/src",
    "crates/rialto/src",
];

/// Everything that `crates/protocol` may depend on. None of it does I/O, reads a clock or makes
/// random numbers.
const DEPENDENCIES_OF_PROTOCOL: [(&str, &[&str]); 2] = [
    (
        "dependencies",
        &[
            "base64",
            "bytes",
            "itoa",
            "memchr",
            "serde",
            "serde_json",
            "thiserror",
        ],
    ),
    ("dev-dependencies", &["proptest"]),
];

/// What names an era, or stands for one.
const ERA_NAMES: [&str; 5] = ["Era::", "is_modern", "is_legacy", "is_known_modern", ".listens()"];

/// Counts a pattern in each file, and remembers the lines.
fn occurrences(sources: &[Source], patterns: &[&str]) -> (Counts, impl Fn(&str) -> String) {
    let mut counts = Counts::new();
    let mut lines: Vec<(String, String)> = Vec::new();
    for source in sources {
        let mut found: BTreeSet<usize> = BTreeSet::new();
        for pattern in patterns {
            for (at, _) in source.code.match_indices(pattern) {
                let before = source.code[..at].chars().next_back();
                let word = pattern.starts_with(char::is_alphabetic);
                if !(word && before.is_some_and(|c| c.is_alphanumeric() || c == '_')) {
                    found.insert(at);
                }
            }
        }
        for at in &found {
            let line = source.line(*at);
            let text = source.code.lines().nth(line - 1).unwrap_or_default().trim();
            lines.push((
                source.path.clone(),
                format!("    {}:{line}: {text}\n", source.path),
            ));
        }
        if !found.is_empty() {
            counts.insert(source.path.clone(), found.len());
        }
    }
    let explain = move |path: &str| {
        let lines = lines.iter().filter(|(of, _)| of == path);
        lines.map(|(_, line)| line.as_str()).collect()
    };
    (counts, explain)
}

#[test]
fn modules_of_the_gateway_form_no_cycle() {
    let graph = imports::graph(&source::product("crates/gateway/src"));
    assert!(graph.len() > 10, "{graph:?}");
    let cycle = imports::cycle(&graph);
    let counts = cycle.iter().map(|module| (module.clone(), 1)).collect();
    let list = List {
        name: "import_cycle.txt",
        about: "Modules at the top of crates/gateway that import one another in a circle. None shall.",
        fallen: Fallen::Fails,
    };
    // The edges of a module within the cycle tell which import to cut.
    list.check(&counts, |module| imports::edges_of(&graph, &cycle, module));
}

#[test]
fn modules_of_the_other_crates_form_no_further_cycle() {
    let mut counts = Counts::new();
    let mut edges: BTreeMap<String, String> = BTreeMap::new();
    for folder in PRODUCT.into_iter().filter(|folder| !folder.contains("/gateway/")) {
        let graph = imports::graph(&source::product(folder));
        let cycle = imports::cycle(&graph);
        for module in &cycle {
            let name = format!("{folder} {module}");
            edges.insert(name.clone(), imports::edges_of(&graph, &cycle, module));
            counts.insert(name, 1);
        }
    }
    let list = List {
        name: "other_cycles.txt",
        about: "Modules at the top of the other crates that import one another in a circle. No further one shall.",
        fallen: Fallen::Fails,
    };
    list.check(&counts, |module| edges[module].clone());
}

#[test]
fn eras_are_named_where_they_are_translated() {
    // Here an era may be named: the faces translate, the negotiation chooses, the version knows its
    // era.
    const HOMES: [&str; 4] = ["version", "negotiation", "client_face", "backend_face"];
    let is_home = |source: &Source| {
        let module = source.module.first().map_or("", String::as_str);
        source.path.starts_with("crates/protocol/") && HOMES.contains(&module)
    };
    let mut sources = source::product("crates/protocol/src");
    sources.extend(source::product("crates/gateway/src"));
    sources.retain(|source| !is_home(source));
    let (counts, explain) = occurrences(&sources, &ERA_NAMES);
    let list = List {
        name: "eras.txt",
        about: "Files that name an era, or a property that stands for one. Only faces, negotiation and version shall.",
        fallen: Fallen::Fails,
    };
    list.check(&counts, explain);
    let text = list.text();
    let reasons = shrinking::reasons(&text);
    let without: Vec<&String> = counts
        .keys()
        .filter(|name| !reasons.contains_key(*name))
        .collect();
    assert!(
        without.is_empty(),
        "xtask/tests/structure/eras.txt: no reason (` # …`) for {without:?}"
    );
}

#[test]
fn product_code_imports_by_name() {
    let sources: Vec<Source> = PRODUCT
        .iter()
        .flat_map(|folder| source::product(folder))
        .collect();
    let (counts, explain) = occurrences(&sources, &["super::*"]);
    let list = List {
        name: "super_globs.txt",
        about: "Files with `use super::*` outside their tests. None shall have one.",
        fallen: Fallen::Fails,
    };
    list.check(&counts, explain);
}

#[test]
fn words_that_name_no_subject_become_fewer() {
    let places = words::places();
    let counts = places
        .iter()
        .map(|(name, places)| (name.clone(), places.len()))
        .collect();
    let list = List {
        name: "words.txt",
        about: "Words to be avoided, by folder. A count may only fall.",
        fallen: Fallen::Passes,
    };
    list.check(&counts, |name| {
        const SHOWN: usize = 30;
        let places = &places[name];
        let shown = places.iter().take(SHOWN).map(|place| format!("    {place}\n"));
        let more = places.len().saturating_sub(SHOWN);
        let more = (more > 0).then(|| format!("    and {more} more\n"));
        shown.chain(more).collect()
    });
}

#[test]
fn protocol_depends_on_nothing_else() {
    let path = source::repository().join("crates/protocol/Cargo.toml");
    let manifest = std::fs::read_to_string(path).expect("the manifest can be read");
    let found = dependencies(&manifest);
    let pinned: Vec<(String, Vec<String>)> = DEPENDENCIES_OF_PROTOCOL
        .iter()
        .map(|(table, names)| {
            (
                (*table).to_owned(),
                names.iter().map(|&name| name.to_owned()).collect(),
            )
        })
        .collect();
    assert_eq!(
        found, pinned,
        "crates/protocol has no I/O, clock or randomness, and so have its dependencies; \
         a new one is added here too, with the reason in its commit"
    );
}

/// Returns each table of dependencies in a manifest with the names in it, sorted.
fn dependencies(manifest: &str) -> Vec<(String, Vec<String>)> {
    let mut tables: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            inside = header.contains("dependencies");
            if inside {
                tables.push((header.to_owned(), Vec::new()));
            }
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let name: String = line
                .chars()
                .take_while(|c| c.is_alphanumeric() || "-_".contains(*c))
                .collect();
            tables.last_mut().expect("a table was begun").1.push(name);
        }
    }
    for (_, names) in &mut tables {
        names.sort();
    }
    tables
}

#[test]
fn dependencies_are_read_from_every_table() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\n# why\nc.workspace = true\nb = \"1\"\n[target.'cfg(unix)'.dependencies]\nd = { version = \"1\" }\n[lints]\nworkspace = true\n";
    assert_eq!(
        dependencies(manifest),
        [
            ("dependencies".to_owned(), vec!["b".to_owned(), "c".to_owned()]),
            ("target.'cfg(unix)'.dependencies".to_owned(), vec!["d".to_owned()]),
        ]
    );
}
