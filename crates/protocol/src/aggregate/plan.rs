//! An aggregate as configured: its members, their prefixes and rules, and its limits.
//!
//! [`Plan::new`] refuses what can never work, so that the rest of the code meets no such plan. What
//! depends on what members offer is decided in the view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use super::names::{LEAST_LIMIT, SEPARATOR, ShownName, is_plain, shown};
use super::search::RESERVED_NAMES;
use super::uris;
use crate::tool_policy::{Glob, ToolPolicy};

/// The name of a member: that of its destination.
pub type MemberName = Arc<str>;

/// Which tools a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolsMode {
    /// Every tool.
    #[default]
    All,
    /// A tool that finds tools, and tools that call them.
    Search,
}

/// What becomes of the tools of a member that is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenDown {
    /// They stay listed, from the catalogue.
    #[default]
    Keep,
    /// They are hidden once the member was down for so long.
    Hide {
        /// How long the member may be down before that.
        grace: Duration,
    },
}

/// Hints about a tool that the configuration changes. Only a stricter value has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Annotations {
    /// `readOnlyHint`; `false` is stricter.
    pub read_only: Option<bool>,
    /// `destructiveHint`; `true` is stricter.
    pub destructive: Option<bool>,
    /// `idempotentHint`; `false` is stricter.
    pub idempotent: Option<bool>,
    /// `openWorldHint`; `true` is stricter.
    pub open_world: Option<bool>,
}

/// What the configuration changes about the tools of one member. Keys are the member's own names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolRules {
    /// Which tools are shown.
    pub select: ToolPolicy,
    /// Other names, to which the prefix is put as to any name.
    pub rename: BTreeMap<String, String>,
    /// Other descriptions.
    pub describe: BTreeMap<String, String>,
    /// Arguments that are fixed and not shown.
    pub hide_args: BTreeMap<String, BTreeMap<String, Value>>,
    /// Stricter hints.
    pub annotations: BTreeMap<String, Annotations>,
}

/// One member as configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemberSpec {
    /// The name of its destination.
    pub name: String,
    /// What users see where it asks; its name and the title of its server if there is none.
    pub title: Option<String>,
    /// What stands before its names; its own name if there is none.
    pub prefix: Option<String>,
    /// What becomes of its tools while it is down.
    pub when_down: WhenDown,
    /// Every caller has an instance of its own, so that what it offers is private.
    pub per_caller: bool,
    /// The policy of the destination itself.
    pub policy: ToolPolicy,
    /// What the aggregate changes about its tools.
    pub tools: ToolRules,
}

/// The limits of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateLimits {
    /// Characters of a shown name.
    pub name_limit: usize,
    /// Items of a page; all of them on one page if there is none.
    pub page_size: Option<usize>,
    /// Bytes of all instructions together.
    pub instructions_limit: usize,
    /// How long a client waits while nothing is known of any member.
    pub ready_timeout: Duration,
    /// How long changes are collected before clients are notified.
    pub coalesce: Duration,
    /// Pages of one list of one member.
    pub pages: usize,
    /// Items of one list of one member.
    pub items: usize,
    /// Bytes of one list of one member.
    pub bytes: usize,
}

impl Default for AggregateLimits {
    fn default() -> Self {
        Self {
            // 64, less `mcp__`, `rialto` and `__`, which hosts put before a name.
            name_limit: 51,
            page_size: None,
            instructions_limit: 2048,
            ready_timeout: Duration::from_secs(5),
            coalesce: Duration::from_millis(250),
            pages: 64,
            items: 10_000,
            bytes: 8 << 20,
        }
    }
}

/// An aggregate as configured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlanSpec {
    /// What tells it from every other aggregate, in other processes too; empty if nothing does.
    pub id: String,
    /// Its name, which is part of its URL.
    pub name: String,
    /// Its title, for people.
    pub title: Option<String>,
    /// The version that it shows as a server.
    pub version: String,
    /// Its own instructions, which come first.
    pub instructions: Option<String>,
    /// Its members in their order.
    pub members: Vec<MemberSpec>,
    /// Which tools its list shows.
    pub tools: ToolsMode,
    /// With [`ToolsMode::Search`]: the shown names that stay listed.
    pub always: Vec<Glob>,
    /// Its limits.
    pub limits: AggregateLimits,
}

