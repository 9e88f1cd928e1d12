//! As much Rust as is needed to find texts in the source.

use std::path::Path;

/// All files of a folder but those of tests, without their test modules.
pub(crate) fn read(folder: &Path) -> String {
    let mut text = String::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the source") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
                text.push_str(&without_tests(
                    &std::fs::read_to_string(&path).expect("a file of the source"),
                ));
            }
        }
    }
    text
}

/// Tests stand last in a file.
pub(crate) fn without_tests(text: &str) -> String {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// From the head of a function to the brace that closes it, by the indentation that rustfmt gives
/// it.
pub(crate) fn function(text: &str, head: &str) -> String {
    let start = text
        .find(head)
        .unwrap_or_else(|| panic!("no `{head}` in the source"));
    let rest = &text[start..];
    let end = rest
        .find("\n    }\n")
        .unwrap_or_else(|| panic!("`{head}` has no end"));
    rest[..end].to_owned()
}

/// The string literals of a text. Comments are left out, since an apostrophe or a quote may stand
/// there.
pub(crate) fn texts(text: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut literal: Option<String> = None;
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            match (&mut literal, character) {
                (Some(text), '\\') => text.extend(characters.next()),
                (Some(_), '"') => texts.extend(literal.take()),
                (Some(text), other) => text.push(other),
                (None, '"') => literal = Some(String::new()),
                (None, _) => {}
            }
        }
    }
    texts
}

/// Variables with Rialto's prefix, and the older names that are read as well.
pub(crate) fn is_variable_of_rialto(text: &str) -> bool {
    let shape = text.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let older = [
        "MAX_STDIO_CONNECTIONS",
        "STDIO_REQUEST_TIMEOUT",
        "AUDIT_LOG_BODIES",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "RUST_LOG",
        "URI",
        "BEARER_TOKEN",
        "MCP_NAME",
        "MCP_TIMEOUT_MS",
        "MCP_MAX_QUEUE",
    ];
    shape && (text.starts_with("RIALTO_") || older.contains(&text))
}
