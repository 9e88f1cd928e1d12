//! Counts words that documents, comments and names shall do without.

use std::collections::{BTreeMap, BTreeSet};

use crate::source;

/// Subjects without a name. Counted everywhere: prose, literals, names.
const SUBJECTS: &[&str] = &[
    "whoever",
    "whomever",
    "whatever",
    "whom",
    "who",
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "he",
    "she",
    "him",
    "his",
    "himself",
    "herself",
];
/// Verbs of speech for bytes and errors, which are sent, received, returned or logged. Counted in
/// prose.
const VERBS: &[&str] = &["say", "says", "said", "hear", "hears", "heard", "told"];
/// How a function that returns is not described. Counted in prose, as it stands here.
const OPENINGS: &[&str] = &["Gives"];
/// Coined words that the field has others for. Counted in prose, and in names where they are
/// declared.
const COINED: &[&str] = &[
    "lane",
    "errand",
    "courier",
    "vigil",
    "wish",
    "desk",
    "door",
    "doorkeeper",
    "roll",
    "tally",
    "mishap",
    "parcel",
    "visit",
    "knock",
    "furnish",
    "pursue",
    "pursuit",
    "journey",
    "parting",
    "gathering",
    "opener",
    "asker",
    "trouble",
    "nonsense",
    "attend",
    "converse",
];

/// Where each word occurs: `folder word` to `file:line`.
pub(crate) type Places = BTreeMap<String, Vec<String>>;

/// Files with words: source, tests, documents, the page and the texts of packages.
const ENDINGS: [&str; 12] = [
    ".rs", ".md", ".conv", ".toml", ".yml", ".mjs", ".py", ".js", ".html", ".css", ".sh", ".yaml",
];

/// Returns where the words occur in the source, the tests and the documents.
pub(crate) fn places() -> Places {
    let mut places = Places::new();
    for ending in ENDINGS {
        for path in source::files(&source::repository(), ending) {
            let path_text = source::relative(&path);
            // The words stand here, and in the lists.
            if path_text.starts_with("xtask/tests/structure/") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("the file is text");
            let folder = folder(&path_text);
            for (line, word) in words_of(&text, ending == ".rs") {
                let places = places.entry(format!("{folder} {word}")).or_default();
                places.push(format!("{path_text}:{line}"));
            }
        }
    }
    places
}

/// Returns the folder a file is counted under: `crates/name/src`, or the first part of its path.
fn folder(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["crates", name, part, _, ..] => format!("crates/{name}/{part}"),
        [first, _, ..] => (*first).to_owned(),
        _ => ".".to_owned(),
    }
}

/// Returns the words to be counted in a text, each with its line.
fn words_of(text: &str, is_rust: bool) -> Vec<(usize, &'static str)> {
    let set = |list: &[&'static str]| list.iter().copied().collect::<BTreeSet<_>>();
    let (subjects, in_prose, coined) = (set(SUBJECTS), set(&[VERBS, COINED].concat()), set(COINED));
    let mut found = Vec::new();
    let parts = is_rust.then(|| source::parts(text));
    let prose = parts.as_ref().map_or(text, |parts| parts.comments.as_str());
    for (number, line) in text.lines().enumerate() {
        let words = split(line);
        found.extend(listed(&words, &subjects).map(|word| (number + 1, word)));
    }
    for (number, line) in prose.lines().enumerate() {
        let words = split(line);
        found.extend(listed(&words, &in_prose).map(|word| (number + 1, word)));
        let exact = |opening: &&&'static str| line.split_whitespace().any(|word| word == **opening);
        found.extend(OPENINGS.iter().filter(exact).map(|word| (number + 1, *word)));
    }
    for (number, line) in parts.iter().flat_map(|parts| parts.code.lines().enumerate()) {
        if let Some(name) = declared(line) {
            let words = split(name);
            found.extend(listed(&words, &coined).map(|word| (number + 1, word)));
        }
    }
    found
}

/// Returns the words that a list has, in the list's own spelling. A plural counts as its singular.
fn listed<'a>(
    words: &'a [String],
    list: &'a BTreeSet<&'static str>,
) -> impl Iterator<Item = &'static str> + 'a {
    words.iter().filter_map(|word| {
        let singular = ["es", "s"].iter().filter_map(|ending| word.strip_suffix(ending));
        let mut forms = std::iter::once(word.as_str()).chain(singular);
        forms.find_map(|form| list.get(form).copied())
    })
}

/// Returns the words of a line in lower case. `LaneKey` and `lane_key` are two words each.
fn split(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = ' ';
    for c in line.chars() {
        let begins = !previous.is_alphabetic() || (previous.is_lowercase() && c.is_uppercase());
        if c.is_alphabetic() {
            match words.last_mut() {
                Some(word) if !begins => word.extend(c.to_lowercase()),
                _ => words.push(c.to_lowercase().collect()),
            }
        }
        previous = c;
    }
    words
}

/// Returns the name that a line of code declares.
fn declared(line: &str) -> Option<&str> {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];
    let mut words = line.split_whitespace();
    words.find(|word| KEYWORDS.contains(word))?;
    let name = words.next()?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn words_are_counted_where_they_may_not_stand() {
    let found = |text: &str, is_rust| {
        let words = words_of(text, is_rust).into_iter();
        words
            .map(|(line, word)| format!("{line} {word}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        found("Nobody's lanes.\n\nGives what he said.", false),
        ["1 nobody", "3 he", "1 lane", "3 said", "3 Gives"]
    );
    let rust = "// A lane.\nstruct LaneKey;\nlet lane = Lane::new();\nfn nobody_says() {}\n";
    assert_eq!(found(rust, true), ["4 nobody", "1 lane", "2 lane"]);
    assert!(found("the others where there is a hello", false).is_empty());
}

#[test]
fn folders_are_those_of_cargo() {
    assert_eq!(folder("crates/gateway/src/guard/jwt.rs"), "crates/gateway/src");
    assert_eq!(folder("crates/gateway/Cargo.toml"), "crates");
    assert_eq!(folder("docs/index.md"), "docs");
    assert_eq!(folder("README.md"), ".");
}
