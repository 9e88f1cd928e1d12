//! URIs of members as clients see them: `NAME+scheme:rest`, and `ui://NAME+rest` for user
//! interfaces.
//!
//! The member stands in the URI itself, so that any replica finds the owner without a table. A
//! template begins with the same text, which RFC 6570 carries through expansion. A member without a
//! prefix has its URIs shown as they are.

/// The scheme of user interfaces (MCP Apps).
const UI: &str = "ui://";
/// The longest URI and the longest template that are compared. Clients choose the one and servers
/// the other, and each URI may be compared with thousands of templates.
const MAX_COMPARED: usize = 2048;
/// The parts of such a template.
const MAX_PARTS: usize = 64;

/// Returns the text that stands for a member in a URI. Schemes are letters, digits, `-` and `.`, in
/// lower case, and begin with a letter. Any other character is written as `.` and its bytes in
/// hexadecimal, so that two members never have one text.
pub(crate) fn tag(member: &str) -> String {
    let mut tag = String::with_capacity(member.len());
    for (at, byte) in member.bytes().enumerate() {
        match byte {
            b'a'..=b'z' => tag.push(char::from(byte)),
            b'0'..=b'9' | b'-' if at > 0 => tag.push(char::from(byte)),
            // A scheme begins with a letter. No other tag has two dots in a row.
            _ if at == 0 => tag.push_str(&format!("x..{byte:02x}")),
            _ => tag.push_str(&format!(".{byte:02x}")),
        }
    }
    tag
}

/// Returns a URI, or a template of URIs, as clients see it.
pub(crate) fn qualify(tag: &str, uri: &str) -> String {
    if let Some(rest) = strip_ui(uri) {
        return [UI, tag, "+", rest].concat();
    }
    let separator = if has_scheme(uri) { "+" } else { "+:" };
    [tag, separator, uri].concat()
}

/// Returns the tag of a URI that may be qualified, and the URI without it. Whether a member has
/// this tag is for the caller to look up.
pub(crate) fn split(uri: &str) -> Option<(String, String)> {
    if let Some(rest) = strip_ui(uri) {
        let host = rest.split('/').next().unwrap_or(rest);
        let (tag, _) = host.split_once('+')?;
        let own = rest.get(tag.len() + 1..)?;
        return Some((tag.to_ascii_lowercase(), [UI, own].concat()));
    }
    let (scheme, _) = uri.split_once(':')?;
    let (tag, _) = scheme.split_once('+')?;
    let own = uri.get(tag.len() + 1..)?;
    let own = own.strip_prefix(':').unwrap_or(own);
    // Programs that read URIs write schemes in lower case.
    Some((tag.to_ascii_lowercase(), own.to_owned()))
}

fn strip_ui(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_at_checked(UI.len())?;
    scheme.eq_ignore_ascii_case(UI).then_some(rest)
}

fn has_scheme(uri: &str) -> bool {
    uri.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
    })
}

/// A part of a template of URIs (RFC 6570).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    Literal(&'a str),
    /// An expression whose value has no `/`.
    Segment,
    /// Any other expression.
    Any,
}

/// Returns whether a template can have given this URI. A value is not checked further than that.
pub(crate) fn matches(template: &str, uri: &str) -> bool {
    if template.len() > MAX_COMPARED || uri.len() > MAX_COMPARED {
        return false;
    }
    let parts = parts(template);
    // The scheme alone excludes nearly every template.
    let is_excluded = match parts.first() {
        Some(Part::Literal(literal)) => !uri.starts_with(literal),
        Some(Part::Segment | Part::Any) => false,
        None => !uri.is_empty(),
    };
    if is_excluded || parts.len() > MAX_PARTS {
        return false;
    }
    // Where each part may begin. One pass per part, so that no template costs more than its parts
    // times the URI.
    let mut starts: Vec<bool> = vec![false; uri.len() + 1];
    if let Some(first) = starts.first_mut() {
        *first = true;
    }
    for part in parts {
        let mut next = vec![false; uri.len() + 1];
        let mut mark = |at: usize| {
            if let Some(place) = next.get_mut(at) {
                *place = true;
            }
        };
        match part {
            Part::Literal(literal) => {
                for (at, _) in starts.iter().enumerate().filter(|(_, start)| **start) {
                    if uri
                        .as_bytes()
                        .get(at..)
                        .is_some_and(|rest| rest.starts_with(literal.as_bytes()))
                    {
                        mark(at + literal.len());
                    }
                }
            }
            Part::Segment | Part::Any => {
                let mut is_open = false;
                for (at, start) in starts.iter().enumerate() {
                    is_open |= *start;
                    if is_open {
                        mark(at);
                    }
                    let ends = part == Part::Segment && uri.as_bytes().get(at) == Some(&b'/');
                    is_open &= !ends;
                }
            }
        }
        starts = next;
    }
    starts.last().copied().unwrap_or(false)
}

