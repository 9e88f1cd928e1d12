//! The cookie of an admin that has signed in at the page: its names, and where it must not go.
//!
//! A browser sends it with every request to this origin. It counts at the page alone: endpoints do
//! not read it, and it is taken out of a `Cookie` header that a server is given.

use std::borrow::Cow;

/// Its name over TLS. Browsers take it from this host alone, for all paths.
pub(crate) const OVER_TLS: &str = "__Host-rialto-page";
/// Its name over plain HTTP, where browsers refuse the other one.
pub(crate) const PLAIN: &str = "rialto-page";

/// Returns its value among the cookies of a request. A name that stands twice is none: the second
/// one may have been planted.
pub(crate) fn value<'a>(cookies: impl Iterator<Item = &'a str>, name: &str) -> Option<&'a str> {
    let mut values = cookies.flat_map(|header| header.split(';')).filter_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    });
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Returns a header for a server, without this cookie.
pub(crate) fn without<'v>(header: &str, value: &'v str) -> Cow<'v, str> {
    if !header.eq_ignore_ascii_case("cookie") {
        return Cow::Borrowed(value);
    }
    let is_ours = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default().trim();
        name == OVER_TLS || name == PLAIN
    };
    let others: Vec<&str> = value.split(';').filter(|pair| !is_ours(pair)).collect();
    Cow::Owned(others.join(";").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_found_among_others_unless_it_stands_twice() {
        let find = |headers: &[&'static str]| value(headers.iter().copied(), PLAIN);
        assert_eq!(find(&["a=1; rialto-page=x; b=2"]), Some("x"));
        assert_eq!(find(&["a=1", "rialto-page=x=="]), Some("x=="));
        assert_eq!(find(&["a=1; rialto-page=x", "rialto-page=y"]), None);
        assert_eq!(find(&["xrialto-page=x", "rialto-page"]), None);
    }

    #[test]
    fn servers_are_given_other_cookies_alone() {
        let passed = |value| without("Cookie", value).into_owned();
        assert_eq!(passed("a=1; __Host-rialto-page=x; b=2"), "a=1; b=2");
        assert_eq!(passed("rialto-page=x"), "");
        assert_eq!(without("X-Other", "rialto-page=x"), "rialto-page=x");
    }
}
