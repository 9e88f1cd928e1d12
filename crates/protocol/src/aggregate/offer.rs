//! What a member offered last: its declaration and its lists, in its own words.
//!
//! An offer is a value: it can be stored, compared by its fingerprint, and shown while its server
//! does not run. Lists are kept in the era of the server; the faces translate them for clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::names::Fingerprint;
use crate::backend_face;
use crate::exchange::ServerInfo;
use crate::message::{Member, Message, quoted};
use crate::method::Method;
use crate::object::Object;
use crate::version::Era;

/// The format of [`Offer::to_json`].
const FORMAT: u64 = 1;

/// The lists that a server may offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListKind {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
}

impl ListKind {
    /// Every list.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// Returns the method that reads it.
    pub const fn method(self) -> Method {
        match self {
            Self::Tools => Method::ToolsList,
            Self::Prompts => Method::PromptsList,
            Self::Resources => Method::ResourcesList,
            Self::Templates => Method::ResourcesTemplatesList,
        }
    }

    /// Returns the list that a method reads.
    pub fn of(method: Method) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// Returns the member of a result that has the items.
    pub const fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// Returns the capability that declares it.
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }

    /// Returns the notification that it has changed.
    pub const fn changed(self) -> Method {
        match self {
            Self::Tools => Method::ToolsListChanged,
            Self::Prompts => Method::PromptsListChanged,
            Self::Resources | Self::Templates => Method::ResourcesListChanged,
        }
    }

    /// Returns the member of an item that names it.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }
}

/// One list of a member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OfferedList {
    pub(super) items: Vec<Box<str>>,
    /// How long it may be kept, in milliseconds; 0 where the server gave no time.
    pub(super) ttl: u64,
    /// Every caller may be shown it.
    pub(super) public: bool,
    /// Why it is not shown, if it is not.
    pub(super) withheld: Option<String>,
}

impl OfferedList {
    /// Returns the raw items in the server's order.
    pub fn items(&self) -> impl Iterator<Item = &str> {
        self.items.iter().map(|item| &**item)
    }

    /// Returns whether the list was read, so that it holds until another one is.
    pub(super) fn holds(&self) -> bool {
        self.withheld.is_none() || !self.items.is_empty()
    }

    /// Returns why the list is withheld, if it is: it went beyond a limit, or could not be read. If
    /// it has items all the same, these are what could be read before.
    pub fn withheld(&self) -> Option<&str> {
        self.withheld.as_deref()
    }
}

/// What a member offered last.
#[derive(Debug, Clone)]
pub struct Offer {
    server: Arc<ServerInfo>,
    lists: [OfferedList; 4],
    /// The aggregates that its lists have come through.
    via: BTreeSet<String>,
    fingerprint: u64,
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.server.era == other.server.era
            && self.server.message.raw(Member::Result) == other.server.message.raw(Member::Result)
            && self.lists == other.lists
    }
}

impl Offer {
    pub(super) fn new(server: Arc<ServerInfo>, lists: [OfferedList; 4]) -> Self {
        let mut fingerprint = Fingerprint::default();
        fingerprint.add(server.era.as_str());
        let declared = server.message.raw(Member::Result).unwrap_or_default();
        fingerprint.add(&String::from_utf8_lossy(declared));
        for list in &lists {
            fingerprint.add_number(list.items.len() as u64);
            list.items().for_each(|item| fingerprint.add(item));
            fingerprint.add_number(list.ttl);
            fingerprint.add(list.withheld().unwrap_or_default());
        }
        Self {
            server,
            lists,
            via: BTreeSet::new(),
            fingerprint: fingerprint.value(),
        }
    }

    /// Returns the offer as one that has come through these aggregates.
    pub(super) fn through(self, via: BTreeSet<String>) -> Self {
        let mut fingerprint = Fingerprint::default();
        fingerprint.add_number(self.fingerprint);
        via.iter().for_each(|id| fingerprint.add(id));
        match via.is_empty() {
            true => self,
            false => Self {
                via,
                fingerprint: fingerprint.value(),
                ..self
            },
        }
    }

    /// Returns whether it has come through an aggregate. If that has it as a member, each of its
    /// names would stand in its list again and again.
    pub fn has_come_through(&self, aggregate: &str) -> bool {
        self.via.contains(aggregate)
    }

    pub(super) fn via(&self) -> &BTreeSet<String> {
        &self.via
    }

    /// Returns a fingerprint of all that is offered, the same in every process.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the era of the server.
    pub fn era(&self) -> Era {
        self.server.era
    }

    /// Returns what the server declared.
    pub fn server_info(&self) -> &Arc<ServerInfo> {
        &self.server
    }

    /// Returns one of its lists.
    pub fn list(&self, kind: ListKind) -> &OfferedList {
        let [tools, prompts, resources, templates] = &self.lists;
        match kind {
            ListKind::Tools => tools,
            ListKind::Prompts => prompts,
            ListKind::Resources => resources,
            ListKind::Templates => templates,
        }
    }

    /// Returns how many items a list has.
    pub fn count(&self, kind: ListKind) -> usize {
        self.list(kind).items.len()
    }

