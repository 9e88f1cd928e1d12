//! A client's capabilities, reduced to those that decide whether two clients may share an instance.

use serde_json::Value;

use crate::message::{Member, Message};
use crate::method::Method;
use crate::{mcp_apps, task};

/// The capabilities a server may act upon, as far as the protocol knows them. Two clients with
/// equal capabilities may share a child, because a legacy server receives its client's capabilities
/// once, at its handshake. Names that a client invents count for nothing: each could start a child
/// of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Capabilities {
    elicitation_form: bool,
    elicitation_url: bool,
    sampling: bool,
    sampling_tools: bool,
    sampling_context: bool,
    roots: bool,
    roots_list_changed: bool,
    /// The extension of the modern era, not the core feature of the legacy one.
    tasks: bool,
    /// The core feature of 2025-11-25, and the requests of a server that a client may work on as
    /// tasks.
    core_tasks: bool,
    sampling_tasks: bool,
    elicitation_tasks: bool,
    /// The extension for user interfaces ("MCP Apps"): servers offer other tools because of it.
    interfaces: bool,
}

impl Capabilities {
    /// Reads a raw `capabilities` object. What is not understood counts as not declared.
    pub fn parse(raw: Option<&[u8]>) -> Self {
        let Some(value) = raw.and_then(|raw| serde_json::from_slice::<Value>(raw).ok()) else {
            return Self::default();
        };
        let elicitation = value.get("elicitation").filter(|value| value.is_object());
        let sampling = value.get("sampling").filter(|value| value.is_object());
        let roots = value.get("roots").filter(|value| value.is_object());
        let part = |of: Option<&Value>, key: &str| of.is_some_and(|value| value.get(key).is_some());
        let extends = |name: &str| {
            let extension = value
                .get("extensions")
                .and_then(|extensions| extensions.get(name));
            extension.is_some_and(Value::is_object)
        };
        let tasks = value.get("tasks").filter(|value| value.is_object());
        let works = |pointer: &str| tasks.is_some_and(|tasks| tasks.pointer(pointer).is_some());
        Self {
            // 2025-06-18 knew only forms and wrote `elicitation: {}` for them.
            elicitation_form: elicitation.is_some()
                && (part(elicitation, "form") || !part(elicitation, "url")),
            elicitation_url: part(elicitation, "url"),
            sampling: sampling.is_some(),
            sampling_tools: part(sampling, "tools"),
            sampling_context: part(sampling, "context"),
            roots: roots.is_some(),
            roots_list_changed: roots
                .is_some_and(|value| value.get("listChanged") == Some(&Value::Bool(true))),
            tasks: extends(task::EXTENSION),
            core_tasks: tasks.is_some(),
            sampling_tasks: works("/requests/sampling/createMessage"),
            elicitation_tasks: works("/requests/elicitation/create"),
            interfaces: extends(mcp_apps::EXTENSION),
        }
    }

    fn flags(&self) -> [bool; 12] {
        [
            self.elicitation_form,
            self.elicitation_url,
            self.sampling,
            self.sampling_tools,
            self.sampling_context,
            self.roots,
            self.roots_list_changed,
            self.tasks,
            self.core_tasks,
            self.sampling_tasks,
            self.elicitation_tasks,
            self.interfaces,
        ]
    }

    /// Returns how well a server that received these capabilities suits a client with others; more
    /// is better. A server that received everything that the client can do suits it best, the less
    /// it received beside it the better; after that the server that received most of it.
    pub fn fitness(&self, client: &Self) -> impl Ord + use<> {
        let (declared, wanted) = (self.flags(), client.flags());
        let pairs = || declared.iter().zip(&wanted);
        let missing = pairs()
            .filter(|(declared, wanted)| !**declared && **wanted)
            .count();
        let surplus = pairs()
            .filter(|(declared, wanted)| **declared && !**wanted)
            .count();
        (std::cmp::Reverse(missing), std::cmp::Reverse(surplus))
    }

    /// Returns whether such a client can be given a task in place of a result.
    pub fn takes_tasks(&self) -> bool {
        self.tasks
    }

    /// Returns whether such a client shows the user interfaces of tools.
    pub fn shows_interfaces(&self) -> bool {
        self.interfaces
    }

    /// Returns whether a server's request of this method can be answered by such a client.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other method is treated alike"
    )]
    pub fn can_answer(&self, method: Method) -> bool {
        match method {
            Method::SamplingCreateMessage => self.sampling,
            Method::ElicitationCreate => self.elicitation_form || self.elicitation_url,
            Method::RootsList => self.roots,
            _ => true,
        }
    }

    /// Returns whether such a client can answer in the very way that a question wants: forms and
    /// URLs, and sampling with tools, are declared one by one. `includeContext` is not looked at:
    /// before 2025-11-25 it needed no declaration.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other method is treated alike"
    )]
    pub fn can_answer_in_kind(&self, question: &Message) -> bool {
        let params = || question.object(Member::Params);
        match question.method() {
            Method::ElicitationCreate => match params().text("mode").as_deref() {
                None | Some("form") => self.elicitation_form,
                Some("url") => self.elicitation_url,
                Some(_) => true,
            },
            Method::SamplingCreateMessage => {
                let params = params();
                self.sampling_tools || (params.get("tools").is_none() && params.get("toolChoice").is_none())
            }
            _ => true,
        }
    }

    /// Every capability of the legacy era at once, and the extensions that Rialto knows, for a
    /// backend that is declared the union. Tasks are left out: they are the server's to offer, and
    /// Rialto never takes them from a server.
    pub const ALL_JSON: &'static str = r#"{"elicitation":{"form":{},"url":{}},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}}}"#;
}

