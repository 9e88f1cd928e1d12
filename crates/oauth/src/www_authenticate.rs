//! The `WWW-Authenticate` header: what a server that refuses a request wants (RFC 9110, section
//! 11.6.1).
//!
//! The parameters of all challenges in a header are read as one list: a server that offers several
//! schemes sends the parameters that matter here with one of them, and some servers leave the
//! scheme out.

/// Returns the values of a parameter in one header value, in their order.
pub(crate) fn values(header: &str, name: &str) -> Vec<String> {
    let all = parameters(header).into_iter();
    all.filter(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
        .collect()
}

fn parameters(header: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches(is_separator);
        let end = rest.find(|character| is_separator(character) || matches!(character, '=' | '"'));
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        match after.trim_start().strip_prefix('=') {
            Some(text) if !name.is_empty() => {
                let Some((value, after)) = value(text.trim_start()) else {
                    return found;
                };
                found.push((name, value));
                rest = after;
            }
            // A scheme.
            _ if !name.is_empty() => rest = after,
            // A character that no name begins with.
            _ => match rest.chars().next() {
                Some(character) => rest = &rest[character.len_utf8()..],
                None => return found,
            },
        }
    }
}

fn is_separator(character: char) -> bool {
    // RFC 9110 has commas only; some servers write semicolons.
    matches!(character, ',' | ';') || character.is_whitespace()
}

/// Splits a token or a quoted string from the text behind it. Returns nothing if the quotes never
/// end.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(is_separator).unwrap_or(text.len());
        let (token, after) = text.split_at(end);
        return Some((token.to_owned(), after));
    };
    let mut value = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(characters.next()?),
            character => value.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_in_every_form() {
        for header in [
            r#"Bearer scope="read write""#,
            r#"Bearer realm="x", error="invalid_token", scope="read write""#,
            r#"bearer Scope = "read write""#,
            r#"scope="read write""#,
            r#"Bearer realm=x;scope="read write";error=y"#,
            r#"Basic YWJj==, Bearer error_description="scope=\"no\"", scope="read write""#,
            r#"Bearer ,, scope="read \w\rite","#,
        ] {
            assert_eq!(values(header, "scope"), ["read write"], "{header}");
        }
    }

    #[test]
    fn token_ends_at_a_separator() {
        assert_eq!(values("Bearer error=a, scope=read write", "scope"), ["read"]);
        assert_eq!(values("Bearer error=a,scope=b", "error"), ["a"]);
        assert_eq!(values("Bearer a=1, a=2, b=3", "a"), ["1", "2"]);
    }

    #[test]
    fn broken_header_has_the_parameters_before_the_break() {
        for header in [
            "",
            "Bearer",
            "=",
            "\"",
            "Bearer scope",
            "Bearer x=\"y, scope=z",
            "é=ü\"\\",
        ] {
            assert!(values(header, "scope").is_empty(), "{header}");
        }
        assert_eq!(values("Bearer a=b, scope=\"c", "a"), ["b"]);
    }
}
