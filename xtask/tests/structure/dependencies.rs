//! Holds `deny.toml` without its tool: licences, second versions, and why each heavy dependency is
//! there.
//!
//! `cargo metadata` tells what is built on this platform. It reads what the build has downloaded,
//! and downloads nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::source;

/// A direct dependency that brings this many crates needs a reason in `deny.toml`.
const HEAVY: usize = 25;

/// The crates that users run.
const PRODUCT: [&str; 5] = [
    "rialto-protocol",
    "rialto-oauth",
    "rialto-cluster",
    "rialto-gateway",
    "rialto",
];

fn deny() -> String {
    std::fs::read_to_string(source::repository().join("deny.toml")).expect("deny.toml can be read")
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .current_dir(source::repository())
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", &platform])
        .output()
        .expect("cargo metadata runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// The crates that are built on this platform, by id, and what each depends on.
struct Graph {
    packages: BTreeMap<String, Value>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read() -> Self {
        let metadata = metadata();
        let nodes = list(&metadata["resolve"], "nodes");
        let edges: BTreeMap<String, BTreeSet<String>> = nodes
            .map(|node| {
                let below = list(node, "dependencies").filter_map(Value::as_str);
                (text(node, "id").to_owned(), below.map(str::to_owned).collect())
            })
            .collect();
        let packages = list(&metadata, "packages")
            .map(|package| (text(package, "id").to_owned(), package.clone()))
            .filter(|(id, _)| edges.contains_key(id))
            .collect();
        Self { packages, edges }
    }

    fn name(&self, id: &str) -> &str {
        text(&self.packages[id], "name")
    }

    fn is_ours(&self, id: &str) -> bool {
        self.packages[id]["source"].is_null()
    }

    /// Returns every crate that one brings, itself included.
    fn below(&self, id: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut next: Vec<&str> = self
            .edges
            .get_key_value(id)
            .map(|(id, _)| id.as_str())
            .into_iter()
            .collect();
        while let Some(id) = next.pop() {
            if found.insert(id) {
                next.extend(self.edges[id].iter().map(String::as_str));
            }
        }
        found
    }
}

/// Returns the words in quotes in the list `key = [ … ]`. Comments in it are left out.
fn listed(deny: &str, key: &str) -> Vec<String> {
    let start = format!("\n{key} = [");
    let (_, rest) = deny
        .split_once(&start)
        .unwrap_or_else(|| panic!("deny.toml has no list {key}"));
    let (inside, _) = rest
        .split_once("\n]")
        .unwrap_or_else(|| panic!("the list {key} does not end"));
    let lines = inside
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split('"').nth(1))
        .map(str::to_owned)
        .collect()
}

#[test]
fn licence_of_every_dependency_is_allowed() {
    let allowed = listed(&deny(), "allow");
    let graph = Graph::read();
    let mut used = BTreeSet::new();
    for (id, package) in &graph.packages {
        if graph.is_ours(id) {
            continue;
        }
        let expression = text(package, "license");
        let accepted = |licence: &str| {
            let known = allowed.iter().find(|allowed| *allowed == licence);
            used.extend(known.cloned());
            known.is_some()
        };
        assert!(
            Licences::new(expression).accept(accepted),
            "{}: the licence `{expression}` is not allowed by deny.toml",
            graph.name(id)
        );
    }
    let unused: Vec<&String> = allowed
        .iter()
        .filter(|licence| !used.contains(*licence))
        .collect();
    assert!(
        unused.is_empty(),
        "no dependency has {unused:?}; delete it from deny.toml"
    );
}

/// A licence expression of SPDX: names, `AND`, `OR`, brackets. `/` is an older `OR`.
struct Licences {
    /// The tokens that were not read yet, the next one last.
    tokens: Vec<String>,
}

impl Licences {
    fn new(expression: &str) -> Self {
        let spaced = expression
            .replace('(', " ( ")
            .replace(')', " ) ")
            .replace('/', " OR ");
        let mut tokens: Vec<String> = Vec::new();
        let mut words = spaced.split_whitespace();
        while let Some(word) = words.next() {
            match (word, tokens.last_mut()) {
                // An exception belongs to the name before it.
                ("WITH", Some(name)) => *name = format!("{name} WITH {}", words.next().unwrap_or_default()),
                _ => tokens.push(word.to_owned()),
            }
        }
        tokens.reverse();
        Self { tokens }
    }

    fn accept(mut self, mut allowed: impl FnMut(&str) -> bool) -> bool {
        let accepted = self.either(&mut allowed);
        accepted && self.tokens.is_empty()
    }

    fn either(&mut self, allowed: &mut impl FnMut(&str) -> bool) -> bool {
        let mut accepted = self.both(allowed);
        while self.takes("OR") {
            accepted |= self.both(allowed);
        }
        accepted
    }

    fn both(&mut self, allowed: &mut impl FnMut(&str) -> bool) -> bool {
        let mut accepted = self.one(allowed);
        while self.takes("AND") {
            accepted &= self.one(allowed);
        }
        accepted
    }

    fn one(&mut self, allowed: &mut impl FnMut(&str) -> bool) -> bool {
        if self.takes("(") {
            let accepted = self.either(allowed);
            return self.takes(")") && accepted;
        }
        self.tokens.pop().is_some_and(|name| allowed(&name))
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.tokens.last().is_some_and(|token| token == word);
        if is_next {
            self.tokens.pop();
        }
        is_next
    }
}

#[test]
fn licence_expressions_are_read() {
    let accepts = |expression: &str| {
        let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception", "ISC"];
        Licences::new(expression).accept(|name| allowed.contains(&name))
    };
    for good in [
        "MIT",
        "GPL-3.0 OR MIT",
        "MIT/Apache-2.0",
        "(GPL-3.0 OR MIT) AND ISC",
        "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
    ] {
        assert!(accepts(good), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "GPL-3.0 OR (MIT AND GPL-2.0)",
        "MIT MIT",
        "(MIT",
    ] {
        assert!(!accepts(bad), "{bad}");
    }
}

#[test]
fn second_version_of_a_crate_has_a_reason() {
    let graph = Graph::read();
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in graph.packages.values() {
        let (name, version) = (text(package, "name"), text(package, "version"));
        versions
            .entry(name)
            .or_default()
            .insert(format!("{name}@{version}"));
    }
    let skipped: BTreeSet<String> = listed(&deny(), "skip").into_iter().collect();
    for versions in versions.values().filter(|versions| versions.len() > 1) {
        let left: Vec<&String> = versions
            .iter()
            .filter(|version| !skipped.contains(*version))
            .collect();
        assert!(
            left.len() <= 1,
            "{left:?}: name all but one under `skip` in deny.toml, each with the reason"
        );
    }
    for skip in &skipped {
        let (name, _) = skip.split_once('@').expect("`skip` names a version");
        let needed = versions
            .get(name)
            .is_some_and(|all| all.len() > 1 && all.contains(skip));
        assert!(needed, "{skip} is no second version; delete it from deny.toml");
    }
}

/// `# name: reason` under the heading of `deny.toml`.
fn reasons(deny: &str) -> BTreeMap<&str, &str> {
    let (_, list) = deny
        .split_once("# Heavy dependencies")
        .expect("deny.toml lists heavy dependencies");
    let lines = list.lines().skip(1).filter_map(|line| line.strip_prefix("# "));
    lines.filter_map(|line| line.split_once(": ")).collect()
}

#[test]
fn heavy_dependency_has_a_reason() {
    let graph = Graph::read();
    let deny = deny();
    let reasons = reasons(&deny);
    let mut heavy = BTreeMap::new();
    for package in graph
        .packages
        .values()
        .filter(|package| PRODUCT.contains(&text(package, "name")))
    {
        let normal = list(package, "dependencies").filter(|dependency| dependency["kind"].is_null());
        let names: BTreeSet<&str> = normal.map(|dependency| text(dependency, "name")).collect();
        for id in &graph.edges[text(package, "id")] {
            let crates = graph.below(id).len();
            if !graph.is_ours(id) && names.contains(graph.name(id)) && crates >= HEAVY {
                heavy.insert(graph.name(id), crates);
            }
        }
    }
    for (name, crates) in &heavy {
        assert!(
            reasons.contains_key(name),
            "{name} brings {crates} crates; write into deny.toml why it is there"
        );
    }
    for name in reasons.keys() {
        assert!(
            heavy.contains_key(name),
            "{name} is no heavy dependency; delete it from deny.toml"
        );
    }
}
