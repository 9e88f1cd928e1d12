//! Bad input at the front (rows A): what is refused, what passes unchanged, and that nothing of
//! what was refused ever reaches the child.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::{McpClient, RawHttp, Result, Rialto};

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const MIB: usize = 1 << 20;
/// What a refused request may cost in memory, in KiB, at any size.
const FLAT: u64 = 24 << 10;

/// A `tools/call` of `echo` with this marker, as text.
fn echo(id: &str, marker: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"marker":"{marker}"}}}}}}"#
    )
}

/// How many lines the child has received so far. The echo before makes sure that all that was sent
/// earlier is there.
async fn lines_received(rialto: &Rialto, client: &McpClient) -> Result<usize> {
    let reply = client.call(1, "echo", r#"{"marker":"barrier"}"#).await?;
    assert_eq!(reply.text(), "barrier");
    Ok(rialto.journal().events("received").len())
}

/// Each body is refused like that, the child receives nothing, and the session goes on.
async fn refused(bodies: &[Vec<u8>], status: u16, code: i64) -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let before = lines_received(&rialto, &client).await?;
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        let reply = client.post(body.clone()).await?.reply().await?;
        reply
            .expect_error(status, code)
            .map_err(|failure| failure.during(&shown))?;
    }
    assert_eq!(lines_received(&rialto, &client).await?, before + 1);
    Ok(())
}

fn texts(bodies: &[&str]) -> Vec<Vec<u8>> {
    bodies.iter().map(|body| body.as_bytes().to_vec()).collect()
}

#[tokio::test]
async fn a01_malformed_json_is_refused_and_the_session_goes_on() -> Result<()> {
    refused(
        &texts(&[
            r#"{"jsonrpc":"#,
            "",
            " ",
            "nul",
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":01,"method":"ping"}"#,
            r#"{'jsonrpc':'2.0','id':1,'method':'ping'}"#,
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\nng\"}",
        ]),
        400,
        PARSE_ERROR,
    )
    .await
}

