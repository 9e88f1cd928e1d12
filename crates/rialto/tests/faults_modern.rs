//! The rows of the catalogue that are about the 2026-07-28 revision: headers against the body
//! (A22), versions (A23), and a client that hangs up, which there means that it no longer wants to
//! know (C4).

use std::time::Duration;

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::{MODERN, RawHttp, Result, Rialto, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);
const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// A call of `echo` with this marker, as its client should write it.
struct Request {
    headers: Vec<(&'static str, String)>,
    body: Value,
}

impl Request {
    fn new(tool: &str, marker: &str) -> Self {
        Self {
            headers: vec![
                ("content-type", "application/json".to_owned()),
                ("accept", "application/json, text/event-stream".to_owned()),
                ("mcp-protocol-version", MODERN.to_owned()),
                ("mcp-method", "tools/call".to_owned()),
                ("mcp-name", tool.to_owned()),
            ],
            body: json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
                "name": tool, "arguments": {"marker": marker},
                "_meta": {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}},
            }}),
        }
    }

    fn without(mut self, header: &str) -> Self {
        self.headers.retain(|(name, _)| *name != header);
        self
    }

    fn saying(self, header: &'static str, value: &str) -> Self {
        let mut changed = self.without(header);
        changed.headers.push((header, value.to_owned()));
        changed
    }

    fn bytes(&self) -> Vec<u8> {
        let headers: Vec<(&str, &str)> = self
            .headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        raw_http::request("POST", "/mcp", &headers, self.body.to_string())
    }
}

async fn exchange(raw: &mut RawHttp, request: &Request) -> Result<(u16, Value)> {
    let response = raw.exchange(request.bytes()).await?;
    let answer = serde_json::from_str(&response.body_text()).unwrap_or_default();
    Ok((response.status, answer))
}

