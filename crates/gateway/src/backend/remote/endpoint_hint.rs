//! Whether a server answers beside an address where there is none.
//!
//! A forgotten `/mcp` or `/sse` is the usual mistake in an address. Only the server's own origin is
//! tried, without any of the configured headers: what lies beside the address may belong to another
//! operator. One harmless request goes to each place.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use protocol::object::Object;
use url::Url;

use super::http_client::{Address, Response};
use super::server::{Content, Outbound, Server, content, error_body};

/// How long all places together may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
const PING: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// How a place is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeKind {
    /// Streamable HTTP.
    Post,
    /// HTTP+SSE.
    Get,
}

/// Returns the first place beside the server's address that has a server.
pub(super) async fn find(server: &Server) -> Option<String> {
    let places = places(&server.spec().url);
    let tried = places.iter().map(|(url, kind)| answers(server, url, *kind));
    let found = tokio::time::timeout(PROBE_TIMEOUT, join_all(tried)).await.ok()?;
    let mut right = places.iter().zip(found).filter(|(_, found)| *found);
    right.next().map(|((url, _), _)| url.to_string())
}

/// Returns the places to try, the likeliest first.
fn places(url: &Url) -> Vec<(Url, ProbeKind)> {
    let mut url = url.clone();
    // A query may hold a key.
    url.set_query(None);
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/').to_owned();
    let above = path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
    let mut places: Vec<(Url, ProbeKind)> = Vec::new();
    for base in [path.as_str(), above.as_str(), ""] {
        for (name, kind) in [("mcp", ProbeKind::Post), ("sse", ProbeKind::Get)] {
            let mut place = url.clone();
            place.set_path(&format!("{base}/{name}"));
            if place.path() != path && !places.iter().any(|(known, _)| *known == place) {
                places.push((place, kind));
            }
        }
    }
    places
}

async fn answers(server: &Server, url: &Url, kind: ProbeKind) -> bool {
    let Some(address) = Address::new(url.clone()) else {
        return false;
    };
    let mut headers = HeaderMap::new();
    headers.insert(HOST, address.host().clone());
    let (method, body) = match kind {
        ProbeKind::Post => {
            let any = "application/json, text/event-stream";
            headers.insert(ACCEPT, HeaderValue::from_static(any));
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            (Method::POST, Bytes::from_static(PING))
        }
        ProbeKind::Get => {
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
            (Method::GET, Bytes::new())
        }
    };
    let outbound = Outbound {
        method,
        at: Some(Arc::new(address)),
        headers: Arc::new(headers),
        body,
        handshake_of: None,
    };
    match server.send_plain(&outbound).await {
        Ok(mut response) => is_server(&mut response, kind).await,
        Err(_) => false,
    }
}

/// Returns whether an answer looks like that of an MCP server. One that wants credentials does.
async fn is_server(response: &mut Response, kind: ProbeKind) -> bool {
    let status = response.status();
    match (kind, content(response)) {
        _ if status == StatusCode::UNAUTHORIZED => true,
        (ProbeKind::Post, Content::Json) if status != StatusCode::NOT_FOUND => {
            let body = error_body(response).await;
            Object::parse(&body).is_some_and(|members| members.get("jsonrpc").is_some())
        }
        (ProbeKind::Post | ProbeKind::Get, Content::Events) => status.is_success(),
        (ProbeKind::Post | ProbeKind::Get, Content::Json | Content::Other) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(url: &str) -> Vec<String> {
        let places = places(&Url::parse(url).unwrap());
        places.iter().map(|(url, _)| url.path().to_owned()).collect()
    }

    #[test]
    fn places_beside_an_address_are_at_its_origin_and_not_itself() {
        assert_eq!(paths("https://a.example/"), ["/mcp", "/sse"]);
        assert_eq!(
            paths("https://a.example/mcp?key=1"),
            ["/mcp/mcp", "/mcp/sse", "/sse"]
        );
        assert_eq!(
            paths("https://a.example/team/server/"),
            [
                "/team/server/mcp",
                "/team/server/sse",
                "/team/mcp",
                "/team/sse",
                "/mcp",
                "/sse"
            ]
        );
    }
}
