//! The headers of a request that decide how it is handled.
//!
//! One pass over all headers costs less than a look-up for each of them.

use http::header::{self, HeaderMap, HeaderValue};
use protocol::session::Accepts;
use protocol::trace_context::TRACEPARENT;
use protocol::version::Version;
use uuid::{Uuid, Variant};

use crate::reply::Refusal;
use crate::single_header::SingleHeader;

/// The `Accept` of clients that follow the specification to the letter; the official libraries do.
const USUAL_ACCEPT: &[u8] = b"application/json, text/event-stream";
/// What nearly all write.
const USUAL_CONTENT: &[u8] = b"application/json";

/// The headers of a request, with what is often asked of them at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'h> {
    headers: &'h HeaderMap,
    lengths: usize,
    in_chunks: bool,
    encoded: bool,
    /// The first of them; another could only allow more.
    accept: Option<&'h HeaderValue>,
    content_type: Option<&'h HeaderValue>,
    revision: SingleHeader<'h>,
    session: SingleHeader<'h>,
    /// Whether it names its trace.
    pub(crate) is_traced: bool,
}

impl<'h> Head<'h> {
    pub(crate) fn of(headers: &'h HeaderMap) -> Self {
        let mut head = Self {
            headers,
            lengths: 0,
            in_chunks: false,
            encoded: false,
            accept: None,
            content_type: None,
            revision: SingleHeader::Absent,
            session: SingleHeader::Absent,
            is_traced: false,
        };
        for (name, value) in headers {
            match name.as_str() {
                "accept" => head.accept = head.accept.or(Some(value)),
                "content-encoding" => head.encoded = true,
                "content-length" => head.lengths += 1,
                "content-type" => head.content_type = head.content_type.or(Some(value)),
                "mcp-protocol-version" => head.revision = head.revision.and(value),
                "mcp-session-id" => head.session = head.session.and(value),
                "transfer-encoding" => head.in_chunks = true,
                TRACEPARENT => head.is_traced = true,
                _ => {}
            }
        }
        head
    }

    pub(crate) fn headers(&self) -> &'h HeaderMap {
        self.headers
    }

    /// The length of the body must be beyond doubt, or a proxy in front and we could disagree about
    /// where the next request begins.
    pub(crate) fn check_length(&self) -> Result<(), Refusal> {
        if self.lengths > 1 || (self.lengths == 1 && self.in_chunks) {
            return Err(Refusal::AmbiguousLength);
        }
        Ok(())
    }

    /// Only JSON in UTF-8 and without encoding is taken. This also keeps out the content types that
    /// browsers send across sites without asking.
    pub(crate) fn check_content(&self) -> Result<(), Refusal> {
        if self.encoded {
            return Err(Refusal::EncodedBody);
        }
        match self.content_type {
            Some(content_type) if content_type.as_bytes() == USUAL_CONTENT => Ok(()),
            Some(content_type) if content_type.to_str().is_ok_and(is_plain_json) => Ok(()),
            Some(_) | None => Err(Refusal::WrongContentType),
        }
    }

    /// Returns what the client of a POST reads.
    pub(crate) fn accepts(&self) -> Result<Accepts, Refusal> {
        // Another `Accept` beside it could only allow more.
        if self
            .accept
            .is_some_and(|accept| accept.as_bytes() == USUAL_ACCEPT)
        {
            return Ok(Accepts::Both);
        }
        let takes_json = range_for(self.headers, "application/json").is_some();
        match (takes_json, range_for(self.headers, "text/event-stream")) {
            (true, Some(Range::Named)) => Ok(Accepts::Both),
            // Most HTTP libraries send `*/*` by default. It does not mean that their caller reads
            // events.
            (true, Some(Range::Anything) | None) => Ok(Accepts::Json),
            (false, Some(_)) => Ok(Accepts::Events),
            (false, None) => Err(Refusal::NotAcceptable {
                wanted: "application/json and text/event-stream",
            }),
        }
    }

    pub(crate) fn check_accepts_events(&self) -> Result<(), Refusal> {
        if range_for(self.headers, "text/event-stream").is_some() {
            Ok(())
        } else {
            Err(Refusal::NotAcceptable {
                wanted: "text/event-stream",
            })
        }
    }

    /// Returns the revision that the request names.
    pub(crate) fn revision(&self) -> Result<Revision, Refusal> {
        let Some(value) = self.revision.value("MCP-Protocol-Version")? else {
            return Ok(Revision::Unsaid);
        };
        let value = value.to_str().unwrap_or_default().trim();
        match Version::parse(value).filter(|version| Version::LEGACY.contains(version)) {
            Some(version) => Ok(Revision::Legacy(version)),
            None if is_date(value) && value > Version::NEWEST_LEGACY.as_str() => Ok(Revision::Modern),
            None => Err(Refusal::UnsupportedVersion),
        }
    }

    /// Returns the id of the session that the request names.
    pub(crate) fn session_id(&self) -> Result<Option<Uuid>, Refusal> {
        let Some(value) = self.session.value("Mcp-Session-Id")? else {
            return Ok(None);
        };
        let value = value.as_bytes();
        let is_hyphenated = value.len() == 36;
        match Uuid::try_parse_ascii(value) {
            Ok(id) if is_hyphenated && id.get_version_num() == 4 && id.get_variant() == Variant::RFC4122 => {
                Ok(Some(id))
            }
            Ok(_) | Err(_) => Err(Refusal::MalformedSession),
        }
    }
}