#[tokio::test]
async fn a02_invalid_utf8_never_reaches_the_child() -> Result<()> {
    let bad: [&[u8]; 5] = [
        b"\xff\xfe",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
    ];
    let bodies: Vec<Vec<u8>> = bad
        .iter()
        .map(|bytes| {
            let (head, tail) = (br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"marker":""#, br#""}}}"#);
            [&head[..], bytes, &tail[..]].concat()
        })
        .collect();
    refused(&bodies, 400, PARSE_ERROR).await
}

#[tokio::test]
async fn a03_a_raw_nul_is_refused() -> Result<()> {
    refused(
        &[
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\0\"}}"
                .to_vec(),
            b"{\"jsonrpc\":\"2.0\",\0\"id\":1,\"method\":\"ping\"}".to_vec(),
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\0".to_vec(),
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\x07ng\"}".to_vec(),
        ],
        400,
        PARSE_ERROR,
    )
    .await
}

#[tokio::test]
async fn a03_an_escaped_nul_passes_in_a_value_and_makes_another_key() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let arguments = r#"{"text":"a\u0000b\u001b[31m","k\u0000":1}"#;
    let reply = client.call(1, "mirror", arguments).await?;
    reply.expect_status(200)?;
    assert_eq!(
        reply.raw("result"),
        Some(format!(r#"{{"content":[],"structuredContent":{arguments}}}"#))
    );

    let beside = r#"{"jsonrpc":"2.0","id":7,"method\u0000":"initialize","method":"tools/call","id\u0000":8,"params\u0000":{"name":"exit"},"params":{"name":"echo","name\u0000":"exit","arguments":{"marker":"real"}}}"#;
    let reply = client.post(beside).await?.reply().await?;
    assert_eq!(
        (reply.text().as_str(), reply.raw("id").as_deref()),
        ("real", Some("7"))
    );

    let alone = r#"{"jsonrpc":"2.0","id":7,"method\u0000":"tools/call","params":{"name":"echo","arguments":{"marker":"alone"}}}"#;
    let reply = client.post(alone).await?.reply().await?;
    assert!(matches!(reply.status, 202 | 400), "{reply:?}");
    lines_received(&rialto, &client).await?;
    assert_eq!(rialto.journal().executions("alone"), 0);
    assert_eq!(rialto.journal().starts().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a04_framing_injection_reaches_the_child_as_one_line() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let mut before = lines_received(&rialto, &client).await?;
    let inner = echo("66", "smuggled");
    for (index, line_end) in ["\n", "\r", "\r\n", "\n\n\r\n"].iter().enumerate() {
        let marker = format!("outer-{index}");
        let pieces = [
            r#"{"jsonrpc":"2.0","id":1,"#,
            r#""method":"tools/call","params":{"name":"echo","arguments":{"extra":"#,
            &inner,
            &format!(r#","marker":"{marker}"}}}}}}"#),
            "",
        ];
        let body = pieces.join(line_end);
        let reply = client.post(body.clone()).await?.reply().await?;
        assert_eq!(reply.text(), marker);
        let now = lines_received(&rialto, &client).await?;
        assert_eq!(
            now,
            before + 2,
            "one line for the request and one for the barrier"
        );
        before = now;
        let lines = rialto.journal().received("tools/call");
        let line = lines.iter().find(|line| line.contains(&marker));
        let mut sent: Value = serde_json::from_str(&body)?;
        let mut came: Value = serde_json::from_str(line.expect("the request reached the child"))?;
        (sent["id"], came["id"]) = (Value::Null, Value::Null);
        assert_eq!(came, sent, "nothing but the id was changed");
    }
    assert_eq!(rialto.journal().executions("smuggled"), 0);

    // Notifications and answers take other roads to the child.
    let notice =
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/roots/list_changed\",\"params\":{\"_meta\":\n";
    let reply = client
        .post(format!("{notice}{inner}\n}}}}"))
        .await?
        .reply()
        .await?;
    reply.expect_status(202)?;
    lines_received(&rialto, &client).await?;
    assert_eq!(rialto.journal().executions("smuggled"), 0);
    Ok(())
}

#[tokio::test]
async fn a06_duplicate_keys_are_refused() -> Result<()> {
    refused(
        &texts(&[
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"echo"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call","params":{"name":"echo"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","m\u0065thod":"tools/list","params":{"name":"echo"}}"#,
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"params":{"name":"exit"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"exit"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"n\u0061me":"exit"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"testkit://one","uri":"testkit://two"}}"#,
        ]),
        400,
        INVALID_REQUEST,
    )
    .await
}

#[tokio::test]
async fn a07_case_variants_are_other_keys() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let body = r#"{"ID":2,"Id":3,"jsonrpc":"2.0","JSONRPC":"1.0","id":1,"Method":"initialize","method":"tools/call","METHOD":"ping","paramſ":{"name":"exit"},"Params":{"name":"exit"},"params":{"Name":"exit","name":"echo","NAME":"exit","arguments":{"marker":"real"},"Arguments":{"marker":"other"}}}"#;
    let reply = client.post(body).await?.reply().await?;
    assert_eq!(
        (reply.text().as_str(), reply.raw("id").as_deref()),
        ("real", Some("1"))
    );
    let lines = rialto.journal().received("tools/call");
    let (mut sent, mut came): (Value, Value) =
        (serde_json::from_str(body)?, serde_json::from_str(&lines[0])?);
    (sent["id"], came["id"]) = (Value::Null, Value::Null);
    assert_eq!(came, sent);

    for alone in [
        r#"{"jsonrpc":"2.0","id":1,"Method":"tools/call","params":{"name":"echo","arguments":{"marker":"alone"}}}"#,
        r#"{"JSONRPC":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"marker":"alone"}}}"#,
    ] {
        let reply = client.post(alone).await?.reply().await?;
        assert!(matches!(reply.status, 202 | 400), "{reply:?}");
    }
    lines_received(&rialto, &client).await?;
    assert_eq!(rialto.journal().executions("alone"), 0);
    Ok(())
}

#[tokio::test]
async fn a08_ids_come_back_byte_for_byte() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let long = format!("\"{}\"", "x".repeat(4096));
    let ids = [
        "0",
        "-1",
        "9007199254740993",
        "9223372036854775808",
        "1000000000000000000000000000000",
        r#""1""#,
        r#""""#,
        r#""\u0031""#,
        r#""é""#,
        r#""\u00e9""#,
        r#""日本語🦀""#,
        r#""\ud83e\udd80""#,
        r#""a\/b\\\"\n""#,
        r#"" ""#,
        &long,
    ];
    for id in ids {
        let reply = client.call(id, "echo", r#"{"marker":"m"}"#).await?;
        assert_eq!(reply.text(), "m");
        assert_eq!(reply.raw("id").as_deref(), Some(id));
        // The same for an error of the server's, and for an answer of Rialto's own.
        let reply = client.request(id, "no/such/method", "{}").await?;
        assert_eq!(reply.raw("id").as_deref(), Some(id));
        let reply = client.request(id, "ping", "{}").await?;
        assert_eq!(reply.raw("id").as_deref(), Some(id));
    }
    Ok(())
}

#[tokio::test]
async fn a09_ids_that_are_no_string_or_integer_are_refused() -> Result<()> {
    let bodies: Vec<Vec<u8>> = ["null", "1.5", "true", "false", "{}", "[]", "[1]"]
        .iter()
        .map(|id| echo(id, "m").into_bytes())
        .collect();
    refused(&bodies, 400, INVALID_REQUEST).await
}

#[tokio::test]
async fn a11_deep_nesting_is_refused_at_any_depth() -> Result<()> {
    let nested = |levels: usize, open: &str, close: &str| {
        let (head, tail) = (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mirror","arguments":{"deep":"#,
            "}}}",
        );
        format!("{head}{}1{}{tail}", open.repeat(levels), close.repeat(levels)).into_bytes()
    };
    let mut bodies = Vec::new();
    for levels in [200, 5_000, 40_000, 400_000] {
        bodies.push(nested(levels, "[", "]"));
        bodies.push(nested(levels.min(100_000), r#"{"a":"#, "}"));
        // Never closed: refused for either reason, without recursion.
        let mut open = nested(levels, "[", "");
        open.truncate(open.len() - 3);
        bodies.push(open);
    }
    refused(&bodies, 400, PARSE_ERROR).await?;

    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let reply = client.post(nested(100, "[", "]")).await?.reply().await?;
    reply.expect_status(200)?;
    assert!(reply.answer()["result"]["structuredContent"]["deep"].is_array());
    Ok(())
}

/// Most clients read nothing before they have written everything.
#[tokio::test]
async fn a12_client_that_sends_too_much_receives_the_refusal_though_it_reads_late() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--max-message-bytes", "1MiB"]);
    let rialto = launcher.stub(&[]).start().await?;
    let session = rialto.session().await?.session();
    for (path, status) in [("/mcp", 413), ("/nowhere/mcp", 404)] {
        for length in [2 << 20, 12 << 20] {
            let head = raw_http::post(path, session.as_deref(), "");
            let head = String::from_utf8_lossy(&head).into_owned();
            let mut raw = rialto.raw().await?.with_deadline(Duration::from_secs(20));
            raw.write(head.replace("Content-Length: 0", &format!("Content-Length: {length}")))
                .await?;
            raw.write(vec![b' '; length]).await?;
            let response = raw.read_response().await?;
            assert_eq!(response.status, status, "{response:?}");
            assert!(raw.read_to_end().await?.is_empty(), "the connection is closed");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a12_a_huge_body_is_refused_and_costs_no_memory() -> Result<()> {
    let launcher = Rialto::launcher().args(&["--max-message-bytes", "1MiB"]);
    let rialto = launcher.stub(&[]).start().await?;
    let client = rialto.session().await?;
    let session = client.session();
    let before = rialto.memory().peak;

    // With a length the head is enough to know.
    let head = raw_http::post("/mcp", session.as_deref(), "");
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut raw = rialto.raw().await?;
    raw.write(head.replace("Content-Length: 0", "Content-Length: 67108864"))
        .await?;
    let response = raw.read_response().await?;
    assert_eq!(response.status, 413, "{response:?}");
    assert!(raw.read_to_end().await?.is_empty(), "the connection is closed");

    // Without one it must be read, but no further than the limit.
    let chunked = head.replace("Content-Length: 0", "Transfer-Encoding: chunked");
    let mut raw = rialto.raw().await?;
    raw.write(&chunked).await?;
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    for _ in 0..16 {
        raw.write(&chunk).await?;
    }
    raw.write("1\r\n \r\n").await?;
    let response = raw.read_response().await?;
    assert_eq!(response.status, 413, "{response:?}");
    assert!(raw.read_to_end().await?.is_empty(), "the connection is closed");

    // A client that goes on writing is cut off, at the latest when the buffers of the sockets are
    // full.
    let mut raw = rialto.raw().await?.with_deadline(Duration::from_secs(20));
    raw.write(&chunked).await?;
    let mut cut_off = false;
    for _ in 0..1024 {
        if raw.write(&chunk).await.is_err() {
            cut_off = true;
            break;
        }
    }
    assert!(cut_off, "64 MiB were taken");
    assert!(
        rialto.memory().peak < before + FLAT,
        "{before} → {:?}",
        rialto.memory()
    );
    assert_eq!(client.call(1, "echo", r#"{"marker":"m"}"#).await?.text(), "m");
    Ok(())
}

#[tokio::test]
async fn a13_a_lying_length_ends_the_connection_and_nothing_is_smuggled() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let common = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n"
    );
    let smuggled = raw_http::post("/mcp", Some(&session), echo("66", "smuggled"));
    let smuggled = String::from_utf8_lossy(&smuggled).into_owned();
    let outer = echo("1", "outer");
    let length = outer.len();
    let chunked = format!("{length:x}\r\n{outer}\r\n0\r\n\r\n");
    let requests = [
        (
            "short length, garbage",
            format!("Content-Length: 10\r\n\r\n{}", "x".repeat(1000)),
        ),
        (
            "short length, request",
            format!("Content-Length: 10\r\n\r\n{{\"jsonrpc\"{smuggled}"),
        ),
        (
            "both, length first",
            format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}{smuggled}"),
        ),
        (
            "both, length last",
            format!("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunked}{smuggled}"),
        ),
        (
            "two lengths",
            format!(
                "Content-Length: {length}\r\nContent-Length: {}\r\n\r\n{outer}{smuggled}",
                length + 1
            ),
        ),
        (
            "a list of lengths",
            format!("Content-Length: {length}, 4\r\n\r\n{outer}{smuggled}"),
        ),
        (
            "a signed length",
            format!("Content-Length: +{length}\r\n\r\n{outer}{smuggled}"),
        ),
        (
            "xchunked",
            format!("Transfer-Encoding: xchunked\r\n\r\n{chunked}{smuggled}"),
        ),
        (
            "chunked, then identity",
            format!("Transfer-Encoding: chunked, identity\r\n\r\n{chunked}{smuggled}"),
        ),
        (
            "blank before the colon",
            format!("Transfer-Encoding : chunked\r\n\r\n{chunked}{smuggled}"),
        ),
        (
            "a bad chunk size",
            format!("Transfer-Encoding: chunked\r\n\r\n0x{chunked}{smuggled}"),
        ),
        (
            "a huge chunk size",
            format!("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{outer}{smuggled}"),
        ),
    ];
    for (name, rest) in requests {
        let mut raw = rialto.raw().await?;
        raw.write(format!("{common}{rest}")).await?;
        raw.finish_writing().await?;
        let said = String::from_utf8_lossy(&raw.read_to_end().await?).into_owned();
        // With both headers RFC 9112 (6.3) also allows to go by the chunks, if nothing more is read
        // afterwards.
        let served = name.starts_with("both") && said.contains("connection: close");
        let fine = said.is_empty() || said.starts_with("HTTP/1.1 400") || served;
        assert!(fine, "{name}: {said}");
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{name}: {said}");
    }
    lines_received(&rialto, &client).await?;
    assert_eq!(rialto.journal().executions("smuggled"), 0);
    Ok(())
}

#[tokio::test]
async fn a14_an_encoded_request_is_refused() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip"] {
        let headers = [
            ("accept", testkit::client::ACCEPT),
            ("content-type", "application/json"),
            ("content-encoding", encoding),
            ("mcp-session-id", session.as_str()),
        ];
        let reply = client
            .send("POST", "/mcp", &headers, echo("1", "encoded"))
            .await?;
        reply.reply().await?.expect_status(415)?;
    }
    lines_received(&rialto, &client).await?;
    assert_eq!(rialto.journal().executions("encoded"), 0);
    Ok(())
}

#[tokio::test]
async fn a15_only_json_is_taken() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let types = [
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("multipart/form-data; boundary=x"), 415),
        (Some("application/json; charset=utf-16"), 415),
        (Some("application/jsonx"), 415),
        (Some("text/plain; application/json"), 415),
        (Some(""), 415),
        (None, 415),
        (Some("application/json"), 200),
        (Some("application/json; charset=utf-8"), 200),
        (Some("application/json;charset=\"UTF-8\""), 200),
        (Some("Application/JSON"), 200),
    ];
    for (content_type, status) in types {
        let mut headers = vec![
            ("accept", testkit::client::ACCEPT),
            ("mcp-session-id", session.as_str()),
        ];
        headers.extend(content_type.map(|kind| ("content-type", kind)));
        let marker = if status == 200 { "json" } else { "other" };
        let reply = client.send("POST", "/mcp", &headers, echo("1", marker)).await?;
        let reply = reply.reply().await?;
        reply
            .expect_status(status)
            .map_err(|failure| failure.during(&format!("{content_type:?}")))?;
    }
    assert_eq!(rialto.journal().executions("other"), 0);
    Ok(())
}

