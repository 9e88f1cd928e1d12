//! The test client and the bare connection against a server that answers from a script.

use std::time::Duration;

use serde_json::json;
use testkit::{McpClient, RawHttp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// One request as it came: head and body.
struct Received {
    head: String,
    body: String,
}

/// Takes one connection and gives each request on it the next of these answers; then closes.
struct Script {
    url: String,
    address: String,
    received: JoinSet<Vec<Received>>,
}

async fn script(answers: Vec<String>) -> Script {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let mut received = JoinSet::new();
    received.spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut requests = Vec::new();
        for answer in answers {
            requests.push(read_request(&mut stream).await);
            stream
                .write_all(answer.as_bytes())
                .await
                .expect("the client reads");
        }
        requests
    });
    Script {
        url: format!("http://{address}/d/mcp"),
        address,
        received,
    }
}

async fn read_request(stream: &mut TcpStream) -> Received {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().expect("a length")) {
                return Received {
                    head,
                    body: body.to_owned(),
                };
            }
        }
        assert!(
            stream.read_buf(&mut bytes).await.expect("a request") > 0,
            "ended after {text:?}"
        );
    }
}

const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";

/// The answer to `initialize`, with its length.
fn initialized() -> String {
    let body = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}"#;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nmcp-session-id: s-1";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// A priming event and two messages, in chunks that do not end where events do.
fn streamed() -> String {
    let mut answer = STREAM_HEAD.to_owned();
    for chunk in [
        "id: 7\ndata:\n\nda",
        "ta: {\"method\":\"m\"}\n\ndata: {\"id\":1}\n",
        "\n",
        "",
    ] {
        answer += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
    }
    answer
}

#[tokio::test]
async fn one_connection_carries_the_handshake_and_the_session_is_kept() {
    let mut script = script(vec![initialized(), ACCEPTED.to_owned(), streamed()]).await;
    let client = McpClient::connect(&script.url).await.unwrap();
    client
        .handshake("2025-06-18", json!({"roots": {}}))
        .await
        .unwrap();
    assert_eq!(client.session().as_deref(), Some("s-1"));
    let reply = client
        .call(r#""an id""#, "echo", json!({"marker": "m"}))
        .await
        .unwrap();
    assert_eq!(
        (reply.status, reply.events.len(), reply.messages().len()),
        (200, 3, 2)
    );
    assert_eq!(reply.raw("id").as_deref(), Some("1"));
    let received = script.received.join_next().await.unwrap().unwrap();
    assert!(!received[0].head.contains("mcp-session-id"));
    for needed in [
        "post /d/mcp",
        "mcp-session-id: s-1",
        "mcp-protocol-version: 2025-06-18",
        "text/event-stream",
    ] {
        assert!(
            received[2].head.contains(needed),
            "{needed} in {}",
            received[2].head
        );
    }
    assert!(received[2].body.contains(r#""id":"an id""#));
}

#[tokio::test]
async fn events_are_given_one_by_one_and_the_last_id_is_kept() {
    let mut script = script(vec![streamed()]).await;
    let client = McpClient::connect(&script.url).await.unwrap();
    let mut stream = client.get_stream(Some("6")).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().id.as_deref(), Some("7"));
    assert_eq!(stream.message().await.unwrap()["method"], "m");
    assert_eq!(stream.message().await.unwrap()["id"], 1);
    assert_eq!(stream.next().await.unwrap(), None);
    assert_eq!(stream.last_event_id(), Some("7"));
    let received = script.received.join_next().await.unwrap().unwrap();
    assert!(received[0].head.starts_with("get /d/mcp") && received[0].head.contains("last-event-id: 6"));
}

#[tokio::test]
async fn a_stream_that_just_stops_is_a_failure() {
    let script = script(vec![STREAM_HEAD.to_owned()]).await;
    let client = McpClient::connect(&script.url).await.unwrap();
    let mut stream = client.get_stream(None).await.unwrap();
    assert!(stream.next().await.is_err());
}

#[tokio::test]
async fn silence_is_a_failure_that_says_what_was_asked() {
    let script = script(vec![String::new(), String::new()]).await;
    let client = McpClient::connect(&script.url)
        .await
        .unwrap()
        .with_deadline(Duration::from_millis(10));
    let failure = client.request(1, "ping", "{}").await.unwrap_err().to_string();
    assert!(failure.contains("POST /d/mcp: no answer in 10ms"), "{failure}");
}

#[tokio::test]
async fn a_raw_exchange_reads_both_kinds_of_body_and_the_end() {
    let script = script(vec![initialized(), streamed()]).await;
    let mut raw = RawHttp::connect(&script.address).await.unwrap();
    let first = raw
        .exchange("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
        .await
        .unwrap();
    assert_eq!((first.status, first.header("mcp-session-id")), (200, Some("s-1")));
    assert!(first.body_text().contains("protocolVersion"));
    let second = raw.exchange("GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(second.body_text().starts_with("id: 7\ndata:\n\ndata: "));
    assert!(raw.read_to_end().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_raw_connection_can_be_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let raw = RawHttp::connect(&listener.local_addr().unwrap().to_string())
        .await
        .unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    raw.reset().unwrap();
    let error = accepted.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
