//! What is checked of an HTTP request before its body is read, and how the body is read.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{self, HeaderMap, HeaderName};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming};
use protocol::session::Accepts;
use protocol::version::Version;
use uuid::{Uuid, Variant};

use crate::reply::{PROTOCOL_VERSION, Refusal, SESSION_ID};

/// How long a client may be silent in the middle of a body, and how long the whole of it may take: a connection
/// costs us something, so that none is held for nothing.
const BODY_SILENCE: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(120);

/// The length of the body must be beyond doubt, or a proxy in front and we could disagree about where the
/// next request begins.
pub(crate) fn check_length(headers: &HeaderMap) -> Result<(), Refusal> {
    let lengths = headers.get_all(header::CONTENT_LENGTH).iter().count();
    if lengths > 1 || (lengths == 1 && headers.contains_key(header::TRANSFER_ENCODING)) {
        return Err(Refusal::AmbiguousLength);
    }
    Ok(())
}

/// Only JSON in UTF-8 and without encoding is taken. This also keeps out the content types that browsers
/// send across sites without asking.
pub(crate) fn check_content(headers: &HeaderMap) -> Result<(), Refusal> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Refusal::EncodedBody);
    }
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    // What nearly all write.
    if content_type == Some("application/json") {
        return Ok(());
    }
    let mut parts = content_type.unwrap_or_default().split(';').map(str::trim);
    if !parts
        .next()
        .is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
    {
        return Err(Refusal::WrongContentType);
    }
    let charset = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("charset")
            .then(|| value.trim().trim_matches('"'))
    });
    match charset {
        Some(charset) if !charset.eq_ignore_ascii_case("utf-8") => Err(Refusal::WrongContentType),
        Some(_) | None => Ok(()),
    }
}

/// What clients write who follow the specification to the letter; the official libraries do.
const USUAL_ACCEPT: &[u8] = b"application/json, text/event-stream";

/// What the client of a POST reads.
pub(crate) fn accepts(headers: &HeaderMap) -> Result<Accepts, Refusal> {
    // Another `Accept` beside it could only allow more.
    if headers
        .get(header::ACCEPT)
        .is_some_and(|accept| accept.as_bytes() == USUAL_ACCEPT)
    {
        return Ok(Accepts::Both);
    }
    match (
        allows(headers, "application/json"),
        allows(headers, "text/event-stream"),
    ) {
        (true, true) => Ok(Accepts::Both),
        (true, false) => Ok(Accepts::Json),
        (false, true) => Ok(Accepts::Events),
        (false, false) => Err(Refusal::NotAcceptable {
            wanted: "application/json and text/event-stream",
        }),
    }
}

pub(crate) fn check_accepts_events(headers: &HeaderMap) -> Result<(), Refusal> {
    if allows(headers, "text/event-stream") {
        Ok(())
    } else {
        Err(Refusal::NotAcceptable {
            wanted: "text/event-stream",
        })
    }
}

/// Whether `Accept` allows a media type. No `Accept` allows everything (RFC 9110, 12.5.1).
fn allows(headers: &HeaderMap, media_type: &str) -> bool {
    let mut values = headers.get_all(header::ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return true;
    }
    let (kind, _) = media_type.split_once('/').unwrap_or((media_type, ""));
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let essence = parts.next().unwrap_or_default();
            let refused = parts.any(|part| {
                matches!(
                    part.replace(' ', "").as_str(),
                    "q=0" | "q=0.0" | "q=0.00" | "q=0.000"
                )
            });
            let matches = essence == "*/*"
                || essence.eq_ignore_ascii_case(media_type)
                || essence
                    .strip_suffix("/*")
                    .is_some_and(|prefix| prefix.eq_ignore_ascii_case(kind));
            matches && !refused
        })
}

/// The revision a request says it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Revision {
    Unsaid,
    Legacy(Version),
    /// One of the modern era, known or to come.
    Modern,
}

impl Revision {
    /// The legacy revision, if any was named.
    pub(crate) fn legacy(self) -> Result<Option<Version>, Refusal> {
        match self {
            Self::Unsaid => Ok(None),
            Self::Legacy(version) => Ok(Some(version)),
            Self::Modern => Err(Refusal::UnsupportedVersion),
        }
    }
}

pub(crate) fn revision(headers: &HeaderMap) -> Result<Revision, Refusal> {
    let Some(value) = single(headers, PROTOCOL_VERSION, "MCP-Protocol-Version")? else {
        return Ok(Revision::Unsaid);
    };
    let value = value.trim();
    match Version::parse(value).filter(|version| Version::LEGACY.contains(version)) {
        Some(version) => Ok(Revision::Legacy(version)),
        None if is_date(value) && value > Version::NEWEST_LEGACY.as_str() => Ok(Revision::Modern),
        None => Err(Refusal::UnsupportedVersion),
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

/// The session a request says it belongs to.
pub(crate) fn session_id(headers: &HeaderMap) -> Result<Option<Uuid>, Refusal> {
    let Some(value) = single(headers, SESSION_ID, "Mcp-Session-Id")? else {
        return Ok(None);
    };
    let is_hyphenated = value.len() == 36;
    match Uuid::try_parse(value) {
        Ok(id) if is_hyphenated && id.get_version_num() == 4 && id.get_variant() == Variant::RFC4122 => {
            Ok(Some(id))
        }
        Ok(_) | Err(_) => Err(Refusal::MalformedSession),
    }
}

fn single<'a>(
    headers: &'a HeaderMap,
    name: HeaderName,
    text: &'static str,
) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Refusal::DoubledHeader(text));
    }
    // What is not visible ASCII is no value that we ever gave out.
    Ok(Some(first.to_str().unwrap_or("\u{0}")))
}

