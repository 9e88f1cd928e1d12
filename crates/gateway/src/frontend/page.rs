//! The page at `/ui/`: what goes on, for people, and what they may do about it.
//!
//! | Path | Answer |
//! |---|---|
//! | `/ui/`, `/ui/FILE` | the files of the page |
//! | `/ui/sign-in`, `/ui/sign-out` | the cookie of an admin |
//! | `/ui/api/state`, `/ui/api/events` | the snapshot, once or as it changes; ended calls |
//! | `/ui/api/destination/NAME` | what its server has shown, and wrote to stderr |
//! | `/ui/api/destination/NAME/ACTION` | `read`, `restart`, `end-session` |
//! | `/ui/api/mcp/NAME` | the endpoint itself, for the caller of the page |
//! | `/ui/api/setup` | the programs of this machine that use MCP servers |
//!
//! `docs/page.md` is about all of them. [`access`] judges each request, before anything else. What
//! acts needs a header that no other site can send, and is audited.

mod access;
mod actions;
mod details;
mod files;
mod live;
mod state_table;
mod troubleshooting;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use protocol::message::Written;
use serde_json::json;
use tokio::task::AbortHandle;

use super::body::Body;
use super::request_body::RequestBody;
use super::respond;
use crate::active_config::ActiveConfig;
use crate::endpoint::Endpoint;
use crate::gateway::Gateway;
use crate::guard::Caller;
use crate::status::Detail;
use files::File;

pub(crate) use live::PageEvents;

/// What no form of another site can send.
const OWN_HEADER: HeaderName = HeaderName::from_static("x-rialto-page");
/// The longest body of an action.
const MAX_BODY: usize = 64 << 10;
/// Scripts and styles are files of the page. A text of a server that got into the document all the
/// same would do nothing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html",
);

/// Where a request for the page came from.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) peer: SocketAddr,
    /// The caller, if it is known without credentials.
    pub(super) admitted: Option<&'a Arc<Caller>>,
    /// What is ended if a reader is slow.
    pub(super) connection: Option<AbortHandle>,
}

/// The answer to a request for the page.
pub(super) enum Answer {
    Response(Response<Body>),
    /// The request is for the endpoint of a destination, as this caller.
    Endpoint(Arc<Endpoint>, Arc<Caller>),
}

/// What a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// `/ui`, without the slash that relative addresses need.
    Slashless,
    File(&'static str),
    SignIn,
    SignOut,
    State,
    Events,
    SetUp,
    Destination(String),
    Action(String, Action),
    Endpoint(String),
    Nothing,
}

/// What an admin can do to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Restart,
    EndSession,
}

/// Why a request for the page is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageRefusal {
    status: StatusCode,
    reason: &'static str,
    text: String,
}

impl PageRefusal {
    fn new(status: StatusCode, reason: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            text: text.into(),
        }
    }

    fn unknown_name(name: &str) -> Self {
        let text = format!("there is no destination `{name}` here");
        Self::new(StatusCode::NOT_FOUND, "unknown_name", text)
    }

    fn respond(&self) -> Response<Body> {
        let body = json!({ "error": self.text, "reason": self.reason });
        respond::json(self.status, format!("{body}\n"))
    }
}

impl Wanted {
    fn of(path: &str) -> Self {
        let Some(rest) = path.strip_prefix("/ui/") else {
            return Self::Slashless;
        };
        if let Some(file) = File::at(rest) {
            return Self::File(file.path);
        }
        let segments: Vec<&str> = rest.split('/').collect();
        match segments[..] {
            ["sign-in"] => Self::SignIn,
            ["sign-out"] => Self::SignOut,
            ["api", "state"] => Self::State,
            ["api", "events"] => Self::Events,
            ["api", "setup"] => Self::SetUp,
            ["api", "destination", name] => Self::Destination(name.to_owned()),
            ["api", "destination", name, "read"] => Self::Action(name.to_owned(), Action::Read),
            ["api", "destination", name, "restart"] => Self::Action(name.to_owned(), Action::Restart),
            ["api", "destination", name, "end-session"] => Self::Action(name.to_owned(), Action::EndSession),
            ["api", "mcp", name] => Self::Endpoint(name.to_owned()),
            _ => Self::Nothing,
        }
    }

