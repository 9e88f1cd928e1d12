//! What the clients of an aggregate see: one snapshot, shared by all conversations.
//!
//! A view is computed from the plan and the offers of the members and never changes. Its tables map
//! every shown name to its member and own name; a name that two members claim is in no table.

mod declaration;
mod instructions;
mod listing;
mod tables;

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::names::Fingerprint;
use super::offer::{ListKind, Offer};
use super::plan::{MemberName, Plan, ToolsMode};
use super::rewriting::Speaker;
use super::search::Index;
use super::uris;
use crate::exchange::Client;
use crate::message::quoted;
use crate::{mcp_apps, task};
use declaration::Declarations;
use listing::Rendered;
pub(crate) use listing::{ListRequest, VIA};
pub(crate) use tables::Item;
pub use tables::Withheld;
use tables::{Owners, Tables};

/// Extensions whose methods Rialto knows, or that have none for servers.
const KNOWN_EXTENSIONS: [&str; 2] = [task::EXTENSION, mcp_apps::EXTENSION];

/// Characters of a server's own title that users see.
const MAX_TITLE: usize = 64;

/// How a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemberState {
    /// Its server answers.
    Ok,
    /// Its server does not run, and is started by the first call.
    Idle,
    /// Its server is being started.
    #[default]
    Starting,
    /// Its server cannot be reached.
    Down,
    /// A sign-in is needed before its server can be used.
    SignInNeeded,
}

impl MemberState {
    /// Returns the word for clients.
    pub const fn as_str(self) -> &'static str {
        match self {
            // A server that is not needed yet lacks nothing.
            Self::Ok | Self::Idle => "ok",
            Self::Starting => "starting",
            Self::Down => "down",
            Self::SignInNeeded => "sign_in_needed",
        }
    }
}

/// What is known of a member.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemberFacts {
    pub(crate) offer: Option<Arc<Offer>>,
    pub(crate) state: MemberState,
    /// Since when, in seconds of Unix time.
    pub(crate) since: u64,
    /// It was down for so long that its items are not shown.
    pub(crate) is_hidden: bool,
    /// The page at which its user can sign in, if there is one.
    pub(crate) sign_in: Option<Arc<str>>,
}

/// What the clients of an aggregate see.
#[derive(Debug)]
pub struct View {
    plan: Arc<Plan>,
    members: Vec<MemberFacts>,
    titles: Arc<[String]>,
    tables: Arc<Tables>,
    declarations: Arc<Declarations>,
    rendered: Rendered,
    index: OnceLock<Index>,
}

/// Where a URI leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// To this member, under its own URI.
    Member(usize, String),
    /// To several members that claim it.
    Ambiguous(Vec<MemberName>),
    Unknown,
}

impl View {
    pub(crate) fn new(plan: Arc<Plan>, members: Vec<MemberFacts>) -> Self {
        let tables = Arc::new(Tables::new(&plan, &members));
        let declarations = Arc::new(Declarations::new(&plan, &members, &tables));
        let titles = plan.members().iter().zip(&members).map(|(member, facts)| {
            let server = facts.offer.as_ref().and_then(|offer| offer.title());
            member.title().map_or_else(
                || titled_by_itself(member.name(), server.as_deref().unwrap_or_default()),
                str::to_owned,
            )
        });
        Self {
            titles: titles.collect(),
            plan,
            members,
            tables,
            declarations,
            rendered: Rendered::default(),
            index: OnceLock::new(),
        }
    }

    /// Returns a view in which only the states of members differ, so that no table is made anew.
    pub(crate) fn with_members(&self, members: Vec<MemberFacts>) -> Self {
        Self {
            plan: Arc::clone(&self.plan),
            members,
            titles: Arc::clone(&self.titles),
            tables: Arc::clone(&self.tables),
            declarations: Arc::clone(&self.declarations),
            rendered: Rendered::default(),
            index: OnceLock::new(),
        }
    }

    /// Returns the plan that it shows.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns what is not shown though a member offers it, with the reasons.
    pub fn withheld(&self) -> &[Withheld] {
        self.tables.withheld()
    }

    /// Returns the names that were cut: member, own name and shown name.
    pub fn cut_names(&self) -> impl Iterator<Item = (&MemberName, &str, &str)> {
        let kinds = [ListKind::Tools, ListKind::Prompts].into_iter();
        let items = kinds.flat_map(|kind| self.tables.items(kind));
        items.filter(|item| item.is_cut).filter_map(|item| {
            let member = self.plan.members().get(item.member)?;
            Some((member.name(), &*item.own, &*item.shown))
        })
    }

    /// Returns the members whose instructions were cut.
    pub fn cut_instructions(&self) -> impl Iterator<Item = &MemberName> {
        let cut = self.declarations.cut_instructions().iter();
        cut.filter_map(|at| self.plan.members().get(*at).map(|member| member.name()))
    }