#[tokio::test]
async fn a16_an_accept_that_allows_nothing_we_send_is_refused() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let accepts = [
        (Some("text/html"), 406),
        (Some("image/*"), 406),
        (Some("application/xml, text/plain;q=0.5"), 406),
        (Some("application/json;q=0, text/event-stream;q=0"), 406),
        (None, 200),
        (Some("*/*"), 200),
        (Some("application/json"), 200),
        (Some("text/event-stream"), 200),
        (Some("application/*"), 200),
        (Some("text/html, */*;q=0.1"), 200),
        (Some("text/event-stream, application/json"), 200),
    ];
    for (accept, status) in accepts {
        let mut headers = vec![
            ("content-type", "application/json"),
            ("mcp-session-id", session.as_str()),
        ];
        headers.extend(accept.map(|accept| ("accept", accept)));
        let marker = if status == 200 { "accepted" } else { "refused" };
        let reply = client.send("POST", "/mcp", &headers, echo("1", marker)).await?;
        let reply = reply.reply().await?;
        reply
            .expect_status(status)
            .map_err(|failure| failure.during(&format!("{accept:?}")))?;
        if status == 200 {
            assert_eq!(reply.text(), "accepted", "{accept:?}");
            let streamed = !reply.events.is_empty();
            assert_eq!(streamed, accept == Some("text/event-stream"), "{accept:?}");
        }
    }
    assert_eq!(rialto.journal().executions("refused"), 0);
    Ok(())
}

