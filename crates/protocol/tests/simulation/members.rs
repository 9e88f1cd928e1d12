//! The names under which clients of an aggregate know what its members have, computed apart from
//! the machines; and what Rialto itself answers to such clients.

use std::collections::BTreeSet;

use protocol::aggregate::WhenDown;
use serde_json::Value;

use crate::aggregate::{Aggregate, Configured, Target};
use crate::dice::Dice;
use crate::history::Fact;
use crate::run::SimulationRun;
use crate::server::{BARE_URIS, MAX_TOOLS, URIS};

pub(crate) fn name_of(backend: usize) -> String {
    format!("m{backend}")
}

pub(crate) fn title_of(backend: usize) -> String {
    format!("M{backend}")
}

/// Returns the backend with this name.
pub(crate) fn of_name(name: &str) -> usize {
    let number = name.strip_prefix('m').and_then(|number| number.parse().ok());
    number.expect("members are named after their backends")
}

/// The parameters of a request as its client writes them, and as a server is to read them.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    pub(crate) sent: String,
    pub(crate) read: String,
}

impl Params {
    /// Parameters that nothing is to change.
    pub(crate) fn same(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            sent: text.clone(),
            read: text,
        }
    }

    /// Returns them with more behind them.
    pub(crate) fn and(&self, more: &str) -> Self {
        Self {
            sent: format!("{}{more}", self.sent),
            read: format!("{}{more}", self.read),
        }
    }

    /// Returns them with another argument; `None` if they have none.
    pub(crate) fn changed(&self) -> Option<Self> {
        let change = |text: &str| text.replace("1.50e3", "2");
        let changed = Self {
            sent: change(&self.sent),
            read: change(&self.read),
        };
        (changed.sent != self.sent).then_some(changed)
    }
}

/// Where a request goes, and what is certain about it when it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Addressed {
    pub(crate) target: Target,
    /// The backend that it is for, if that is one.
    pub(crate) owner: Option<usize>,
    /// The owner has always offered what the request names.
    is_lasting: bool,
    generation: u64,
    /// The members of which it is known what they offer.
    known: Vec<usize>,
}

impl Addressed {
    pub(crate) fn to_backend(backend: usize) -> Self {
        Self {
            target: Target::Backend(backend),
            owner: Some(backend),
            is_lasting: false,
            generation: 0,
            known: Vec::new(),
        }
    }

    fn to_aggregate(aggregate: &Aggregate, owner: Option<usize>, is_lasting: bool) -> Self {
        Self {
            target: Target::Aggregate,
            owner,
            is_lasting,
            generation: aggregate.generation,
            known: aggregate.known(),
        }
    }
}

/// What a client of an aggregate wants.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) method: &'static str,
    pub(crate) params: Params,
    pub(crate) to: Addressed,
}

/// What a request names.
#[derive(Debug, Clone, Copy)]
enum Named {
    Tool(&'static str),
    Prompt,
    /// By its place among those of the member.
    Resource(usize),
    Completion,
    Nothing,
}

const ARGUMENTS: &str = r#" "arguments":{"n":1.50e3},"#;
/// Tools that a server has at times.
const CHANGING: [&str; MAX_TOOLS] = ["x0", "x1", "x2"];

impl Aggregate {
    /// Returns the name under which clients know a tool or a prompt of a member.
    pub(crate) fn shown_name(&self, backend: usize, own: &str) -> String {
        let configured = self.configured.get(backend);
        let prefix = configured.and_then(|configured| configured.prefix.clone());
        match prefix.unwrap_or_else(|| name_of(backend)).as_str() {
            "" => own.to_owned(),
            prefix => format!("{prefix}__{own}"),
        }
    }

    /// Returns the URI under which clients know a resource of a member.
    pub(crate) fn shown_uri(&self, backend: usize, own: &str) -> String {
        let configured = self.configured.get(backend);
        let prefix = configured.and_then(|configured| configured.prefix.as_deref());
        match prefix {
            Some("") => own.to_owned(),
            Some(_) | None => format!("{}+{own}", name_of(backend)),
        }
    }

    /// Returns the resources of a member, under its own URIs.
    pub(crate) fn uris(&self, backend: usize) -> [&'static str; 3] {
        let configured = self.configured.get(backend);
        match configured.and_then(|configured| configured.prefix.as_deref()) {
            Some("") => BARE_URIS,
            Some(_) | None => URIS,
        }
    }

