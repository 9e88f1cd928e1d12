//! Where a request of the client goes: decided by what the client is shown and nothing else.

use std::sync::Arc;

use super::CursorSeal;
use super::answers::{self, Answer};
use super::search_tools;
use crate::aggregate::offer::ListKind;
use crate::aggregate::plan::{Member as PlanMember, MemberName, ToolsMode};
use crate::aggregate::rewriting::{
    CompletionRef, Speaker, completion_ref, own_completion, own_uri, split_mark,
};
use crate::aggregate::rules::own_call;
use crate::aggregate::search::SearchTool;
use crate::aggregate::view::{Item, ListRequest, Owner, View};
use crate::error_code;
use crate::exchange::{Call, Client, Failure, Request};
use crate::message::{Member, Message, quoted};
use crate::method::{LogLevel, Method};
use crate::object::{Object, may_have};
use crate::task;
use crate::tool_schema::{ToolHeaders, annotates, arguments_of};
use crate::version::Era;
use crate::wire::header::MirroredParams;

/// Where a request goes.
#[derive(Debug)]
pub(super) enum Way {
    /// To one member.
    Member(Box<Directed>),
    /// Rialto answers it.
    Answer(Answer),
    /// To every member that logs.
    Level(LogLevel),
    /// To every member that has tasks.
    TaskList,
    /// No known member has it. A member of which nothing is known may.
    Unknown(Refusal),
}

/// A request on its way to one member, in the member's own words.
#[derive(Debug)]
pub(super) struct Directed {
    pub(super) at: usize,
    /// What the member calls the tool, the prompt or the resource.
    pub(super) own: String,
    pub(super) request: Request,
    pub(super) message: Message,
}

/// What the client gets if nothing more becomes known.
#[derive(Debug)]
pub(super) enum Refusal {
    Answer(Answer),
    Failure(Failure),
}

/// What the way of a request depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Router<'a> {
    pub(super) view: &'a Arc<View>,
    pub(super) tools: ToolsMode,
    pub(super) cursors: &'a dyn CursorSeal,
    pub(super) client: &'a Client,
    pub(super) era: Era,
}

