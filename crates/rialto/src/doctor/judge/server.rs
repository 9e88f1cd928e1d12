//! How a server starts and ends, and what hosts make of its list of tools.

use std::time::Duration;

use serde_json::Value;

use crate::doctor::finding::{Cure, Finding, Group, Report, Weight};
use crate::terminal::text::{size, span};

/// A cold start that is slower fails in hosts with a short limit: Codex waits for 10 s by default.
const SLOW_START: Duration = Duration::from_secs(10);
/// What is left of 64 characters after the prefix of most hosts.
const NAME_WITH_PREFIX: usize = 51;
/// The longest name that the interfaces of models take.
const NAME_FOR_MODELS: usize = 64;
/// The longest name that the specification recommends.
const NAME_OF_SPECIFICATION: usize = 128;
/// Hosts cut descriptions beyond this.
const DESCRIPTION: usize = 2048;
/// A list that takes more of the context of a model.
const MANY_TOKENS: usize = 20_000;
/// Bytes of a token, roughly.
const BYTES_PER_TOKEN: usize = 4;

/// What was observed of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerSeen {
    pub(crate) name: String,
    /// It is an entry of a host, and no destination of Rialto.
    pub(crate) is_entry: bool,
    /// The address of a remote server.
    pub(crate) url: Option<String>,
    /// Time of the first answer of the first start, or why there is none.
    pub(crate) cold: Option<Result<Duration, Failure>>,
    /// The same of a second start.
    pub(crate) warm: Option<Duration>,
    pub(crate) eras: Vec<String>,
    /// Lines on stdout that are no messages.
    pub(crate) noise: Vec<String>,
    pub(crate) end: EndSeen,
    /// Processes that lived on after their server was killed.
    pub(crate) orphans: Vec<String>,
    pub(crate) tools: Option<Vec<ToolSeen>>,
    /// Why the list of tools is not known.
    pub(crate) list_failure: Option<String>,
}

/// What became of a server whose stdin ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EndSeen {
    /// That was not tried.
    #[default]
    Untried,
    Exited,
    /// It ran on for this long.
    RanOn(Duration),
}

/// Why a server gave no answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) kind: FailureKind,
    /// The lines of its stderr that tell most.
    pub(crate) stderr: Vec<String>,
    /// Variables that it names, that are set here, and that it is not given.
    pub(crate) withheld: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It cannot be started, or ended before it answered.
    #[default]
    Start,
    /// Its program is not there, which is a finding about the machine.
    Program,
    /// It gave no answer in time.
    Late,
    /// It wants a token.
    SignIn,
    /// A remote server cannot be reached.
    Unreachable,
}

/// A tool of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolSeen {
    pub(crate) name: String,
    /// The definition in bytes.
    pub(crate) bytes: usize,
    pub(crate) description_bytes: usize,
    pub(crate) schema: Value,
}

impl ToolSeen {
    /// Reads a definition.
    pub(crate) fn of(definition: &Value) -> Self {
        Self {
            name: definition["name"].as_str().unwrap_or_default().to_owned(),
            bytes: definition.to_string().len(),
            description_bytes: definition["description"].as_str().map_or(0, str::len),
            schema: definition["inputSchema"].clone(),
        }
    }
}

/// Judges a server.
pub(crate) fn judge(seen: &ServerSeen) -> Report {
    let mut report = Report::default();
    let at = (Group::Servers, seen.name.as_str());
    match &seen.cold {
        None => return report,
        Some(Err(failure)) => {
            failed(seen, failure, &mut report);
            return report;
        }
        Some(Ok(cold)) => {
            let warm = seen
                .warm
                .map_or_else(String::new, |warm| format!(", {} when warm", span(warm)));
            let eras = match seen.eras.is_empty() {
                true => String::new(),
                false => format!(", {}", seen.eras.join(" and ")),
            };
            let text = format!("answers after {}{warm}{eras}", span(*cold));
            report.fact(Group::Servers, &seen.name, text);
            if *cold > SLOW_START {
                report.find(Finding::new(
                    at,
                    ("slow_start", Weight::Note),
                    format!("took {} to its first answer", span(*cold)),
                    format!("some hosts give up after {}", span(SLOW_START)),
                    Cure::Run("rialto adopt    # it is then started once, before hosts need it".into()),
                ));
            }
        }
    }
    if let Some(line) = seen.noise.first() {
        report.find(Finding::new(
            at,
            ("noise_on_stdout", Weight::Act),
            format!("writes what is no message to stdout: `{line}`"),
            "stdout belongs to the protocol: strict hosts end the connection at such a line",
            Cure::Do(format!(
                "have the server log to stderr, or let hosts start it through Rialto, which leaves such lines out: rialto adopt ({})",
                seen.name
            )),
        ));
    }
    if let EndSeen::RanOn(limit) = seen.end {
        report.find(Finding::new(
            at,
            ("ignores_end_of_stdin", Weight::Note),
            format!("still ran {} after its stdin had ended", span(limit)),
            "hosts end servers by closing stdin; a host that does no more leaves it running",
            Cure::Run("rialto adopt    # Rialto ends it with SIGTERM, and then SIGKILL".into()),
        ));
    }
    if !seen.orphans.is_empty() {
        report.find(Finding::new(
            at,
            ("orphans", Weight::Note),
            format!(
                "left processes behind when it was killed: {}",
                seen.orphans.join(", ")
            ),
            "a host that kills its server leaves them running",
            Cure::Run("rialto adopt    # Rialto ends all processes of a server".into()),
        ));
    }
    if let Some(why) = &seen.list_failure {
        report.find(Finding::new(
            at,
            ("list_fails", Weight::Act),
            format!("answers, but does not list its tools: {why}"),
            "hosts show a server without tools",
            try_it(seen),
        ));
    }
    if let Some(tools) = &seen.tools {
        judge_tools(&seen.name, tools, &mut report);
    }
    report
}

