//! The tools by which a client searches a large catalogue, and calls what it has found.

use super::answers::{self, Answer};
use crate::aggregate::rules::Effect;
use crate::aggregate::search::Query;
use crate::aggregate::view::{Item, View};
use crate::client_face::own_answers::tool_answer;
use crate::message::{Member, Message, quoted};
use crate::object::Object;
use crate::tool_schema::arguments_of;
use crate::version::Era;

/// Returns the answer to a search: full definitions, the best first.
pub(super) fn find(view: &View, era: Era, message: &Message) -> Answer {
    let query = match arguments_of(message).map_err(|_| "`arguments` stands twice") {
        Ok(arguments) => Query::read(arguments),
        Err(text) => Err(text),
    };
    let query = match query {
        Ok(query) => query,
        Err(text) => return answers::failed_tool(era, text),
    };
    let wanted = match query
        .member
        .as_deref()
        .map(|member| (member, view.position(member)))
    {
        None => None,
        Some((_, Some(at))) => Some(at),
        Some((member, None)) => {
            let known: Vec<&str> = view
                .plan()
                .members()
                .iter()
                .map(|known| &**known.name())
                .collect();
            let text = format!("there is no member `{member}`; there are: {}", known.join(", "));
            return answers::failed_tool(era, &text);
        }
    };
    let is_wanted = |at: usize| wanted.is_none() || view.tool_member(at) == wanted;
    let keep = |at: usize| is_wanted(at) && view.is_for_models(at);
    let found = view.index().find(&query.text, query.limit, keep).into_iter();
    let tools: Vec<String> = found.filter_map(|at| view.tool_definition(at, era)).collect();
    let found = format!(r#"{{"tools":[{}]}}"#, tools.join(","));
    let result = format!(
        r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{found}}}"#,
        quoted(&found)
    );
    (tool_answer(era, &result), era)
}

/// Returns the shown name of the tool that a call of [`SEARCH_TOOLS`] is to call, if it names one.
/// A rule about tools must be judged on this name: it is the one that is called, also where the
/// arguments have something that other readers refuse.
///
/// [`SEARCH_TOOLS`]: crate::aggregate::SEARCH_TOOLS
pub fn tool_within(message: &Message) -> Option<String> {
    outer_arguments(message).ok()?.text("name")
}

fn outer_arguments(message: &Message) -> Result<Object<'_>, &'static str> {
    let raw = arguments_of(message).map_err(|_| "`arguments` stands twice")?;
    Ok(raw.and_then(Object::parse).unwrap_or_default())
}

/// Returns the call that the arguments of another one describe, with everything else of that one.
pub(super) fn inner_call(message: &Message) -> Result<Message, &'static str> {
    let outer = outer_arguments(message)?;
    let name = outer.text("name").ok_or("`name` must be the name of a tool")?;
    let arguments = outer.get("arguments").filter(|raw| *raw != "null");
    if arguments.is_some_and(|raw| !raw.starts_with('{')) {
        return Err("`arguments` must be an object");
    }
    let mut params = message.object(Member::Params);
    params.set("name", quoted(&name));
    match arguments {
        Some(raw) => params.set("arguments", raw.to_owned()),
        None => params.remove("arguments"),
    }
    let params = params.to_string();
    let spliced = message.spliced(&[(Member::Params, params.as_bytes())]);
    Message::scan(spliced).map_err(|_| "the call cannot be read")
}

/// Checks that a tool does no more than the client was asked to approve.
pub(super) fn check_effect(item: &Item, allowed: Effect) -> Result<(), String> {
    let effect = Effect::of(&item.raw);
    if effect <= allowed {
        return Ok(());
    }
    let needed = match effect {
        Effect::Read => "call_read",
        Effect::Write => "call_write",
        Effect::Destructive => "call_destructive",
    };
    Err(format!(
        "`{}` may do more than this allows, by its annotations: call it with `{needed}`",
        item.shown
    ))
}
