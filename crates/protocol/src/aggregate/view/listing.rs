//! Lists of a view as answers: on one page, or page by page with cursors that outlive a change.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::View;
use crate::aggregate::offer::ListKind;
use crate::aggregate::plan::ToolsMode;
use crate::aggregate::search::DEFINITIONS;
use crate::client_face::own_answers::{Caching, OwnList, list_answer, tool_for};
use crate::mcp_apps;
use crate::message::{Message, quoted};
use crate::object::Object;
use crate::version::{Era, PerEra};

/// Where a list names the states of the members.
const MEMBERS: &str = "rialto/members";
/// Where a list names the aggregates that it has come through, so that one which is its own member
/// can see that.
pub(crate) const VIA: &str = "rialto/via";
/// Lists, and the two ways in which clients of one era differ.
const RENDERINGS: usize = 4 * 2 * 2;

/// The whole lists that were answered, so that each is written once per view.
#[derive(Debug, Default)]
pub(super) struct Rendered(PerEra<[OnceLock<Message>; RENDERINGS]>);

/// Which list a client wants, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListRequest {
    pub(crate) kind: ListKind,
    pub(crate) era: Era,
    pub(crate) mode: ToolsMode,
    /// The client shows user interfaces, so it is shown the tools that only those call.
    pub(crate) shows_interfaces: bool,
}

impl ListRequest {
    fn searches(self) -> bool {
        self.kind == ListKind::Tools && self.mode == ToolsMode::Search
    }

    fn slot(self) -> usize {
        let flags = usize::from(self.searches()) * 2 + usize::from(self.shows_interfaces);
        self.kind as usize * 4 + flags
    }
}

/// Where a page ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    kind: ListKind,
    /// How many items of the table came before.
    at: usize,
    /// The last item that was shown.
    last: String,
    fingerprint: u64,
}

impl Place {
    fn write(&self) -> String {
        let Self { at, fingerprint, .. } = self;
        let (kind, last) = (self.kind.member(), quoted(&self.last));
        format!(r#"{{"kind":"{kind}","at":{at},"last":{last},"fingerprint":{fingerprint}}}"#)
    }

    fn read(text: &str) -> Option<Self> {
        let place = Object::parse(text.as_bytes())?;
        let kind = place.text("kind")?;
        Some(Self {
            kind: ListKind::ALL.into_iter().find(|known| known.member() == kind)?,
            at: place.get("at")?.parse().ok()?,
            last: place.text("last")?,
            fingerprint: place.get("fingerprint")?.parse().ok()?,
        })
    }
}

/// A cursor that is none of this list's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadCursor;

impl View {
    /// Returns a whole list.
    pub(crate) fn list(&self, request: ListRequest) -> Message {
        let make = || {
            let items = self.raw_items(request, 0, usize::MAX);
            self.answer(request, &items.texts, None)
        };
        match self.rendered.0.get(request.era).get(request.slot()) {
            Some(slot) => slot.get_or_init(make).clone(),
            None => make(),
        }
    }

    /// Returns one page of a list. `seal` closes the cursor of the next one.
    pub(crate) fn page(
        &self,
        request: ListRequest,
        cursor: Option<&str>,
        size: usize,
        seal: impl FnOnce(&str) -> Option<String>,
    ) -> Result<Message, BadCursor> {
        let fingerprint = self.fingerprint(request.kind);
        let start = match cursor
            .map(|cursor| Place::read(cursor).ok_or(BadCursor))
            .transpose()?
        {
            None => 0,
            Some(place) if place.kind != request.kind => return Err(BadCursor),
            Some(place) if place.fingerprint == fingerprint => place.at,
            // The list has changed: the page begins behind the last item, or where that was.
            Some(place) => {
                let found = self.tables.position(request.kind, &place.last);
                found.map_or(place.at, |at| at + 1)
            }
        };
        let page = self.raw_items(request, start, size);
        let next = page.next.map(|(at, last)| Place {
            kind: request.kind,
            at,
            last,
            fingerprint,
        });
        let next = next.and_then(|place| seal(&place.write()));
        Ok(self.answer(request, &page.texts, next.as_deref()))
    }