/// Returns how a person sees all that the server writes.
fn try_it(seen: &ServerSeen) -> Cure {
    match seen.is_entry {
        true => Cure::Do(format!(
            "start the command of {} in a terminal, which shows all that it writes",
            seen.name
        )),
        false => Cure::Run(format!("rialto tools {}", seen.name)),
    }
}

fn failed(seen: &ServerSeen, failure: &Failure, report: &mut Report) {
    let at = (Group::Servers, seen.name.as_str());
    let mut what = failure.why.clone();
    // The line that speaks of an error, if one does, is what a person looks for.
    let speaks = |line: &&String| {
        let line = line.to_ascii_lowercase();
        line.contains("error") || line.contains("required") || line.contains("not found")
    };
    let telling = failure.stderr.iter().find(speaks).or(failure.stderr.last());
    if let Some(line) = telling {
        what.push_str(&format!("; its stderr: `{line}`"));
    }
    if let Some(variable) = failure.withheld.first() {
        report.find(Finding::new(
            at,
            ("variable_withheld", Weight::Act),
            what,
            format!("{variable} is set in this shell, and the server is not given it"),
            Cure::Write {
                file: format!("the entry of {}", seen.name),
                line: format!("env: {{ {variable}: \"${{{variable}}}\" }}"),
            },
        ));
        return;
    }
    let (id, weight, why, cure) = match failure.kind {
        FailureKind::Program => return,
        FailureKind::Start => (
            "does_not_start",
            Weight::Act,
            "hosts show it as failed, mostly without a reason",
            try_it(seen),
        ),
        FailureKind::Late => (
            "no_answer",
            Weight::Later,
            "the first start of a package downloads it; a later one is faster",
            Cure::Run(format!("rialto doctor {} --timeout 5m", seen.name)),
        ),
        FailureKind::SignIn => (
            "sign_in_needed",
            Weight::Act,
            "the server refuses requests without a token",
            Cure::Run(format!(
                "rialto login {}",
                seen.url.as_deref().unwrap_or(&seen.name)
            )),
        ),
        FailureKind::Unreachable => (
            "unreachable",
            Weight::Later,
            "a server that is down comes back, and a wrong address does not",
            Cure::Run(format!("rialto doctor {}", seen.name)),
        ),
    };
    report.find(Finding::new(at, (id, weight), what, why, cure));
}

fn judge_tools(server: &str, tools: &[ToolSeen], report: &mut Report) {
    let at = (Group::Servers, server);
    let bytes: usize = tools.iter().map(|tool| tool.bytes).sum();
    let tokens = bytes / BYTES_PER_TOKEN;
    let text = format!(
        "{} tools, {}, about {tokens} tokens",
        tools.len(),
        size(bytes as u64)
    );
    report.fact(Group::Servers, server, text.clone());
    if tokens > MANY_TOKENS {
        report.find(Finding::new(
            at,
            ("list_is_large", Weight::Note),
            format!("lists {text}"),
            "each conversation begins with the whole list, in hosts that do not search tools",
            Cure::Write {
                file: format!("destination {server}"),
                line: "tools: { allow: [NAME, NAME] }".into(),
            },
        ));
    }
    judge_names(server, tools, report);
    let long: Vec<String> = tools
        .iter()
        .filter(|tool| tool.description_bytes > DESCRIPTION)
        .map(|tool| format!("{} ({})", tool.name, size(tool.description_bytes as u64)))
        .collect();
    if !long.is_empty() {
        report.find(Finding::new(
            at,
            ("long_description", Weight::Note),
            format!("describes tools with more than 2 KB: {}", long.join(", ")),
            "some hosts cut a description there",
            Cure::Do("shorten the description in the server".into()),
        ));
    }
    for tool in tools {
        if let Some(flaw) = flaw_of(&tool.schema) {
            report.find(Finding::new(
                at,
                ("schema_dropped", Weight::Act),
                format!("has the tool `{}`, whose inputSchema {flaw}", tool.name),
                "hosts leave such a tool out, or refuse the whole list",
                Cure::Do(
                    "correct the schema in the server, or hide the tool: tools: { deny: [NAME] }".into(),
                ),
            ));
        }
    }
}