#[tokio::test]
async fn a17_other_methods_are_refused_with_the_allowed_ones() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let headers = [
        ("accept", testkit::client::ACCEPT),
        ("content-type", "application/json"),
        ("mcp-session-id", session.as_str()),
    ];
    for method in ["PUT", "PATCH", "TRACE", "FOO", "get", "QUERY"] {
        let mut raw = rialto.raw().await?;
        let bytes = raw_http::request(method, "/mcp", &headers, echo("1", "refused"));
        let response = raw.exchange(bytes).await?;
        match response.status {
            405 => assert!(
                response
                    .header("allow")
                    .is_some_and(|allow| allow.contains("POST")),
                "{response:?}"
            ),
            501 => assert!(
                !["PUT", "PATCH", "TRACE"].contains(&method),
                "{method}: {response:?}"
            ),
            _ => panic!("{method}: {response:?}"),
        }
        assert!(
            !response.body_text().contains("mcp-session-id"),
            "TRACE must not echo"
        );
    }
    let mut raw = rialto.raw().await?;
    raw.write("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n")
        .await?;
    let said = String::from_utf8_lossy(&raw.read_response().await?.body).into_owned();
    assert!(!said.contains("SSH"), "{said}");

    let reply = client
        .send(
            "GET",
            "/mcp",
            &[("accept", "text/html"), ("mcp-session-id", &session)],
            "",
        )
        .await?;
    reply.reply().await?.expect_status(406)?;
    assert_eq!(rialto.journal().executions("refused"), 0);
    Ok(())
}

