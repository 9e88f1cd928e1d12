//! `subscriptions/listen`: what a modern client wants to hear, and how it is told.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::Value;

use super::{Errand, OPENING, Outcome};
use crate::exchange::{Ask, Call, CallKey, Request, Welcome};
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::object::Object;
use crate::session::Accepts;
use crate::version::Era;

/// Resources one listen may name.
const MAX_RESOURCES: usize = 256;

/// What was asked for, and what of it is honoured.
#[derive(Debug)]
pub(super) struct Listening {
    lists: BTreeSet<Method>,
    uris: Vec<String>,
    /// URIs whose subscription the server has not answered yet, by their call.
    awaited: BTreeSet<CallKey>,
    honoured: BTreeSet<String>,
    acknowledged: bool,
}

const LISTS: [(&str, Method); 3] = [
    ("toolsListChanged", Method::ToolsListChanged),
    ("promptsListChanged", Method::PromptsListChanged),
    ("resourcesListChanged", Method::ResourcesListChanged),
];

impl Listening {
    pub(super) fn new(message: &Message) -> Self {
        let params: Value =
            message.raw(Member::Params).and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or_default();
        let wanted = &params["notifications"];
        let uris = wanted["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
        Self {
            lists: LISTS.into_iter().filter(|(name, _)| wanted[*name] == true).map(|(_, list)| list).collect(),
            uris: uris.iter().filter_map(Value::as_str).take(MAX_RESOURCES).map(str::to_owned).collect(),
            awaited: BTreeSet::new(),
            honoured: BTreeSet::new(),
            acknowledged: false,
        }
    }

    /// A notice as this listen's client is to hear it, if it is to.
    pub(super) fn hear(&self, message: &Message, id: &[u8]) -> Option<Bytes> {
        let wanted = match message.method() {
            Method::ResourcesUpdated => {
                let uri = message.text(Member::Uri)?;
                self.honoured.iter().any(|honoured| uri.starts_with(honoured.as_str()))
            }
            list => self.lists.contains(&list),
        };
        (self.acknowledged && wanted).then(|| tagged(message, id))
    }

    /// The first thing the client hears: what it will hear.
    fn acknowledgement(&self, id: &[u8]) -> Bytes {
        let mut filter = Object::default();
        for (name, list) in LISTS {
            if self.lists.contains(&list) {
                filter.set(name, "true");
            }
        }
        if !self.honoured.is_empty() {
            let uris: Vec<String> = self.honoured.iter().map(|uri| quoted(uri)).collect();
            filter.set("resourceSubscriptions", format!("[{}]", uris.join(",")));
        }
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{}}},"notifications":{filter}}}}}"#,
            String::from_utf8_lossy(id),
        )
        .into()
    }
}

/// Marks a notice with the id of the listen that it is for.
fn tagged(message: &Message, id: &[u8]) -> Bytes {
    let mut params = message.raw(Member::Params).and_then(Object::parse).unwrap_or_default();
    let mut meta = message.raw(Member::Meta).and_then(Object::parse).unwrap_or_default();
    meta.set("io.modelcontextprotocol/subscriptionId", String::from_utf8_lossy(id).into_owned());
    params.set("_meta", meta.to_string());
    let method = String::from_utf8_lossy(message.raw(Member::Method).unwrap_or_default());
    format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#).into()
}

/// The last thing the client hears, if it is we who end the listen.
pub(super) fn farewell(id: &[u8]) -> Bytes {
    let id = String::from_utf8_lossy(id);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
    )
    .into()
}

impl Errand {
    /// The server is there: what it can send is honoured, resources after it was asked for them.
    pub(super) fn begin_listening(&mut self, welcome: &Welcome) {
        let session = self.session;
        let Some(listening) = &mut self.listening else { return };
        listening.lists.retain(|list| welcome.changing_lists.contains(list));
        if !offers_subscriptions(welcome) {
            listening.uris.clear();
        }
        for (at, uri) in listening.uris.iter().enumerate() {
            let call = CallKey(OPENING.0 + 2 + at as u64);
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"resources/subscribe","params":{{"uri":{}}}}}"#,
                quoted(uri)
            );
            listening.awaited.insert(call);
            self.outputs.push_back(super::Output::Ask(Ask::Call(Call {
                session,
                call,
                request: Request::Subscribe { uri: uri.clone() },
                message: Message::own(text),
                words: Era::Legacy,
            })));
        }
        self.accepts = if self.accepts == Accepts::Json { Accepts::Json } else { Accepts::Events };
        self.acknowledge();
    }

    /// A subscription was answered.
    pub(super) fn handle_subscribed(&mut self, call: CallKey, granted: bool) {
        let Some(listening) = &mut self.listening else { return };
        if !listening.awaited.remove(&call) {
            return;
        }
        let at = (call.0 - OPENING.0 - 2) as usize;
        if let (true, Some(uri)) = (granted, listening.uris.get(at)) {
            listening.honoured.insert(uri.clone());
        }
        self.acknowledge();
    }

    fn acknowledge(&mut self) {
        let id = Bytes::copy_from_slice(self.id());
        let Some(listening) = &mut self.listening else { return };
        if listening.acknowledged || !listening.awaited.is_empty() {
            return;
        }
        listening.acknowledged = true;
        let event = listening.acknowledgement(&id);
        self.streaming = true;
        self.push(event);
    }

    /// Ends a listen in the way its client understands: with a result.
    pub fn dismiss(&mut self) {
        if self.listening.is_some() {
            self.conclude(Outcome::Closed);
        }
    }
}

fn offers_subscriptions(welcome: &Welcome) -> bool {
    let result = welcome.message.raw(Member::Result).unwrap_or_default();
    let result: Value = serde_json::from_slice(result).unwrap_or_default();
    result.pointer("/capabilities/resources/subscribe") == Some(&Value::Bool(true))
}