    fn raw_items(&self, request: ListRequest, start: usize, size: usize) -> Page {
        let mut texts: Vec<String> = Vec::new();
        if request.searches() && start == 0 {
            texts.push(DEFINITIONS.to_owned());
        }
        let items = self.tables.items(request.kind);
        let mut taken = 0;
        let mut last = None;
        for (at, item) in items.iter().enumerate().skip(start) {
            let is_hidden = request.searches() && !self.plan.is_always_listed(&item.shown);
            let is_for_interfaces = || request.kind == ListKind::Tools && mcp_apps::is_app_only(&item.raw);
            if is_hidden || (!request.shows_interfaces && is_for_interfaces()) {
                continue;
            }
            if taken == size {
                // There is one more, so the page is not the last.
                return Page { texts, next: last };
            }
            taken += 1;
            last = Some((at + 1, item.shown.to_string()));
            texts.push(match request.kind {
                ListKind::Tools => tool_for(request.era, item.era, &item.raw).into_owned(),
                ListKind::Prompts | ListKind::Resources | ListKind::Templates => item.raw.clone(),
            });
        }
        Page { texts, next: None }
    }

    fn answer(&self, request: ListRequest, items: &[String], next_cursor: Option<&str>) -> Message {
        let list = OwnList {
            member: request.kind.member(),
            items: &items.join(","),
            next_cursor,
            caching: self.caching(request.kind),
            server: self.declarations.info(),
            meta: &self.meta(),
        };
        list_answer(request.era, &list)
    }

    /// Returns the states of the members, and the aggregates that a list has come through.
    fn meta(&self) -> Vec<(&'static str, String)> {
        let mut meta = vec![(MEMBERS, self.states())];
        let id = self.plan.id();
        if !id.is_empty() {
            let offers = self.members.iter().filter_map(|member| member.offer.as_ref());
            let mut via: BTreeSet<&str> = offers
                .flat_map(|offer| offer.via().iter().map(String::as_str))
                .collect();
            via.insert(id);
            let via: Vec<String> = via.into_iter().map(quoted).collect();
            meta.push((VIA, format!("[{}]", via.join(","))));
        }
        meta
    }

    /// Returns a list of these raw tasks.
    pub(crate) fn task_list(&self, era: Era, tasks: &[String]) -> Message {
        let list = OwnList {
            member: "tasks",
            items: &tasks.join(","),
            next_cursor: None,
            caching: Caching {
                ttl: 0,
                public: false,
            },
            server: self.declarations.info(),
            meta: &[(MEMBERS, self.states())],
        };
        list_answer(era, &list)
    }

    /// Returns how long a list may be kept: as long as each member allows, if each announces
    /// changes.
    pub(crate) fn caching(&self, kind: ListKind) -> Caching {
        let mut caching = Caching {
            ttl: u64::MAX,
            public: true,
        };
        for (member, facts) in self.plan.members().iter().zip(&self.members) {
            let Some(offer) = &facts.offer else {
                return Caching {
                    ttl: 0,
                    public: false,
                };
            };
            if offer.capabilities().get(kind.capability()).is_none() {
                continue;
            }
            let announces = offer.server_info().changing_lists.contains(&kind.changed());
            let list = offer.list(kind);
            caching.ttl = caching.ttl.min(if announces { list.ttl } else { 0 });
            caching.public &= list.public && !member.is_per_caller();
        }
        // No member has such a list, so nothing was promised about it.
        if caching.ttl == u64::MAX {
            caching.ttl = 0;
        }
        caching
    }

    /// Returns the definition of a tool for a client of this era.
    pub(crate) fn tool_definition(&self, at: usize, era: Era) -> Option<String> {
        let item = self.tables.items(ListKind::Tools).get(at)?;
        Some(tool_for(era, item.era, &item.raw).into_owned())
    }

    /// Returns whether models may call a tool, by its place in the list. Some are for user
    /// interfaces alone.
    pub(crate) fn is_for_models(&self, at: usize) -> bool {
        let item = self.tables.items(ListKind::Tools).get(at);
        item.is_some_and(|item| !mcp_apps::is_app_only(&item.raw))
    }

    /// Returns the member of a tool by its place in the list.
    pub(crate) fn tool_member(&self, at: usize) -> Option<usize> {
        self.tables.items(ListKind::Tools).get(at).map(|item| item.member)
    }
}

/// The items of one page.
struct Page {
    texts: Vec<String>,
    /// Where the next page begins, and the last item of this one.
    next: Option<(usize, String)>,
}
