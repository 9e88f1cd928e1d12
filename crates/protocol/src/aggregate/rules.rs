//! What the configuration changes about a tool: its name, description, hints and fixed arguments,
//! in its definition and in calls of it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::places::{Edits, Step};
use super::plan::{Annotations, Member as PlanMember};
use crate::message::{Member, Message, quoted};
use crate::object::{Object, elements};
use crate::tool_schema::arguments_of;

/// How far a call of a tool may reach, from its hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    /// It changes nothing.
    Read,
    /// It adds to what is there.
    Write,
    /// It may change or remove what is there. Without hints every tool may.
    Destructive,
}

impl Effect {
    /// Returns the effect that a tool's hints allow.
    pub(crate) fn of(tool: &str) -> Self {
        let tool = Object::parse(tool.as_bytes()).unwrap_or_default();
        let hints = tool.get("annotations").unwrap_or("{}");
        let hints = Object::parse(hints.as_bytes()).unwrap_or_default();
        let is = |name: &str, value: &str| hints.get(name) == Some(value);
        match (is("readOnlyHint", "true"), is("destructiveHint", "false")) {
            (true, _) => Self::Read,
            (false, true) => Self::Write,
            (false, false) => Self::Destructive,
        }
    }
}

/// Returns a tool's definition as clients see it. Without rules only the name and the URIs of user
/// interfaces change, and every other byte stays.
pub(crate) fn shown_tool(member: &PlanMember, own: &str, shown: &str, raw: &str) -> String {
    let mut edits = Edits::default();
    if own != shown {
        edits.values(raw, &[&[Step::Key("name")]], |_| Some(quoted(shown)));
    }
    qualify_interfaces(member, raw, &mut edits);
    let text = edits.apply(raw).unwrap_or_else(|| raw.to_owned());
    let rules = member.rules();
    let (description, hidden, hints) = (
        rules.describe.get(own),
        rules.hide_args.get(own),
        rules.annotations.get(own),
    );
    if description.is_none() && hidden.is_none() && hints.is_none() {
        return text;
    }
    let Some(mut tool) = Object::parse(text.as_bytes()) else {
        return text;
    };
    if let Some(description) = description {
        tool.set("description", quoted(description));
    }
    if let Some(hidden) = hidden {
        let schema = tool.get("inputSchema").map(|raw| without_arguments(raw, hidden));
        if let Some(schema) = schema {
            tool.set("inputSchema", schema);
        }
    }
    if let Some(hints) = hints {
        let annotations = stricter(tool.get("annotations").unwrap_or("{}"), hints);
        tool.set("annotations", annotations);
    }
    tool.to_string()
}

/// Where a tool names its user interface.
const INTERFACES: [&[Step]; 2] = [
    &[Step::Key("_meta"), Step::Key("ui"), Step::Key("resourceUri")],
    &[Step::Key("_meta"), Step::Key("ui/resourceUri")],
];

/// Makes the URIs of a tool's user interface those that clients see.
fn qualify_interfaces(member: &PlanMember, raw: &str, edits: &mut Edits) {
    if member.tag().is_none() {
        return;
    }
    edits.strings(raw, &INTERFACES, |uri| Some(member.shown_uri(uri)));
}

/// Returns a schema without arguments that are fixed.
fn without_arguments(raw: &str, hidden: &BTreeMap<String, Value>) -> String {
    let Some(mut schema) = Object::parse(raw.as_bytes()) else {
        return raw.to_owned();
    };
    if let Some(mut properties) = schema
        .get("properties")
        .and_then(|raw| Object::parse(raw.as_bytes()))
    {
        properties.retain(|name| !hidden.contains_key(name));
        let properties = properties.to_string();
        schema.set("properties", properties);
    }
    if let Some(required) = schema.get("required").and_then(elements) {
        let kept = required.into_iter().filter(|raw| {
            let name: Option<String> = serde_json::from_str(raw).ok();
            name.is_none_or(|name| !hidden.contains_key(&name))
        });
        let required = format!("[{}]", kept.collect::<Vec<_>>().join(","));
        schema.set("required", required);
    }
    schema.to_string()
}

/// Returns hints of which some are stricter. A value that would be laxer changes nothing.
fn stricter(raw: &str, hints: &Annotations) -> String {
    let mut annotations = Object::parse(raw.as_bytes()).unwrap_or_default();
    // Beside `readOnlyHint` the other hint would mean nothing (2025-11-25, `ToolAnnotations`).
    let read_only = match hints.destructive {
        Some(true) => Some(false),
        Some(false) | None => hints.read_only,
    };
    for (name, strict, wanted) in [
        ("readOnlyHint", false, read_only),
        ("destructiveHint", true, hints.destructive),
        ("idempotentHint", false, hints.idempotent),
        ("openWorldHint", true, hints.open_world),
    ] {
        if wanted == Some(strict) {
            annotations.set(name, strict.to_string());
        }
    }
    annotations.to_string()
}

