//! Looks at an address from outside, as a client does: opens a session, an event stream and large
//! requests, with its own name and origin and with foreign ones.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway::outside::{NoResponse, Offer, Outside, Query, Response};
use gateway::settings::Settings;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use protocol::version::Version;
use serde_json::{Value, json};
use tokio::time::{timeout, timeout_at};
use url::Url;

use crate::doctor::finding::Weight;
use crate::doctor::judge::way_in::{EVENT_WITHIN, HoldSeen, Opening, StreamSeen, WayInSeen};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);
/// The longest answer that is read.
const MAX_ANSWER: usize = 64 << 10;
/// What proxies allow by default is one megabyte.
const OVER_A_MEGABYTE: usize = 1_200_000;
/// What is left of the largest message for the rest of a request.
const REST: usize = 64 << 10;
/// No larger request is sent.
const LARGEST: usize = 32 << 20;
/// Names that exist nowhere (RFC 2606).
const FOREIGN_ORIGIN: &str = "https://doctor.invalid";
const FOREIGN_HOST: &str = "doctor.invalid";
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// An address, and what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct WayIn {
    pub(crate) url: Url,
    /// The settings of the gateway behind it, if it is ours.
    pub(crate) ours: Option<Settings>,
    pub(crate) headers: HeaderMap,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) hold: Duration,
}

/// Looks at an address.
pub(crate) async fn look(way_in: &WayIn) -> WayInSeen {
    let url = &way_in.url;
    let ours = way_in.ours.as_ref();
    let mut seen = WayInSeen {
        url: url.to_string(),
        host: url.host_str().unwrap_or_default().to_owned(),
        is_ours: ours.is_some(),
        has_metadata: ours.is_some_and(|settings| settings.auth.jwt.is_some()),
        is_https: url.scheme() == "https",
        max_message_bytes: ours.map_or(LARGEST, |settings| settings.max_message_bytes),
        ..WayInSeen::default()
    };
    let outside = |offer| Outside::of(url, offer, way_in.ca_file.as_deref());
    let (client, plain) = match (outside(Offer::Http1And2), outside(Offer::Http1)) {
        (Ok(client), Ok(plain)) => (client, plain),
        (Err(why), _) | (_, Err(why)) => {
            seen.failure = Some((why, Weight::Act));
            return seen;
        }
    };
    let session = match open(&client, way_in, &mut seen).await {
        Ok(session) => session,
        Err(error) => {
            let doubt = client.certificate().and_then(|presented| {
                let doubt = presented.doubt?;
                Some(format!(
                    "its certificate of `{}` is not trusted: {doubt}",
                    presented.issuer
                ))
            });
            seen.failure = Some(match doubt {
                Some(doubt) => (doubt, Weight::Act),
                None => (error.why, Weight::Later),
            });
            return seen;
        }
    };
    let foreign = |name, value| {
        let mut headers = way_in.headers.clone();
        headers.insert(name, HeaderValue::from_static(value));
        hello(way_in, headers)
    };
    seen.foreign_origin = status(&client, foreign(ORIGIN, FOREIGN_ORIGIN)).await;
    seen.foreign_host = status(&plain, foreign(HOST, FOREIGN_HOST)).await;
    bodies(&client, way_in, &mut seen).await;
    if let Some(session) = session {
        seen.stream = stream(&client, way_in, &session).await;
        leave(&client, way_in, &session).await;
    }
    seen
}

/// A session that was opened.
struct Session {
    id: Option<HeaderValue>,
    version: HeaderValue,
}

