//! The requests both eras answer alike and at once: lists, prompts, resources, completion. Also how
//! this server introduces itself.
use protocol::method::Method;
use serde_json::{Value, json};

use super::message::{Object, Refusal, text};
use super::tools::{self, DemoState};
use super::{prompts, resources};

pub(super) const INSTRUCTIONS: &str =
    "A demo of every MCP feature. Start with the tool echo; ask, count and touch show the rest.";

/// Returns the answer to a request that both eras answer alike, or nothing for any other method.
pub(super) fn answer(method: Method, params: &Object, state: &DemoState) -> Option<Result<Value, Refusal>> {
    let page = first_page(params);
    Some(match method {
        Method::ToolsList => page.map(|()| tools::list(state)),
        Method::PromptsList => page.map(|()| prompts::list()),
        Method::PromptsGet => prompts::fetch(params),
        Method::ResourcesList => page.map(|()| resources::list()),
        Method::ResourcesTemplatesList => page.map(|()| resources::templates()),
        Method::ResourcesRead => text(params, "uri").and_then(|uri| resources::read(uri, state)),
        Method::CompletionComplete => prompts::complete(params),
        _ => return None,
    })
}

/// Every list fits one page, so no cursor was ever handed out.
fn first_page(params: &Object) -> Result<(), Refusal> {
    match params.get("cursor") {
        None => Ok(()),
        Some(_) => Err(Refusal::InvalidParams("unknown cursor".to_owned())),
    }
}

pub(super) fn server_info() -> Value {
    json!({"name": "rialto-demo", "title": "Rialto demo server", "version": env!("CARGO_PKG_VERSION")})
}

pub(super) fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true}, "logging": {},
        "completions": {}})
}
