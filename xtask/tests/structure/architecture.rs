//! ARCHITECTURE.md against the source: what the page names exists, and what must stand there does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::source;

/// The widest line of the page.
const COLUMNS: usize = 100;

fn page() -> String {
    let path = source::repository().join("ARCHITECTURE.md");
    std::fs::read_to_string(path).expect("the page can be read")
}

/// Returns the text below a heading, up to the next heading of its level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = format!("\n## {heading}\n");
    let (_, below) = page
        .split_once(&start)
        .unwrap_or_else(|| panic!("ARCHITECTURE.md has no section {heading}"));
    below.split_once("\n## ").map_or(below, |(section, _)| section)
}

/// Returns the text without its code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns the texts in code font, each on one line.
fn codes(text: &str) -> Vec<String> {
    let prose = prose(text);
    let inside = prose.split('`').skip(1).step_by(2);
    inside
        .map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// Returns the items of all lists, each with its continuation lines.
fn items(text: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        let numbered = line
            .split_once(". ")
            .filter(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
            .map(|(_, item)| item);
        if let Some(item) = line.strip_prefix("- ").or(numbered) {
            items.push(item.to_owned());
            is_open = true;
        } else if let Some(item) = items.last_mut().filter(|_| is_open && line.starts_with(' ')) {
            item.push(' ');
            item.push_str(line.trim());
        } else {
            is_open = false;
        }
    }
    items
}

/// Returns the paths that each item of a list begins with, before its colon.
fn named_paths(text: &str) -> Vec<String> {
    let names = |item: &String| codes(item.split_once(": ").map_or(item.as_str(), |(names, _)| names));
    items(text).iter().flat_map(names).collect()
}

/// Returns the code map as paths from the root of the repository. A heading in code font names the
/// folder that the paths below it start from; without one they start at the root.
fn code_map(page: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for part in section(page, "Code map").split("\n### ").skip(1) {
        let (heading, below) = part.split_once('\n').expect("a heading has a text");
        let base = codes(heading).first().map(|base| format!("{base}/"));
        let base = base.unwrap_or_default();
        paths.extend(named_paths(below).iter().map(|path| format!("{base}{path}")));
        paths.extend((!base.is_empty()).then_some(base));
    }
    paths
}

/// Returns the folders below the `src` of each crate, those of tests alone left out.
fn source_folders() -> BTreeSet<String> {
    let crates = source::repository().join("crates");
    let files = source::files(&crates, ".rs").into_iter();
    files
        .map(|path| source::relative(&path))
        .filter(|path| path.split('/').nth(2) == Some("src"))
        .filter(|path| !path.ends_with("/tests.rs") && !path.contains("/tests/"))
        .filter_map(|path| path.rsplit_once('/').map(|(folder, _)| format!("{folder}/")))
        .collect()
}

#[test]
fn paths_in_the_code_map_exist() {
    let map = code_map(&page());
    assert!(map.len() > 50, "{map:?}");
    for path in map {
        let found = source::repository().join(&path);
        assert_eq!(
            found.is_dir(),
            path.ends_with('/'),
            "ARCHITECTURE.md names {path}"
        );
        assert!(found.exists(), "ARCHITECTURE.md names {path}");
    }
}

#[test]
fn folders_of_the_source_are_in_the_code_map() {
    let map = code_map(&page());
    let missing: Vec<String> = source_folders().difference(&map).cloned().collect();
    assert!(missing.is_empty(), "the code map lacks {missing:?}");
}

#[test]
fn names_in_the_page_exist() {
    let page = page();
    let root = source::repository();
    let starts: [PathBuf; 4] = [
        "",
        "crates/gateway/src",
        "crates/protocol/src",
        "crates/rialto/src",
    ]
    .map(|start| root.join(start));
    let mut words: BTreeSet<String> = BTreeSet::new();
    for ending in [".rs", ".toml", ".md", ".conv"] {
        for path in source::files(&root, ending) {
            if path.ends_with("ARCHITECTURE.md") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("the file is text");
            let found = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.extend(found.map(str::to_owned));
        }
    }
    let in_map = code_map(&page);
    let is_mapped = |code: &str| in_map.iter().any(|path| path.ends_with(&format!("/{code}")));
    for code in codes(&page) {
        let is_path = code.ends_with('/') || Path::new(&code).extension().is_some_and(|ending| ending != "*");
        if is_path && !code.contains(' ') {
            let found = is_mapped(&code) || starts.iter().any(|start| start.join(&code).exists());
            assert!(found, "ARCHITECTURE.md names the path {code}");
        } else if code.chars().all(|c| c.is_alphanumeric() || "_:/".contains(c)) {
            let parts = code.split([':', '/']).filter(|part| !part.is_empty());
            for part in parts {
                assert!(words.contains(part), "ARCHITECTURE.md names {code}");
            }
        }
    }
}

/// Returns the names of all tests in the repository.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in source::files(&source::repository(), ".rs") {
        let text = std::fs::read_to_string(&path).expect("the file is text");
        let mut is_marked = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_marked = true;
            } else if let Some((_, name)) = line.split_once("fn ").filter(|_| is_marked) {
                names.extend(name.split('(').next().map(str::to_owned));
                is_marked = false;
            }
        }
    }
    names
}

