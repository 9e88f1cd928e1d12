//! One destination in detail, and the programs of this machine.

use std::sync::Arc;
use std::time::SystemTime;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::access::Visitor;
use super::troubleshooting;
use crate::endpoint::Endpoint;
use crate::frontend::body::Body;
use crate::frontend::respond;
use crate::gateway::Gateway;
use crate::status::Detail;
use crate::tasks;

/// More than this of one server is not kept.
const LONGEST_PRESENTED: usize = 8 << 20;

/// Returns what is known of a destination beside its state.
pub(super) fn destination(gateway: &Gateway, endpoint: &Endpoint) -> Response<Body> {
    let now = gateway.clock.now();
    let read = {
        let presented = gateway.presented.lock();
        presented.get(&*endpoint.name).map(|(when, shown)| {
            let mut shown = shown.clone();
            shown["age_ms"] = milliseconds(now.since(*when));
            shown
        })
    };
    let output: Vec<Value> = endpoint
        .metrics
        .output
        .shown()
        .into_iter()
        .map(|process| json!({ "pid": process.pid, "running": process.is_running, "lines": process.lines }))
        .collect();
    let status = endpoint.status(true, Detail::Sums);
    let why: Vec<Value> = status
        .failures
        .iter()
        .map(|((blame, reason), count)| {
            let recent = status.recent.failures.get(&(*blame, *reason)).copied();
            let rows = troubleshooting::rows(reason);
            json!({
                "reason": reason,
                "blame": blame.as_str(),
                "count": count,
                "recent": recent.unwrap_or_default(),
                "means": rows.iter().map(|row| row.entry()).collect::<Vec<_>>(),
            })
        })
        .collect();
    let url = gateway.about.get().and_then(|about| about.url.as_deref());
    let detail = json!({
        "name": &*endpoint.name,
        "taken_at": humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        "read": read,
        "stderr": output,
        "connect": {
            "url": url.map(|url| format!("{url}/{}/mcp", endpoint.name)),
            "needs_token": gateway.config().guard.is_on(),
        },
        "why": why,
    });
    respond::json(StatusCode::OK, format!("{detail}\n"))
}

/// Asks a server what it has, and keeps that for the page.
pub(super) async fn read(gateway: &Arc<Gateway>, endpoint: &Arc<Endpoint>) {
    // Not given up with the request: others may wait for the same server.
    let reading = tasks::spawn("page reading", {
        let (gateway, endpoint) = (Arc::clone(gateway), Arc::clone(endpoint));
        async move { gateway.read_presented(&endpoint).await }
    });
    let read = reading.await;
    let read = match read {
        Ok(Ok(shown)) if shown.to_string().len() > LONGEST_PRESENTED => {
            Err("what the server shows is too long to be kept".to_owned())
        }
        Ok(read) => read,
        Err(_) => Err("the gateway failed; its log has the details".to_owned()),
    };
    let shown = read.unwrap_or_else(|why| {
        json!({
            "error": why,
            "era": null,
            "revision": null,
            "server": null,
            "instructions": null,
            "capabilities": null,
            "tools": [],
            "prompts": [],
            "resources": [],
            "resource_templates": [],
        })
    });
    let now = gateway.clock.now();
    let config = gateway.config();
    let mut presented = gateway.presented.lock();
    presented.retain(|name, _| config.destinations.contains_key(name));
    presented.insert(endpoint.name.to_string(), (now, shown));
}

/// Returns the programs of this machine that use MCP servers, where the page is of this machine.
pub(super) async fn set_up(gateway: &Gateway, visitor: &Visitor) -> Response<Body> {
    let mut found = match gateway.set_up.get() {
        Some(set_up) if visitor.is_local() => {
            let set_up = Arc::clone(set_up);
            // It reads files.
            let mut found = tasks::blocking(move || set_up.look()).await;
            found["available"] = true.into();
            found
        }
        Some(_) | None => json!({
            "available": false,
            "why": "Rialto shows the programs of its own machine alone, and only without `auth`.",
        }),
    };
    let needs_token = gateway.config().guard.is_on();
    found["snippets"] = match gateway.set_up.get() {
        Some(set_up) => set_up.snippets(needs_token),
        None => json!([]),
    };
    respond::json(StatusCode::OK, format!("{found}\n"))
}

fn milliseconds(span: std::time::Duration) -> Value {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).into()
}