impl Router<'_> {
    /// Returns where a request goes.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other method is one that Rialto does not know"
    )]
    pub(super) fn way(&self, call: &Call) -> Way {
        if !self.view.is_known() {
            return Way::Unknown(Refusal::Failure(answers::nothing_known(self.view)));
        }
        let message = &call.message;
        match &call.request {
            Request::SetLevel { level } => self.level(*level),
            Request::Subscribe { uri } | Request::Unsubscribe { uri } => self.resource(call, uri),
            Request::Watch { task } => self.task(call, Some(task.clone())),
            Request::Plain => match message.method() {
                Method::ToolsCall => self.tool(call),
                Method::PromptsGet => self.prompt(call),
                Method::ResourcesRead => match message.text(Member::Uri) {
                    Some(uri) => self.resource(call, &uri),
                    None => answer(error_code::INVALID_PARAMS, "`params.uri` must be a string"),
                },
                Method::CompletionComplete => self.completion(call),
                Method::TasksList if !self.view.plan().is_single() => self.task_list(),
                method if method.names_a_task() => self.task(call, task::named(message)),
                method => match ListKind::of(method) {
                    Some(kind) => self.list(kind, message),
                    None => self.other(call),
                },
            },
        }
    }

    fn member(&self, at: usize, own: &str, request: Request, message: Message) -> Way {
        Way::Member(Box::new(Directed {
            at,
            own: own.to_owned(),
            request,
            message,
        }))
    }

    fn speaker(&self, at: usize) -> Option<Speaker<'_>> {
        self.view.speaker(at)
    }

    // Lists.

    fn list(&self, kind: ListKind, message: &Message) -> Way {
        let request = ListRequest {
            kind,
            era: self.era,
            mode: self.tools,
            shows_interfaces: self.client.capabilities.shows_interfaces(),
        };
        let params = message
            .raw(Member::Params)
            .filter(|raw| may_have(raw, &["cursor"]));
        let params = params.and_then(Object::parse).unwrap_or_default();
        let cursor = params.get("cursor").filter(|raw| *raw != "null");
        if let Some(why) = self.view.unread(kind) {
            // An empty list would mean that there is nothing.
            let refused = answers::error(error_code::INTERNAL_ERROR, &why);
            return Way::Unknown(Refusal::Answer(refused));
        }
        let size = self.view.plan().limits().page_size;
        if cursor.is_none() && size.is_none() {
            return Way::Answer((self.view.list(request), self.era));
        }
        let opened = match cursor {
            None => None,
            Some(raw) => {
                let sealed: Option<String> = serde_json::from_str(raw).ok();
                let Some(opened) = sealed.and_then(|sealed| self.cursors.open(&sealed)) else {
                    return bad_cursor();
                };
                Some(opened)
            }
        };
        let seal = |cursor: &str| self.cursors.seal(cursor);
        let size = size.unwrap_or(usize::MAX);
        match self.view.page(request, opened.as_deref(), size, seal) {
            Ok(page) => Way::Answer((page, self.era)),
            Err(_) => bad_cursor(),
        }
    }

    // Names.

    fn tool(&self, call: &Call) -> Way {
        let Some(shown) = call.message.text(Member::Name) else {
            return answer(error_code::INVALID_PARAMS, "`params.name` must be a string");
        };
        let searched = (self.tools == ToolsMode::Search).then(|| SearchTool::named(&shown));
        match searched.flatten() {
            Some(SearchTool::Find) => Way::Answer(search_tools::find(self.view, self.era, &call.message)),
            Some(SearchTool::Call(allowed)) => {
                let inner = match search_tools::inner_call(&call.message) {
                    Ok(inner) => inner,
                    Err(text) => return Way::Answer(answers::failed_tool(self.era, text)),
                };
                let name = inner.text(Member::Name).unwrap_or_default().into_owned();
                let item = self.view.item(ListKind::Tools, &name);
                match item.map(|item| search_tools::check_effect(item, allowed)) {
                    Some(Ok(())) => self.named_tool(None, &name, inner),
                    Some(Err(text)) => Way::Answer(answers::failed_tool(self.era, &text)),
                    None => self.unknown_name("tool", &name),
                }
            }
            None => self.named_tool(Some(call), &shown, call.message.clone()),
        }
    }

    /// Directs a call to the tool of this name. The message may be that within another call, of
    /// whose arguments no header has a copy: `call` is `None` then.
    fn named_tool(&self, call: Option<&Call>, shown: &str, message: Message) -> Way {
        let (at, own) = match self.view.item(ListKind::Tools, shown) {
            Some(item) => {
                if let Some(Err(text)) = call.map(|call| check_mirrored(call, item, &message)) {
                    return answer_mismatch(&text);
                }
                (item.member, &*item.own)
            }
            // A server that is alone knows best what it lacks.
            None => match self.view.sole_namesake(ListKind::Tools, shown) {
                Some(at) => (at, shown),
                None => return self.unknown_name("tool", shown),
            },
        };
        let Some(speaker) = self.speaker(at) else {
            return self.unknown_name("tool", shown);
        };
        self.with_own_state(speaker, at, own, own_call(speaker.member, own, &message))
    }

    fn prompt(&self, call: &Call) -> Way {
        let Some(shown) = call.message.text(Member::Name) else {
            return answer(error_code::INVALID_PARAMS, "`params.name` must be a string");
        };
        let (at, own) = match self.view.item(ListKind::Prompts, &shown) {
            Some(item) => (item.member, &*item.own),
            None => match self.view.sole_namesake(ListKind::Prompts, &shown) {
                Some(at) => (at, &*shown),
                None => return self.unknown_name("prompt", &shown),
            },
        };
        let Some(speaker) = self.speaker(at) else {
            return self.unknown_name("prompt", &shown);
        };
        let message = call.message.with_replaced(Member::Name, quoted(own).as_bytes());
        self.with_own_state(speaker, at, own, message)
    }

    /// Directs a request that may continue an earlier one, by a state of the member.
    fn with_own_state(&self, speaker: Speaker<'_>, at: usize, own: &str, message: Message) -> Way {
        match speaker.own_state(message) {
            Ok(message) => self.member(at, own, Request::Plain, message),
            Err(_) => answer(
                error_code::INVALID_PARAMS,
                "`params.requestState` is not that of this request",
            ),
        }
    }

    fn unknown_name(&self, what: &str, shown: &str) -> Way {
        Way::Unknown(Refusal::Answer(answers::unknown(what, shown)))
    }

    // Resources.

    fn resource(&self, call: &Call, shown: &str) -> Way {
        let (at, own) = match self.view.owner(shown) {
            Owner::Member(at, own) => (at, own),
            Owner::Ambiguous(members) => {
                let text = self.several(&members, shown);
                return Way::Answer(answers::no_resource(shown, &text));
            }
            Owner::Unknown => {
                let text = format!("no member has this resource: {shown}");
                return Way::Unknown(Refusal::Answer(answers::no_resource(shown, &text)));
            }
        };
        let request = match &call.request {
            Request::Subscribe { .. } => Request::Subscribe { uri: own.clone() },
            Request::Unsubscribe { .. } => Request::Unsubscribe { uri: own.clone() },
            Request::Plain | Request::SetLevel { .. } | Request::Watch { .. } => {
                let message = own_uri(&call.message, &own);
                let Some(speaker) = self.speaker(at) else {
                    return self.unknown_name("resource", shown);
                };
                return self
                    .lacks(at, Method::ResourcesRead)
                    .unwrap_or_else(|| self.with_own_state(speaker, at, &own, message));
            }
        };
        if let Some(refusal) = self.lacks(at, Method::ResourcesSubscribe) {
            return refusal;
        }
        self.member(at, &own, request, own_uri(&call.message, &own))
    }

    /// Returns what a client can do about a resource that several members have.
    fn several(&self, members: &[MemberName], shown: &str) -> String {
        let members = members.iter();
        let known = members.filter_map(|member| self.view.plan().member(member));
        let (tagged, bare): (Vec<&PlanMember>, Vec<&PlanMember>) =
            known.partition(|member| member.tag().is_some());
        let uris: Vec<String> = tagged.iter().map(|member| member.shown_uri(shown)).collect();
        let names: Vec<String> = bare.iter().map(|member| format!("`{}`", member.name())).collect();
        match uris.is_empty() {
            true => format!(
                "several members without a prefix have this resource: {}",
                names.join(", ")
            ),
            false => format!(
                "several members have this resource: use one of {}",
                uris.join(", ")
            ),
        }
    }

    fn completion(&self, call: &Call) -> Way {
        let (at, own) = match completion_ref(&call.message) {
            Some(CompletionRef::Prompt(shown)) => match self.view.item(ListKind::Prompts, &shown) {
                Some(item) => (item.member, CompletionRef::Prompt(item.own.to_string())),
                None => match self.view.sole_namesake(ListKind::Prompts, &shown) {
                    Some(at) => (at, CompletionRef::Prompt(shown)),
                    None => return self.unknown_name("prompt", &shown),
                },
            },
            Some(CompletionRef::Resource(shown)) => match self.view.owner_of_template(&shown) {
                Owner::Member(at, own) => (at, CompletionRef::Resource(own)),
                Owner::Ambiguous(members) => {
                    let text = format!("several members have `{shown}`: {}", members.join(", "));
                    return answer(error_code::INVALID_PARAMS, &text);
                }
                Owner::Unknown => return self.unknown_name("resource", &shown),
            },
            // A server that is alone returns its own error.
            None if self.view.plan().is_single() => {
                return self.member(0, "", Request::Plain, call.message.clone());
            }
            None => {
                return answer(
                    error_code::INVALID_PARAMS,
                    "`params.ref` names no prompt and no resource",
                );
            }
        };
        if let Some(refusal) = self.lacks(at, Method::CompletionComplete) {
            return refusal;
        }
        let name = match &own {
            CompletionRef::Prompt(name) => name,
            CompletionRef::Resource(uri) => uri,
        };
        self.member(at, name, Request::Plain, own_completion(&call.message, &own))
    }

    // Tasks.

    fn task_list(&self) -> Way {
        match self.view.with_tasks(|_| true).next().is_some() {
            true => Way::TaskList,
            false => answer(error_code::METHOD_NOT_FOUND, "no member has tasks"),
        }
    }

    fn task(&self, call: &Call, shown: Option<String>) -> Way {
        let found = shown.as_deref().and_then(|shown| {
            let (member, own) = split_mark(shown)?;
            Some((self.view.position(member)?, own))
        });
        let Some((at, own)) = found else {
            return self.unknown_name("task", shown.as_deref().unwrap_or_default());
        };
        let Some(speaker) = self.speaker(at) else {
            return self.unknown_name("task", own);
        };
        let request = match &call.request {
            Request::Watch { .. } => Request::Watch { task: own.to_owned() },
            other @ (Request::Plain
            | Request::Subscribe { .. }
            | Request::Unsubscribe { .. }
            | Request::SetLevel { .. }) => other.clone(),
        };
        let message = speaker.own_task_request(&call.message);
        self.lacks(at, Method::TasksGet)
            .unwrap_or_else(|| self.member(at, own, request, message))
    }

    // The rest.

    fn level(&self, level: LogLevel) -> Way {
        match self.view.declarations().plain(self.era).logs {
            true => Way::Level(level),
            false => answer(error_code::METHOD_NOT_FOUND, "no member has `logging`"),
        }
    }

    /// Directs a method that only an extension knows to the one member that has extensions.
    fn other(&self, call: &Call) -> Way {
        let at = match self.view.plan().is_single() {
            true => Some(0),
            false => self.view.sole_extended(self.client),
        };
        match at {
            Some(at) => self.member(at, "", Request::Plain, call.message.clone()),
            None => {
                let method = call.message.method_name().unwrap_or_default();
                let text = format!("no member alone declares an extension for `{method}`");
                answer(error_code::METHOD_NOT_FOUND, &text)
            }
        }
    }

    /// Returns the refusal, if the member is known to lack this method.
    fn lacks(&self, at: usize, method: Method) -> Option<Way> {
        let server = self.view.offer(at)?.server_info();
        let has = match method == Method::ResourcesSubscribe {
            true => server.subscriptions,
            false => server.declares(method),
        };
        // A server that is alone refuses in its own words.
        if has || self.view.plan().is_single() {
            return None;
        }
        let name = self.view.plan().members().get(at)?.name();
        let method = method.name().unwrap_or_default();
        let text = format!("`{name}` does not have `{method}`");
        Some(answer(error_code::METHOD_NOT_FOUND, &text))
    }
}