/// Why an aggregate cannot be served. The text names the member and the way out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// It has no member.
    #[error("it has no member: list at least one destination under `members`")]
    NoMembers,
    /// A member stands there twice.
    #[error("member `{member}` stands there twice: remove one of them")]
    SameMember {
        /// The member.
        member: String,
    },
    /// Two members have one prefix.
    #[error("members `{}` and `{}` have the same prefix `{prefix}`: give one of them another `prefix`", members.0, members.1)]
    SamePrefix {
        /// The prefix.
        prefix: String,
        /// Both members.
        members: (String, String),
    },
    /// A prefix cannot stand before names.
    #[error("member `{member}`: the prefix `{prefix}` {why}: set `prefix` to another text")]
    BadPrefix {
        /// The member.
        member: String,
        /// The prefix.
        prefix: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A tool is renamed to a name that another one has.
    #[error("member `{member}`: `rename` gives both `{}` and `{}` the name `{new}`: choose another for one of them", old.0, old.1)]
    RenameTaken {
        /// The member.
        member: String,
        /// Both tools.
        old: (String, String),
        /// The name.
        new: String,
    },
    /// A tool is renamed to a name that cannot be shown.
    #[error("member `{member}`: `rename` to `{new}`: use letters, digits, `_` and `-`")]
    BadRename {
        /// The member.
        member: String,
        /// The name.
        new: String,
    },
    /// Names cannot be cut to this limit.
    #[error("`name_limit` is {limit}: the least is {LEAST_LIMIT}")]
    NameLimit {
        /// The limit.
        limit: usize,
    },
    /// A page has no items.
    #[error("`page_size` is 0: leave it out for lists on one page")]
    EmptyPages,
}

/// One member of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    name: MemberName,
    prefix: String,
    tag: String,
    spec: MemberSpec,
}

impl Member {
    /// Returns its name.
    pub fn name(&self) -> &MemberName {
        &self.name
    }

    /// Returns its prefix, which may be empty.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns whether every caller has an instance of its own.
    pub fn is_per_caller(&self) -> bool {
        self.spec.per_caller
    }

    /// Returns what becomes of its tools while it is down.
    pub fn when_down(&self) -> WhenDown {
        self.spec.when_down
    }

    pub(crate) fn title(&self) -> Option<&str> {
        self.spec.title.as_deref()
    }

    pub(crate) fn rules(&self) -> &ToolRules {
        &self.spec.tools
    }

    /// Returns whether a tool of this own name may be seen and called.
    pub(crate) fn permits(&self, own: &str) -> bool {
        self.spec.policy.permits(own) && self.spec.tools.select.permits(own)
    }

    /// Returns the name under which clients see a tool.
    pub(crate) fn tool_name(&self, own: &str, limit: usize) -> ShownName {
        let part = self.spec.tools.rename.get(own).map_or(own, String::as_str);
        shown(&self.name, &self.prefix, own, part, limit)
    }

    /// Returns the name under which clients see a prompt.
    pub(crate) fn prompt_name(&self, own: &str, limit: usize) -> ShownName {
        shown(&self.name, &self.prefix, own, own, limit)
    }

    /// Returns what stands for the member in its URIs; `None` if they are shown as they are.
    pub(crate) fn tag(&self) -> Option<&str> {
        (!self.prefix.is_empty()).then_some(&self.tag)
    }

    /// Returns a URI, or a template, as clients see it.
    pub(crate) fn shown_uri(&self, own: &str) -> String {
        self.tag()
            .map_or_else(|| own.to_owned(), |tag| uris::qualify(tag, own))
    }
}

/// An aggregate as used.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    spec: PlanSpec,
    members: Vec<Member>,
}