    /// Returns how many items a list has.
    pub fn count(&self, kind: ListKind) -> usize {
        self.tables.items(kind).len()
    }

    /// Returns the member and the own name of a tool.
    pub fn tool(&self, shown: &str) -> Option<(&MemberName, &str)> {
        let item = self.item(ListKind::Tools, shown)?;
        let member = self.plan.members().get(item.member)?;
        Some((member.name(), &item.own))
    }

    /// Returns whether the offer of any member is known.
    pub fn is_known(&self) -> bool {
        self.members.iter().any(|member| member.offer.is_some())
    }

    /// Returns the members of which nothing is known.
    pub fn unknown_members(&self) -> impl Iterator<Item = &MemberName> {
        let pairs = self.plan.members().iter().zip(&self.members);
        pairs
            .filter(|(_, facts)| facts.offer.is_none())
            .map(|(member, _)| member.name())
    }

    /// Returns whether a member of which nothing is known may be known soon.
    pub(crate) fn may_become_known(&self) -> bool {
        self.members.iter().any(|member| {
            let may_answer = match member.state {
                MemberState::Ok | MemberState::Idle | MemberState::Starting => true,
                MemberState::Down | MemberState::SignInNeeded => false,
            };
            member.offer.is_none() && may_answer
        })
    }

    /// Returns the states of all members in words.
    pub(crate) fn explain(&self) -> String {
        let pairs = self.plan.members().iter().zip(&self.members);
        let states = pairs.map(|(member, facts)| format!("{}: {}", member.name(), facts.state.as_str()));
        states.collect::<Vec<_>>().join(", ")
    }