#[tokio::test]
async fn a18_batches_of_every_size_are_refused() -> Result<()> {
    let one = echo("1", "batched");
    let many = vec![echo("1", "b"); 5_000].join(",");
    assert!(many.len() < MIB);
    refused(
        &texts(&[
            "[]",
            &format!("[{one}]"),
            &format!(" \n[{one},{one}]"),
            &format!("[{many}]"),
            "[[[]]]",
        ]),
        400,
        INVALID_REQUEST,
    )
    .await?;

    let rialto = Rialto::with_stub(&[]).await?;
    let reply = rialto
        .session()
        .await?
        .post(format!("[{one}]"))
        .await?
        .reply()
        .await?;
    assert!(
        reply.body_text().contains("JSON-RPC batching is not supported"),
        "{reply:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a19_hostile_session_ids_are_refused_and_the_service_goes_on() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let long = "a".repeat(8192);
    let v1 = "c232ab00-9414-11ec-b3c8-9f6bdeced846";
    let ids: [(&str, &[u16]); 10] = [
        ("6f9619ff-8b86-4d01-b42d-00cf4fc964ff", &[404]),
        ("", &[400]),
        (&long, &[400, 431]),
        ("__proto__", &[400]),
        ("toString", &[400]),
        ("../x", &[400]),
        ("%s%s%n", &[400]),
        (
            "6f9619ff-8b86-4d01-b42d-00cf4fc964ff, 6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
            &[400],
        ),
        (v1, &[400, 404]),
        ("00000000-0000-0000-0000-000000000000", &[400, 404]),
    ];
    for (id, statuses) in ids {
        for method in ["POST", "GET", "DELETE"] {
            let accept = if method == "GET" {
                "text/event-stream"
            } else {
                testkit::client::ACCEPT
            };
            let headers = [
                ("Content-Type", "application/json"),
                ("Accept", accept),
                ("Mcp-Session-Id", id),
            ];
            let body = if method == "POST" {
                echo("1", "refused")
            } else {
                String::new()
            };
            let mut raw = rialto.raw().await?;
            let response = raw
                .exchange(raw_http::request(method, "/mcp", &headers, body))
                .await?;
            assert!(
                statuses.contains(&response.status),
                "{method} {id:?}: {response:?}"
            );
        }
    }
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", testkit::client::ACCEPT),
        ("Mcp-Session-Id", session.as_str()),
        ("Mcp-Session-Id", session.as_str()),
    ];
    let mut raw = rialto.raw().await?;
    let response = raw
        .exchange(raw_http::request("POST", "/mcp", &headers, echo("1", "refused")))
        .await?;
    assert_eq!(response.status, 400, "{response:?}");
    assert_eq!(client.call(1, "echo", r#"{"marker":"m"}"#).await?.text(), "m");
    assert_eq!(rialto.journal().executions("refused"), 0);
    Ok(())
}

#[tokio::test]
async fn a20_odd_paths_never_lead_to_a_destination() -> Result<()> {
    let rialto = Rialto::with_config(
        "destinations:\n  a:\n    command: '{stub} --journal {dir}/a'\n  b:\n    command: '{stub} --journal {dir}/b'\n",
    )
    .await?;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"marker":"odd"}}}"#;
    for path in [
        "/x/..%2fa/mcp",
        "/b/..%2fa/mcp",
        "/b/../a/mcp",
        "/b/%2e%2e/a/mcp",
        "/./a/mcp",
        "//mcp",
        "//a/mcp",
        "/a//mcp",
        "/a%00/mcp",
        "/a%00b/mcp",
        "/A/mcp",
        "/%61/mcp",
        "/a%2fmcp",
        "/a%20/mcp",
        "/a;b/mcp",
        "/a/mcp%00",
        "/a/MCP",
        "/a/mcp/b/mcp",
        "/mcp",
        "/c/mcp",
        "/a/b/mcp",
        "/",
        "/a",
        "/%",
        "/\u{e4}/mcp",
        "*",
    ] {
        let mut raw = rialto.raw().await?;
        let response = raw.exchange(raw_http::post(path, None, body)).await?;
        assert!(matches!(response.status, 400 | 404), "{path}: {response:?}");
    }
    for (name, other) in [("a", "b"), ("b", "a")] {
        let client = rialto.session_of(name).await?;
        assert_eq!(
            client.call(1, "echo", json!({"marker": name})).await?.text(),
            name
        );
        let journal = |name: &str| testkit::Journal::at(rialto.dir().join(name));
        assert_eq!(journal(name).executions(name), 1);
        assert_eq!(journal(other).executions(name), 0);
        assert_eq!(journal(name).executions("odd"), 0);
    }
    Ok(())
}

