//! What an aggregate declares about itself: the union of what its members can.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::MemberFacts;
use super::instructions::{Instructions, instructions};
use super::tables::Tables;
use crate::aggregate::offer::{ListKind, Offer};
use crate::aggregate::plan::Plan;
use crate::client_face::own_answers::{Caching, capabilities_for, declaration};
use crate::exchange::{Client, ServerInfo};
use crate::object::{Object, may_have};
use crate::version::{Era, PerEra};

/// Members of the capabilities of which a client sees only what it declared too.
pub(super) const MUTUAL: [&str; 2] = ["extensions", "experimental"];
/// Discoveries are not kept: members join, leave and change.
const CACHING: Caching = Caching {
    ttl: 0,
    public: false,
};

/// What an aggregate declares, in each era.
#[derive(Debug)]
pub(crate) struct Declarations {
    info: String,
    instructions: Instructions,
    /// With everything that members have.
    capabilities: PerEra<Value>,
    /// For clients that have declared no extension.
    plain: PerEra<Arc<ServerInfo>>,
}

impl Declarations {
    pub(super) fn new(plan: &Plan, members: &[MemberFacts], tables: &Tables) -> Self {
        let offers: Vec<(usize, &Offer)> = members
            .iter()
            .enumerate()
            .filter(|(_, facts)| !facts.is_hidden)
            .filter_map(|(at, facts)| Some((at, facts.offer.as_deref()?)))
            .collect();
        let texts: Vec<(usize, Option<&str>, String)> = offers
            .iter()
            .filter_map(|(at, offer)| {
                // A member that is alone needs no heading.
                let is_plain = plan.is_single() && plan.instructions().is_none();
                let heading = plan.members().get(*at).map(|member| &**member.name());
                let text = offer.instructions().filter(|text| !text.is_empty())?;
                Some((*at, heading.filter(|_| !is_plain), text))
            })
            .collect();
        let limit = plan.limits().instructions_limit;
        let instructions = instructions(plan.instructions(), &texts, limit);
        let info = plan.server_info().to_string();
        // Clients read declarations once, so what a member may turn out to have must stand there.
        let may_grow = members.iter().any(|facts| facts.offer.is_none());
        let capabilities = PerEra::new(|era| union(era, &offers, tables, may_grow));
        let plain = PerEra::new(|era| {
            let mut shown = capabilities.get(era).clone();
            for name in MUTUAL {
                shown.as_object_mut().map(|members| members.remove(name));
            }
            let text = instructions.text.as_deref();
            Arc::new(declaration(era, &info, &shown.to_string(), text, CACHING))
        });
        Self {
            info,
            instructions,
            capabilities,
            plain,
        }
    }

    /// Returns what the aggregate calls itself: raw JSON.
    pub(crate) fn info(&self) -> &str {
        &self.info
    }

    pub(super) fn cut_instructions(&self) -> &[usize] {
        &self.instructions.cut
    }

    /// Returns what clients are shown that have declared no extension.
    pub(crate) fn plain(&self, era: Era) -> &ServerInfo {
        self.plain.get(era)
    }

    /// Returns what a client is shown. Of extensions and experiments it is shown those that it has
    /// declared itself.
    pub(crate) fn for_client(&self, era: Era, client: &Client) -> Arc<ServerInfo> {
        let capabilities = self.capabilities.get(era);
        let has_mutual = MUTUAL.iter().any(|name| capabilities.get(*name).is_some());
        if !has_mutual || !may_have(&client.declared, &MUTUAL) {
            return Arc::clone(self.plain.get(era));
        }
        let declared = Object::parse(&client.declared).unwrap_or_default();
        let mut shown = capabilities.clone();
        for name in MUTUAL {
            let known = declared.get(name).unwrap_or("{}");
            let known = Object::parse(known.as_bytes()).unwrap_or_default();
            let known: BTreeSet<&str> = known.keys().collect();
            let Some(offered) = shown.get_mut(name).and_then(Value::as_object_mut) else {
                continue;
            };
            offered.retain(|extension, _| known.contains(extension.as_str()));
            if offered.is_empty() {
                shown.as_object_mut().map(|members| members.remove(name));
            }
        }
        let text = self.instructions.text.as_deref();
        Arc::new(declaration(era, &self.info, &shown.to_string(), text, CACHING))
    }
}

/// Returns the capabilities of all members together, as clients of this era see them. `may_grow` is
/// whether there are members of which nothing is known.
fn union(era: Era, offers: &[(usize, &Offer)], tables: &Tables, may_grow: bool) -> Value {
    let mut union = Map::new();
    for (_, offer) in offers {
        let capabilities = capabilities_for(era, offer.server_info());
        if let Ok(Value::Object(capabilities)) = serde_json::from_str(&capabilities) {
            merge(&mut union, capabilities);
        }
    }
    for kind in [ListKind::Tools, ListKind::Prompts, ListKind::Resources] {
        let name = kind.capability();
        let mut offers = offers.iter();
        if !may_grow && !offers.any(|(at, offer)| offers_kind(kind, *at, offer, tables)) {
            union.remove(name);
            continue;
        }
        // Members may join and leave, so every list may change.
        let capability = union.entry(name).or_insert_with(|| json!({}));
        if let Some(capability) = capability.as_object_mut() {
            capability.insert("listChanged".to_owned(), true.into());
        }
    }
    Value::Object(union)
}

/// Returns whether a member has anything of this kind to show, or may have later.
fn offers_kind(kind: ListKind, at: usize, offer: &Offer, tables: &Tables) -> bool {
    let is_declared = offer.capabilities().get(kind.capability()).is_some();
    let is_empty = offer.count(kind) == 0;
    let is_shown = || tables.items(kind).iter().any(|item| item.member == at);
    is_declared && (is_empty || is_shown())
}

/// Adds capabilities to others. A flag is set if any member sets it.
fn merge(union: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (union.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => merge(known, value),
            (Some(Value::Bool(known)), Value::Bool(value)) => *known |= value,
            (Some(_), _) => {}
            (None, value) => {
                union.insert(name, value);
            }
        }
    }
}
