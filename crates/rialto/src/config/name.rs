//! Names of destinations: URL segments that are none of the router's own words.

mod of_command;

pub(super) use of_command::of_command;

/// Words that are the first segment of a path of the router itself.
const RESERVED: [&str; 8] = [
    "mcp",
    "health",
    "ready",
    "metrics",
    "sse",
    "message",
    "ui",
    ".well-known",
];

/// The longest name, so that one stays readable in paths, logs and metrics.
const LONGEST: usize = 63;

/// Takes a name as it is, or returns what to write.
pub(crate) fn check(name: &str) -> Result<(), String> {
    if RESERVED.contains(&name) {
        return Err(format!(
            "the name `{name}` is one of Rialto's own paths: write for example `{name}-server`"
        ));
    }
    let well_formed = name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name.chars().all(plain);
    if well_formed {
        return Ok(());
    }
    let rule = "a name is part of the URL: a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit, at most 63 long";
    Err(match sanitised(name) {
        Some(better) => format!("{rule}; write `{better}`"),
        None => rule.to_owned(),
    })
}

/// Returns the nearest name that can be one: lower-cased, with `-` for what does not belong, and
/// not one of Rialto's own paths. `None` when nothing is left of it.
pub(crate) fn sanitised(text: &str) -> Option<String> {
    let mut name = String::new();
    for character in text.chars().flat_map(char::to_lowercase) {
        if name.len() == LONGEST {
            break;
        }
        if plain(character) {
            name.push(character);
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if RESERVED.contains(&name) {
        return Some(format!("{name}-server"));
    }
    (!name.is_empty()).then(|| name.to_owned())
}

fn plain(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit() || matches!(character, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_segments_are_names() {
        for name in ["a", "context7", "0", "my.server_2-x", &"a".repeat(63)] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in [
            "",
            "A",
            "-a",
            ".a",
            "a b",
            "a/b",
            "ä",
            "a?b",
            "..",
            &"a".repeat(64),
        ] {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn words_of_the_router_are_reserved() {
        for word in RESERVED {
            assert!(
                check(word).expect_err("reserved").contains("Rialto's own"),
                "{word}"
            );
            let better = sanitised(word).expect("there is a better one");
            assert_eq!(check(&better), Ok(()), "{word} became {better}");
        }
    }

    #[test]
    fn a_bad_name_is_answered_with_a_better_one() {
        assert!(check("My Server").expect_err("bad").contains("write `my-server`"));
    }

    #[test]
    fn every_sanitised_text_is_a_name() {
        for text in [
            "My Server!",
            "@scope/pkg",
            "Ünïcode",
            "..",
            "",
            "MCP",
            "a".repeat(100).as_str(),
            "İ",
            "x-----",
        ] {
            if let Some(name) = sanitised(text) {
                assert_eq!(check(&name), Ok(()), "{text} became {name}");
            }
        }
    }
}
