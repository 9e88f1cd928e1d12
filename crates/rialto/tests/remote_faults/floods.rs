//! D12 and D13: more than a server may send.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::Upstream;
use testkit::upstream::{Gate, Step, calls, method};

use crate::stage::{self, Stage, assert_failed, echo, raw_answer};

const LIVELINESS: Duration = Duration::from_secs(30);
const HUNDRED_MEGABYTES: u64 = 100 << 20;
/// What may be held of it, in KiB.
const ROOM: u64 = 32 << 10;

#[tokio::test]
async fn d13_an_endless_event_line_is_cut_at_the_limit() {
    let chunk = stage::chunk(&[b'x'; 1 << 16]);
    flood(vec![
        Step::Execute,
        Step::OpenStream,
        Step::piece("data: "),
        endless(chunk),
    ])
    .await;
}

#[tokio::test]
async fn d13_an_event_of_endless_lines_is_cut_at_the_limit() {
    let chunk = stage::chunk(&b"data: x\n".repeat(8192));
    flood(vec![Step::Execute, Step::OpenStream, endless(chunk)]).await;
}

#[tokio::test]
async fn d13_endless_headers_are_cut_at_the_limit() {
    let line = format!("x-more: {}\r\n", "y".repeat(8000)).into_bytes();
    flood(vec![
        Step::Execute,
        Step::Raw(b"HTTP/1.1 200 OK\r\n".to_vec()),
        endless(line),
    ])
    .await;
}

#[tokio::test]
async fn d13_one_endless_header_is_cut_at_the_limit() {
    flood(vec![
        Step::Execute,
        Step::Raw(b"HTTP/1.1 200 OK\r\nx-more: ".to_vec()),
        endless(vec![b'y'; 1 << 16]),
    ])
    .await;
}

#[tokio::test]
async fn d13_an_endless_body_is_cut_at_the_limit() {
    let head = raw_answer(
        "content-type: application/json\r\n",
        "{\"jsonrpc\":\"2.0\",\"x\":\"",
    );
    flood(vec![Step::Execute, head, endless(vec![b'x'; 1 << 16])]).await;
}

#[tokio::test]
async fn d13_an_endless_refusal_is_cut_at_the_limit() {
    flood(vec![
        Step::Raw(b"HTTP/1.1 500 Oops\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n".to_vec()),
        endless(vec![b'x'; 1 << 16]),
    ])
    .await;
}

#[tokio::test]
async fn d13_a_body_that_is_announced_too_large_is_not_read() {
    let head = raw_answer(
        "content-type: application/json\r\ncontent-length: 104857600\r\n",
        "{\"jsonrpc\":\"2.0\",\"x\":\"",
    );
    flood(vec![Step::Execute, head, endless(vec![b'x'; 1 << 16])]).await;
}

/// So much of it that it will not be read to its end.
fn endless(piece: Vec<u8>) -> Step {
    Step::Flood {
        piece,
        bytes: HUNDRED_MEGABYTES,
    }
}

/// The call fails, the connection is closed before all of it was sent, little of it is held, and
/// service goes on.
async fn flood(steps: Vec<Step>) {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "max_message_bytes": "1MiB"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    assert_eq!(echo(&client, 1, "warm").await, "warm");
    let before = stage.rialto.memory().resident;
    stage.upstream.once(calls("flood"), steps);
    let reply = client.call(2, "flood", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502, 503]);
    let call = stage.upstream.wait_for("the call", calls("flood")).await;
    stage.upstream.wait_for_hang_up(&call).await;
    let grown = stage.rialto.memory().peak.saturating_sub(before);
    assert!(grown < ROOM, "{grown} KiB");
    assert_eq!(stage.upstream.seen(calls("flood")).len(), 1);
    assert_eq!(echo(&client, 3, "after").await, "after");
}

#[tokio::test]
async fn d12_a_compressed_bomb_is_not_unpacked() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    assert_eq!(echo(&client, 1, "warm").await, "warm");
    let before = stage.rialto.memory().resident;
    let bomb = zeros_in_gzip(HUNDRED_MEGABYTES as usize);
    assert!(bomb.len() < 1 << 20);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        bomb.len()
    );
    stage.upstream.once(
        calls("bomb"),
        vec![
            Step::Execute,
            Step::Raw(head.into_bytes()),
            Step::Raw(bomb),
            Step::Close,
        ],
    );
    let reply = client.call(2, "bomb", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502]);
    let grown = stage.rialto.memory().peak.saturating_sub(before);
    assert!(grown < ROOM, "{grown} KiB");
    assert_eq!(echo(&client, 3, "after").await, "after");
}