/// Returns whether a content type is that of JSON, in the one encoding that JSON has.
fn is_plain_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    if !parts
        .next()
        .is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
    {
        return false;
    }
    let charset = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("charset")
            .then(|| value.trim().trim_matches('"'))
    });
    charset.is_none_or(|charset| charset.eq_ignore_ascii_case("utf-8"))
}

/// How `Accept` allows a media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    /// By `*/*`, or because there is no `Accept` at all (RFC 9110, 12.5.1).
    Anything,
    /// By its name, or as `text/*`.
    Named,
}

/// Returns how `Accept` allows a media type, or `None` if it does not.
fn range_for(headers: &HeaderMap, media_type: &str) -> Option<Range> {
    let mut values = headers.get_all(header::ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return Some(Range::Anything);
    }
    let (kind, _) = media_type.split_once('/').unwrap_or((media_type, ""));
    let mut found = None;
    let ranges = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default();
        let refused = parts.any(|part| {
            matches!(
                part.replace(' ', "").as_str(),
                "q=0" | "q=0.0" | "q=0.00" | "q=0.000"
            )
        });
        if refused {
            continue;
        }
        let is_named = essence.eq_ignore_ascii_case(media_type)
            || essence
                .strip_suffix("/*")
                .is_some_and(|prefix| prefix.eq_ignore_ascii_case(kind));
        if is_named {
            return Some(Range::Named);
        }
        if essence == "*/*" {
            found = Some(Range::Anything);
        }
    }
    found
}

/// The revision that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Revision {
    Unsaid,
    Legacy(Version),
    /// One of the modern era, known or to come.
    Modern,
}

impl Revision {
    /// Returns the legacy revision, if any was named.
    pub(crate) fn legacy(self) -> Result<Option<Version>, Refusal> {
        match self {
            Self::Unsaid => Ok(None),
            Self::Legacy(version) => Ok(Some(version)),
            Self::Modern => Err(Refusal::UnsupportedVersion),
        }
    }
}

