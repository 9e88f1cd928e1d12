//! What an admin does to a destination. Each action is audited.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::access::Visitor;
use super::{Action, MAX_BODY, PageRefusal, details};
use crate::audit::{AuditRecord, Outcome, RecordSubject, SessionHash};
use crate::endpoint::Endpoint;
use crate::frontend::body::Body;
use crate::frontend::request_body::RequestBody;
use crate::frontend::respond;
use crate::gateway::Gateway;

impl Action {
    /// Returns what the audit log calls it, in the place of a method of MCP.
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "rialto/read",
            Self::Restart => "rialto/restart",
            Self::EndSession => "rialto/end_session",
        }
    }
}

/// Carries out an action, and records it.
pub(super) async fn act(
    gateway: &Arc<Gateway>,
    endpoint: &Arc<Endpoint>,
    visitor: &Visitor,
    action: Action,
    body: &mut RequestBody,
) -> Result<Response<Body>, PageRefusal> {
    let began = gateway.clock.now();
    let text = body.read(MAX_BODY).await.map_err(|refusal| {
        let status = refusal.status();
        PageRefusal::new(status, "too_large", refusal.text())
    })?;
    let arguments: Value = match text.is_empty() {
        true => json!({}),
        false => serde_json::from_slice(&text).map_err(|_| {
            PageRefusal::new(
                StatusCode::BAD_REQUEST,
                "invalid",
                "the body must be a JSON object",
            )
        })?,
    };
    if gateway.audit.refuses() {
        let text = "audit records cannot be written, so nothing is done";
        return Err(PageRefusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not_available",
            text,
        ));
    }
    let session = arguments["session"].as_str();
    let answered = match action {
        Action::Read => {
            details::read(gateway, endpoint).await;
            Ok(details::destination(gateway, endpoint))
        }
        Action::Restart => restart(endpoint, &arguments),
        Action::EndSession => end_session(endpoint, session),
    };
    let (status, outcome, reason) = match &answered {
        Ok(response) => (response.status(), Outcome::Ok, None),
        Err(refusal) => (refusal.status, Outcome::Refused, Some(refusal.reason)),
    };
    let principal = visitor.caller.principal.as_str();
    tracing::info!(
        destination = %endpoint.name,
        principal,
        session,
        action = action.name(),
        status = status.as_u16(),
        "action at the page"
    );
    gateway.audit.record(&AuditRecord {
        whose: RecordSubject::Fields {
            destination: &endpoint.name,
            session: session.and_then(SessionHash::parse),
            principal,
        },
        http_method: "POST",
        mcp_method: Some(action.name()),
        tool: None,
        member: None,
        own_name: None,
        rpc_id: None,
        status_code: status.as_u16(),
        outcome,
        reason,
        latency: gateway.clock.now().since(began),
        request_bytes: text.len() as u64,
        response_bytes: 0,
        request_body: None,
        response_body: None,
    });
    answered
}

/// Restarts the server in this process, or all servers of a destination.
fn restart(endpoint: &Endpoint, arguments: &Value) -> Result<Response<Body>, PageRefusal> {
    let pid = match &arguments["pid"] {
        Value::Null => None,
        given => Some(
            given
                .as_u64()
                .and_then(|pid| u32::try_from(pid).ok())
                .ok_or_else(|| {
                    PageRefusal::new(
                        StatusCode::BAD_REQUEST,
                        "invalid",
                        "`pid` must be the number of a process",
                    )
                })?,
        ),
    };
    let restarted = endpoint.restart(pid);
    if restarted == 0 && pid.is_some() {
        let text = "no server of this destination runs in that process";
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, "unknown_instance", text));
    }
    Ok(respond::json(
        StatusCode::OK,
        format!("{}\n", json!({ "restarted": restarted })),
    ))
}

fn end_session(endpoint: &Endpoint, session: Option<&str>) -> Result<Response<Body>, PageRefusal> {
    let has_ended = session.is_some_and(|session| endpoint.close_named(session));
    if !has_ended {
        let text = "there is no such session: it may have ended meanwhile";
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, "unknown_session", text));
    }
    Ok(respond::json(StatusCode::OK, "{\"ended\":true}\n"))
}