#[tokio::test]
async fn d13_a_result_larger_than_a_message_may_be_fails_its_own_call_only() {
    let upstream = Upstream::legacy()
        .answering_in_events()
        .start()
        .await
        .expect("an upstream");
    let keys = json!({"type": "streamable_http", "max_message_bytes": "1MiB"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    let large = "x".repeat(2 << 20);
    stage.upstream.once(
        calls("large"),
        vec![
            Step::Execute,
            Step::OpenStream,
            Step::result(&large),
            Step::EndStream,
        ],
    );
    let reply = client.call(1, "large", json!({})).await.expect("an answer");
    assert_failed(&reply, &[502]);
    let answer = reply.answer();
    assert_eq!(
        answer["error"]["data"]["reason"], "response_too_large",
        "{answer}"
    );
    assert_eq!(echo(&client, 2, "after").await, "after");
}

#[tokio::test]
async fn e_many_calls_to_a_silent_server_are_bounded_and_refused() {
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    let keys = json!({"type": "streamable_http", "request_timeout": "5s", "stream_timeout": "5s", "max_message_bytes": "1MiB"});
    let stage = Stage::configured(upstream, keys).await;
    let client = stage.session().await;
    let before = stage.rialto.memory().resident;
    stage.upstream.always(method("tools/call"), vec![Step::Stall]);
    let padding = "x".repeat(500_000);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..200 {
        let (client, padding) = (client.clone(), padding.clone());
        calls.spawn(async move { client.call(number, "sink", json!({"text": padding})).await });
    }
    let mut refused = 0;
    while let Some(reply) = calls.join_next().await {
        let reply = reply.expect("no panic").expect("an answer");
        stage::assert_failed(&reply, &[503, 504]);
        refused += u64::from(reply.outcome_status() == 503);
    }
    let grown = stage.rialto.memory().peak.saturating_sub(before);
    // 200 calls of half a megabyte each; what is not refused at once may be held while it waits.
    assert!(grown < 256 << 10, "{grown} KiB, {refused} refused");
    stage.upstream.behave();
    assert_eq!(echo(&client, 1000, "after").await, "after");
}

/// So many zeros in gzip: fixed codes, matches of 258 bytes at distance 1, thirteen bits each.
fn zeros_in_gzip(length: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.push(1, 1); // the last block
    bits.push(0b01, 2); // of fixed codes
    bits.push_code(0b0011_0000, 8); // a literal zero
    for _ in 0..(length - 1) / 258 {
        bits.push_code(0b1100_0101, 8); // length 258
        bits.push_code(0, 5); // distance 1
    }
    bits.push_code(0, 7); // the end of the block
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    out.extend(bits.bytes);
    // No reader should ever get as far as the checksum.
    out.extend([0; 8]);
    out
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: u32,
}

impl Bits {
    /// Least significant bit first, as numbers are.
    fn push(&mut self, value: u32, count: u32) {
        for bit in 0..count {
            if self.used == 0 {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= (((value >> bit) & 1) as u8) << self.used;
            }
            self.used = (self.used + 1) % 8;
        }
    }

    /// Most significant bit first, as codes are.
    fn push_code(&mut self, code: u32, count: u32) {
        for bit in (0..count).rev() {
            self.push(code >> bit & 1, 1);
        }
    }
}

/// An error of the upstream itself is the server's own, and arrives as it is.
#[tokio::test]
async fn an_error_of_the_server_passes_as_it_is() {
    let stage = Stage::legacy().await;
    let client = stage.session().await;
    let error: Value = json!({"code": -32050, "message": "out of paint", "data": {"left": 0}});
    let body = format!(r#"{{"jsonrpc":"2.0","id":{{id}},"error":{error}}}"#);
    for status in [200, 400, 500] {
        stage.upstream.once(
            calls("paint"),
            vec![Step::with_status(status, "application/json", &body)],
        );
        let reply = client.call(1, "paint", json!({})).await.expect("an answer");
        assert_eq!(reply.answer()["error"], error, "{status}");
    }
}

/// What was sent waits no longer, however much it was: there is room for as much again.
#[tokio::test]
async fn calls_that_gathered_and_were_sent_leave_their_room_to_others() {
    const GATHERED: u64 = 9;
    let upstream = Upstream::legacy().start().await.expect("an upstream");
    // Eight of the longest messages may wait, which is less than ten of these.
    let keys = json!({"type": "streamable_http", "max_message_bytes": 600_000});
    let stage = Stage::configured(upstream, keys).await;
    // What follows the first word of a client waits for its being taken.
    let taken = Gate::default();
    let steps = vec![Step::Wait(taken.clone()), Step::AsUsual];
    stage.upstream.once(method("notifications/initialized"), steps);
    let client = stage.session().await;
    let padding = "x".repeat(500_000);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..GATHERED {
        let (client, padding) = (client.clone(), padding.clone());
        calls.spawn(async move { client.call(number, "echo", json!({"text": padding})).await });
    }
    let deadline = tokio::time::Instant::now() + LIVELINESS;
    let all = format!("rialto_calls_in_flight{{destination=\"remote\"}} {GATHERED}.0");
    while !client.metrics().await.expect("a page").contains(&all) {
        assert!(tokio::time::Instant::now() < deadline, "all of them wait");
    }
    taken.open();
    for reply in calls.join_all().await {
        assert_eq!(reply.expect("an answer").text(), padding);
    }
    let reply = client.call(GATHERED, "echo", json!({"text": padding})).await;
    let reply = reply.expect("an answer");
    assert_eq!((reply.status, reply.text()), (200, padding));
    let page = client.metrics().await.expect("a page");
    assert!(
        page.contains("rialto_queued_bytes{destination=\"remote\"} 0.0"),
        "{page}"
    );
}