#[tokio::test]
async fn a21_headers_without_measure_are_refused() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let before = rialto.memory().peak;
    let huge = format!("X-Huge: {}\r\n", "a".repeat(MIB));
    let many: String = (0..1000).map(|n| format!("X-{n}: {n}\r\n")).collect();
    let long_path = format!("/mcp?{}", "a".repeat(MIB));
    for (name, path, extra) in [
        ("a huge header", "/mcp", huge.as_str()),
        ("a thousand headers", "/mcp", many.as_str()),
        ("a blank in a name", "/mcp", "X Y: 1\r\n"),
        ("a name without end", "/mcp", "X\r\n"),
        ("a folded header", "/mcp", "X-Folded: a\r\n b: c\r\n"),
        ("a NUL in a value", "/mcp", "X-Nul: a\0b\r\n"),
        ("a bare CR in a value", "/mcp", "X-Cr: a\rb\r\n"),
        ("a huge path", long_path.as_str(), ""),
    ] {
        let request =
            String::from_utf8_lossy(&raw_http::post(path, Some(&session), echo("1", "refused"))).into_owned();
        let request = request.replacen("\r\nHost:", &format!("\r\n{extra}Host:"), 1);
        let mut raw = rialto.raw().await?;
        // The other side may hang up before it has read everything.
        let _ = raw.write(request).await;
        let said = raw.read_to_end().await.unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let fine = said.is_empty()
            || ["400", "414", "431"]
                .iter()
                .any(|code| said.starts_with(&format!("HTTP/1.1 {code}")));
        assert!(fine, "{name}: {said}");
    }
    // A name with an underscore is a name like any other, and not that of the real header.
    let headers = [
        ("Content-Type", "application/json"),
        ("Accept", "*/*"),
        ("Mcp_Session_Id", session.as_str()),
    ];
    let mut raw = rialto.raw().await?;
    let response = raw
        .exchange(raw_http::request("GET", "/mcp", &headers, ""))
        .await?;
    assert_eq!(response.status, 400, "there is no session in {response:?}");

    lines_received(&rialto, &client).await?;
    assert_eq!(rialto.journal().executions("refused"), 0);
    assert!(
        rialto.memory().peak < before + FLAT,
        "{before} → {:?}",
        rialto.memory()
    );
    Ok(())
}

