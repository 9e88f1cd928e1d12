//! Takes secrets out of a body before it is written to the audit log.
//!
//! It reads the text word by word and not as JSON: a body may be an event stream, may be cut in the
//! middle, and often carries JSON inside a JSON string, which escapes its quotes; one rule finds
//! `"token": "x"`, `\"token\": \"x\"`, `token=x` and `Bearer x` alike. It knows secrets by the name
//! in front of them only: a bare secret in running text it cannot see.

use std::borrow::Cow;

const REDACTED: &str = "[redacted]";

/// How much of a body is looked at, as a multiple of what may be written of it: long secrets take
/// room in the body and none in the record.
const READ_AHEAD: usize = 4;

/// Returns how much of a body decides what is written of it: of a longer one, one byte more than is
/// looked at, which tells that it was cut.
pub(super) const fn needed(limit: usize) -> usize {
    limit.saturating_mul(READ_AHEAD).saturating_add(1)
}

/// The longest word that is taken as a name.
const MAX_NAME_BYTES: usize = 64;

#[cfg(test)]
thread_local! {
    /// Bodies that this thread has redacted.
    pub(super) static REDACTED_HERE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns the body as text, secrets replaced, with somewhat more than `limit` bytes when there is
/// more: a caller that cuts it at the limit then knows that it was cut.
pub(super) fn redact(body: &[u8], limit: usize) -> String {
    #[cfg(test)]
    REDACTED_HERE.with(|count| count.set(count.get() + 1));
    let read = body.len().min(limit.saturating_mul(READ_AHEAD));
    let text: Cow<'_, str> = String::from_utf8_lossy(&body[..read]);
    let mut out = String::with_capacity(read.min(limit) + REDACTED.len());
    let mut rest = &*text;
    while !rest.is_empty() && out.len() <= limit {
        let gap = rest.find(is_word_char).unwrap_or(rest.len());
        out.push_str(&rest[..gap]);
        rest = &rest[gap..];
        let word = &rest[..rest.find(|c| !is_word_char(c)).unwrap_or(rest.len())];
        out.push_str(word);
        rest = &rest[word.len()..];
        rest = match secret_after(word, rest) {
            Some(secret) => {
                out.push_str(&rest[..secret.start]);
                out.push_str(secret.quote);
                out.push_str(REDACTED);
                out.push_str(secret.quote);
                &rest[secret.end..]
            }
            None => rest,
        };
    }
    out.push_str(&rest[..rest.floor_char_boundary(limit.saturating_sub(out.len()) + 1)]);
    if read < body.len() && out.len() <= limit {
        out.push_str(crate::escape::TRUNCATED);
    }
    out
}

/// A secret's place in the text after its name, and the quotes to put around what replaces it.
struct Secret<'a> {
    start: usize,
    end: usize,
    quote: &'a str,
}

fn secret_after<'a>(word: &str, rest: &'a str) -> Option<Secret<'a>> {
    if ends_with_ignoring_case(word, "bearer") {
        let start = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        let token = &rest[start..];
        let length = token.find(|c| !is_token_char(c)).unwrap_or(token.len());
        if start > 0 && length > 0 {
            return Some(Secret {
                start,
                end: start + length,
                quote: "",
            });
        }
    }
    let name_quote = quote_at(rest);
    let after_name = rest[name_quote.len()..].trim_start();
    let after_sign = after_name.strip_prefix([':', '='])?;
    let is_assigned = after_name.starts_with('=');
    let value = after_sign.trim_start_matches(|c: char| c.is_whitespace() && !(is_assigned && c == '\n'));
    if value.is_empty() || !is_secret_name(word) {
        return None;
    }
    let start = rest.len() - value.len();
    let value_quote = quote_at(value);
    let (length, quote) = if !value_quote.is_empty() {
        (string_length(value, value_quote), value_quote)
    } else if value.starts_with(['{', '[']) {
        (nested_length(value), name_quote)
    } else if name_quote.is_empty() && !is_assigned && is_header_name(word) {
        // A header in running text: schemes and cookies have spaces in them.
        (value.find(['"', '\\', '\r', '\n']).unwrap_or(value.len()), "")
    } else {
        let ends = |c: char| c.is_whitespace() || ",;&}])\"'\\<>".contains(c);
        (value.find(ends).unwrap_or(value.len()), name_quote)
    };
    Some(Secret {
        start,
        end: start + length,
        quote,
    })
    .filter(|secret| secret.start < secret.end)
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