    /// Returns the raw result of the server's handshake or discovery.
    pub(super) fn declared(&self) -> Object<'_> {
        self.server.message.object(Member::Result)
    }

    /// Returns the server's capabilities.
    pub(super) fn capabilities(&self) -> Value {
        let declared = self.declared();
        let raw = declared.get("capabilities").unwrap_or("{}");
        serde_json::from_str(raw).unwrap_or_default()
    }

    /// Returns the server's instructions.
    pub(super) fn instructions(&self) -> Option<String> {
        self.declared().text("instructions")
    }

    /// Returns the title or else the name of the server.
    pub(super) fn title(&self) -> Option<String> {
        let info = Object::parse(self.server.info.as_deref()?.as_bytes())?;
        info.text("title").or_else(|| info.text("name"))
    }

    /// Returns the offer as one JSON object, to be stored.
    pub fn to_json(&self) -> String {
        let declared = self.server.message.raw(Member::Result).unwrap_or(b"{}");
        let mut out = format!(
            r#"{{"format":{FORMAT},"era":"{}","server":{}"#,
            self.server.era.as_str(),
            String::from_utf8_lossy(declared)
        );
        for kind in ListKind::ALL {
            let list = self.list(kind);
            let items: Vec<&str> = list.items().collect();
            let withheld = list.withheld().map_or_else(|| "null".to_owned(), quoted);
            out.push_str(&format!(
                r#","{}":{{"items":[{}],"ttl":{},"public":{},"withheld":{withheld}}}"#,
                kind.member(),
                items.join(","),
                list.ttl,
                list.public
            ));
        }
        out.push('}');
        out
    }

    /// Reads an offer that was stored; `None` if it has another format, or is damaged.
    pub fn from_json(text: &str) -> Option<Self> {
        let stored = Object::parse(text.as_bytes())?;
        if stored.get("format")?.parse() != Ok(FORMAT) {
            return None;
        }
        let era: Era = stored.text("era")?.parse().ok()?;
        let declared = stored.get("server").filter(|raw| raw.starts_with('{'))?;
        let response = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{declared}}}"#);
        let response = Message::scan(response.into()).ok()?;
        let server = Arc::new(backend_face::read_server_info(era, response));
        let mut lists: [OfferedList; 4] = Default::default();
        for (kind, list) in ListKind::ALL.into_iter().zip(&mut lists) {
            *list = read_list(stored.get(kind.member())?)?;
        }
        Some(Self::new(server, lists))
    }
}

fn read_list(raw: &str) -> Option<OfferedList> {
    #[derive(serde::Deserialize)]
    struct Stored<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
        ttl: u64,
        public: bool,
        withheld: Option<String>,
    }
    let stored: Stored<'_> = serde_json::from_str(raw).ok()?;
    Some(OfferedList {
        items: stored.items.into_iter().map(|item| item.get().into()).collect(),
        ttl: stored.ttl,
        public: stored.public,
        withheld: stored.withheld,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns an offer with these raw items.
    pub(crate) fn offer(era: Era, declared: &str, lists: [&[&str]; 4]) -> Arc<Offer> {
        let response = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{declared}}}"#);
        let response = Message::scan(response.into()).unwrap();
        let server = Arc::new(backend_face::read_server_info(era, response));
        let lists = lists.map(|items| OfferedList {
            items: items.iter().map(|item| (*item).into()).collect(),
            ..OfferedList::default()
        });
        Arc::new(Offer::new(server, lists))
    }

    const DECLARED: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"s","title":"The server","version":"1"},"instructions":"Be kind."}"#;

    #[test]
    fn stored_offer_is_read_back_equal() {
        let mut offer = Offer::clone(&offer(
            Era::Legacy,
            DECLARED,
            [
                &[r#"{"name":"a", "n":1.50}"#],
                &[],
                &[r#"{"uri":"file:///a"}"#],
                &[],
            ],
        ));
        offer.lists[1].withheld = Some("too \"many\"".to_owned());
        offer.lists[0].ttl = 7;
        let offer = Offer::new(Arc::clone(&offer.server), offer.lists);
        let read = Offer::from_json(&offer.to_json()).unwrap();
        assert_eq!(read, offer);
        assert_eq!(read.fingerprint(), offer.fingerprint());
        assert_eq!(
            read.list(ListKind::Tools).items().next(),
            Some(r#"{"name":"a", "n":1.50}"#)
        );
        assert_eq!(read.list(ListKind::Prompts).withheld(), Some("too \"many\""));
        assert!(read.server_info().logs);
        assert_eq!(
            (read.title().as_deref(), read.instructions().as_deref()),
            (Some("The server"), Some("Be kind."))
        );
    }

    #[test]
    fn damaged_or_foreign_text_is_no_offer() {
        let good = offer(
            Era::Modern,
            r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#,
            [&[]; 4],
        )
        .to_json();
        assert!(Offer::from_json(&good).is_some());
        for bad in [
            "",
            "{}",
            &good.replace(r#""format":1"#, r#""format":2"#),
            &good.replace("modern", "future"),
            &good.replace(r#""prompts":"#, r#""others":"#),
            good.get(..good.len() - 1).unwrap(),
        ] {
            assert!(Offer::from_json(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn fingerprint_changes_with_what_is_offered() {
        let of = |items: &[&str]| offer(Era::Legacy, DECLARED, [items, &[], &[], &[]]).fingerprint();
        assert_eq!(of(&["{}"]), of(&["{}"]));
        assert_ne!(of(&["{}"]), of(&["{ }"]));
        assert_ne!(of(&["1", "2"]), of(&["2", "1"]), "order counts");
    }

    #[test]
    fn kind_of_a_list_is_found_by_its_method() {
        for kind in ListKind::ALL {
            assert_eq!(ListKind::of(kind.method()), Some(kind));
        }
        assert_eq!(ListKind::of(Method::ToolsCall), None);
    }
}