    /// Returns the methods that it is asked for with.
    fn methods(&self) -> &'static str {
        match self {
            Self::SignIn | Self::SignOut | Self::Action(..) => "POST",
            Self::Endpoint(_) => "GET, POST, DELETE",
            Self::Slashless
            | Self::File(_)
            | Self::State
            | Self::Events
            | Self::SetUp
            | Self::Destination(_)
            | Self::Nothing => "GET, HEAD",
        }
    }

    /// Returns whether it does more than show something.
    fn acts(&self) -> bool {
        match self {
            Self::SignOut | Self::Action(..) | Self::Endpoint(_) => true,
            // Its form cannot send a header. It has a rule of its own.
            Self::SignIn => false,
            Self::Slashless
            | Self::File(_)
            | Self::State
            | Self::Events
            | Self::SetUp
            | Self::Destination(_)
            | Self::Nothing => false,
        }
    }

    /// Returns whether it is part of the API, which browsers do not navigate to.
    fn is_api(&self) -> bool {
        match self {
            Self::State
            | Self::Events
            | Self::SetUp
            | Self::Destination(_)
            | Self::Action(..)
            | Self::Endpoint(_)
            | Self::SignOut => true,
            Self::Slashless | Self::File(_) | Self::SignIn | Self::Nothing => false,
        }
    }
}

