//! Reads as much Rust as the rules need: which text is code, which is prose, which belongs to
//! tests.
//!
//! It is no parser. It knows comments, literals and matching brackets, and relies on rustfmt for
//! the rest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    parent.expect("xtask has a folder above it").to_owned()
}

/// Returns the files below a folder whose names end so, sorted. Names with a leading dot and build
/// folders are left out.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
            let entry = entry.expect("the entry can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let generated = ["target", "node_modules", "artifacts", "__pycache__"].contains(&name.as_str());
            if name.starts_with('.') || generated || name.starts_with("target-") {
                continue;
            }
            // A link may lead out of the repository.
            let kind = entry.file_type().expect("the entry has a type");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && name.ends_with(ending) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// A path from the root of the repository, with `/` between its parts.
pub(crate) fn relative(path: &Path) -> String {
    let path = path.strip_prefix(repository()).unwrap_or(path);
    path.to_string_lossy().replace('\\', "/")
}

/// The text of a Rust file, twice: with everything but code blanked, and with everything but
/// comments blanked. Both have the line breaks of the file.
pub(crate) struct Parts {
    pub(crate) code: String,
    pub(crate) comments: String,
}

/// Separates code from comments. The contents of literals are blank in both.
pub(crate) fn parts(text: &str) -> Parts {
    let mut parts = Parts {
        code: String::with_capacity(text.len()),
        comments: String::with_capacity(text.len()),
    };
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        // Most of a file is neither a comment nor a literal, nor begins one.
        let plain = rest.find(['/', '"', '\'', 'r', 'b']).unwrap_or(rest.len());
        if plain > 0 {
            let (code, after) = rest.split_at(plain);
            parts.code.push_str(code);
            parts.comments.push_str(&blank(code));
            rest = after;
            continue;
        }
        let previous = parts.code.chars().next_back();
        let (length, kind) = token(rest, first, previous);
        let (token, after) = rest.split_at(length);
        rest = after;
        let blank = blank(token);
        let (code, comment) = match kind {
            Kind::Code => (token, blank.as_str()),
            Kind::Comment => (blank.as_str(), token),
            Kind::Literal => (blank.as_str(), blank.as_str()),
        };
        parts.code.push_str(code);
        parts.comments.push_str(comment);
    }
    parts
}

/// Spaces instead of the text, with its line breaks.
fn blank(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect()
}

enum Kind {
    Code,
    Comment,
    Literal,
}

fn token(rest: &str, first: char, previous: Option<char>) -> (usize, Kind) {
    let in_word = previous.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), Kind::Comment);
    }
    if first == '"' {
        return (quoted(rest), Kind::Literal);
    }
    if !in_word && let Some(length) = raw_string(rest) {
        return (length, Kind::Literal);
    }
    if first == '\''
        && let Some(length) = character(rest)
    {
        return (length, Kind::Literal);
    }
    (first.len_utf8(), Kind::Code)
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn quoted(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of a literal like `r#"…"#` or `br"…"`.
fn raw_string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inner = body.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = inner.find(&end)? + end.len();
    Some(rest.len() - inner.len() + length)
}

/// Returns the length of a literal like `'a'`; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inner = rest.get(1..)?;
    let second = inner.chars().next()?;
    if second == '\\' {
        let skip = 1 + inner[1..].chars().next()?.len_utf8();
        return inner[skip..].find('\'').map(|end| 1 + skip + end + 1);
    }
    let after = inner.get(second.len_utf8()..)?;
    after.starts_with('\'').then_some(1 + second.len_utf8() + 1)
}

/// One file of the product.
pub(crate) struct Source {
    /// From the root of the repository.
    pub(crate) path: String,
    /// The path of its module, from the root of its crate: empty for `lib.rs`.
    pub(crate) module: Vec<String>,
    /// The code, without what only tests compile. Line breaks are those of the file.
    pub(crate) code: String,
}

impl Source {
    /// Returns the number of the line in which this byte of `code` stands.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }
}