/// Returns, as JSON, what a client must declare to be asked this, if anything.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other method is treated alike"
)]
pub fn required_for(question: &Message) -> Option<&'static str> {
    let params = question.object(Member::Params);
    match question.method() {
        Method::SamplingCreateMessage => {
            let tools = params.get("tools").is_some() || params.get("toolChoice").is_some();
            Some(match tools {
                true => r#"{"sampling":{"tools":{}}}"#,
                false => r#"{"sampling":{}}"#,
            })
        }
        Method::ElicitationCreate => Some(match params.text("mode").as_deref() {
            Some("url") => r#"{"elicitation":{"url":{}}}"#,
            _ => r#"{"elicitation":{"form":{}}}"#,
        }),
        Method::RootsList => Some(r#"{"roots":{}}"#),
        _ => None,
    }
}

/// Returns, as JSON, what a client must declare to be asked all of these.
pub fn join_required(required: impl IntoIterator<Item = &'static str>) -> String {
    let mut joined = serde_json::Map::new();
    for required in required {
        let Ok(Value::Object(required)) = serde_json::from_str(required) else {
            continue;
        };
        for (name, parts) in required {
            match (joined.get_mut(&name), parts) {
                (Some(Value::Object(joined)), Value::Object(parts)) => joined.extend(parts),
                (Some(_), _) => {}
                (None, parts) => {
                    joined.insert(name, parts);
                }
            }
        }
    }
    Value::Object(joined).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Capabilities {
        Capabilities::parse(Some(text.as_bytes()))
    }

    #[test]
    fn equal_declarations_are_equal_however_they_are_written() {
        assert_eq!(
            parse(r#"{"sampling":{},"roots":{"listChanged":true}}"#),
            parse(r#"{"roots":{"listChanged":true}, "sampling":{}}"#)
        );
        assert_ne!(parse(r#"{"sampling":{}}"#), parse("{}"));
        assert_ne!(parse(r#"{"sampling":{"tools":{}}}"#), parse(r#"{"sampling":{}}"#));
        assert_eq!(parse("{}"), Capabilities::parse(None));
    }

    #[test]
    fn invented_client_capabilities_make_no_difference() {
        for invented in [
            r#"{"extensions":{"a":{}}}"#,
            r#"{"extensions":{"b":{"c":1}}}"#,
            r#"{"experimental":{"x":{}}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":1}}"#,
            r#"{"tasks":[1]}"#,
        ] {
            assert_eq!(parse(invented), parse("{}"), "{invented}");
        }
        for known in [
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            r#"{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":[]}}}"#,
            r#"{"tasks":{}}"#,
            r#"{"tasks":{"requests":{"sampling":{"createMessage":{}}}}}"#,
        ] {
            assert_ne!(parse(known), parse("{}"), "{known}");
        }
    }

    #[test]
    fn server_with_matching_capabilities_suits_a_client_best() {
        let client = parse(r#"{"sampling":{}}"#);
        let exact = parse(r#"{"sampling":{}}"#);
        let more = parse(r#"{"sampling":{},"roots":{}}"#);
        let most = parse(Capabilities::ALL_JSON);
        let other = parse(r#"{"roots":{}}"#);
        let none = parse("{}");
        let mut declared = [&other, &most, &none, &exact, &more];
        declared.sort_by_key(|declared| std::cmp::Reverse(declared.fitness(&client)));
        assert_eq!(declared, [&exact, &more, &most, &none, &other]);
    }

    #[test]
    fn bare_elicitation_means_forms() {
        assert_eq!(
            parse(r#"{"elicitation":{}}"#),
            parse(r#"{"elicitation":{"form":{}}}"#)
        );
        assert_ne!(
            parse(r#"{"elicitation":{"url":{}}}"#),
            parse(r#"{"elicitation":{}}"#)
        );
        assert!(parse(r#"{"elicitation":{"url":{}}}"#).can_answer(Method::ElicitationCreate));
        assert!(!parse("{}").can_answer(Method::RootsList));
    }

    #[test]
    fn forms_urls_and_tools_are_declared_one_by_one() {
        let question = |method: &str, params: &str| {
            Message::own(format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#
            ))
        };
        let (form, url) = (
            parse(r#"{"elicitation":{}}"#),
            parse(r#"{"elicitation":{"url":{}}}"#),
        );
        for (params, by_form, by_url) in [
            ("{}", true, false),
            (r#"{"mode":"form"}"#, true, false),
            (r#"{"mode":"url"}"#, false, true),
        ] {
            let question = question("elicitation/create", params);
            assert_eq!(form.can_answer_in_kind(&question), by_form, "{params}");
            assert_eq!(url.can_answer_in_kind(&question), by_url, "{params}");
        }
        let sampling = question("sampling/createMessage", r#"{"tools":[]}"#);
        assert!(!parse(r#"{"sampling":{}}"#).can_answer_in_kind(&sampling));
        assert!(parse(r#"{"sampling":{"tools":{}}}"#).can_answer_in_kind(&sampling));
    }

    #[test]
    fn capabilities_that_several_questions_need_are_joined() {
        let url = r#"{"elicitation":{"url":{}}}"#;
        let form = r#"{"elicitation":{"form":{}}}"#;
        let roots = r#"{"roots":{}}"#;
        let joined = parse(&join_required([url, roots, form, roots]));
        assert_eq!(
            joined,
            parse(r#"{"elicitation":{"form":{},"url":{}},"roots":{}}"#)
        );
    }

    #[test]
    fn the_union_declares_everything() {
        let all = parse(Capabilities::ALL_JSON);
        for method in [
            Method::SamplingCreateMessage,
            Method::ElicitationCreate,
            Method::RootsList,
        ] {
            assert!(all.can_answer(method));
        }
        assert!(all.shows_interfaces());
    }
}