fn is_token_char(c: char) -> bool {
    c.is_alphanumeric() || "-._~+/=".contains(c)
}

fn ends_with_ignoring_case(word: &str, end: &str) -> bool {
    let (word, end) = (word.as_bytes(), end.as_bytes());
    word.len() >= end.len() && word[word.len() - end.len()..].eq_ignore_ascii_case(end)
}

/// Compares letters and digits only, so that `apiKey`, `api_key`, `API-Key` and `X-Api-Key` are one
/// name. A letter in front does no harm: in escaped text `\ntoken` reads as the word `ntoken`.
fn is_secret_name(word: &str) -> bool {
    const ANYWHERE: [&str; 16] = [
        "authorization",
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "secret",
        "apikey",
        "accesskey",
        "privatekey",
        "credential",
        "cookie",
        "bearer",
        "sessionid",
        "accesstoken",
        "refreshtoken",
        "requeststate",
    ];
    const AT_THE_END: [&str; 4] = ["token", "jwt", "pwd", "authkey"];
    if word.len() > MAX_NAME_BYTES {
        return false;
    }
    let name: String = word
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    // MCP's own word for the number that ties progress to a call; it opens nothing.
    if name.ends_with("progresstoken") {
        return false;
    }
    ANYWHERE.iter().any(|part| name.contains(part)) || AT_THE_END.iter().any(|end| name.ends_with(end))
}

fn is_header_name(word: &str) -> bool {
    ends_with_ignoring_case(word, "authorization") || ends_with_ignoring_case(word, "cookie")
}

/// Returns a quote at the beginning of `text` with the backslashes that escape it, or nothing.
fn quote_at(text: &str) -> &str {
    let backslashes = text.len() - text.trim_start_matches('\\').len();
    match text.as_bytes().get(backslashes) {
        Some(b'"' | b'\'') => &text[..=backslashes],
        Some(_) | None => "",
    }
}

/// Returns the length of a string with both its quotes; `quote` is the first. An unfinished string
/// goes to the end.
///
/// In JSON inside `d` strings a quote has 2^d - 1 backslashes. A run of that many, or of that many
/// and a multiple of twice 2^d (backslashes of the content), ends the string; a shorter one ends a
/// string around it.
fn string_length(text: &str, quote: &str) -> usize {
    let depth = quote.len() - 1;
    let mark = quote.as_bytes()[depth];
    let mut backslashes = 0;
    for (at, &byte) in text.as_bytes().iter().enumerate().skip(quote.len()) {
        if byte == b'\\' {
            backslashes += 1;
            continue;
        }
        if byte == mark {
            if backslashes < depth {
                return at - backslashes;
            }
            if (backslashes - depth).is_multiple_of(2 * (depth + 1)) {
                return at + 1;
            }
        }
        backslashes = 0;
    }
    text.len()
}