/// Returns the product code of a crate: every file below its `src`, without items and files under
/// `#[cfg(test)]`.
pub(crate) fn product(folder: &str) -> Vec<Source> {
    let root = repository().join(folder);
    let mut only_tests: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut sources = Vec::new();
    for path in files(&root, ".rs") {
        let below = path.strip_prefix(&root).expect("the file is below its folder");
        // Programs that tests start.
        if below.starts_with("bin") {
            continue;
        }
        let mut module: Vec<String> = below
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if module.len() == 1 && ["lib", "main"].contains(&module[0].as_str()) {
            module.clear();
        }
        let text = std::fs::read_to_string(&path).expect("the file is text");
        let (code, modules) = without_tests(&parts(&text).code);
        for name in modules {
            let mut inner = module.clone();
            inner.push(name);
            only_tests.insert(inner);
        }
        sources.push(Source {
            path: relative(&path),
            module,
            code,
        });
    }
    sources.retain(|source| {
        let mut above = (1..=source.module.len()).map(|depth| &source.module[..depth]);
        !above.any(|module| only_tests.contains(module))
    });
    assert!(!sources.is_empty(), "{folder} has no source");
    sources
}

/// Blanks each item under `#[cfg(test)]`, and returns the names of the modules among them that are
/// files of their own.
fn without_tests(code: &str) -> (String, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::with_capacity(code.len());
    let mut modules = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        let (before, item) = rest.split_at(at);
        kept.push_str(before);
        let (item, after) = item.split_at(item_length(item));
        let words: Vec<&str> = item[MARK.len()..].split_whitespace().collect();
        if let Some(at) = words.iter().position(|word| *word == "mod")
            && let Some(name) = words.get(at + 1).and_then(|name| name.strip_suffix(';'))
        {
            modules.push(name.to_owned());
        }
        kept.push_str(&blank(item));
        rest = after;
    }
    kept.push_str(rest);
    (kept, modules)
}

/// Returns the length of an item with its attributes: to its closing brace or its semicolon. A
/// field, a variant or an argument ends with its comma.
fn item_length(item: &str) -> usize {
    const ITEMS: [&str; 12] = [
        "fn", "impl", "mod", "use", "struct", "enum", "trait", "type", "const", "static", "async", "let",
    ];
    let mut bare = item.trim_start();
    while let Some(attribute) = bare.strip_prefix('#') {
        bare = attribute
            .split_once("]\n")
            .map_or("", |(_, after)| after)
            .trim_start();
    }
    let first = bare.split([' ', '<']).find(|word| !word.starts_with("pub"));
    let is_item = first.is_some_and(|word| ITEMS.contains(&word));
    let mut depth = 0_usize;
    for (at, c) in item.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' if depth == 0 => return at,
            '}' if depth == 1 => return at + 1,
            '}' | ')' | ']' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            ',' if depth == 0 && !is_item => return at + 1,
            _ => {}
        }
    }
    item.len()
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r##"a // "b" 'c
/* d /* e */ f */ g 'h' '\'' "i \" j" r#"k " l"# &'m n"##;
    let parts = parts(text);
    let code: Vec<&str> = parts.code.split_whitespace().collect();
    assert_eq!(code, ["a", "g", "&'m", "n"]);
    let comments: Vec<&str> = parts.comments.split_whitespace().collect();
    assert_eq!(
        comments,
        ["//", "\"b\"", "'c", "/*", "d", "/*", "e", "*/", "f", "*/"]
    );
    assert_eq!(parts.code.matches('\n').count(), 1);
}

#[test]
fn items_of_tests_are_left_out() {
    let code = "a\n#[cfg(test)]\n#[x(y)]\nmod tests {\n  use super::*;\n}\nb\n#[cfg(test)]\nmod far;\nc\n#[cfg(test)]\nfn d<A, B>(e: [u8; 2]) -> F { g }\nh\n#[cfg(test)]\npub(crate) field: bool,\ni";
    let (kept, modules) = without_tests(code);
    let words: Vec<&str> = kept.split_whitespace().collect();
    assert_eq!(words, ["a", "b", "c", "h", "i"]);
    assert_eq!(modules, ["far"]);
    assert_eq!(kept.matches('\n').count(), code.matches('\n').count());
}
