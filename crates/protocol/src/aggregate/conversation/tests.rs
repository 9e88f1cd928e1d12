//! Conversations of one client with two or three members, ask by ask and tell by tell.

mod lists;
mod members;
mod questions;
mod resources;
mod tools;

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::aggregate::catalogue::{Catalogue, CatalogueOutput};
use crate::aggregate::offer::Offer;
use crate::aggregate::offer::tests::offer;
use crate::aggregate::plan::tests::{member, spec};
use crate::aggregate::plan::{Plan, PlanSpec};
use crate::aggregate::view::MemberState;
use crate::client_face::{legacy, modern};
use crate::exchange::Principal;
use bytes::Bytes;
use serde_json::{Value, json};

const SESSION: SessionKey = SessionKey(7);

/// What a server declares that has everything.
const ALL: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{},"tasks":{"list":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"s","title":"The server","version":"1"}}"#;
const MODERN: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m","version":"1"}}}"#;

/// A cursor that is sealed by being written backwards, and by a `!`.
#[derive(Debug)]
struct Backwards;

impl CursorSeal for Backwards {
    fn seal(&self, cursor: &str) -> Option<String> {
        Some(cursor.chars().rev().chain(['!']).collect())
    }

    fn open(&self, sealed: &str) -> Option<String> {
        Some(sealed.strip_suffix('!')?.chars().rev().collect())
    }
}

/// Everything that a machine wants done, by kind.
#[derive(Debug, Default)]
struct Outputs {
    asks: Vec<(String, Ask)>,
    tells: Vec<Tell>,
    routed: Vec<Routed>,
    reads: Vec<String>,
}

struct Bench {
    catalogue: Catalogue,
    conversation: Conversation,
    now: Moment,
    era: Era,
    calls: u64,
}

fn named(names: &[&str]) -> Vec<String> {
    let items = names.iter().map(|name| json!({ "name": name }).to_string());
    items.collect()
}

/// Returns an offer of these tools, prompts, resources and templates.
fn offering(
    declared: &str,
    tools: &[String],
    prompts: &[&str],
    uris: &[&str],
    templates: &[&str],
) -> Arc<Offer> {
    let era = if declared == MODERN {
        Era::Modern
    } else {
        Era::Legacy
    };
    let listed = |key: &str, texts: &[&str]| -> Vec<String> {
        let items = texts
            .iter()
            .map(|text| json!({ key: text, "name": "n" }).to_string());
        items.collect()
    };
    let (prompts, uris, templates) = (
        named(prompts),
        listed("uri", uris),
        listed("uriTemplate", templates),
    );
    let lists = [tools, &prompts, &uris, &templates];
    let lists = lists.map(|list| list.iter().map(String::as_str).collect::<Vec<_>>());
    offer(era, declared, [&lists[0], &lists[1], &lists[2], &lists[3]])
}

/// Members `github` (legacy, prefix `gh`) and `files` (modern).
fn two() -> PlanSpec {
    spec(vec![member("github", Some("gh")), member("files", None)])
}

fn offers() -> Vec<(&'static str, Arc<Offer>)> {
    let github = offering(
        ALL,
        &named(&["issue", "list"]),
        &["review"],
        &["repo://a", "file:///both"],
        &["repo://{name}"],
    );
    let files = offering(
        MODERN,
        &named(&["read"]),
        &[],
        &["file:///x", "file:///both"],
        &["file:///{path}"],
    );
    vec![("github", github), ("files", files)]
}

impl Bench {
    fn new(spec: PlanSpec, offers: Vec<(&str, Arc<Offer>)>, tools: ToolsMode) -> Self {
        let mut catalogue = Catalogue::new(Arc::new(Plan::new(spec).unwrap()));
        for (member, offer) in offers {
            catalogue.handle_offer(Moment::START, member, offer);
            catalogue.handle_state(Moment::START, member, MemberState::Ok, 0);
        }
        let now = Moment::START.after(Duration::from_secs(1));
        catalogue.handle_deadline(now);
        let conversation = Conversation::new(Arc::clone(catalogue.view()), tools, Arc::new(Backwards));
        while catalogue.poll_output().is_some() {}
        Self {
            catalogue,
            conversation,
            now,
            era: legacy::ERA,
            calls: 0,
        }
    }

    /// Returns a conversation of a client of this era that is open.
    fn open(era: Era) -> Self {
        Self::opened(two(), offers(), ToolsMode::All, era, "{}")
    }

    fn opened(
        spec: PlanSpec,
        offers: Vec<(&str, Arc<Offer>)>,
        tools: ToolsMode,
        era: Era,
        declared: &str,
    ) -> Self {
        let mut bench = Self::new(spec, offers, tools);
        bench.ask_open(era, declared);
        let out = bench.outputs();
        assert!(matches!(out.tells[..], [Tell::Opened { .. }]), "{out:?}");
        assert!(out.asks.is_empty(), "no member is started by a handshake");
        bench
    }

    fn ask_open(&mut self, era: Era, declared: &str) {
        self.era = era;
        let declared = Bytes::copy_from_slice(declared.as_bytes());
        let client = Client::declaring(Principal::anonymous(), Some(declared), None);
        let ask = Ask::Open {
            session: SESSION,
            call: CallKey(1),
            client: Arc::new(client),
            initialize: None,
            era,
            wants_notifications: true,
        };
        self.conversation.handle_ask(self.now, ask);
    }