/// Revisions are dates.
fn is_date(value: &str) -> bool {
    value.len() == 10
        && value.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn accept_decides_between_json_and_events() {
        let accept = |value: &str| Head::of(&headers(&[("accept", value)])).accepts();
        assert_eq!(accept("text/event-stream, */*"), Ok(Accepts::Both));
        assert_eq!(accept("application/json, text/*"), Ok(Accepts::Both));
        assert_eq!(accept("application/json, text/event-stream"), Ok(Accepts::Both));
        assert_eq!(accept("application/json;q=0.9"), Ok(Accepts::Json));
        assert_eq!(
            accept("application/json, text/event-stream;q=0"),
            Ok(Accepts::Json)
        );
        assert_eq!(accept("text/*"), Ok(Accepts::Events));
        assert!(accept("text/html").is_err());
        assert!(accept("").is_err());
        assert!(
            Head::of(&headers(&[("accept", "application/json")]))
                .check_accepts_events()
                .is_err()
        );
    }

    #[test]
    fn a_client_that_does_not_name_events_is_answered_in_json() {
        let accept = |value: &str| Head::of(&headers(&[("accept", value)])).accepts();
        assert_eq!(Head::of(&HeaderMap::new()).accepts(), Ok(Accepts::Json));
        // The defaults of curl and of two JavaScript libraries.
        assert_eq!(accept("*/*"), Ok(Accepts::Json));
        assert_eq!(accept("application/json, text/plain, */*"), Ok(Accepts::Json));
        assert_eq!(accept("text/html, */*;q=0.1"), Ok(Accepts::Json));
        // A stream that was asked for by GET is still opened.
        assert_eq!(
            Head::of(&headers(&[("accept", "*/*")])).check_accepts_events(),
            Ok(())
        );
    }

    #[test]
    fn only_plain_json_is_taken() {
        let check = |value: &str| Head::of(&headers(&[("content-type", value)])).check_content();
        for fine in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
        ] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for wrong in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json; charset=utf-16",
            "",
            "application/jsonx",
        ] {
            assert_eq!(check(wrong), Err(Refusal::WrongContentType), "{wrong}");
        }
        assert_eq!(
            Head::of(&HeaderMap::new()).check_content(),
            Err(Refusal::WrongContentType)
        );
        let zipped = headers(&[("content-type", "application/json"), ("content-encoding", "gzip")]);
        assert_eq!(Head::of(&zipped).check_content(), Err(Refusal::EncodedBody));
    }

    #[test]
    fn revisions_are_known_ones_or_later_dates() {
        let said = |value: &str| Head::of(&headers(&[("mcp-protocol-version", value)])).revision();
        assert_eq!(Head::of(&HeaderMap::new()).revision(), Ok(Revision::Unsaid));
        assert_eq!(said("2025-11-25"), Ok(Revision::Legacy(Version::NEWEST_LEGACY)));
        for modern in ["2026-07-28", "2031-01-01", " 2026-07-28 "] {
            assert_eq!(said(modern), Ok(Revision::Modern), "{modern}");
        }
        for unknown in ["", "2025-11-24", "2026-7-28", "2026-07-28x", "latest"] {
            assert_eq!(said(unknown), Err(Refusal::UnsupportedVersion), "{unknown}");
        }
        assert_eq!(Revision::Modern.legacy(), Err(Refusal::UnsupportedVersion));
        let two = headers(&[("mcp-protocol-version", "2025-11-25"); 2]);
        assert_eq!(
            Head::of(&two).revision(),
            Err(Refusal::DoubledHeader("MCP-Protocol-Version"))
        );
    }

    #[test]
    fn session_ids_are_uuids_of_version_four() {
        let id = |value: &str| Head::of(&headers(&[("mcp-session-id", value)])).session_id();
        let good = Uuid::new_v4();
        assert_eq!(id(&good.to_string()), Ok(Some(good)));
        for bad in [
            "",
            "__proto__",
            "../x",
            "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            &good.simple().to_string(),
        ] {
            assert_eq!(id(bad), Err(Refusal::MalformedSession), "{bad}");
        }
        let two = headers(&[
            ("mcp-session-id", &good.to_string()),
            ("mcp-session-id", &good.to_string()),
        ]);
        assert_eq!(
            Head::of(&two).session_id(),
            Err(Refusal::DoubledHeader("Mcp-Session-Id"))
        );
        assert_eq!(Head::of(&HeaderMap::new()).session_id(), Ok(None));
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        assert!(
            Head::of(&headers(&[
                ("content-length", "5"),
                ("transfer-encoding", "chunked")
            ]))
            .check_length()
            .is_err()
        );
        assert!(
            Head::of(&headers(&[("content-length", "5"), ("content-length", "5")]))
                .check_length()
                .is_err()
        );
        assert!(
            Head::of(&headers(&[("content-length", "5")]))
                .check_length()
                .is_ok()
        );
    }
}
