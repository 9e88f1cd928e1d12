//! The tables of a view: every shown item with its member and its own name.

use std::collections::BTreeMap;

use super::MemberFacts;
use crate::aggregate::names::Fingerprint;
use crate::aggregate::offer::ListKind;
use crate::aggregate::places::Edits;
use crate::aggregate::places::Step;
use crate::aggregate::plan::{Member, MemberName, Plan, ToolsMode};
use crate::aggregate::rules::shown_tool;
use crate::aggregate::search::RESERVED_NAMES;
use crate::message::quoted;
use crate::object::Object;
use crate::version::Era;

/// Something that a member offers and clients do not see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// The member.
    pub member: MemberName,
    /// The list that it is missing from.
    pub kind: ListKind,
    /// The name under which it would be shown; empty for a whole list.
    pub name: String,
    /// Why it is not shown, and what to do about it.
    pub reason: String,
}

/// One item that clients see.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) member: usize,
    /// What the member calls it.
    pub(crate) own: Box<str>,
    /// What clients call it.
    pub(crate) shown: Box<str>,
    /// Its definition as clients of the member's era see it.
    pub(crate) raw: String,
    pub(crate) era: Era,
    pub(crate) is_cut: bool,
}

/// The members that have one URI, or one template, as their own.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Those whose clients see it as it is.
    bare: Vec<usize>,
    /// Those whose clients see it with their name.
    qualified: Vec<usize>,
}

impl Owners {
    fn add(&mut self, member: usize, is_bare: bool) {
        let owners = if is_bare {
            &mut self.bare
        } else {
            &mut self.qualified
        };
        if !owners.contains(&member) {
            owners.push(member);
        }
    }

