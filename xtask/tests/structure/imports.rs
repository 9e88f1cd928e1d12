//! Which module of a crate names which other, and which of them form a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// For each module at the top of a crate: the modules it names, and where it names each first.
pub(crate) type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the graph of the modules at the top of a crate. A name that the root of the crate takes
/// from a module with `pub use` stands for that module.
pub(crate) fn graph(sources: &[Source]) -> Graph {
    let modules: BTreeSet<&str> = sources
        .iter()
        .filter_map(|source| source.module.first().map(String::as_str))
        .collect();
    let root = sources.iter().find(|source| source.module.is_empty());
    let exported = root.map(|root| reexports(&root.code)).unwrap_or_default();
    let mut graph = Graph::new();
    for source in sources {
        let Some(module) = source.module.first() else {
            continue;
        };
        let edges = graph.entry(module.clone()).or_default();
        for (name, at) in names_of_the_root(&source.code, source.module.len()) {
            let name = exported.get(&name).unwrap_or(&name);
            if name != module && modules.contains(name.as_str()) {
                let place = || format!("{}:{}", source.path, source.line(at));
                edges.entry(name.clone()).or_insert_with(place);
            }
        }
    }
    graph
}

/// Returns the modules that can reach themselves.
pub(crate) fn cycle(graph: &Graph) -> BTreeSet<String> {
    let reached = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = graph[from].keys().collect();
        while let Some(module) = next.pop() {
            if seen.insert(module.clone()) {
                next.extend(graph.get(module).into_iter().flat_map(BTreeMap::keys));
            }
        }
        seen
    };
    let modules = graph.keys().filter(|module| reached(module).contains(*module));
    modules.cloned().collect()
}

/// Returns the edges that lead from or to a module within a cycle, a line for each.
pub(crate) fn edges_of(graph: &Graph, cycle: &BTreeSet<String>, module: &str) -> String {
    let mut text = String::new();
    for from in cycle {
        for (to, place) in graph[from].iter().filter(|(to, _)| cycle.contains(*to)) {
            if from == module || to == module {
                text.push_str(&format!("    {from} -> {to}   {place}\n"));
            }
        }
    }
    text
}

/// Returns the first names of all paths that begin at the root of the crate, as `crate::name`,
/// `crate::{name, …}` or by enough `super::`.
fn names_of_the_root(code: &str, depth: usize) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    let up = "super::".repeat(depth);
    for start in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            // `$crate::` of a macro counts; `super::super::` is found at its first word only.
            let inside = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if inside || before.ends_with("super::") {
                continue;
            }
            names.extend(
                first_names(&code[at + start.len()..])
                    .into_iter()
                    .map(|name| (name, at)),
            );
        }
    }
    names
}

/// Returns the name that a text begins with, or the first names of the paths in its braces.
fn first_names(text: &str) -> Vec<String> {
    let identifier = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let Some(group) = text.strip_prefix('{') else {
        return vec![identifier(text)];
    };
    let (mut depth, mut fresh, mut names) = (0_usize, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if c.is_whitespace() => {}
            _ if fresh => {
                names.push(identifier(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

/// Returns the names that `pub use module::…` at the root of a crate makes public, each with its
/// module.
fn reexports(code: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for line in code.split(';') {
        let Some((_, path)) = line.split_once("pub use ") else {
            continue;
        };
        let Some((module, rest)) = path.trim().split_once("::") else {
            continue;
        };
        let last = rest.rsplit("::").next().unwrap_or(rest);
        for name in last.trim_matches(['{', '}']).split(',') {
            names.insert(name.trim().to_owned(), module.to_owned());
        }
    }
    names
}

fn source(module: &[&str], code: &str) -> Source {
    Source {
        path: format!("{}.rs", module.join("/")),
        module: module.iter().map(|&part| part.to_owned()).collect(),
        code: code.to_owned(),
    }
}

#[test]
fn paths_groups_and_reexports_are_edges() {
    let graph = graph(&[
        source(&[], "mod a; pub use b::c::{D, E};"),
        source(&["a"], "use crate::{b::{x, c}, f as g};\nuse super::h;"),
        source(
            &["a", "inner"],
            "fn f() { crate::D::new(super::own, super::super::b) }",
        ),
        source(&["b"], "use crate::b::c;"),
        source(&["f"], ""),
        source(&["h"], "use super::super::no; mycrate::a"),
    ]);
    let edges = |module: &str| graph[module].keys().cloned().collect::<Vec<_>>();
    assert_eq!(edges("a"), ["b", "f", "h"]);
    assert_eq!(graph["a"]["h"], "a.rs:2");
    assert!(edges("b").is_empty());
    assert!(edges("h").is_empty());
}

#[test]
fn cycle_holds_its_own_modules_only() {
    let graph = graph(&[
        source(&["above"], "crate::a::x"),
        source(&["a"], "crate::b::x"),
        source(&["b"], "crate::a::x crate::below::x"),
        source(&["below"], ""),
    ]);
    let cycle = cycle(&graph);
    assert_eq!(cycle.iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        edges_of(&graph, &cycle, "a"),
        "    a -> b   a.rs:1\n    b -> a   b.rs:1\n"
    );
}