fn answer(code: i32, text: &str) -> Way {
    Way::Answer(answers::error(code, text))
}

fn answer_mismatch(text: &str) -> Way {
    let (message, _) = answers::error(error_code::HEADER_MISMATCH, text);
    Way::Answer((message, crate::client_face::modern::ERA))
}

fn bad_cursor() -> Way {
    answer(
        error_code::INVALID_PARAMS,
        "`params.cursor` is not one of this list",
    )
}

/// Checks that the headers of a call agree with its arguments, by the schema that the client was
/// shown. The member gets headers of its own.
fn check_mirrored(call: &Call, item: &Item, message: &Message) -> Result<(), String> {
    let Some(mirrored) = &call.mirrored else {
        return Ok(());
    };
    if mirrored.is_empty() && !annotates(&item.raw) {
        return Ok(());
    }
    let tool: serde_json::Value = serde_json::from_str(&item.raw).unwrap_or_default();
    let schema = tool.get("inputSchema").unwrap_or(&serde_json::Value::Null);
    let (headers, _) = ToolHeaders::read_valid(schema);
    check(mirrored, &headers, message)
}

fn check(mirrored: &MirroredParams, headers: &ToolHeaders, message: &Message) -> Result<(), String> {
    let arguments = arguments_of(message).map_err(|_| "`params.arguments` stands twice".to_owned())?;
    mirrored
        .check(headers, arguments)
        .map_err(|mismatch| mismatch.to_string())
}
