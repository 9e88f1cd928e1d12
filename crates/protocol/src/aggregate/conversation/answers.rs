//! Answers of Rialto's own to the client of an aggregate. Errors are written in legacy words, and
//! translated by the client's face like those of a server.

use super::super::view::View;
use crate::client_face::legacy;
use crate::client_face::own_answers::tool_answer;
use crate::error_code;
use crate::exchange::{BackendError, Client, Failure, Upstream, UpstreamFault};
use crate::message::{Message, quoted};
use crate::method::Method;
use crate::version::Era;

/// What a legacy server answers that lacks a resource (2025-11-25, resources).
const NO_RESOURCE: i32 = -32002;
/// What a legacy server answers that wants URLs visited first (2025-11-25, URL elicitation).
const URLS_FIRST: i32 = -32042;
/// The command that signs in at a server.
const COMMAND: &str = "rialto login";
/// How soon a client may ask again for members of which nothing is known.
const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// An answer, and the era of its words.
pub(super) type Answer = (Message, Era);

/// Returns an error response.
pub(super) fn error(code: i32, text: &str) -> Answer {
    let body = legacy::error(Some(b"0"), code, text, None);
    let text = String::from_utf8_lossy(&body).into_owned();
    (Message::own(text), legacy::ERA)
}

/// Returns the error for a resource that cannot be read. Its data names the URI, as that of a
/// server does (2025-11-25, resources, and 2026-07-28).
pub(super) fn no_resource(uri: &str, text: &str) -> Answer {
    let data = format!(r#""uri":{}"#, quoted(uri));
    let body = legacy::error(Some(b"0"), NO_RESOURCE, text, Some(&data));
    let text = String::from_utf8_lossy(&body).into_owned();
    (Message::own(text), legacy::ERA)
}

/// Returns the error for a name that no member has.
pub(super) fn unknown(what: &str, name: &str) -> Answer {
    error(error_code::INVALID_PARAMS, &format!("unknown {what}: {name}"))
}

/// Returns the result of a tool that failed, for the model to read.
pub(super) fn failed_tool(era: Era, text: &str) -> Answer {
    let result = format!(
        r#"{{"content":[{{"type":"text","text":{}}}],"isError":true}}"#,
        quoted(text)
    );
    (tool_answer(era, &result), era)
}

/// Returns the failure of a client that found no member to answer it.
pub(super) fn nothing_known(view: &View) -> Failure {
    let states = view.explain();
    let backend_error = BackendError {
        what: format!("no member of the aggregate has answered yet: {states}"),
        ..BackendError::default()
    };
    Failure::Unavailable {
        backend_error: backend_error.into(),
        retry_after: RETRY_AFTER,
    }
}

/// What becomes of a member's failure.
pub(super) enum Failed {
    /// The client gets this answer.
    Answer(Answer),
    /// The client gets the failure itself.
    Failure(Failure),
}

/// Returns what the client gets for a call that a member could not serve. A tool that is listed
/// though its server is away fails with a reason for the model; a member that wants a sign-in has
/// the user sent to its page.
pub(super) fn of_failure(
    view: &View,
    at: usize,
    client: &Client,
    era: Era,
    method: Method,
    failure: Failure,
) -> Failed {
    let name = view.plan().members().get(at).map_or("", |member| member.name());
    if let Failure::Upstream(upstream) = &failure
        && upstream.fault == UpstreamFault::Unauthorized
    {
        if let Some(answer) = sign_in_first(view, at, client, name) {
            return Failed::Answer(answer);
        }
        let text = needs_sign_in(name, &upstream.what);
        if method == Method::ToolsCall {
            return Failed::Answer(failed_tool(era, &text));
        }
        let refused = Upstream::new(UpstreamFault::Unauthorized, text);
        return Failed::Failure(Failure::Upstream(refused.into()));
    }
    let is_away = matches!(
        failure,
        Failure::Unavailable { .. } | Failure::StartTimeout { .. }
    );
    if !is_away || method != Method::ToolsCall {
        return Failed::Failure(failure);
    }
    let (text, _) = legacy::describe_failure(&failure);
    Failed::Answer(failed_tool(era, &format!("`{name}`: {text}")))
}

/// Returns what the user can do about a member that accepts no credentials of Rialto's.
fn needs_sign_in(name: &str, what: &str) -> String {
    // The error of a sign-in names its own command.
    match what.contains(COMMAND) {
        true => format!("`{name}` needs a sign-in: {what}"),
        false => format!(
            "`{name}` needs a sign-in ({what}): set `auth: oauth` for it and run `{COMMAND} URL`, or give it \
             credentials in `headers`"
        ),
    }
}

/// Returns the answer that sends the user to the page for signing in, if there is one and the
/// client can show it.
fn sign_in_first(view: &View, at: usize, client: &Client, name: &str) -> Option<Answer> {
    let url = view.members().get(at)?.sign_in.as_deref()?;
    let text = quoted(&format!("Sign in at {name}"));
    let (url, id) = (quoted(url), quoted(&format!("sign-in-{name}")));
    let params = format!(r#"{{"mode":"url","elicitationId":{id},"url":{url},"message":{text}}}"#);
    let question = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{params}}}"#);
    let can_visit = client.capabilities.can_answer_in_kind(&Message::own(question));
    can_visit.then(|| {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":0,"error":{{"code":{URLS_FIRST},"message":{text},"data":{{"elicitations":[{params}]}}}}}}"#
        );
        (Message::own(text), legacy::ERA)
    })
}
