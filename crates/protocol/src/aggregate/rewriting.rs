//! Messages on their way between a client and one member: URIs, ids of tasks and states are
//! replaced at known places, by splicing. Text and `structuredContent` stay bytes.
//!
//! | Place | Towards the client | Towards the member |
//! |---|---|---|
//! | URIs of results, prompts, resources, user interfaces, updates | qualified | — |
//! | `params.uri`, `params.ref.uri` | — | the member's own |
//! | ids of tasks | `NAME:id` | the member's own |
//! | `requestState` | `NAME:state` | the member's own; another member's is refused |
//! | questions | the member's title before the text, `includeContext` without `thisServer` | — |
//! | `logger` | `NAME/logger` | — |

use super::places::{Edits, Step, edited};
use super::plan::Member as PlanMember;
use crate::message::{Kind, Member, Message, quoted};
use crate::method::Method;
use crate::object::{Object, may_have};

use Step::{Each, EachMember, Key};

/// Where a message names the task that it is about.
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// Where a question names the member that asks.
const MEMBER: &str = "rialto/member";

const RELATED_ID: [Step; 3] = [Key("_meta"), Key(RELATED), Key("taskId")];
/// The ids of tasks in results. The outcome of a task stands in the answer to `tasks/get`.
const TASKS: [&[Step]; 5] = [
    &[Key("task"), Key("taskId")],
    &[Key("taskId")],
    &[Key("tasks"), Each, Key("taskId")],
    &RELATED_ID,
    &[Key("result"), Key("_meta"), Key(RELATED), Key("taskId")],
];
/// The URIs in results, and in the outcome of a task.
const URIS: [&[Step]; 14] = [
    &[Key("contents"), Each, Key("uri")],
    &[Key("content"), Each, Key("uri")],
    &[Key("content"), Each, Key("resource"), Key("uri")],
    &[Key("messages"), Each, Key("content"), Key("uri")],
    &[Key("messages"), Each, Key("content"), Key("resource"), Key("uri")],
    &[Key("messages"), Each, Key("content"), Each, Key("uri")],
    &[
        Key("messages"),
        Each,
        Key("content"),
        Each,
        Key("resource"),
        Key("uri"),
    ],
    &[Key("_meta"), Key("ui"), Key("resourceUri")],
    &[Key("_meta"), Key("ui/resourceUri")],
    &[Key("result"), Key("content"), Each, Key("uri")],
    &[Key("result"), Key("content"), Each, Key("resource"), Key("uri")],
    &[Key("result"), Key("contents"), Each, Key("uri")],
    &[Key("result"), Key("_meta"), Key("ui"), Key("resourceUri")],
    &[Key("result"), Key("_meta"), Key("ui/resourceUri")],
];

/// What stands between the name of a member and its own id. No name of a member has it.
const MARK: &str = ":";

/// Returns the member that an id of a task or a state names, and the member's own.
pub(crate) fn split_mark(shown: &str) -> Option<(&str, &str)> {
    shown.split_once(MARK)
}

/// A member as its messages name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speaker<'a> {
    pub(crate) member: &'a PlanMember,
    /// What users see where it asks; `None` where there is no other member.
    pub(crate) title: Option<&'a str>,
}

/// A state that another member gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForeignState;