#[tokio::test]
async fn a24_unsolicited_answer_is_delivered_to_no_session() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let asked = rialto.client().await?;
    asked.handshake("2025-11-25", json!({"elicitation": {}})).await?;
    let forger = rialto.client().await?;
    forger.handshake("2025-11-25", json!({"elicitation": {}})).await?;

    let mut stream = asked
        .open(
            5,
            "tools/call",
            r#"{"name":"ask_elicit","arguments":{"marker":"mine"}}"#,
        )
        .await?
        .events();
    let question = stream.message().await?;
    assert_eq!(question["method"], "elicitation/create");
    let forged = r#"{"action":"accept","content":{"answer":"forged"}}"#;
    let ids = [
        question["id"].to_string(),
        "1".into(),
        "0".into(),
        "5".into(),
        r#""1""#.into(),
        "999".into(),
        "null".into(),
    ];
    for id in &ids {
        let reply = forger.respond(id, forged).await?;
        assert!(matches!(reply.status, 202 | 400), "{reply:?}");
        let reply = forger.respond_error(id, -1, "forged").await?;
        assert!(matches!(reply.status, 202 | 400), "{reply:?}");
    }
    // The client that was asked answers something else first, and then twice the right question.
    let reply = asked.respond(r#""never-asked""#, forged).await?;
    assert!(matches!(reply.status, 202 | 400), "{reply:?}");
    assert!(rialto.journal().events("answered").is_empty());
    let real = r#"{"action":"accept","content":{"answer":"real"}}"#;
    asked.respond(&question["id"], real).await?.expect_status(202)?;
    let answer = stream.message().await?;
    assert!(
        answer["result"]["content"][0]["text"]
            .as_str()
            .is_some_and(|text| text.contains("real")),
        "{answer}"
    );
    let reply = asked.respond(&question["id"], forged).await?;
    assert!(matches!(reply.status, 202 | 400), "{reply:?}");

    lines_received(&rialto, &forger).await?;
    let lines: Vec<String> = rialto
        .journal()
        .events("received")
        .iter()
        .map(|entry| entry["line"].to_string())
        .collect();
    assert!(lines.iter().all(|line| !line.contains("forged")), "{lines:?}");
    assert!(rialto.journal().events("stray").is_empty());
    Ok(())
}

