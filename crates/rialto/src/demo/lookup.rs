//! The requests both eras answer alike and at once: lists, prompts, resources, completion. Also how this server
//! introduces itself.
use serde_json::{Value, json};

use super::message::{Object, Refusal, text};
use super::tools::{self, World};
use super::{prompts, resources};

pub(super) const INSTRUCTIONS: &str =
    "A demo of every MCP feature. Start with the tool echo; ask, count and touch show the rest.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    Tools,
    Prompts,
    Prompt,
    Resources,
    Templates,
    Resource,
    Completion,
}

impl Lookup {
    pub(super) fn of(method: &str) -> Option<Lookup> {
        Some(match method {
            "tools/list" => Lookup::Tools,
            "prompts/list" => Lookup::Prompts,
            "prompts/get" => Lookup::Prompt,
            "resources/list" => Lookup::Resources,
            "resources/templates/list" => Lookup::Templates,
            "resources/read" => Lookup::Resource,
            "completion/complete" => Lookup::Completion,
            _ => return None,
        })
    }

    pub(super) fn answer(self, params: &Object, world: &World) -> Result<Value, Refusal> {
        match self {
            Lookup::Tools => first_page(params).map(|()| tools::list(world)),
            Lookup::Prompts => first_page(params).map(|()| prompts::list()),
            Lookup::Prompt => prompts::fetch(params),
            Lookup::Resources => first_page(params).map(|()| resources::list()),
            Lookup::Templates => first_page(params).map(|()| resources::templates()),
            Lookup::Resource => resources::read(text(params, "uri")?, world),
            Lookup::Completion => prompts::complete(params),
        }
    }
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