impl Speaker<'_> {
    /// Returns the id of a task, or a state, as the client sees it.
    fn marked(&self, own: &str) -> String {
        [self.member.name(), MARK, own].concat()
    }

    /// Returns the member's own; `None` if it is another member's.
    fn unmarked(&self, shown: &str) -> Option<String> {
        let (member, own) = split_mark(shown)?;
        (member == &**self.member.name()).then(|| own.to_owned())
    }

    // Towards the client.

    /// Returns a member's answer as the client sees it; `None` if it stays as it is.
    pub(crate) fn reply(&self, message: &Message) -> Option<Message> {
        match message.kind() {
            Kind::Result => {}
            Kind::Error => return self.refusal(message),
            Kind::Request | Kind::Notification => return None,
        }
        let raw = message.raw(Member::Result)?;
        // Nearly all results are text: look before taking one apart.
        const NAMES: [&str; 5] = [
            "uri\"",
            "esourceUri\"",
            "taskId\"",
            "requestState\"",
            "inputRequests\"",
        ];
        if !may_have(raw, &NAMES) {
            return None;
        }
        edited(message, Member::Result, |raw, edits| {
            self.outcome(raw, edits);
            edits.strings(raw, &[&[Key("requestState")]], |state| Some(self.marked(state)));
            self.questions(raw, edits);
        })
    }

    /// Returns an error as the client sees it. A legacy server may send its user to addresses first
    /// (2025-11-25, URL elicitation): these are questions too.
    fn refusal(&self, message: &Message) -> Option<Message> {
        let title = self.title?;
        let raw = message.raw(Member::Error)?;
        if !may_have(raw, &["elicitations\""]) {
            return None;
        }
        edited(message, Member::Error, |raw, edits| {
            let texts: [Step; 4] = [Key("data"), Key("elicitations"), Each, Key("message")];
            edits.strings(raw, &[&texts], |text| Some(titled(title, text)));
        })
    }

    /// Rewrites the URIs and the ids of tasks in a result, or in the parameters of a notification
    /// about a task.
    fn outcome(&self, raw: &str, edits: &mut Edits) {
        edits.strings(raw, &TASKS, |id| Some(self.marked(id)));
        if self.member.tag().is_some() {
            edits.strings(raw, &URIS, |uri| Some(self.member.shown_uri(uri)));
        }
    }

    /// Rewrites the questions that stand in a result.
    fn questions(&self, raw: &str, edits: &mut Edits) {
        edits.values(raw, &[&[Key("inputRequests"), EachMember]], |request| {
            self.question_in_a_result(request)
        });
    }

    /// Returns a question that stands in a result as the client sees it; `None` if it stays as it
    /// is.
    fn question_in_a_result(&self, raw: &str) -> Option<String> {
        let mut request = Object::parse(raw.as_bytes())?;
        let mut params = Object::parse(request.get("params").unwrap_or("{}").as_bytes())?;
        let context = params.text("includeContext");
        let context = context.and_then(|context| without_context(&context));
        if context.is_none() && self.title.is_none() {
            return None;
        }
        if let Some(context) = context {
            params.set("includeContext", quoted(&context));
        }
        if let Some(title) = self.title {
            if let Some(text) = params.text("message") {
                params.set("message", quoted(&titled(title, &text)));
            }
            let mut meta = Object::parse(params.get("_meta").unwrap_or("{}").as_bytes()).unwrap_or_default();
            meta.set(MEMBER, quoted(self.member.name()));
            let meta = meta.to_string();
            params.set("_meta", meta);
        }
        let params = params.to_string();
        request.set("params", params);
        Some(request.to_string())
    }

    /// Returns a notification of the member as the client sees it; `None` if it stays as it is.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other notification names anything of its member"
    )]
    pub(crate) fn notice(&self, message: &Message) -> Option<Message> {
        match message.method() {
            Method::ResourcesUpdated => {
                self.member.tag()?;
                let uri = message.text(Member::Uri)?;
                let shown = quoted(&self.member.shown_uri(&uri));
                Some(message.with_replaced(Member::Uri, shown.as_bytes()))
            }
            Method::LogMessage => edited(message, Member::Params, |raw, edits| {
                self.related_task(raw, edits);
                if self.member.prefix().is_empty() {
                    return;
                }
                edits.strings(raw, &[&[Key("logger")]], |logger| {
                    Some([self.member.name(), "/", logger].concat())
                });
            }),
            Method::TasksStatus | Method::Tasks => edited(message, Member::Params, |raw, edits| {
                self.outcome(raw, edits);
                self.questions(raw, edits);
            }),
            _ if message.raw(Member::Meta).is_some() => edited(message, Member::Params, |raw, edits| {
                self.related_task(raw, edits)
            }),
            _ => None,
        }
    }

    fn related_task(&self, raw: &str, edits: &mut Edits) {
        edits.strings(raw, &[&RELATED_ID], |id| Some(self.marked(id)));
    }

    /// Returns a question of the member as the client sees it, which names the member.
    pub(crate) fn question(&self, message: &Message) -> Message {
        let rewritten = edited(message, Member::Params, |raw, edits| {
            self.related_task(raw, edits);
            edits.strings(raw, &[&[Key("includeContext")]], without_context);
            if let (Some(title), Method::ElicitationCreate) = (self.title, message.method()) {
                edits.strings(raw, &[&[Key("message")]], |text| Some(titled(title, text)));
            }
        });
        let message = rewritten.unwrap_or_else(|| message.clone());
        if self.title.is_none() {
            return message;
        }
        let mut meta = message.object(Member::Meta);
        meta.set(MEMBER, quoted(self.member.name()));
        let mut params = message.object(Member::Params);
        params.set("_meta", meta.to_string());
        let params = params.to_string();
        let named = match message.raw(Member::Params) {
            Some(_) => message.spliced(&[(Member::Params, params.as_bytes())]),
            None => {
                let part = |member| String::from_utf8_lossy(message.raw(member).unwrap_or_default());
                let (id, method) = (part(Member::Id), part(Member::Method));
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#).into()
            }
        };
        Message::scan(named).unwrap_or(message)
    }

    // Towards the member.

    /// Returns a request about a task under the member's own id. The id must have been looked up.
    pub(crate) fn own_task_request(&self, message: &Message) -> Message {
        let own = edited(message, Member::Params, |raw, edits| {
            edits.strings(raw, &[&[Key("taskId")]], |id| self.unmarked(id));
            self.own_related_task(raw, edits);
        });
        own.unwrap_or_else(|| message.clone())
    }

    fn own_related_task(&self, raw: &str, edits: &mut Edits) {
        edits.strings(raw, &[&RELATED_ID], |id| self.unmarked(id));
    }

    /// Returns a client's answer as the member sees it; `None` if it stays as it is.
    pub(crate) fn answer(&self, message: &Message) -> Option<Message> {
        let raw = message.raw(Member::Result)?;
        if !may_have(raw, &["related-task"]) {
            return None;
        }
        edited(message, Member::Result, |raw, edits| {
            self.own_related_task(raw, edits)
        })
    }

    /// Returns a request with the member's own state; as it is, if it has none.
    pub(crate) fn own_state(&self, message: Message) -> Result<Message, ForeignState> {
        let has_state = |raw: &&[u8]| may_have(raw, &["requestState"]);
        if message.raw(Member::Params).filter(has_state).is_none() {
            return Ok(message);
        }
        let mut is_foreign = false;
        let own = edited(&message, Member::Params, |raw, edits| {
            edits.strings(raw, &[&[Key("requestState")]], |state| {
                let own = self.unmarked(state);
                is_foreign |= own.is_none();
                own
            });
        });
        match is_foreign {
            true => Err(ForeignState),
            false => Ok(own.unwrap_or(message)),
        }
    }
}