#[tokio::test]
async fn a25_cancels_reach_only_calls_of_their_own_session() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let (victim, attacker) = (rialto.session().await?, rialto.session().await?);
    let waiting = victim.call(7, "delay", r#"{"ms":400,"marker":"victim"}"#);
    let attack = async {
        rialto.wait_for_execution("victim").await;
        assert_eq!(
            attacker.call(3, "echo", r#"{"marker":"done"}"#).await?.text(),
            "done"
        );
        let wire = rialto.journal().events("executed")[0]["id"]
            .as_str()
            .unwrap_or("1")
            .to_owned();
        for id in ["7", "3", "0", "999", r#""7""#, "null", "{}", "[]", "1.5", &wire] {
            let reply = attacker.cancel(id).await?;
            assert!(matches!(reply.status, 202 | 400), "{id}: {reply:?}");
        }
        let reply = attacker.notify("notifications/cancelled", "{}").await?;
        assert!(matches!(reply.status, 202 | 400), "{reply:?}");
        for _ in 0..200 {
            attacker.cancel(7).await?.expect_status(202)?;
        }
        Ok(())
    };
    let (answer, attacked): (Result<_>, Result<()>) = tokio::join!(waiting, attack);
    attacked?;
    assert_eq!(answer?.text(), "victim");
    lines_received(&rialto, &attacker).await?;
    assert!(rialto.journal().received("notifications/cancelled").is_empty());

    // One's own call can be cancelled, of course.
    let own = attacker.open(
        8,
        "tools/call",
        r#"{"name":"never","arguments":{"marker":"own"}}"#,
    );
    let cancel = async {
        rialto.wait_for_execution("own").await;
        attacker.cancel(8).await?.expect_status(202)?;
        let journal = rialto.journal();
        testkit::wait_until("the child is told", Duration::from_secs(10), || {
            journal.was_cancelled("own").then_some(())
        })
        .await;
        Ok(())
    };
    let (_, cancelled): (Result<_>, Result<()>) = tokio::join!(own, cancel);
    cancelled
}

#[tokio::test]
async fn a26_refusals_tell_nothing_about_us_and_echo_nothing() -> Result<()> {
    let rialto = Rialto::launcher()
        .args(&["--max-sessions", "1"])
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let session = client.session().unwrap_or_default();
    let noise = "zq".repeat(400);
    let json = "application/json";
    let both = testkit::client::ACCEPT;
    let body = echo("1", &noise);
    let initialize = format!(
        r#"{{"jsonrpc":"2.0","id":"{noise}","method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"x","version":"1"}}}}}}"#
    );
    let unknown = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";
    type Case<'a> = (&'a str, &'a str, Vec<(&'a str, &'a str)>, &'a str);
    let post = |extra: &[(&'static str, &'static str)]| -> Vec<(&str, &str)> { extra.to_vec() };
    let broken = format!("{{\"{noise}\":");
    let path = format!("/{noise}/mcp");
    let cases: Vec<Case<'_>> = vec![
        (
            "POST",
            "/mcp",
            vec![
                ("content-type", json),
                ("accept", both),
                ("mcp-session-id", &session),
            ],
            &broken,
        ),
        (
            "POST",
            "/mcp",
            vec![
                ("content-type", json),
                ("accept", both),
                ("mcp-session-id", unknown),
            ],
            &body,
        ),
        (
            "POST",
            "/mcp",
            vec![
                ("content-type", json),
                ("accept", both),
                ("mcp-session-id", &noise),
            ],
            &body,
        ),
        (
            "POST",
            "/mcp",
            vec![("content-type", json), ("accept", both)],
            &initialize[..],
        ),
        (
            "POST",
            "/mcp",
            vec![("content-type", &noise), ("accept", both)],
            &body,
        ),
        (
            "POST",
            "/mcp",
            vec![("content-type", json), ("accept", &noise)],
            &body,
        ),
        (
            "POST",
            "/mcp",
            vec![
                ("content-type", json),
                ("accept", both),
                ("mcp-protocol-version", &noise),
                ("mcp-session-id", &session),
            ],
            &body,
        ),
        (
            "POST",
            "/mcp",
            vec![
                ("content-type", json),
                ("accept", both),
                ("origin", "https://evil.example"),
            ],
            &body,
        ),
        (
            "POST",
            "/mcp",
            vec![("content-type", json), ("accept", both), ("host", "evil.example")],
            &body,
        ),
        (
            "PUT",
            "/mcp",
            post(&[("content-type", "application/json")]),
            &body,
        ),
        (
            "POST",
            &path,
            vec![("content-type", json), ("accept", both)],
            &body,
        ),
        ("GET", "/mcp", vec![("accept", "text/event-stream")], ""),
        (
            "GET",
            "/mcp",
            vec![
                ("accept", "text/event-stream"),
                ("mcp-session-id", &session),
                ("last-event-id", &noise),
            ],
            "",
        ),
        ("DELETE", "/mcp", vec![("mcp-session-id", unknown)], ""),
        (
            "GET",
            "/testkit-server/sse",
            vec![("accept", "text/event-stream")],
            "",
        ),
    ];
    for (method, path, headers, body) in cases {
        let shown = format!("{method} {path} {headers:?}");
        let reply = client
            .send(method, path, &headers, body.to_owned())
            .await?
            .reply()
            .await?;
        assert!((400..=599).contains(&reply.status), "{shown}: {reply:?}");
        let text = reply.body_text();
        assert_eq!(
            reply.header("x-content-type-options"),
            Some("nosniff"),
            "{shown}: {reply:?}"
        );
        let kind = reply.header("content-type").unwrap_or("");
        assert!(
            kind.starts_with("application/json") || kind.starts_with("text/plain"),
            "{shown}: {kind}"
        );
        // The id is the caller's own and belongs to the answer.
        let text = text.replace(&format!("\"id\":\"{noise}\""), "");
        assert!(!text.contains(&"zq".repeat(33)), "{shown}: {text}");
        let home = rialto.dir().to_string_lossy().into_owned();
        for telltale in [
            home.as_str(),
            ".rs",
            "/src/",
            "panicked",
            "<",
            "hyper",
            "tokio",
            env!("CARGO_PKG_VERSION"),
        ] {
            assert!(!text.contains(telltale), "{shown}: {telltale} in {text}");
        }
        assert!(
            reply
                .header("server")
                .is_none_or(|server| !server.contains(char::is_numeric)),
            "{reply:?}"
        );
    }
    assert_eq!(client.call(1, "echo", r#"{"marker":"m"}"#).await?.text(), "m");
    Ok(())
}

/// What hyper itself refuses has no body at all, and a broken peer is not answered twice.
#[tokio::test]
async fn a26_bytes_that_are_no_http_get_at_most_a_bare_refusal() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    for nonsense in [
        "\x16\x03\x01\x02\x00\x01\x00",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET\r\n\r\n",
        "\r\n\r\n\0\0\0\r\n\r\n",
        "SSH-2.0-x\r\n\r\n",
    ] {
        let mut raw: RawHttp = rialto.raw().await?;
        raw.write(nonsense).await?;
        raw.finish_writing().await?;
        let said = String::from_utf8_lossy(&raw.read_to_end().await?).into_owned();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
        let body = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert!(body.is_empty(), "{said}");
    }
    assert_eq!(
        rialto
            .session()
            .await?
            .call(1, "echo", r#"{"marker":"m"}"#)
            .await?
            .text(),
        "m"
    );
    Ok(())
}