fn judge_names(server: &str, tools: &[ToolSeen], report: &mut Report) {
    let at = (Group::Servers, server);
    for (limit, below, id, weight, why) in [
        (
            NAME_OF_SPECIFICATION,
            usize::MAX,
            "name_over_128",
            Weight::Act,
            "the specification allows 128 characters, and the interfaces of models 64",
        ),
        (
            NAME_FOR_MODELS,
            NAME_OF_SPECIFICATION,
            "name_over_64",
            Weight::Act,
            "the interfaces of models take 64 characters, so hosts leave the tool out or refuse the list",
        ),
        (
            NAME_WITH_PREFIX,
            NAME_FOR_MODELS,
            "name_over_51",
            Weight::Note,
            "hosts such as Claude Code write a prefix with the name of the server before it, and 64 characters hold both",
        ),
    ] {
        let names: Vec<&str> = tools
            .iter()
            .map(|tool| tool.name.as_str())
            .filter(|name| (limit + 1..=below).contains(&name.chars().count()))
            .collect();
        if let Some(first) = names.first() {
            let more = match names.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            report.find(Finding::new(
                at,
                (id, weight),
                format!(
                    "has a tool with a name of {} characters: {first}{more}",
                    first.chars().count()
                ),
                why,
                Cure::Write {
                    file: "an aggregate (docs/aggregates.md)".into(),
                    line: format!("members: {{ {server}: {{ tools: {{ rename: {{ {first}: SHORT }} }} }} }}"),
                },
            ));
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let odd = tools
        .iter()
        .find(|tool| !tool.name.chars().all(is_name) || tool.name.is_empty());
    if let Some(tool) = odd {
        report.find(Finding::new(
            at,
            ("name_with_signs", Weight::Note),
            format!(
                "has a tool with other signs than letters, digits, `_` and `-`: `{}`",
                tool.name
            ),
            "the interfaces of models refuse such a name; some hosts replace it, others leave the tool out",
            Cure::Write {
                file: "an aggregate (docs/aggregates.md)".into(),
                line: format!(
                    "members: {{ {server}: {{ tools: {{ rename: {{ \"{}\": SHORT }} }} }} }}",
                    tool.name
                ),
            },
        ));
    }
}

/// Returns what is wrong with a schema, as a clause whose subject is the schema.
pub(crate) fn flaw_of(schema: &Value) -> Option<String> {
    let Some(map) = schema.as_object() else {
        return Some("is missing".to_owned());
    };
    if map.get("type").and_then(Value::as_str) != Some("object") {
        return Some("is not of the type `object`".to_owned());
    }
    for word in ["oneOf", "anyOf", "allOf"] {
        if map.contains_key(word) {
            return Some(format!("has `{word}` at its top"));
        }
    }
    if let Some(reference) = outside_reference(schema) {
        return Some(format!("refers to another document: `{reference}`"));
    }
    let properties = map.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let is_sign = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_sign) {
            return Some(format!("has a property that models cannot name: `{name}`"));
        }
        let is_array = property["type"].as_str() == Some("array");
        let has_items = ["items", "prefixItems"]
            .iter()
            .any(|word| !property[word].is_null());
        if is_array && !has_items {
            return Some(format!("has the array `{name}` without `items`"));
        }
    }
    None
}