fn hello(way_in: &WayIn, headers: HeaderMap) -> Query {
    let params = json!({
        "protocolVersion": Version::NEWEST_LEGACY.as_str(),
        "capabilities": {},
        "clientInfo": { "name": "rialto-doctor", "version": env!("CARGO_PKG_VERSION") },
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    post(way_in, headers, body.to_string())
}

fn post(way_in: &WayIn, mut headers: HeaderMap, body: String) -> Query {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        ACCEPT,
        HeaderValue::from_static("application/json, text/event-stream"),
    );
    Query {
        method: Method::POST,
        url: way_in.url.clone(),
        headers,
        body: Bytes::from(body),
    }
}

/// Opens a session. Returns it if there is one.
async fn open(client: &Outside, way_in: &WayIn, seen: &mut WayInSeen) -> Result<Option<Session>, NoResponse> {
    let sent = timeout(ANSWER, client.send(hello(way_in, way_in.headers.clone()))).await;
    let mut response = sent.map_err(|_| NoResponse {
        why: format!("no answer within {ANSWER:?}"),
        is_unreachable: true,
    })??;
    seen.is_http2 = response.is_http2;
    let challenges = response.headers.get_all(WWW_AUTHENTICATE).iter();
    let challenges: Vec<String> = challenges
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned)
        .collect();
    let answer = message(&mut response).await;
    let server = answer.as_ref().ok().and_then(|answer| {
        let info = &answer["result"]["serverInfo"];
        let text = |key: &str| info[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        Some(gateway::escape::one_line(name.trim(), 100)).filter(|name| !name.is_empty())
    });
    let id = response.headers.get(SESSION).cloned();
    let metadata = match challenges
        .iter()
        .find_map(|challenge| metadata_address(challenge))
    {
        Some(address) => Some(metadata(client, way_in, &address).await),
        None => None,
    };
    let text = match &answer {
        Ok(answer) => answer["error"]["message"].as_str().unwrap_or_default().to_owned(),
        Err(text) => text.lines().next().unwrap_or_default().to_owned(),
    };
    let is_open = response.status.is_success() && server.is_some();
    let version = answer.ok().and_then(|answer| {
        let version = answer["result"]["protocolVersion"].as_str()?.to_owned();
        HeaderValue::try_from(version).ok()
    });
    seen.opening = Some(Opening {
        status: response.status.as_u16(),
        challenges,
        metadata,
        text: gateway::escape::one_line(&text, 200),
        server,
    });
    Ok(version.filter(|_| is_open).map(|version| Session { id, version }))
}

/// Reads an answer, as JSON or as the first event of a stream. An error has its text.
async fn message(response: &mut Response) -> Result<Value, String> {
    let mut read = String::new();
    let whole = async {
        while read.len() < MAX_ANSWER
            && let Ok(Some(piece)) = response.piece().await
        {
            read.push_str(&String::from_utf8_lossy(&piece));
            if let Some(found) = first_message(&read) {
                return Some(found);
            }
        }
        None
    };
    match timeout(ANSWER, whole).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) | Err(_) => Err(read),
    }
}

/// Returns the message of a text so far: the text itself, or the data of an event that has one.
fn first_message(text: &str) -> Option<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut texts = std::iter::once(text).chain(data);
    texts.find_map(|text| {
        let value: Value = serde_json::from_str(text.trim()).ok()?;
        (value.get("result").is_some() || value.get("error").is_some()).then_some(value)
    })
}

/// Returns the address that a challenge names.
fn metadata_address(challenge: &str) -> Option<String> {
    let (_, rest) = challenge.split_once("resource_metadata=")?;
    let rest = rest.trim_start_matches('"');
    let end = rest.find(['"', ',', ' ']).unwrap_or(rest.len());
    Some(rest[..end].to_owned())
}