    /// Returns the states of all members as JSON.
    fn states(&self) -> String {
        let pairs = self.plan.members().iter().zip(&self.members);
        let states = pairs.map(|(member, facts)| {
            let name = quoted(member.name());
            let MemberFacts { state, since, .. } = facts;
            format!(r#"{name}:{{"state":"{}","since":{since}}}"#, state.as_str())
        });
        format!("{{{}}}", states.collect::<Vec<_>>().join(","))
    }

    pub(crate) fn item(&self, kind: ListKind, shown: &str) -> Option<&Item> {
        self.tables.item(kind, shown)
    }

    pub(crate) fn fingerprint(&self, kind: ListKind) -> u64 {
        self.tables.fingerprint(kind)
    }

    /// Returns a fingerprint of what a list shows in this mode.
    pub(crate) fn shown_fingerprint(&self, kind: ListKind, mode: ToolsMode) -> u64 {
        if kind != ListKind::Tools || mode == ToolsMode::All {
            return self.fingerprint(kind);
        }
        let mut fingerprint = Fingerprint::default();
        let items = self.tables.items(kind).iter();
        let listed = items.filter(|item| self.plan.is_always_listed(&item.shown));
        listed.for_each(|item| fingerprint.add(&item.raw));
        fingerprint.value()
    }

    /// Returns why a list is empty, if members have such a list and it could not be read.
    pub(crate) fn unread(&self, kind: ListKind) -> Option<String> {
        if self.count(kind) > 0 {
            return None;
        }
        let whole = |one: &&Withheld| one.kind == kind && one.name.is_empty();
        let unread = self.withheld().iter().filter(whole);
        let reasons: Vec<String> = unread
            .map(|one| format!("`{}`: {}", one.member, one.reason))
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Returns what a member offered last, by its name.
    pub fn offered(&self, member: &str) -> Option<&Arc<Offer>> {
        self.offer(self.position(member)?)
    }

    /// Returns what a member offered last.
    pub(crate) fn offer(&self, at: usize) -> Option<&Arc<Offer>> {
        self.members.get(at)?.offer.as_ref()
    }

    /// Returns the member that is alone and would show an own name under the same name. It may have
    /// what is not listed.
    pub(crate) fn sole_namesake(&self, kind: ListKind, shown: &str) -> Option<usize> {
        let [member] = self.plan.members() else {
            return None;
        };
        let limit = self.plan.limits().name_limit;
        let name = match kind {
            ListKind::Tools => member.tool_name(shown, limit),
            ListKind::Prompts | ListKind::Resources | ListKind::Templates => member.prompt_name(shown, limit),
        };
        let is_permitted = kind != ListKind::Tools || member.permits(shown);
        (name.text == shown && is_permitted).then_some(0)
    }

    /// Returns the members with tasks that run, or are used.
    pub(crate) fn with_tasks(&self, is_used: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
        let members = self.members.iter().enumerate();
        let members = members.filter(move |(at, facts)| {
            let has_tasks = facts
                .offer
                .as_ref()
                .is_some_and(|offer| offer.server_info().tasks);
            has_tasks && (facts.state == MemberState::Ok || is_used(*at))
        });
        members.map(|(at, _)| at)
    }

    /// Returns the one member that declares an extension, or an experiment, which the client has
    /// declared too. Extensions that Rialto knows have methods of their own.
    pub(crate) fn sole_extended(&self, client: &Client) -> Option<usize> {
        let declared: Value = serde_json::from_slice(&client.declared).unwrap_or_default();
        let mut extended = self.members.iter().enumerate().filter_map(|(at, facts)| {
            let capabilities = facts.offer.as_ref()?.capabilities();
            let has_common = declaration::MUTUAL.into_iter().any(|name| {
                let offered = capabilities.get(name).and_then(Value::as_object);
                let mut offered = offered.into_iter().flat_map(|offered| offered.keys());
                offered.any(|extension| {
                    !KNOWN_EXTENSIONS.contains(&extension.as_str())
                        && declared
                            .get(name)
                            .is_some_and(|known| known.get(extension).is_some())
                })
            });
            has_common.then_some(at)
        });
        let found = extended.next();
        found.filter(|_| extended.next().is_none())
    }

    pub(crate) fn members(&self) -> &[MemberFacts] {
        &self.members
    }

    /// Returns whether the server of a member answers.
    pub(crate) fn is_up(&self, at: usize) -> bool {
        let facts = self.members.get(at);
        facts.is_some_and(|facts| facts.state == MemberState::Ok)
    }

    pub(crate) fn position(&self, member: &str) -> Option<usize> {
        let mut members = self.plan.members().iter();
        members.position(|known| &**known.name() == member)
    }

    /// Returns a member as its messages name it.
    pub(crate) fn speaker(&self, at: usize) -> Option<Speaker<'_>> {
        let member = self.plan.members().get(at)?;
        let title = self.titles.get(at).map(String::as_str);
        Some(Speaker {
            member,
            title: title.filter(|_| !self.plan.is_single()),
        })
    }

    pub(crate) fn declarations(&self) -> &Declarations {
        &self.declarations
    }

    /// Returns where a URI leads that a client sent: to the member that shows it, else to the one that
    /// it names, else to the one that lists it, else to the one whose template matches. It is never
    /// guessed between two.
    pub(crate) fn owner(&self, uri: &str) -> Owner {
        // A member without a prefix shows URIs that others may list as their own.
        if let Some(item) = self.item(ListKind::Resources, uri) {
            return Owner::Member(item.member, item.own.to_string());
        }
        if let Some((tag, own)) = uris::split(uri)
            && let Some(member) = self.plan.tagged(&tag)
        {
            return Owner::Member(member, own);
        }
        if self.plan.is_single() {
            return Owner::Member(0, uri.to_owned());
        }
        let mut listed = Owners::of_bare(self.tables.owners(ListKind::Resources, uri).into_iter());
        if listed.is_empty() {
            let templates = self.tables.templates();
            let matching = templates.filter(|(template, _)| uris::matches(template, uri));
            let matching: Vec<&Owners> = matching.map(|(_, owners)| owners).collect();
            listed = Owners::of_bare(matching.into_iter());
        }
        self.only(&listed, uri)
    }

    /// Returns where a template leads that a client sent.
    pub(crate) fn owner_of_template(&self, template: &str) -> Owner {
        if let Some(item) = self.item(ListKind::Templates, template) {
            return Owner::Member(item.member, item.own.to_string());
        }
        let listed = Owners::of_bare(self.tables.owners(ListKind::Templates, template).into_iter());
        match self.only(&listed, template) {
            // A client may complete a URI of a resource too.
            Owner::Unknown => self.owner(template),
            owner @ (Owner::Member(..) | Owner::Ambiguous(_)) => owner,
        }
    }

    fn only(&self, members: &[usize], uri: &str) -> Owner {
        match members {
            [] => Owner::Unknown,
            [member] => Owner::Member(*member, uri.to_owned()),
            several => {
                let names = several.iter().filter_map(|at| self.plan.members().get(*at));
                Owner::Ambiguous(names.map(|member| member.name().clone()).collect())
            }
        }
    }

    /// Returns the index for searches, made at the first one.
    pub(crate) fn index(&self) -> &Index {
        self.index.get_or_init(|| {
            Index::of(
                self.tables
                    .items(ListKind::Tools)
                    .iter()
                    .map(|item| item.raw.as_str()),
            )
        })
    }
}

/// Returns a member's name with the title that its server has chosen. The name comes first: a
/// server that calls itself like another one must not look like it to the user.
fn titled_by_itself(name: &str, title: &str) -> String {
    let is_part = |char: &char| !char.is_control() && !matches!(char, '[' | ']');
    let title: String = title.chars().filter(is_part).take(MAX_TITLE).collect();
    match title.trim() {
        "" => name.to_owned(),
        title if title.eq_ignore_ascii_case(name) => name.to_owned(),
        title => format!("{name}: {title}"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