/// A tool's own -32601 is no missing method.
#[tokio::test]
async fn method_not_found_is_404_only_where_the_server_does_not_declare_the_method() -> Result<()> {
    let rialto = Rialto::with_stub(&["--no-completions"]).await?;
    let mut raw = rialto.raw().await?;
    let mut request = Request::new("fail", "x");
    request.body["params"]["arguments"] = json!({"code": -32601});
    let (status, answer) = exchange(&mut raw, &request).await?;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (200, &json!(-32601)),
        "{answer}"
    );
    for method in ["completion/complete", "vendor/unknown"] {
        let mut request = Request::new("echo", "x")
            .saying("mcp-method", method)
            .without("mcp-name");
        request.body["method"] = json!(method);
        let (status, answer) = exchange(&mut raw, &request).await?;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!(-32601)),
            "{method} {answer}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_gets_the_error_of_its_era_and_its_call_is_cancelled() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let mut raw = rialto.raw().await?;
    for (tool, required) in [
        ("ask_elicit", json!({"elicitation": {"form": {}}})),
        ("ask_sample", json!({"sampling": {}})),
        ("ask_roots", json!({"roots": {}})),
    ] {
        let (status, answer) = exchange(&mut raw, &Request::new(tool, tool)).await?;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!(-32021)),
            "{answer}"
        );
        assert_eq!(answer["error"]["data"]["requiredCapabilities"], required);
    }
    // The server reads the last cancellation after the client has its answer.
    wait_until("every call is cancelled", PATIENCE, || {
        (rialto.journal().received("notifications/cancelled").len() == 3).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a22_headers_that_disagree_with_the_body_are_refused_and_nothing_runs() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let mut raw = rialto.raw().await?;
    let good = || Request::new("echo", "good");
    let bad = || Request::new("echo", "bad");
    let (status, answer) = exchange(&mut raw, &good()).await?;
    assert_eq!(
        (status, &answer["result"]["content"][0]["text"]),
        (200, &json!("good"))
    );
    let mut doubled = bad();
    doubled.headers.push(("mcp-name", "echo".to_owned()));
    for (what, request) in [
        ("another name", bad().saying("mcp-name", "delay")),
        ("another case of it", bad().saying("mcp-name", "Echo")),
        ("no name", bad().without("mcp-name")),
        ("another method", bad().saying("mcp-method", "tools/list")),
        ("no method", bad().without("mcp-method")),
        (
            "another name, encoded",
            bad().saying("mcp-name", "=?base64?ZGVsYXk=?="),
        ),
        ("no base64 at all", bad().saying("mcp-name", "=?base64?!!!?=")),
        ("half a byte of it", bad().saying("mcp-name", "=?base64?ZWNob?=")),
        ("no text in it", bad().saying("mcp-name", "=?base64?//79?=")),
        ("its name twice", doubled),
    ] {
        let (status, answer) = exchange(&mut raw, &request).await?;
        assert_eq!(status, 400, "{what}: {answer}");
        assert_eq!(answer["error"]["code"], -32020, "{what}: {answer}");
    }
    let encoded = good().saying("mcp-name", "=?base64?ZWNobw==?=");
    assert_eq!(
        exchange(&mut raw, &encoded).await?.0,
        200,
        "the same name, encoded"
    );
    assert_eq!(rialto.journal().executions("bad"), 0);
    assert_eq!(rialto.journal().executions("good"), 2);
    Ok(())
}

#[tokio::test]
async fn a23_versions_that_do_not_fit_together_are_refused() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let mut raw = rialto.raw().await?;
    let bad = || Request::new("echo", "bad");
    let meta = |key: &str, value: Value| {
        let mut request = bad();
        request.body["params"]["_meta"][key] = value;
        request
    };
    let mut without_meta = bad();
    without_meta.body["params"]
        .as_object_mut()
        .expect("params are an object")
        .remove("_meta");
    let mut unknown_method = bad().saying("mcp-method", "tools/burn").without("mcp-name");
    unknown_method.body["method"] = json!("tools/burn");
    let future = meta(VERSION_KEY, json!("2099-01-01")).saying("mcp-protocol-version", "2099-01-01");
    for (what, request, status, code) in [
        ("a version of the future", future, 400, -32022),
        (
            "an old header on a new body",
            bad().saying("mcp-protocol-version", "2025-11-25"),
            400,
            -32020,
        ),
        (
            "a new body without a header",
            bad().without("mcp-protocol-version"),
            400,
            -32020,
        ),
        ("a new header on an old body", without_meta, 400, -32602),
        (
            "no capabilities",
            meta(CAPABILITIES_KEY, Value::Null),
            400,
            -32602,
        ),
        ("an unknown method", unknown_method, 404, -32601),
    ] {
        let (got, answer) = exchange(&mut raw, &request).await?;
        assert_eq!(
            (got, &answer["error"]["code"]),
            (status, &json!(code)),
            "{what}: {answer}"
        );
    }
    assert_eq!(rialto.journal().executions("bad"), 0);
    Ok(())
}

#[tokio::test]
async fn c04_a_modern_client_that_hangs_up_cancels_its_call_and_no_other() -> Result<()> {
    let rialto = Rialto::with_stub(&[]).await?;
    let mut leaving = rialto.raw().await?;
    leaving.write(Request::new("never", "leaving").bytes()).await?;
    rialto.wait_for_execution("leaving").await;
    let mut staying = rialto.raw().await?;
    let mut slow = Request::new("delay", "staying");
    slow.body["params"]["arguments"]["ms"] = json!(1000);
    staying.write(slow.bytes()).await?;
    rialto.wait_for_execution("staying").await;
    leaving.reset()?;
    testkit::wait_until(
        "the child hears of it",
        std::time::Duration::from_secs(20),
        || {
            let received = rialto.journal().entries();
            received
                .iter()
                .any(|entry| entry.to_string().contains("notifications/cancelled"))
                .then_some(())
        },
    )
    .await;
    let response = staying.read_response().await?;
    assert_eq!(response.status, 200, "{}", response.body_text());
    assert!(response.body_text().contains("staying"));
    let cancelled = rialto
        .journal()
        .entries()
        .iter()
        .filter(|entry| entry.to_string().contains("notifications/cancelled"))
        .count();
    assert_eq!(cancelled, 1);
    Ok(())
}