fn parts(template: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((literal, behind)) = rest.split_once('{') {
        let Some((expression, after)) = behind.split_once('}') else {
            break;
        };
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        let is_simple = expression.starts_with(|first: char| first.is_alphanumeric() || first == '_')
            && !expression.ends_with('*');
        parts.push(if is_simple { Part::Segment } else { Part::Any });
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Literal(rest));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uri_is_qualified_by_its_scheme_and_read_back() {
        for (own, shown) in [
            ("file:///a/b", "files+file:///a/b"),
            ("git+ssh://h/p", "files+git+ssh://h/p"),
            ("ui://panel/main", "ui://files+panel/main"),
            ("no scheme", "files+:no scheme"),
            ("{scheme}://x", "files+:{scheme}://x"),
            ("file:///{path}", "files+file:///{path}"),
            (":x", "files+::x"),
        ] {
            assert_eq!(qualify("files", own), shown);
            assert_eq!(split(shown), Some(("files".to_owned(), own.to_owned())));
        }
        assert_eq!(
            split("FILES+file:///a").unwrap().0,
            "files",
            "schemes have no case"
        );
        for bare in ["file:///a", "ui://panel/a+b", "text", ""] {
            assert_eq!(split(bare), None, "{bare}");
        }
    }

    #[test]
    fn tag_of_any_name_is_a_scheme() {
        assert_eq!(tag("files"), "files");
        assert_eq!(tag("my_files-2"), "my.5ffiles-2");
        assert_eq!(tag("2nd"), "x..32nd");
        assert_eq!(tag("Files"), "x..46iles");
        assert_eq!(tag("x2nd"), "x2nd");
        assert_eq!(tag("x.32nd"), "x.2e32nd");
        assert_ne!(tag("_"), tag("x_"));
    }

    #[test]
    fn template_matches_what_it_can_have_given() {
        for (template, uri) in [
            ("file:///{path}", "file:///a"),
            ("file:///{+path}", "file:///a/b/c"),
            ("repo://{owner}/{name}/x", "repo://a/b/x"),
            ("log://{date}{?level,limit}", "log://2026?level=info"),
            ("log://{date}{?level,limit}", "log://2026"),
            ("x://{a}{b}", "x://"),
            ("fixed://x", "fixed://x"),
            ("open://{x", "open://{x"),
        ] {
            assert!(matches(template, uri), "{template} {uri}");
        }
        for (template, uri) in [
            ("file:///{path}", "file:///a/b"),
            ("repo://{owner}/{name}/x", "repo://a/b/y"),
            ("fixed://x", "fixed://xy"),
            ("file:///{path}", "http://a"),
        ] {
            assert!(!matches(template, uri), "{template} {uri}");
        }
    }

    #[test]
    fn no_client_and_no_server_can_make_a_comparison_long() {
        let long = "a".repeat(MAX_COMPARED - 3);
        assert!(matches("x:{+a}", &format!("x:{long}")));
        assert!(!matches("x:{+a}", &format!("x:{long}aa")));
        assert!(matches(&"{a}".repeat(MAX_PARTS), "a"));
        assert!(!matches(&"{a}".repeat(MAX_PARTS + 1), "a"));
        assert!(!matches(&format!("{{+a}}{long}{long}"), "a"));
    }

    proptest! {
        #[test]
        fn every_uri_comes_back(member in "\\PC{1,12}", uri in "\\PC{0,30}") {
            let tag = tag(&member);
            prop_assert!(tag.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)));
            prop_assert!(tag.starts_with(|first: char| first.is_ascii_lowercase()));
            prop_assert_eq!(split(&qualify(&tag, &uri)), Some((tag, lowered_ui(&uri))));
        }

        #[test]
        fn two_members_never_have_one_tag(one in "[x._5F]{1,4}", other in "[x._5F]{1,4}") {
            prop_assert_eq!(tag(&one) == tag(&other), one == other);
        }
    }

    fn lowered_ui(uri: &str) -> String {
        strip_ui(uri).map_or_else(|| uri.to_owned(), |rest| [UI, rest].concat())
    }
}