impl Plan {
    /// Checks an aggregate as configured. Returns everything that is wrong with it.
    pub fn new(mut spec: PlanSpec) -> Result<Self, Vec<PlanError>> {
        let members: Vec<Member> = std::mem::take(&mut spec.members)
            .into_iter()
            .map(|spec| Member {
                name: spec.name.as_str().into(),
                prefix: spec.prefix.clone().unwrap_or_else(|| spec.name.clone()),
                tag: uris::tag(&spec.name),
                spec,
            })
            .collect();
        let plan = Self { spec, members };
        let errors = plan.errors();
        if errors.is_empty() { Ok(plan) } else { Err(errors) }
    }

    fn errors(&self) -> Vec<PlanError> {
        let mut errors = Vec::new();
        if self.members.is_empty() {
            errors.push(PlanError::NoMembers);
        }
        let limit = self.spec.limits.name_limit;
        if limit < LEAST_LIMIT {
            errors.push(PlanError::NameLimit { limit });
        }
        if self.spec.limits.page_size == Some(0) {
            errors.push(PlanError::EmptyPages);
        }
        let mut names = BTreeSet::new();
        let mut prefixes: BTreeMap<&str, &str> = BTreeMap::new();
        for member in &self.members {
            if !names.insert(&member.name) {
                let member = member.name.to_string();
                errors.push(PlanError::SameMember { member });
                continue;
            }
            if let Some(why) = fault_of_prefix(&member.prefix, limit) {
                errors.push(PlanError::BadPrefix {
                    member: member.name.to_string(),
                    prefix: member.prefix.clone(),
                    why,
                });
            }
            if member.prefix.is_empty() {
                continue;
            }
            if let Some(other) = prefixes.insert(&member.prefix, &member.name) {
                errors.push(PlanError::SamePrefix {
                    prefix: member.prefix.clone(),
                    members: (other.to_owned(), member.name.to_string()),
                });
            }
        }
        for member in &self.members {
            errors_of_renames(member, &mut errors);
        }
        errors
    }

    /// Returns its members in their order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the member of this name.
    pub fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| &*member.name == name)
    }

    /// Returns what tells it from every other aggregate.
    pub fn id(&self) -> &str {
        &self.spec.id
    }

    /// Returns the name of the aggregate.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns its limits.
    pub fn limits(&self) -> &AggregateLimits {
        &self.spec.limits
    }

    /// Returns which tools its list shows, unless a client wants otherwise.
    pub fn tools_mode(&self) -> ToolsMode {
        self.spec.tools
    }

    /// Returns whether a tool stays listed where others are searched.
    pub(crate) fn is_always_listed(&self, shown: &str) -> bool {
        self.spec.always.iter().any(|glob| glob.matches(shown))
    }

    pub(crate) fn instructions(&self) -> Option<&str> {
        self.spec.instructions.as_deref()
    }

    /// Returns what the aggregate calls itself, as JSON.
    pub(crate) fn server_info(&self) -> Value {
        let mut info = serde_json::json!({ "name": self.spec.name, "version": self.spec.version });
        if let (Some(title), Some(members)) = (&self.spec.title, info.as_object_mut()) {
            members.insert("title".to_owned(), title.as_str().into());
        }
        info
    }

    /// Returns the member whose tag this is.
    pub(crate) fn tagged(&self, tag: &str) -> Option<usize> {
        self.members.iter().position(|member| member.tag() == Some(tag))
    }

    /// Returns whether there is one member alone, so that its words need no name.
    pub(crate) fn is_single(&self) -> bool {
        self.members.len() == 1
    }
}

/// Returns what is wrong with a prefix. With two `_` in it, or one at its end, two members could
/// have one name: `a` with `b__c`, and `a__b` with `c`.
fn fault_of_prefix(prefix: &str, limit: usize) -> Option<&'static str> {
    if !prefix.chars().all(is_plain) {
        return Some("has characters other than letters, digits, `_` and `-`");
    }
    if prefix.contains(SEPARATOR) {
        return Some("contains `__`");
    }
    if prefix.ends_with('_') {
        return Some("ends with `_`");
    }
    // Behind it are the separator, a hash and at least one letter.
    (prefix.len() + 10 > limit).then_some("leaves no room for names within `name_limit`")
}