/// Returns a call under the member's own name of the tool, with its fixed arguments.
pub(crate) fn own_call(member: &PlanMember, own: &str, message: &Message) -> Message {
    let renamed = message.with_replaced(Member::Name, quoted(own).as_bytes());
    match member.rules().hide_args.get(own) {
        None => renamed,
        Some(fixed) => with_arguments(&renamed, |arguments| {
            for (name, value) in fixed {
                arguments.set(name, value.to_string());
            }
        }),
    }
}

fn with_arguments(message: &Message, change: impl FnOnce(&mut Object<'_>)) -> Message {
    let raw = arguments_of(message).ok().flatten().unwrap_or(b"{}");
    let mut arguments = Object::parse(raw).unwrap_or_default();
    change(&mut arguments);
    let arguments = arguments.to_string();
    let mut params = message.object(Member::Params);
    params.set("arguments", arguments);
    let spliced = message.spliced(&[(Member::Params, params.to_string().as_bytes())]);
    Message::scan(spliced).unwrap_or_else(|_| message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::plan::tests::{member, spec};
    use crate::aggregate::plan::{Plan, ToolRules};
    use bytes::Bytes;

    fn plan(rules: ToolRules) -> Plan {
        let mut github = member("github", Some("gh"));
        github.tools = rules;
        Plan::new(spec(vec![github])).unwrap()
    }

    fn tool(rules: ToolRules, raw: &str) -> String {
        shown_tool(&plan(rules).members()[0], "old", "gh__old", raw)
    }

    #[test]
    fn only_the_name_and_the_interface_of_a_tool_change() {
        let raw = r#"{ "name" : "old", "n":1.50, "_meta":{"ui":{"resourceUri":"ui://a/b"},"ui/resourceUri":"ui://c","x":"ui://d"} }"#;
        assert_eq!(
            tool(ToolRules::default(), raw),
            r#"{ "name" : "gh__old", "n":1.50, "_meta":{"ui":{"resourceUri":"ui://github+a/b"},"ui/resourceUri":"ui://github+c","x":"ui://d"} }"#
        );
    }

    #[test]
    fn tool_is_described_anew_and_hides_fixed_arguments() {
        let rules = ToolRules {
            describe: [("old".to_owned(), "new text".to_owned())].into(),
            hide_args: [("old".to_owned(), [("repo".to_owned(), Value::from("a/b"))].into())].into(),
            ..ToolRules::default()
        };
        let raw = r#"{"name":"old","description":"text","inputSchema":{"type":"object","properties":{"repo":{},"title":{"type":"string"}},"required":["repo","title"]}}"#;
        assert_eq!(
            tool(rules.clone(), raw),
            r#"{"name":"gh__old","description":"new text","inputSchema":{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]}}"#
        );
        let plan = plan(rules);
        let call = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
            let message = Message::scan(Bytes::from(text)).unwrap();
            let own = own_call(&plan.members()[0], "old", &message);
            assert_eq!(own.text(Member::Name).as_deref(), Some("old"));
            String::from_utf8(own.raw(Member::Params).unwrap().to_vec()).unwrap()
        };
        let fixed = r#"{"name":"old","arguments":{"title":"t","repo":"a/b"}}"#;
        assert_eq!(call(r#"{"name":"gh__old","arguments":{"title":"t"}}"#), fixed);
        assert_eq!(
            call(r#"{"name":"gh__old","arguments":{"title":"t","repo":"mine"}}"#),
            fixed,
            "a client cannot choose it"
        );
        assert_eq!(
            call(r#"{"name":"gh__old"}"#),
            r#"{"name":"old","arguments":{"repo":"a/b"}}"#
        );
    }

    #[test]
    fn hints_become_stricter_and_never_laxer() {
        let hints = |read_only, destructive, raw: &str| {
            let annotations = Annotations {
                read_only,
                destructive: Some(destructive),
                ..Annotations::default()
            };
            let rules = ToolRules {
                annotations: [("old".to_owned(), annotations)].into(),
                ..ToolRules::default()
            };
            tool(rules, raw)
        };
        let raw = r#"{"name":"old","annotations":{"readOnlyHint":true,"destructiveHint":false}}"#;
        assert_eq!(Effect::of(raw), Effect::Read);
        assert_eq!(Effect::of(&hints(Some(false), true, raw)), Effect::Destructive);
        assert_eq!(
            Effect::of(&hints(None, true, raw)),
            Effect::Destructive,
            "a tool that destroys does not only read"
        );
        let strict = r#"{"name":"old","annotations":{"readOnlyHint":false,"destructiveHint":true}}"#;
        assert_eq!(Effect::of(&hints(Some(true), false, strict)), Effect::Destructive);
        assert_eq!(Effect::of(r#"{"name":"old"}"#), Effect::Destructive);
        assert_eq!(
            Effect::of(r#"{"annotations":{"destructiveHint":false}}"#),
            Effect::Write
        );
    }
}