    fn named(&self, backend: usize, named: Named) -> Params {
        let pair = |write: &dyn Fn(&str) -> String, shown: &str, own: &str| Params {
            sent: write(shown),
            read: write(own),
        };
        match named {
            Named::Tool(own) => pair(
                &|name| format!(r#""name":"{name}",{ARGUMENTS}"#),
                &self.shown_name(backend, own),
                own,
            ),
            Named::Prompt => pair(
                &|name| format!(r#""name":"{name}",{ARGUMENTS}"#),
                &self.shown_name(backend, "p"),
                "p",
            ),
            Named::Resource(at) => {
                let own = self.uris(backend)[at];
                pair(
                    &|uri| format!(r#""uri":"{uri}","#),
                    &self.shown_uri(backend, own),
                    own,
                )
            }
            Named::Completion => pair(
                &|name| {
                    format!(
                        r#""ref":{{"type":"ref/prompt","name":"{name}"}},"argument":{{"name":"a","value":"v"}},"#
                    )
                },
                &self.shown_name(backend, "p"),
                "p",
            ),
            Named::Nothing => Params::same(""),
        }
    }

    fn wanted(&self, dice: &mut Dice, method: &'static str, named: Named) -> Wanted {
        // Sometimes of a member that the plan has no more.
        let all: Vec<usize> = (0..self.configured.len()).collect();
        let of = match dice.percent(90) {
            true => &self.shown,
            false => &all,
        };
        let backend = dice.pick(of).copied().unwrap_or_default();
        let (owner, is_lasting) = match named {
            Named::Tool("t") | Named::Prompt | Named::Resource(_) | Named::Completion => {
                (Some(backend), true)
            }
            Named::Tool(_) => (Some(backend), false),
            Named::Nothing => (None, false),
        };
        let is_lasting = is_lasting && self.shown.contains(&backend);
        Wanted {
            method,
            params: self.named(backend, named),
            to: Addressed::to_aggregate(self, owner, is_lasting),
        }
    }

    /// Returns something that a legacy client may want.
    pub(crate) fn want(&self, dice: &mut Dice) -> Wanted {
        let uri = dice.below(URIS.len());
        let (method, named) = match dice.below(16) {
            0 | 1 => ("resources/subscribe", Named::Resource(uri)),
            2 => ("resources/unsubscribe", Named::Resource(uri)),
            3 => {
                let level = ["debug", "info", "error"][dice.below(3)];
                let wanted = self.wanted(dice, "logging/setLevel", Named::Nothing);
                let params = Params::same(format!(r#""level":"{level}","#));
                return Wanted { params, ..wanted };
            }
            4 => ("tools/list", Named::Nothing),
            5 => (
                ["prompts/list", "resources/list", "resources/templates/list"][dice.below(3)],
                Named::Nothing,
            ),
            6 => ("prompts/get", Named::Prompt),
            7 => ("resources/read", Named::Resource(uri)),
            8 => ("completion/complete", Named::Completion),
            9 => ("tools/call", Named::Tool(CHANGING[dice.below(CHANGING.len())])),
            _ => ("tools/call", Named::Tool("t")),
        };
        self.wanted(dice, method, named)
    }

    /// Returns something that a modern client may want.
    pub(crate) fn want_modern(&self, dice: &mut Dice) -> Wanted {
        let uri = dice.below(URIS.len());
        let (method, named) = match dice.below(12) {
            0 | 1 => ("tools/list", Named::Nothing),
            2 => ("prompts/get", Named::Prompt),
            3 => ("resources/read", Named::Resource(uri)),
            4 => ("completion/complete", Named::Completion),
            5 => ("tools/call", Named::Tool(CHANGING[dice.below(CHANGING.len())])),
            _ => ("tools/call", Named::Tool("t")),
        };
        self.wanted(dice, method, named)
    }

    /// Returns a request of which everything is certain: each member must be listed.
    pub(crate) fn addressed_by_all(&self) -> Addressed {
        Addressed {
            known: self.shown.clone(),
            ..self.addressed(None)
        }
    }

    pub(crate) fn addressed(&self, owner: Option<usize>) -> Addressed {
        Addressed::to_aggregate(self, owner, false)
    }

    /// Returns what is wrong with a list that clients are shown, if anything is. Each item has a
    /// title that names its owner.
    fn fault_of_list(&self, (list, key): (&str, &str), items: &[Value], known: &[usize]) -> Option<String> {
        let mut seen: BTreeSet<(usize, &str)> = BTreeSet::new();
        for item in items {
            let title = item["title"].as_str().and_then(|title| title.split_once(' '));
            let title = title.and_then(|(owner, own)| Some((owner.parse::<usize>().ok()?, own)));
            let Some((owner, own)) = title else {
                return Some(format!("a list has {item}, which no member offers"));
            };
            let shown = item[key].as_str().unwrap_or_default();
            let expected = match key {
                "name" => self.shown_name(owner, own),
                _ => self.shown_uri(owner, own),
            };
            if shown != expected {
                return Some(format!(
                    "`{own}` of member {owner} was shown as `{shown}`, not as `{expected}`"
                ));
            }
            if !seen.insert((owner, own)) {
                return Some(format!("`{shown}` stands in a list twice"));
            }
        }
        let lasting = |owner: usize| match list {
            "tools" => Some("t"),
            "prompts" => Some("p"),
            "resources" => Some(self.uris(owner)[0]),
            _ => None,
        };
        let hides = |one: &Configured| one.when_down != WhenDown::Keep;
        if items.is_empty() && list != "resourceTemplates" && !self.configured.iter().any(hides) {
            return Some("an empty list was shown".into());
        }
        let missing = known
            .iter()
            .find(|owner| lasting(**owner).is_some_and(|own| !seen.contains(&(**owner, own))));
        missing.map(|owner| format!("a list of {list} lacks member {owner}, which is known"))
    }
}

/// The lists, and what names their items.
const LISTS: [(&str, &str); 4] = [
    ("tools", "name"),
    ("prompts", "name"),
    ("resources", "uri"),
    ("resourceTemplates", "uriTemplate"),
];

impl SimulationRun {
    /// Reads an answer to a client of an aggregate. Returns why it is none of a member's, if it is
    /// Rialto's own.
    pub(crate) fn read_own_answer(&mut self, to: &Addressed, value: &Value) -> Option<String> {
        let aggregate = self.aggregate.as_ref()?;
        let is_certain = to.generation == aggregate.generation;
        let result = &value["result"];
        for (member, key) in LISTS {
            let Some(items) = result[member].as_array() else {
                continue;
            };
            let known: &[usize] = if is_certain { &to.known } else { &[] };
            let mut fault = aggregate.fault_of_list((member, key), items, known);
            if !result["_meta"]["rialto/members"].is_object() {
                fault = Some("a list does not tell how its members are".into());
            }
            if let Some(what) = fault {
                let what = format!("{what}: {value}");
                self.note(Fact::Wrong { what });
            }
            return Some("listed".into());
        }
        let text = value["error"]["message"].as_str()?;
        let unknown = [
            "unknown tool: ",
            "unknown prompt: ",
            "unknown task: ",
            "no member has this resource",
        ];
        if unknown.iter().any(|words| text.starts_with(words)) {
            let is_known = to.owner.is_some_and(|owner| to.known.contains(&owner));
            if is_certain && is_known && to.is_lasting {
                let what = format!("what member {:?} offers was called unknown: {text}", to.owner);
                self.note(Fact::Wrong { what });
            }
            return Some("unknown name".into());
        }
        // Some servers of the simulation give tasks that they never declared.
        if text.contains("does not have `tasks/") {
            return Some("no tasks".into());
        }
        (text == "no member has `logging`").then(|| "no member logs".into())
    }

    /// Returns an answer as its member wrote it, but for its id.
    pub(crate) fn unmarked(to: &Addressed, body: &str) -> String {
        match (to.target, to.owner) {
            (Target::Aggregate, Some(owner)) => body
                .replace(&format!(r#""{}:"#, name_of(owner)), "\"")
                .replace(&format!(r#""[{}] "#, title_of(owner)), "\"")
                .replace(&format!(r#","rialto/member":"{}""#, name_of(owner)), ""),
            (Target::Aggregate, None) | (Target::Backend(_), _) => body.to_owned(),
        }
    }

    /// Notes which member a message names, for the judge to compare it with the one that wrote it.
    /// A member that is alone is not named.
    pub(crate) fn attribute(&mut self, session: usize, to: Target, seq: Option<u64>, named: Option<&str>) {
        let (Some(aggregate), Some(seq)) = (&self.aggregate, seq) else {
            return;
        };
        let backend = named.map(of_name);
        if to == Target::Aggregate && (backend.is_some() || !aggregate.was_single) {
            self.note(Fact::Attributed {
                session,
                seq,
                backend,
            });
        }
    }
}
