//! Where a request carries its credentials, and where it must not.

use http::header::{self, HeaderMap};

use crate::reply::Refusal;

/// Longer than any token in use, short enough that hashing junk costs nothing.
const MAX_TOKEN: usize = 16 << 10;

/// What a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Credential<'a> {
    Nothing,
    /// The bytes after `Bearer`. Not yet checked to be the [text](text_of) of a token: known ones
    /// need no check.
    Bearer(&'a [u8]),
    /// Something that is no bearer token.
    Else,
}

/// Reads the credentials of a request. Two of them are refused: a proxy in front may have checked
/// the other one.
pub(crate) fn credential(headers: &HeaderMap) -> Result<Credential<'_>, Refusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(Credential::Nothing);
    };
    if values.next().is_some() {
        return Err(Refusal::DoubledHeader("Authorization"));
    }
    let token = value
        .as_bytes()
        .split_at_checked(SCHEME.len())
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
        .map(|(_, token)| trimmed(token))
        .filter(|token| !token.is_empty() && token.len() <= MAX_TOKEN);
    Ok(token.map_or(Credential::Else, Credential::Bearer))
}

/// The scheme, and the blank that must follow it.
const SCHEME: &[u8] = b"bearer ";

fn trimmed(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] | [rest @ .., b' '] = text {
        text = rest;
    }
    text
}

/// Returns a token as text, if it is written as tokens are (RFC 6750, 2.1).
pub(super) fn text_of(token: &[u8]) -> Option<&str> {
    let is_of_tokens = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
    };
    std::str::from_utf8(token)
        .ok()
        .filter(|_| token.iter().all(is_of_tokens))
}

/// Returns whether the query carries a token: addresses end up in logs and histories, so none is
/// taken from there.
pub(crate) fn is_in_query(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        query.split('&').any(|pair| {
            let name = pair.split('=').next().unwrap_or_default();
            name.eq_ignore_ascii_case("access_token") || name.eq_ignore_ascii_case("token")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(values: &[&str]) -> HeaderMap {
        values
            .iter()
            .map(|value| (header::AUTHORIZATION, HeaderValue::from_str(value).unwrap()))
            .fold(HeaderMap::new(), |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            })
    }

    #[test]
    fn bearer_token_is_read_in_every_case_of_its_scheme() {
        for value in [
            "Bearer abc.def-1~+/=",
            "bearer abc.def-1~+/=",
            "BEARER  abc.def-1~+/= ",
        ] {
            assert_eq!(
                credential(&headers(&[value])),
                Ok(Credential::Bearer(b"abc.def-1~+/=")),
                "{value}"
            );
        }
        assert_eq!(credential(&HeaderMap::new()), Ok(Credential::Nothing));
        assert_eq!(text_of(b"abc.def-1~+/="), Some("abc.def-1~+/="));
    }

    #[test]
    fn text_outside_the_token_alphabet_is_no_token() {
        for value in [&b"a b"[..], b"a,b", b"\"a\"", b"a\xff", "\u{e9}".as_bytes()] {
            assert_eq!(text_of(value), None, "{value:?}");
        }
    }

    #[test]
    fn other_schemes_are_no_bearer_token() {
        let long = format!("Bearer {}", "x".repeat(MAX_TOKEN + 1));
        for value in ["", "Bearer", "Bearer ", "Basic dTpw", &long] {
            assert_eq!(credential(&headers(&[value])), Ok(Credential::Else), "{value}");
        }
    }

    #[test]
    fn two_credentials_are_refused_even_if_they_are_equal() {
        assert_eq!(
            credential(&headers(&["Bearer a", "Bearer a"])),
            Err(Refusal::DoubledHeader("Authorization"))
        );
    }

    #[test]
    fn a_token_in_the_query_is_noticed() {
        for query in [
            "access_token=x",
            "a=1&access_token=x",
            "token=x&b",
            "ACCESS_TOKEN=x",
            "access_token",
        ] {
            assert!(is_in_query(Some(query)), "{query}");
        }
        for query in ["", "a=access_token", "tokens=1", "my_access_token=1"] {
            assert!(!is_in_query(Some(query)), "{query}");
        }
        assert!(!is_in_query(None));
    }
}