#[test]
fn invariants_name_the_tests_and_lints_that_hold_them() {
    let page = page();
    let invariants = items(section(&page, "Invariants"));
    assert!(invariants.len() >= 15, "{invariants:#?}");
    let tests = tests();
    let root = source::repository();
    let lints = [
        "Cargo.toml",
        "clippy.toml",
        "crates/protocol/clippy.toml",
        "crates/protocol/src/lib.rs",
    ]
    .map(|path| std::fs::read_to_string(root.join(path)).expect("the file is text"))
    .concat();
    let lints: BTreeSet<&str> = lints
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
        .collect();
    for invariant in invariants {
        let (_, held_by) = invariant
            .split_once("*Held by*")
            .unwrap_or_else(|| panic!("no test or lint holds: {invariant}"));
        let mut holders = 0;
        for name in codes(held_by).iter().filter(|name| !name.contains(['.', '/'])) {
            let lint = name.replace('_', "-");
            let is_lint = lints.contains(name.as_str()) || lints.contains(lint.as_str());
            assert!(
                is_lint || tests.contains(name),
                "{name} is neither a test nor a lint: {invariant}"
            );
            holders += 1;
        }
        assert!(holders > 0, "no test or lint holds: {invariant}");
    }
}

#[test]
fn files_of_a_third_era_are_listed() {
    let mut sources = source::product("crates/protocol/src");
    for folder in ["crates/gateway/src", "crates/rialto/src"] {
        sources.extend(source::product(folder));
    }
    // The demo server is a peer, with eras of its own.
    sources.retain(|source| !source.path.contains("/demo"));
    let names = [crate::ERA_NAMES.as_slice(), &["EraChoice::", "Revision::"]].concat();
    let (counts, _) = crate::occurrences(&sources, &names);
    let found: BTreeSet<String> = counts.into_keys().collect();
    let page = page();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    for item in items(section(&page, "A third era")) {
        let (base, files) = item.split_once(": ").expect("an item names its folder");
        let base = codes(base).remove(0);
        for file in codes(files).iter().filter(|code| code.ends_with(".rs")) {
            assert!(listed.insert(format!("{base}/{file}")), "{file} is listed twice");
        }
    }
    let missing: Vec<&String> = found.difference(&listed).collect();
    let needless: Vec<&String> = listed.difference(&found).collect();
    assert!(
        missing.is_empty() && needless.is_empty(),
        "section \"A third era\" of ARCHITECTURE.md lacks {missing:#?}, and {needless:#?} name no era"
    );
}

/// Returns the names of the tasks that a text starts, as they are written.
fn names_of_tasks(text: &str) -> Vec<&str> {
    let product = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut names = Vec::new();
    for start in ["tasks::spawn(", "tasks::spawn_on("] {
        for (at, _) in product.match_indices(start) {
            // The name is the first literal.
            names.extend(product[at..].split('"').nth(1));
        }
    }
    names
}

#[test]
fn tasks_of_the_product_are_in_the_page() {
    let page = page();
    let table = section(&page, "Tasks and locks");
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let first: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
    let listed: BTreeSet<String> = codes(&first.join("\n")).into_iter().collect();
    let mut started: BTreeSet<String> = BTreeSet::new();
    for folder in crate::PRODUCT {
        for path in source::files(&source::repository().join(folder), ".rs") {
            let relative = source::relative(&path);
            if relative.ends_with("/tests.rs") || relative.contains("/tests/") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("the file is text");
            started.extend(names_of_tasks(&text).into_iter().map(str::to_owned));
        }
    }
    assert!(started.len() > 20, "{started:?}");
    assert_eq!(
        started, listed,
        "the tasks that are started, and those in section \"Tasks and locks\" of ARCHITECTURE.md"
    );
}

#[test]
fn names_of_tasks_are_their_first_literals() {
    let text = "tasks::spawn(\"one\", f());\ntasks::spawn_on(\n  thread,\n  \"two\", g(\"x\"));\nspawn(\"no\")\n#[cfg(test)]\nmod tests {\n tasks::spawn(\"three\", f()) }";
    assert_eq!(names_of_tasks(text), ["one", "two"]);
}

#[test]
fn lines_of_the_page_are_no_wider_than_the_others() {
    for (number, line) in page().lines().enumerate() {
        let width = line.chars().count();
        let is_row = line.starts_with('|');
        assert!(
            is_row || width <= COLUMNS,
            "ARCHITECTURE.md:{}: {width} columns",
            number + 1
        );
    }
}

#[test]
fn crates_depend_downwards() {
    // The testkit is a peer: a mistake of the product must not hide behind the same mistake there.
    const CRATES: [(&str, &[&str]); 6] = [
        ("protocol", &[]),
        ("oauth", &[]),
        ("cluster", &[]),
        ("gateway", &["cluster", "oauth", "protocol"]),
        ("rialto", &["cluster", "gateway", "oauth", "protocol"]),
        ("testkit", &[]),
    ];
    let is_ours = |dependency: &String| CRATES.iter().any(|(name, _)| name == dependency);
    for (name, below) in CRATES {
        let path = source::repository().join(format!("crates/{name}/Cargo.toml"));
        let manifest = std::fs::read_to_string(path).expect("the manifest can be read");
        let tables = crate::dependencies(&manifest).into_iter();
        let product = tables.filter(|(table, _)| !table.contains("dev-"));
        let found: Vec<String> = product.flat_map(|(_, names)| names).filter(is_ours).collect();
        assert_eq!(found, below, "crates/{name}/Cargo.toml");
    }
}

#[test]
fn items_of_a_list_are_joined_and_their_paths_found() {
    let text = "Text.\n\n- `a.rs`, `b/`: holds\n  `c`.\n- `d/`: more: text.\n\n1. **One.** Two\n   three.\n";
    assert_eq!(
        items(text),
        [
            "`a.rs`, `b/`: holds `c`.",
            "`d/`: more: text.",
            "**One.** Two three."
        ]
    );
    assert_eq!(
        named_paths(text.split("1. ").next().unwrap()),
        ["a.rs", "b/", "d/"]
    );
    assert_eq!(codes("a `b\nc` d\n```\n`x`\n```\n`e`"), ["b c", "e"]);
}