/// Reads a whole body, never more than `limit` bytes of it, and waits for it no longer than for a head.
pub(crate) async fn read_body(mut body: Incoming, limit: usize) -> Result<Bytes, Refusal> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(Refusal::BodyTooLarge { limit });
    }
    let mut whole = Whole::Nothing;
    // Most bodies came together with their heads: no clock is set for what is there already.
    while !body.is_end_stream() {
        match body.frame().now_or_never() {
            Some(Some(frame)) => whole = whole.with(frame, announced, limit)?,
            Some(None) => break,
            None => {
                let rest = tokio::time::timeout(BODY_TIME, read_rest(body, whole, announced, limit));
                // Boxed, since it is rare: each call would carry the room for two timers.
                whole = Box::pin(rest).await.unwrap_or(Err(Refusal::BodySlow))?;
                break;
            }
        }
    }
    Ok(whole.into_bytes())
}

async fn read_rest(
    mut body: Incoming,
    mut whole: Whole,
    announced: usize,
    limit: usize,
) -> Result<Whole, Refusal> {
    loop {
        match tokio::time::timeout(BODY_SILENCE, body.frame()).await {
            Ok(Some(frame)) => whole = whole.with(frame, announced, limit)?,
            Ok(None) => return Ok(whole),
            Err(_) => return Err(Refusal::BodySlow),
        }
    }
}

/// Up to this size a body in one piece is copied.
const COPIED: usize = 2 << 10;

/// A body as far as it has come. Most arrive in one piece; a large one is then not copied.
enum Whole {
    Nothing,
    OnePiece(Bytes),
    Pieces(BytesMut),
}

impl Whole {
    /// The body with another frame of it; `announced` is how long it will be, as far as that is known.
    fn with(
        self,
        frame: hyper::Result<Frame<Bytes>>,
        announced: usize,
        limit: usize,
    ) -> Result<Self, Refusal> {
        let Ok(data) = frame.map_err(|_| Refusal::BodyBroken)?.into_data() else {
            return Ok(self);
        };
        if self.len() + data.len() > limit {
            return Err(Refusal::BodyTooLarge { limit });
        }
        Ok(match self {
            Self::Nothing => Self::OnePiece(data),
            Self::OnePiece(first) => {
                let mut pieces = BytesMut::with_capacity(announced.max(first.len() + data.len()));
                pieces.extend_from_slice(&first);
                pieces.extend_from_slice(&data);
                Self::Pieces(pieces)
            }
            Self::Pieces(mut pieces) => {
                pieces.extend_from_slice(&data);
                Self::Pieces(pieces)
            }
        })
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            // A small one would hold the whole buffer that its connection was read into, for as long as its call runs.
            Self::OnePiece(bytes) if bytes.len() <= COPIED => Bytes::copy_from_slice(&bytes),
            Self::OnePiece(bytes) => bytes,
            Self::Pieces(pieces) => pieces.freeze(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::OnePiece(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.len(),
        }
    }
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
        let accept = |value: &str| accepts(&headers(&[("accept", value)]));
        assert_eq!(accepts(&HeaderMap::new()), Ok(Accepts::Both));
        assert_eq!(accept("*/*"), Ok(Accepts::Both));
        assert_eq!(accept("application/json, text/event-stream"), Ok(Accepts::Both));
        assert_eq!(accept("application/json;q=0.9"), Ok(Accepts::Json));
        assert_eq!(
            accept("application/json, text/event-stream;q=0"),
            Ok(Accepts::Json)
        );
        assert_eq!(accept("text/*"), Ok(Accepts::Events));
        assert!(accept("text/html").is_err());
        assert!(accept("").is_err());
        assert!(check_accepts_events(&headers(&[("accept", "application/json")])).is_err());
    }

    #[test]
    fn only_plain_json_is_taken() {
        let check = |value: &str| check_content(&headers(&[("content-type", value)]));
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
        assert_eq!(check_content(&HeaderMap::new()), Err(Refusal::WrongContentType));
        let zipped = headers(&[("content-type", "application/json"), ("content-encoding", "gzip")]);
        assert_eq!(check_content(&zipped), Err(Refusal::EncodedBody));
    }

    #[test]
    fn revisions_are_known_ones_or_later_dates() {
        let said = |value: &str| revision(&headers(&[("mcp-protocol-version", value)]));
        assert_eq!(revision(&HeaderMap::new()), Ok(Revision::Unsaid));
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
            revision(&two),
            Err(Refusal::DoubledHeader("MCP-Protocol-Version"))
        );
    }

    #[test]
    fn session_ids_are_uuids_of_version_four() {
        let id = |value: &str| session_id(&headers(&[("mcp-session-id", value)]));
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
        assert_eq!(session_id(&two), Err(Refusal::DoubledHeader("Mcp-Session-Id")));
        assert_eq!(session_id(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        assert!(
            check_length(&headers(&[
                ("content-length", "5"),
                ("transfer-encoding", "chunked")
            ]))
            .is_err()
        );
        assert!(check_length(&headers(&[("content-length", "5"), ("content-length", "5")])).is_err());
        assert!(check_length(&headers(&[("content-length", "5")])).is_ok());
    }
}