fn outside_reference(schema: &Value) -> Option<&str> {
    match schema {
        Value::Object(map) => {
            let own = map.get("$ref").and_then(Value::as_str);
            own.filter(|reference| !reference.starts_with('#'))
                .or_else(|| map.values().find_map(outside_reference))
        }
        Value::Array(items) => items.iter().find_map(outside_reference),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ids(seen: &ServerSeen) -> Vec<&'static str> {
        judge(seen)
            .findings
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    fn healthy() -> ServerSeen {
        ServerSeen {
            name: "a".into(),
            cold: Some(Ok(Duration::from_secs(1))),
            warm: Some(Duration::from_millis(200)),
            eras: vec!["legacy (2025-11-25)".into()],
            end: EndSeen::Exited,
            tools: Some(vec![tool("echo", 10)]),
            ..ServerSeen::default()
        }
    }

    fn tool(name: &str, description_bytes: usize) -> ToolSeen {
        ToolSeen {
            name: name.into(),
            bytes: 100 + description_bytes,
            description_bytes,
            schema: json!({ "type": "object" }),
        }
    }

    #[test]
    fn healthy_server_has_facts_only() {
        let report = judge(&healthy());
        assert!(report.findings.is_empty(), "{report:?}");
        assert_eq!(
            report.facts[0].text,
            "answers after 1.0 s, 200 ms when warm, legacy (2025-11-25)"
        );
        assert_eq!(report.facts[1].text, "1 tools, 110 B, about 27 tokens");
    }

    #[test]
    fn each_habit_that_hosts_suffer_from_is_named() {
        let slow = ServerSeen {
            cold: Some(Ok(Duration::from_secs(31))),
            ..healthy()
        };
        assert_eq!(ids(&slow), ["slow_start"]);
        let noisy = ServerSeen {
            noise: vec!["Server started!".into()],
            ..healthy()
        };
        assert_eq!(ids(&noisy), ["noise_on_stdout"]);
        let deaf = ServerSeen {
            end: EndSeen::RanOn(Duration::from_secs(2)),
            orphans: vec!["chrome (12)".into()],
            ..healthy()
        };
        assert_eq!(ids(&deaf), ["ignores_end_of_stdin", "orphans"]);
    }

    #[test]
    fn failure_names_the_line_that_tells_and_the_variable_that_lacks() {
        let failure = Failure {
            why: "exited with status 1".into(),
            stderr: vec!["Error: BRAVE_API_KEY is required".into(), "Node.js v22".into()],
            ..Failure::default()
        };
        let of = |failure: &Failure| {
            let seen = ServerSeen {
                name: "search".into(),
                cold: Some(Err(failure.clone())),
                ..ServerSeen::default()
            };
            judge(&seen).findings.remove(0)
        };
        let found = of(&failure);
        assert_eq!((found.id, found.weight), ("does_not_start", Weight::Act));
        assert!(found.what.contains("BRAVE_API_KEY is required"), "{found:?}");
        let found = of(&Failure {
            withheld: vec!["BRAVE_API_KEY".into()],
            ..failure
        });
        assert_eq!(found.id, "variable_withheld");
        let Cure::Write { line, .. } = found.cure else {
            panic!("a line was expected");
        };
        assert_eq!(line, "env: { BRAVE_API_KEY: \"${BRAVE_API_KEY}\" }");
    }

    #[test]
    fn names_are_judged_by_three_limits() {
        for (length, expected) in [
            (51, None),
            (52, Some("name_over_51")),
            (64, Some("name_over_51")),
            (65, Some("name_over_64")),
            (128, Some("name_over_64")),
            (129, Some("name_over_128")),
        ] {
            let seen = ServerSeen {
                tools: Some(vec![tool(&"n".repeat(length), 0)]),
                ..healthy()
            };
            assert_eq!(ids(&seen), Vec::from_iter(expected), "{length}");
        }
        let seen = ServerSeen {
            tools: Some(vec![tool("files/read", 0)]),
            ..healthy()
        };
        assert_eq!(ids(&seen), ["name_with_signs"]);
    }

    #[test]
    fn schemas_that_hosts_drop_are_found() {
        for (schema, flaw) in [
            (json!(null), Some("is missing")),
            (json!({}), Some("is not of the type")),
            (
                json!({"type": "object", "anyOf": []}),
                Some("has `anyOf` at its top"),
            ),
            (
                json!({"type": "object", "properties": {"a": {"$ref": "https://x/y.json"}}}),
                Some("refers to another document"),
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}}}),
                Some("has the array `a` without `items`"),
            ),
            (
                json!({"type": "object", "properties": {"a b": {}}}),
                Some("has a property that models cannot name"),
            ),
            (
                json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"type": "array", "items": {}}}}),
                None,
            ),
        ] {
            let found = flaw_of(&schema);
            match flaw {
                Some(flaw) => assert!(
                    found.as_deref().is_some_and(|found| found.starts_with(flaw)),
                    "{schema}: {found:?}"
                ),
                None => assert_eq!(found, None, "{schema}"),
            }
        }
    }

    #[test]
    fn long_descriptions_and_large_lists_are_notes() {
        let seen = ServerSeen {
            tools: Some(vec![tool("a", 2048), tool("b", 2049)]),
            ..healthy()
        };
        assert_eq!(ids(&seen), ["long_description"]);
        let many: Vec<ToolSeen> = (0..1000).map(|number| tool(&format!("t{number}"), 0)).collect();
        let seen = ServerSeen {
            tools: Some(many),
            ..healthy()
        };
        assert_eq!(ids(&seen), ["list_is_large"]);
        assert_eq!(judge(&seen).exit_code(), 0);
    }
}
