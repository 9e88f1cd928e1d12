//! The lines of stdin, and how the server ends.
use std::io;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::demo::{DemoEra, Frame, Lines, MAX_LINE_BYTES, serve};

fn line(text: &'static str) -> Option<Frame> {
    Some(Frame::Line(text.into()))
}

#[tokio::test]
async fn a_last_line_without_its_newline_is_still_read() {
    let mut lines = Lines::new(&b"one\n\ntwo"[..]);
    assert_eq!(lines.next().await.unwrap(), line("one"));
    assert_eq!(lines.next().await.unwrap(), line("two"));
    assert_eq!(lines.next().await.unwrap(), None);
    assert_eq!(lines.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_line_without_end_costs_bounded_memory_and_only_itself() {
    let mut bytes = vec![b'x'; MAX_LINE_BYTES + 1];
    bytes.extend_from_slice(b"\nnext\n");
    let mut lines = Lines::new(&bytes[..]);
    let overlong = lines.next().await.unwrap();
    assert!(matches!(overlong, Some(Frame::TooLong(_))), "{overlong:?}");
    assert!(lines.framer.spare().capacity() <= MAX_LINE_BYTES);
    assert_eq!(lines.next().await.unwrap(), line("next"));
}

#[tokio::test]
async fn the_server_ends_when_its_input_ends_and_answers_first() {
    let mut output = Vec::new();
    let input = &b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n"[..];
    serve(DemoEra::Legacy, input, &mut output).await.unwrap();
    let answer: Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(
        answer,
        serde_json::json!({"jsonrpc": "2.0", "id": 1, "result": {}})
    );
}

#[tokio::test]
async fn the_server_ends_when_its_output_breaks() {
    let (mut client, input) = tokio::io::duplex(64);
    let (output, gone) = tokio::io::duplex(64);
    drop(gone);
    client
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n")
        .await
        .unwrap();
    let served = serve(DemoEra::Legacy, input, output).await;
    assert!(served.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe));
}