fn errors_of_renames(member: &Member, errors: &mut Vec<PlanError>) {
    let mut taken: BTreeMap<&str, &str> = BTreeMap::new();
    for (old, new) in &member.spec.tools.rename {
        if new.is_empty()
            || !new.chars().all(is_plain)
            || (member.prefix.is_empty() && RESERVED_NAMES.contains(&new.as_str()))
        {
            errors.push(PlanError::BadRename {
                member: member.name.to_string(),
                new: new.clone(),
            });
        }
        if let Some(other) = taken.insert(new, old) {
            errors.push(PlanError::RenameTaken {
                member: member.name.to_string(),
                old: (other.to_owned(), old.clone()),
                new: new.clone(),
            });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn member(name: &str, prefix: Option<&str>) -> MemberSpec {
        MemberSpec {
            name: name.to_owned(),
            prefix: prefix.map(str::to_owned),
            ..MemberSpec::default()
        }
    }

    pub(crate) fn spec(members: Vec<MemberSpec>) -> PlanSpec {
        PlanSpec {
            name: "work".to_owned(),
            version: "1".to_owned(),
            members,
            ..PlanSpec::default()
        }
    }

    fn errors(spec: PlanSpec) -> Vec<String> {
        let errors = Plan::new(spec).err().unwrap_or_default();
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn name_does_not_change_when_a_second_member_is_added() {
        let names = |members: Vec<MemberSpec>| {
            let plan = Plan::new(spec(members)).unwrap();
            plan.member("github").unwrap().tool_name("create_issue", 51).text
        };
        let alone = names(vec![member("github", None)]);
        assert_eq!(alone, "github__create_issue");
        assert_eq!(
            names(vec![member("files", Some("")), member("github", None)]),
            alone
        );
    }

    #[test]
    fn two_members_with_one_prefix_fail_the_load() {
        let errors = errors(spec(vec![member("a", Some("gh")), member("b", Some("gh"))]));
        assert_eq!(
            errors,
            ["members `a` and `b` have the same prefix `gh`: give one of them another `prefix`"]
        );
        let bare = vec![member("a", Some("")), member("b", Some(""))];
        assert!(Plan::new(spec(bare)).is_ok(), "their names may differ");
    }

    #[test]
    fn prefix_that_could_lead_to_one_name_twice_is_refused() {
        for (prefix, why) in [
            ("a__b", "contains `__`"),
            ("a_", "ends with `_`"),
            ("a.b", "characters"),
            ("a-prefix-that-is-longer-than-names-may-be-altogether", "no room"),
        ] {
            let errors = errors(spec(vec![member("m", Some(prefix))]));
            assert!(
                errors.len() == 1 && errors[0].contains(why),
                "{prefix}: {errors:?}"
            );
        }
    }

    #[test]
    fn renames_must_give_different_names_that_can_be_shown() {
        let renamed = |renames: &[(&str, &str)]| {
            let mut spec = spec(vec![member("m", None)]);
            let pairs = renames
                .iter()
                .map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
            spec.members[0].tools.rename = pairs.collect();
            errors(spec)
        };
        assert!(renamed(&[("a", "b"), ("b", "a")]).is_empty());
        assert!(renamed(&[("a", "c"), ("b", "c")])[0].contains("both `a` and `b` the name `c`"));
        assert!(renamed(&[("a", "x y")])[0].contains("use letters"));
    }

    #[test]
    fn limits_and_members_are_checked() {
        assert!(errors(spec(vec![]))[0].contains("no member"));
        assert!(errors(spec(vec![member("m", None), member("m", Some("n"))]))[0].contains("twice"));
        let mut small = spec(vec![member("m", None)]);
        small.limits.name_limit = 5;
        small.limits.page_size = Some(0);
        assert_eq!(errors(small).len(), 3, "the prefix has no room either");
    }
}