fn titled(title: &str, text: &str) -> String {
    format!("[{title}] {text}")
}

/// The context of the member alone cannot be given: to the client, all members are one server.
fn without_context(value: &str) -> Option<String> {
    (value == "thisServer").then(|| "none".to_owned())
}

/// Returns a request for a resource under the member's own URI.
pub(crate) fn own_uri(message: &Message, own: &str) -> Message {
    message.with_replaced(Member::Uri, quoted(own).as_bytes())
}

/// What a completion is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CompletionRef {
    Prompt(String),
    Resource(String),
}

/// Returns what a completion is for; `None` if that is neither a prompt nor a resource.
pub(crate) fn completion_ref(message: &Message) -> Option<CompletionRef> {
    let params = message.object(Member::Params);
    let reference = Object::parse(params.get("ref")?.as_bytes())?;
    match reference.text("type")?.as_str() {
        "ref/prompt" => reference.text("name").map(CompletionRef::Prompt),
        "ref/resource" => reference.text("uri").map(CompletionRef::Resource),
        _ => None,
    }
}

/// Returns a completion for the member's own prompt or resource.
pub(crate) fn own_completion(message: &Message, own: &CompletionRef) -> Message {
    let (key, text) = match own {
        CompletionRef::Prompt(name) => ("name", name),
        CompletionRef::Resource(uri) => ("uri", uri),
    };
    let edited = edited(message, Member::Params, |raw, edits| {
        edits.values(raw, &[&[Key("ref"), Key(key)]], |_| Some(quoted(text)));
    });
    edited.unwrap_or_else(|| message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::plan::Plan;
    use crate::aggregate::plan::tests::{member, spec};
    use bytes::Bytes;

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn speaking<T>(prefix: Option<&str>, speak: impl FnOnce(Speaker<'_>) -> T) -> T {
        let plan = Plan::new(spec(vec![member("files", prefix)])).unwrap();
        let title = Some("My files");
        speak(Speaker {
            member: &plan.members()[0],
            title,
        })
    }

    fn text(message: &Message) -> &str {
        std::str::from_utf8(message.bytes()).unwrap()
    }

    fn reply(result: &str) -> Option<String> {
        let message = message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
        let reply = speaking(None, |speaker| speaker.reply(&message))?;
        Some(String::from_utf8_lossy(reply.raw(Member::Result).unwrap()).into_owned())
    }

    #[test]
    fn resource_links_inside_results_lead_to_their_owner() {
        for (result, shown) in [
            (
                r#"{"content":[{"type":"text","text":"file:///a"},{"type":"resource_link","uri":"file:///a"},{"type":"resource","resource":{"uri":"file:///b","text":"uri"}}],"structuredContent":{"uri":"file:///a"}}"#,
                r#"{"content":[{"type":"text","text":"file:///a"},{"type":"resource_link","uri":"files+file:///a"},{"type":"resource","resource":{"uri":"files+file:///b","text":"uri"}}],"structuredContent":{"uri":"file:///a"}}"#,
            ),
            (
                r#"{"contents":[{"uri":"file:///a"}],"_meta":{"ui":{"resourceUri":"ui://p"}}}"#,
                r#"{"contents":[{"uri":"files+file:///a"}],"_meta":{"ui":{"resourceUri":"ui://files+p"}}}"#,
            ),
            (
                r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"file:///a"}}}]}"#,
                r#"{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"files+file:///a"}}}]}"#,
            ),
            (
                r#"{"taskId":"t","status":"completed","result":{"content":[{"uri":"file:///a"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}}"#,
                r#"{"taskId":"files:t","status":"completed","result":{"content":[{"uri":"files+file:///a"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"files:t"}}}}"#,
            ),
        ] {
            assert_eq!(reply(result).as_deref(), Some(shown));
        }
        assert_eq!(reply(r#"{"content":[{"type":"text","text":"x"}]}"#), None);
    }

    #[test]
    fn uri_is_rewritten_at_every_known_place_and_nowhere_else() {
        const OWN: &str = r#""uri":"x:1""#;
        const SHOWN: &str = r#""uri":"files+x:1""#;
        for place in [
            r#"{"contents":[{@}]}"#,
            r#"{"content":[{"type":"resource_link",@}]}"#,
            r#"{"content":[{"type":"resource","resource":{@}}]}"#,
            r#"{"messages":[{"content":{@}}]}"#,
            r#"{"messages":[{"content":{"resource":{@}}}]}"#,
            r#"{"messages":[{"content":[{@}]}]}"#,
            r#"{"messages":[{"content":[{"resource":{@}}]}]}"#,
            r#"{"status":"completed","result":{"content":[{@}]}}"#,
            r#"{"status":"completed","result":{"content":[{"resource":{@}}]}}"#,
            r#"{"status":"completed","result":{"contents":[{@}]}}"#,
        ] {
            let (own, shown) = (place.replace('@', OWN), place.replace('@', SHOWN));
            assert_eq!(reply(&own).as_deref(), Some(&*shown));
        }
        for place in [
            r#"{"_meta":{"ui":{"resourceUri":"@"}}}"#,
            r#"{"_meta":{"ui/resourceUri":"@"}}"#,
            r#"{"result":{"_meta":{"ui":{"resourceUri":"@"}}}}"#,
            r#"{"result":{"_meta":{"ui/resourceUri":"@"}}}"#,
        ] {
            let shown = place.replace('@', "ui://files+a");
            assert_eq!(reply(&place.replace('@', "ui://a")).as_deref(), Some(&*shown));
        }
        for bytes in [
            r#"{"structuredContent":{@,"contents":[{@}]}}"#,
            r#"{"content":[{"type":"text","text":"see x:1","_meta":{@}}]}"#,
            r#"{@}"#,
        ] {
            assert_eq!(reply(&bytes.replace('@', OWN)), None, "{bytes}");
        }
    }

    #[test]
    fn member_without_a_prefix_has_its_uris_as_they_are() {
        let result = message(r#"{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"file:///a"}]}}"#);
        assert!(speaking(Some(""), |speaker| speaker.reply(&result)).is_none());
    }

    #[test]
    fn state_of_a_member_comes_back_to_it_alone() {
        let shown = reply(r#"{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{"message":"Sure?"}},"s":{"method":"sampling/createMessage","params":{"includeContext":"thisServer"}},"r":{"method":"roots/list"}},"requestState":"s"}"#).unwrap();
        assert_eq!(
            shown,
            r#"{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{"message":"[My files] Sure?","_meta":{"rialto/member":"files"}}},"s":{"method":"sampling/createMessage","params":{"includeContext":"none","_meta":{"rialto/member":"files"}}},"r":{"method":"roots/list","params":{"_meta":{"rialto/member":"files"}}}},"requestState":"files:s"}"#
        );
        let call = |state: &str| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"x","requestState":"{state}"}}}}"#
            );
            speaking(None, |speaker| speaker.own_state(message(&text)))
        };
        assert!(text(&call("files:s").unwrap()).contains(r#""requestState":"s""#));
        assert_eq!(call("other:s").unwrap_err(), ForeignState);
        assert_eq!(call("s").unwrap_err(), ForeignState);
    }

    #[test]
    fn question_shows_the_member_that_asks() {
        let asked = message(
            r#"{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{"message":"Sure?","requestedSchema":{}}}"#,
        );
        assert_eq!(
            text(&speaking(None, |speaker| speaker.question(&asked))),
            r#"{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{"message":"[My files] Sure?","requestedSchema":{},"_meta":{"rialto/member":"files"}}}"#
        );
        let roots = message(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#);
        assert_eq!(
            text(&speaking(None, |speaker| speaker.question(&roots))),
            r#"{"jsonrpc":"2.0","id":4,"method":"roots/list","params":{"_meta":{"rialto/member":"files"}}}"#
        );
        let sampling = message(
            r#"{"jsonrpc":"2.0","id":4,"method":"sampling/createMessage","params":{"includeContext":"thisServer","messages":[]}}"#,
        );
        let shown = speaking(None, |speaker| speaker.question(&sampling));
        assert!(text(&shown).contains(r#""includeContext":"none""#));
    }

    #[test]
    fn notifications_name_their_member() {
        let shown = |note: &str| {
            let message = message(note);
            let shown = speaking(None, |speaker| speaker.notice(&message)).unwrap();
            text(&shown).to_owned()
        };
        assert!(
            shown(
                r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a"}}"#
            )
            .contains(r#""uri":"files+file:///a""#)
        );
        assert!(
            shown(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"db","data":"uri"}}"#)
                .contains(r#""logger":"files/db""#)
        );
        assert!(
            shown(r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t","status":"working"}}"#)
                .contains(r#""taskId":"files:t""#)
        );
    }

    #[test]
    fn request_names_what_the_member_knows() {
        let get = message(r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"files:t.1"}}"#);
        let own = speaking(None, |speaker| speaker.own_task_request(&get));
        assert!(text(&own).contains(r#""taskId":"t.1""#));
        let complete = message(
            r#"{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"files+file:///{p}"},"argument":{}}}"#,
        );
        let of = completion_ref(&complete).unwrap();
        assert_eq!(of, CompletionRef::Resource("files+file:///{p}".to_owned()));
        let own = own_completion(&complete, &CompletionRef::Resource("file:///{p}".to_owned()));
        assert!(text(&own).contains(r#""uri":"file:///{p}""#));
        let answer = message(
            r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"files:t"}}}}"#,
        );
        let own = speaking(None, |speaker| speaker.answer(&answer)).unwrap();
        assert!(text(&own).contains(r#""taskId":"t""#));
    }
}