    fn outputs(&mut self) -> Outputs {
        let mut out = Outputs::default();
        while let Some(output) = self.conversation.poll_output() {
            match output {
                ConversationOutput::Tell(tell) => out.tells.push(tell),
                ConversationOutput::Ask { member, ask } => out.asks.push((member.to_string(), ask)),
                ConversationOutput::Routed(routed) => out.routed.push(routed),
                ConversationOutput::Read(member) => out.reads.push(member.to_string()),
            }
        }
        out
    }

    fn ask(&mut self, ask: Ask) -> Outputs {
        self.conversation.handle_ask(self.now, ask);
        self.outputs()
    }

    fn tell(&mut self, member: &str, tell: Tell) -> Outputs {
        self.conversation.handle_tell(member, tell);
        self.outputs()
    }

    /// Sends a request, with its kind.
    fn request(&mut self, method: &str, params: &Value, request: Request) -> (CallKey, Outputs) {
        self.calls += 1;
        let call = CallKey(10 + self.calls);
        let text = json!({"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params});
        let call_ask = Ask::Call(Call {
            session: SESSION,
            call,
            request,
            message: message(&text),
            era: self.era,
            mirrored: None,
            reads_events: true,
        });
        (call, self.ask(call_ask))
    }

    fn call(&mut self, method: &str, params: &Value) -> (CallKey, Outputs) {
        self.request(method, params, Request::Plain)
    }

    /// Sends a request that one member gets. Returns its key there, and its params.
    fn routed(&mut self, member: &str, method: &str, params: &Value) -> (CallKey, Value) {
        let (call, out) = self.call(method, params);
        let (at, asked) = sole_call(&out);
        assert_eq!(at, member);
        assert_eq!(asked.call, call, "a member knows a call by the client's own key");
        (call, params_of(&asked.message))
    }

    /// Sends a request that Rialto answers. Returns the answer.
    fn answered(&mut self, method: &str, params: &Value) -> Value {
        let (_, out) = self.call(method, params);
        assert!(out.asks.is_empty(), "{method}: {out:?}");
        sole_reply(&out)
    }

    fn reply(&mut self, member: &str, call: CallKey, result: &Value) -> Outputs {
        let era = if member == "files" {
            modern::ERA
        } else {
            legacy::ERA
        };
        let tell = Tell::Reply {
            session: SESSION,
            call,
            message: message(&json!({"jsonrpc": "2.0", "id": 0, "result": result})),
            era,
        };
        self.tell(member, tell)
    }

    fn fail(&mut self, member: &str, call: CallKey, failure: Failure) -> Outputs {
        let session = SESSION;
        let tell = Tell::Failed {
            session,
            call,
            failure,
        };
        self.tell(member, tell)
    }

    /// Has the instance of a member report that it has opened the user.
    fn let_open(&mut self, member: &str, out: &Outputs) -> Outputs {
        let opening = out.asks.iter().find_map(|(at, ask)| {
            let (Ask::Open { call, .. } | Ask::Restore { call, .. }) = ask else {
                return None;
            };
            (at == member).then_some(*call)
        });
        let offer = offers().into_iter().find(|(name, _)| *name == member).unwrap().1;
        let tell = Tell::Opened {
            session: SESSION,
            call: opening.expect("it was asked to open"),
            server_info: Arc::clone(offer.server_info()),
        };
        self.tell(member, tell)
    }

    /// Shows what the catalogue has to show by now.
    fn show(&mut self) -> Outputs {
        self.now = self.now.after(Duration::from_secs(1));
        self.catalogue.handle_deadline(self.now);
        while let Some(CatalogueOutput::Show(view)) = self.catalogue.poll_output() {
            self.conversation.handle_view(self.now, view);
        }
        self.outputs()
    }
}

fn message(value: &Value) -> Message {
    Message::scan(Bytes::from(value.to_string())).unwrap()
}

fn params_of(message: &Message) -> Value {
    serde_json::from_slice(message.raw(Member::Params).unwrap()).unwrap()
}

/// Returns the only call that members get, beside what opens them.
fn sole_call(out: &Outputs) -> (&str, &Call) {
    let mut calls = out.asks.iter().filter_map(|(member, ask)| {
        let Ask::Call(call) = ask else { return None };
        Some((member.as_str(), call))
    });
    let sole = calls.next().unwrap_or_else(|| panic!("no call: {out:?}"));
    assert!(calls.next().is_none(), "{out:?}");
    sole
}

/// Returns the only answer that the client gets.
fn sole_reply(out: &Outputs) -> Value {
    let [Tell::Reply { message, .. }] = &out.tells[..] else {
        panic!("not one answer: {out:?}");
    };
    serde_json::from_slice(message.bytes()).unwrap()
}

fn notices(out: &Outputs) -> Vec<Value> {
    let notices = out.tells.iter().filter_map(|tell| {
        let Tell::Notice { message, .. } = tell else {
            return None;
        };
        Some(serde_json::from_slice(message.bytes()).unwrap())
    });
    notices.collect()
}

fn failures(out: &Outputs) -> Vec<(CallKey, &'static str)> {
    let failed = out.tells.iter().filter_map(|tell| {
        let Tell::Failed { call, failure, .. } = tell else {
            return None;
        };
        Some((*call, failure.reason()))
    });
    failed.collect()
}