async fn metadata(client: &Outside, way_in: &WayIn, address: &str) -> Result<(), String> {
    let url: Url = address
        .parse()
        .map_err(|_| format!("`{address}` is no address"))?;
    // The client trusts what is needed for this origin only, and others are not our affair.
    if url.origin() != way_in.url.origin() {
        return Err(format!(
            "{address} is at another origin than {}",
            way_in.url.origin().ascii_serialization()
        ));
    }
    let query = Query {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    match timeout(ANSWER, client.send(query)).await {
        Ok(Ok(response)) if response.status.is_success() => Ok(()),
        Ok(Ok(response)) => Err(format!(
            "{address} answers with HTTP status {}",
            response.status.as_u16()
        )),
        Ok(Err(error)) => Err(error.why),
        Err(_) => Err(format!("{address} does not answer")),
    }
}

async fn status(client: &Outside, query: Query) -> Option<u16> {
    let response = timeout(ANSWER, client.send(query)).await.ok()?.ok()?;
    Some(response.status.as_u16())
}

/// Sends requests of growing size. They are pings, so that nothing is done with them.
async fn bodies(client: &Outside, way_in: &WayIn, seen: &mut WayInSeen) {
    let most = seen.max_message_bytes.min(LARGEST);
    let mut sizes = vec![OVER_A_MEGABYTE];
    if seen.is_ours {
        sizes.push(most.saturating_sub(REST));
    }
    for bytes in sizes {
        if bytes + REST > most {
            continue;
        }
        let padding = "x".repeat(bytes);
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": { "_meta": { "padding": padding } } });
        let query = post(way_in, way_in.headers.clone(), body.to_string());
        match status(client, query).await {
            Some(413) => {
                seen.bodies.push((bytes, 413));
                return;
            }
            Some(status) => seen.bodies.push((bytes, status)),
            // A server that refuses early may close before all is sent.
            None => return,
        }
    }
}

fn of_session(way_in: &WayIn, method: Method, session: &Session) -> Query {
    let mut headers = way_in.headers.clone();
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert(PROTOCOL, session.version.clone());
    if let Some(id) = &session.id {
        headers.insert(SESSION, id.clone());
    }
    Query {
        method,
        url: way_in.url.clone(),
        headers,
        body: Bytes::new(),
    }
}

/// Opens an event stream, whose first event a server of 2025-11-25 sends at once, and holds it.
async fn stream(client: &Outside, way_in: &WayIn, session: &Session) -> StreamSeen {
    let began = Instant::now();
    let sent = timeout(
        ANSWER.min(EVENT_WITHIN * 5),
        client.send(of_session(way_in, Method::GET, session)),
    )
    .await;
    let mut response = match sent {
        Ok(Ok(response)) if response.status.is_success() => response,
        Ok(Ok(response)) => return StreamSeen::NotOffered(response.status.as_u16()),
        // A proxy that collects the body may keep the head as well.
        Ok(Err(_)) | Err(_) => return StreamSeen::Collected,
    };
    let left = EVENT_WITHIN.saturating_sub(began.elapsed());
    match timeout(left, response.piece()).await {
        Ok(Ok(Some(_))) => {}
        Ok(Ok(None) | Err(_)) => {
            return StreamSeen::Arrived {
                first: began.elapsed(),
                end: cut(began, way_in.hold),
            };
        }
        // Servers of others may have nothing to send.
        Err(_) if way_in.ours.is_none() => return StreamSeen::Untried,
        Err(_) => return StreamSeen::Collected,
    }
    let first = began.elapsed();
    if way_in.hold.is_zero() {
        let end = HoldSeen::Unheld;
        return StreamSeen::Arrived { first, end };
    }
    let deadline = tokio::time::Instant::now() + way_in.hold;
    let end = loop {
        match timeout_at(deadline, response.piece()).await {
            Err(_) => break HoldSeen::Held(way_in.hold),
            Ok(Ok(Some(_))) => {}
            Ok(Ok(None) | Err(_)) => break cut(began, way_in.hold),
        }
    };
    StreamSeen::Arrived { first, end }
}

fn cut(began: Instant, wanted: Duration) -> HoldSeen {
    HoldSeen::Cut {
        after: began.elapsed(),
        wanted,
    }
}

/// Ends the session. A server that keeps it ends it when it is idle.
async fn leave(client: &Outside, way_in: &WayIn, session: &Session) {
    let _ = status(client, of_session(way_in, Method::DELETE, session)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_read_as_json_and_as_an_event() {
        assert!(first_message("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}").is_some());
        assert!(first_message("id: 1\ndata:\n\n").is_none());
        assert!(first_message("id: 1\ndata: {\"id\":1,\"result\":{}}\n\n").is_some());
        assert!(first_message("<html>").is_none());
    }

    #[test]
    fn metadata_are_found_in_a_challenge() {
        for challenge in [
            "Bearer resource_metadata=\"https://a/x\", scope=\"y\"",
            "Bearer scope=y, resource_metadata=https://a/x",
        ] {
            assert_eq!(metadata_address(challenge).as_deref(), Some("https://a/x"));
        }
        assert_eq!(metadata_address("Bearer"), None);
    }
}