/// Returns whether a path is of the page.
pub(super) fn has(path: &str) -> bool {
    let rest = path.strip_prefix("/ui");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request for the page.
pub(super) async fn answer(
    gateway: &Arc<Gateway>,
    config: &ActiveConfig,
    parts: &mut Parts,
    body: &mut RequestBody,
    origin: Origin<'_>,
) -> Answer {
    let wanted = Wanted::of(parts.uri.path());
    let answered = respond_to(gateway, config, parts, body, origin, &wanted).await;
    let mut response = match answered {
        Ok(Answer::Response(response)) => response,
        Ok(endpoint @ Answer::Endpoint(..)) => return endpoint,
        Err(refusal) => {
            tracing::debug!(
                status = refusal.status.as_u16(),
                reason = refusal.reason,
                "request for the page refused"
            );
            let mut response = refusal.respond();
            if refusal.status == StatusCode::METHOD_NOT_ALLOWED {
                let allowed = HeaderValue::from_static(wanted.methods());
                response.headers_mut().insert(header::ALLOW, allowed);
            }
            response
        }
    };
    let headers = response.headers_mut();
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(POLICY);
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer` the form of the sign-in would be sent without an origin.
        (header::REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Answer::Response(response)
}

async fn respond_to(
    gateway: &Arc<Gateway>,
    config: &ActiveConfig,
    parts: &mut Parts,
    body: &mut RequestBody,
    origin: Origin<'_>,
    wanted: &Wanted,
) -> Result<Answer, PageRefusal> {
    access::check_site(config, parts, wanted)?;
    let is_right = match parts.method {
        Method::GET => wanted.methods().starts_with("GET"),
        Method::HEAD => wanted.methods() == "GET, HEAD",
        Method::POST => wanted.methods().contains("POST"),
        Method::DELETE => wanted.methods().contains("DELETE"),
        _ => false,
    };
    if !is_right {
        let text = format!("this path is asked for with {}", wanted.methods());
        return Err(PageRefusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "wrong_method",
            text,
        ));
    }
    if *wanted == Wanted::SignIn {
        return access::sign_in(gateway, config, parts, body, &origin)
            .await
            .map(Answer::Response);
    }
    let visitor = match access::admit(gateway, config, parts, &origin).await {
        Ok(visitor) => visitor,
        Err(refusal) if wanted.shows_form() && refusal.status == StatusCode::UNAUTHORIZED => {
            return Ok(Answer::Response(access::form(StatusCode::UNAUTHORIZED, None)));
        }
        Err(refusal) => return Err(refusal),
    };
    let named = |name: &str| {
        let found = config.destinations.get(name).cloned();
        found.ok_or_else(|| PageRefusal::unknown_name(name))
    };
    let response = match wanted {
        Wanted::Slashless => moved(),
        Wanted::File(path) => file(gateway, parts, path),
        Wanted::State => {
            let mut state = gateway.snapshot(Detail::Sessions);
            state["page"] = json!({
                "signed_in": visitor.signed_in(),
                "setup": gateway.set_up.get().is_some() && visitor.is_local(),
                "audit_bodies": gateway.audit.wants_bodies(),
                "calls_kept_bytes": gateway.limits.ended_calls_bytes,
            });
            respond::json(StatusCode::OK, format!("{state}\n"))
        }
        Wanted::Events => live::events(gateway, &visitor, origin.connection)?,
        Wanted::SetUp => details::set_up(gateway, &visitor).await,
        Wanted::Destination(name) => {
            let endpoint = named(name)?;
            details::destination(gateway, &endpoint)
        }
        Wanted::Action(name, action) => {
            let endpoint = named(name)?;
            actions::act(gateway, &endpoint, &visitor, *action, body).await?
        }
        Wanted::SignOut => access::sign_out(config),
        Wanted::Endpoint(name) => {
            let endpoint = named(name)?;
            if !visitor.caller.sees(name) {
                let text = format!("your token is not for the destination `{name}`");
                return Err(PageRefusal::new(StatusCode::FORBIDDEN, "forbidden", text));
            }
            // The server is not to have them.
            parts.headers.remove(header::COOKIE);
            parts.headers.remove(header::AUTHORIZATION);
            parts.headers.remove(OWN_HEADER);
            return Ok(Answer::Endpoint(endpoint, visitor.caller));
        }
        Wanted::SignIn | Wanted::Nothing => {
            return Err(PageRefusal::new(
                StatusCode::NOT_FOUND,
                "unknown_path",
                "there is nothing here",
            ));
        }
    };
    Ok(Answer::Response(response))
}

impl Wanted {
    /// Returns whether a browser that is not signed in is shown the form of the sign-in.
    fn shows_form(&self) -> bool {
        matches!(self, Self::Slashless | Self::File("index.html"))
    }
}

fn moved() -> Response<Body> {
    let mut response = respond::empty(StatusCode::PERMANENT_REDIRECT);
    let to = HeaderValue::from_static("ui/");
    response.headers_mut().insert(header::LOCATION, to);
    response
}

/// Returns a file of the page. The shell has the state in it, so it is never kept.
fn file(gateway: &Gateway, parts: &Parts, path: &str) -> Response<Body> {
    let Some(file) = File::at(path) else {
        return respond::empty(StatusCode::NOT_FOUND);
    };
    if file.path == "index.html" {
        let shell = String::from_utf8_lossy(file.content);
        let table = state_table::table(&gateway.snapshot(Detail::Sums));
        let shell = shell.replacen(files::STATE_MARK, &table, 1);
        return with_type(StatusCode::OK, file.content_type(), shell.into());
    }
    let tag = file.etag();
    let is_known = parts
        .headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|tags| tags.split(',').any(|known| known.trim() == tag));
    let mut response = match is_known {
        true => respond::empty(StatusCode::NOT_MODIFIED),
        false => with_type(
            StatusCode::OK,
            file.content_type(),
            Bytes::from_static(file.content),
        ),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

fn with_type(status: StatusCode, content_type: HeaderValue, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(Written::from(content)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_page_are_told_from_others() {
        assert!(has("/ui") && has("/ui/") && has("/ui/api/state"));
        assert!(!has("/uix") && !has("/u") && !has("/x/ui"));
        assert_eq!(Wanted::of("/ui"), Wanted::Slashless);
        assert_eq!(Wanted::of("/ui/"), Wanted::File("index.html"));
        assert_eq!(
            Wanted::of("/ui/api/mcp/files"),
            Wanted::Endpoint("files".to_owned())
        );
        for path in [
            "/ui/api",
            "/ui/api/",
            "/ui//",
            "/ui/../secret",
            "/ui/api/destination/a/b",
        ] {
            assert_eq!(Wanted::of(path), Wanted::Nothing, "{path}");
        }
    }
}