/// Returns the length of an object or array, brackets in its strings not counted. An unfinished one
/// goes to the end.
fn nested_length(text: &str) -> usize {
    let (mut open, mut at) = (0_usize, 0);
    while let Some(&byte) = text.as_bytes().get(at) {
        match byte {
            b'{' | b'[' => open += 1,
            b'}' | b']' => {
                open -= 1;
                if open == 0 {
                    return at + 1;
                }
            }
            b'"' | b'\\' => {
                let quote = quote_at(&text[at..]);
                if quote.ends_with('"') {
                    at += string_length(&text[at..], quote);
                    continue;
                }
                // Backslashes that quote nothing are passed over together: looked at one by one,
                // each would be followed to the end of them all.
                at += text[at..].bytes().take_while(|byte| *byte == b'\\').count();
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const SECRET: &str = "hunter2\\\"]} \u{e9},x";

    fn redacted(text: &str) -> String {
        redact(text.as_bytes(), 16 * 1024)
    }

    /// Looked at one by one, these would take longer than the test suite: the text is read once.
    #[test]
    fn a_long_run_of_backslashes_costs_no_more_than_any_other_text() {
        let run = "\\".repeat(1 << 20);
        let text = format!("token={{{run}}} after");
        assert_eq!(redact(text.as_bytes(), 1 << 20), "token=[redacted] after");
    }

    #[test]
    fn members_with_a_secret_name_lose_their_value_and_the_rest_stays() {
        for name in [
            "authorization",
            "Authorization",
            "token",
            "access_token",
            "refreshToken",
            "password",
            "client_secret",
            "requestState",
            "api_key",
            "apikey",
            "X-API-Key",
            "Set-Cookie",
            "GITHUB_TOKEN",
            "Mcp-Session-Id",
        ] {
            for value in [
                json!(SECRET),
                json!(17),
                json!(["a", SECRET]),
                json!({"b": {"c": SECRET}}),
                json!(true),
            ] {
                let body = json!({"a": {name: value, "zz": [1]}, "text": "kept"});
                let clean: Value = serde_json::from_str(&redacted(&body.to_string())).unwrap();
                assert_eq!(
                    clean,
                    json!({"a": {name: "[redacted]", "zz": [1]}, "text": "kept"}),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn names_that_only_resemble_secrets_keep_their_value() {
        let body =
            json!({"progressToken": 7, "maxTokens": 100, "tokens": [1], "key": "k", "tokenizer": "bpe"})
                .to_string();
        assert_eq!(redacted(&body), body);
    }

    #[test]
    fn json_inside_strings_is_redacted_at_every_depth() {
        let mut body = json!({"password": SECRET, "user": "ann"}).to_string();
        for _ in 0..3 {
            body = json!({"text": body, "after": "kept"}).to_string();
        }
        let mut clean: Value = serde_json::from_str(&redacted(&body)).unwrap();
        for _ in 0..3 {
            assert_eq!(clean["after"], "kept");
            clean = serde_json::from_str(clean["text"].as_str().unwrap()).unwrap();
        }
        assert_eq!(clean, json!({"password": "[redacted]", "user": "ann"}));
    }

    #[test]
    fn secrets_in_running_text_are_redacted() {
        for (text, clean) in [
            ("use Bearer abc.def-1 now", "use Bearer [redacted] now"),
            (r#"{"h":"bearer abc=="}"#, r#"{"h":"bearer [redacted]"}"#),
            ("GET /x?a=1&api_key=abc&b=2", "GET /x?a=1&api_key=[redacted]&b=2"),
            (
                "Authorization: Basic dXNlcg==\r\nHost: a",
                "Authorization: [redacted]\r\nHost: a",
            ),
            (r"line\nCookie: a=b; c=d\nnext", r"line\nCookie: [redacted]\nnext"),
            (
                "data: {\"token\":\"abc\"}\n\n",
                "data: {\"token\":\"[redacted]\"}\n\n",
            ),
            ("{'secret': 'it'}", "{'secret': '[redacted]'}"),
            ("no secret here, token", "no secret here, token"),
            ("token =\nnext", "token =\nnext"),
        ] {
            assert_eq!(redacted(text), clean);
        }
    }

    #[test]
    fn an_unfinished_secret_is_redacted_to_the_end() {
        for text in [
            r#"{"token":"hunter2"#,
            r#"{"token":{"a":"hunter2"#,
            r#"{"t":"{\"token\":\"hunter2"#,
        ] {
            assert!(!redacted(text).contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_long_body_is_read_and_written_in_part() {
        let long = redact(&[b'a'; 1_000_000], 100);
        assert!(long.len() > 100);
        let secret = format!(r#"{{"token":"{}"}}"#, "x".repeat(1_000_000));
        assert_eq!(
            redact(secret.as_bytes(), 100),
            r#"{"token":"[redacted]"…truncated"#
        );
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_redacted(body in any::<Vec<u8>>(), limit in 0_usize..50) {
            redact(&body, limit);
        }

        #[test]
        fn any_text_that_looks_like_json_can_be_redacted(body in r#"(token|Bearer|"|\\|\{|\[|\}|\]|:|=| |é|a){0,40}"#, limit in 0_usize..50) {
            redact(body.as_bytes(), limit);
        }

        #[test]
        fn any_secret_string_disappears_and_the_json_stays_valid(secret in any::<String>(), depth in 0_usize..3) {
            let mut body = json!({"first": 1, "password": secret, "last": [2]}).to_string();
            for _ in 0..depth {
                body = serde_json::to_string(&body).unwrap();
            }
            let mut clean = redacted(&body);
            for _ in 0..depth {
                clean = serde_json::from_str(&clean).unwrap();
            }
            prop_assert_eq!(serde_json::from_str::<Value>(&clean).unwrap(), json!({"first": 1, "password": "[redacted]", "last": [2]}));
        }
    }
}