    /// Returns the members that a bare URI may lead to: those that show it so, if there are any.
    pub(super) fn of_bare<'o>(owners: impl Iterator<Item = &'o Self> + Clone) -> Vec<usize> {
        let mut found: Vec<usize> = owners.clone().flat_map(|one| one.bare.iter().copied()).collect();
        if found.is_empty() {
            found = owners.flat_map(|one| one.qualified.iter().copied()).collect();
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The items of one list.
#[derive(Debug, Default)]
struct Table {
    items: Vec<Item>,
    by_shown: BTreeMap<Box<str>, usize>,
    /// Of resources and templates: the members that have each, whether they are shown or not. What
    /// one of them has does not become another member's because it is withheld or hidden.
    by_own: BTreeMap<Box<str>, Owners>,
    fingerprint: u64,
}

/// All tables of a view.
#[derive(Debug)]
pub(super) struct Tables {
    tables: [Table; 4],
    withheld: Vec<Withheld>,
}

impl Tables {
    pub(super) fn new(plan: &Plan, members: &[MemberFacts]) -> Self {
        let mut withheld = Vec::new();
        let tables = ListKind::ALL.map(|kind| Table::new(kind, plan, members, &mut withheld));
        Self { tables, withheld }
    }

    fn table(&self, kind: ListKind) -> &Table {
        let [tools, prompts, resources, templates] = &self.tables;
        match kind {
            ListKind::Tools => tools,
            ListKind::Prompts => prompts,
            ListKind::Resources => resources,
            ListKind::Templates => templates,
        }
    }

    pub(super) fn items(&self, kind: ListKind) -> &[Item] {
        &self.table(kind).items
    }

    pub(super) fn item(&self, kind: ListKind, shown: &str) -> Option<&Item> {
        let table = self.table(kind);
        table.items.get(*table.by_shown.get(shown)?)
    }

    pub(super) fn position(&self, kind: ListKind, shown: &str) -> Option<usize> {
        self.table(kind).by_shown.get(shown).copied()
    }

    pub(super) fn fingerprint(&self, kind: ListKind) -> u64 {
        self.table(kind).fingerprint
    }

    /// Returns the members that list this URI, or this template, as their own.
    pub(super) fn owners(&self, kind: ListKind, own: &str) -> Option<&Owners> {
        self.table(kind).by_own.get(own)
    }

    /// Returns every template with the members that have it.
    pub(super) fn templates(&self) -> impl Iterator<Item = (&str, &Owners)> + Clone {
        let templates = self.table(ListKind::Templates).by_own.iter();
        templates.map(|(template, owners)| (&**template, owners))
    }

    pub(super) fn withheld(&self) -> &[Withheld] {
        &self.withheld
    }
}

impl Table {
    fn new(kind: ListKind, plan: &Plan, members: &[MemberFacts], withheld: &mut Vec<Withheld>) -> Self {
        let mut candidates = Vec::new();
        for (at, (member, facts)) in plan.members().iter().zip(members).enumerate() {
            let Some(offer) = &facts.offer else { continue };
            let list = offer.list(kind);
            if let Some(reason) = list.withheld().filter(|_| !facts.is_hidden) {
                withheld.push(Withheld {
                    member: member.name().clone(),
                    kind,
                    name: String::new(),
                    reason: reason.to_owned(),
                });
            }
            let limit = plan.limits().name_limit;
            let items = list
                .items()
                .filter_map(|raw| item(kind, member, at, offer.era(), raw, limit));
            candidates.extend(items.map(|item| (facts.is_hidden, item)));
        }
        // The names of a member that is hidden stay its own: no other member inherits one.
        let mut claims: BTreeMap<Box<str>, Vec<(usize, Box<str>)>> = BTreeMap::new();
        for (_, item) in &candidates {
            let claim = (item.member, item.own.clone());
            let claimants = claims.entry(item.shown.clone()).or_default();
            if !claimants.contains(&claim) {
                claimants.push(claim);
            }
        }
        let is_reserved = |shown: &str| {
            let searches = kind == ListKind::Tools && plan.tools_mode() == ToolsMode::Search;
            searches && RESERVED_NAMES.contains(&shown)
        };
        let mut table = Self::default();
        if matches!(kind, ListKind::Resources | ListKind::Templates) {
            for (_, item) in &candidates {
                let owners = table.by_own.entry(item.own.clone()).or_default();
                owners.add(item.member, item.own == item.shown);
            }
        }
        let mut fingerprint = Fingerprint::default();
        for (_, item) in candidates.into_iter().filter(|(is_hidden, _)| !is_hidden) {
            let claimants = claims.get(&item.shown).map_or(0, Vec::len);
            if claimants == 1 && !is_reserved(&item.shown) {
                // A server that lists an item twice has it once.
                if !table.by_shown.contains_key(&item.shown) {
                    fingerprint.add(&item.raw);
                    table.by_shown.insert(item.shown.clone(), table.items.len());
                    table.items.push(item);
                }
                continue;
            }
            if let Some(member) = plan.members().get(item.member) {
                let others = claims.get(&item.shown).map_or(&[][..], Vec::as_slice);
                withheld.push(Withheld {
                    member: member.name().clone(),
                    kind,
                    reason: reason(plan, &item, others),
                    name: item.shown.into(),
                });
            }
        }
        table.fingerprint = fingerprint.value();
        table
    }
}

/// Returns why a name is shown by no claimant, and the way out.
fn reason(plan: &Plan, item: &Item, claimants: &[(usize, Box<str>)]) -> String {
    let claimants = claimants.iter().filter_map(|(at, own)| {
        let member = plan.members().get(*at)?;
        Some(format!("`{own}` of `{}`", member.name()))
    });
    let claimants: Vec<String> = claimants.collect();
    match claimants.as_slice() {
        [one] => format!("{one} has a name of Rialto's own: set `rename`, or a `prefix`"),
        several => format!(
            "{} would all be `{}`: set `rename`, or another `prefix`",
            several.join(", "),
            item.shown
        ),
    }
}

fn item(kind: ListKind, member: &Member, at: usize, era: Era, raw: &str, limit: usize) -> Option<Item> {
    // An item without a name cannot be used by any client.
    let own = Object::parse(raw.as_bytes())?.text(kind.key())?;
    let mut is_cut = false;
    let (shown, raw) = match kind {
        ListKind::Tools => {
            if !member.permits(&own) {
                return None;
            }
            let name = member.tool_name(&own, limit);
            is_cut = name.is_cut;
            let raw = shown_tool(member, &own, &name.text, raw);
            (name.text, raw)
        }
        ListKind::Prompts => {
            let name = member.prompt_name(&own, limit);
            is_cut = name.is_cut;
            let raw = with_key(kind, raw, &name.text, &own);
            (name.text, raw)
        }
        ListKind::Resources | ListKind::Templates => {
            let shown = member.shown_uri(&own);
            let raw = with_key(kind, raw, &shown, &own);
            (shown, raw)
        }
    };
    Some(Item {
        member: at,
        own: own.into(),
        shown: shown.into(),
        raw,
        era,
        is_cut,
    })
}

fn with_key(kind: ListKind, raw: &str, shown: &str, own: &str) -> String {
    let mut edits = Edits::default();
    if shown != own {
        edits.values(raw, &[&[Step::Key(kind.key())]], |_| Some(quoted(shown)));
    }
    edits.apply(raw).unwrap_or_else(|| raw.to_owned())
}
