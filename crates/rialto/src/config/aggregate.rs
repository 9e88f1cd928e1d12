//! `aggregates`: several destinations behind one endpoint. From the map of a file, or from a flag
//! that makes one of everything, to a `Destination` as used.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gateway::settings::{
    AggregateLimits, AggregateSpec, Annotations, BackendSpec, Destination, MemberSpec, Placement, Plan,
    PlanError, PlanSpec, RemoteSpec, Sharing, ToolRules, ToolsMode, WhenDown,
};
use serde_json::Value as Json;
use url::Url;

use super::destination::{self, Defaults};
use super::globals::Globals;
use super::problem::{Place, Section};
use super::reader::{Fields, Given, Walk, meant_of};
use super::tree::{Node, Value};
use super::{name, quantity};

/// How long a member with `when_down: hide` may be down before its tools are hidden.
const GRACE: Duration = Duration::from_secs(60);

/// The longest prefix that a flag makes: names of destinations may be longer than any shown name.
const MADE_PREFIX: usize = 24;

/// What an aggregate is made from.
pub(super) struct Surroundings<'a> {
    pub(super) globals: &'a Globals,
    pub(super) destinations: &'a [Destination],
}

/// Reads `aggregates`. Returns a destination for each.
pub(super) fn read(fields: &mut Fields<'_, '_>, surroundings: &Surroundings<'_>) -> Vec<Destination> {
    const FORM: &str = "write `NAME:` and under it `members: { DESTINATION: {} }`";
    let Some(node) = fields.take("aggregates") else {
        return Vec::new();
    };
    let entries = match node.value {
        Value::Map(entries) => entries,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            let message = format!("must be a map of names, not {}: {FORM}", node.value.kind());
            fields.walk.fail(fields.place(node.line, "aggregates"), message);
            return Vec::new();
        }
    };
    let mut aggregates = Vec::new();
    for (name, node) in entries {
        let section = Section::Aggregate(name.clone());
        let (line, entries) = match node.value {
            Value::Map(entries) => (node.line, entries),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                let fields = Fields::new(fields.walk, Some(section), node.line, Vec::new());
                fields.fail(format!("must be a map, not {}: {FORM}", node.value.kind()));
                continue;
            }
        };
        let fields = Fields::new(fields.walk, Some(section), line, entries);
        if let Err(message) = check_name(&name, surroundings.destinations) {
            fields.fail(message);
        }
        aggregates.extend(one(name, fields, surroundings));
    }
    aggregates
}

fn check_name(name: &str, destinations: &[Destination]) -> Result<(), String> {
    name::check(name)?;
    match destinations.iter().any(|destination| destination.name == name) {
        true => Err(format!(
            "a destination has the name `{name}` too, and both would be served at /{name}/mcp: rename one of them"
        )),
        false => Ok(()),
    }
}

fn one(name: String, mut fields: Fields<'_, '_>, surroundings: &Surroundings<'_>) -> Option<Destination> {
    let members = members(&mut fields, surroundings);
    let usual = AggregateLimits::default();
    let limits = AggregateLimits {
        name_limit: fields
            .parsed("name_limit", quantity::count)
            .unwrap_or(usual.name_limit),
        page_size: fields.parsed("page_size", quantity::count),
        instructions_limit: fields
            .parsed("instructions_limit", quantity::size)
            .unwrap_or(usual.instructions_limit),
        ready_timeout: fields
            .parsed("ready_timeout", quantity::some_time)
            .unwrap_or(usual.ready_timeout),
        ..usual
    };
    let tools = fields.choice("tools", &[("all", ToolsMode::All), ("search", ToolsMode::Search)]);
    let tools = tools.unwrap_or_default();
    let always_line = fields.line();
    let always = fields.list("always");
    if always.is_some() && tools == ToolsMode::All {
        let place = fields.place(always_line, "always");
        fields.walk.fail(
            place,
            "goes with `tools: search`: without it every tool is listed",
        );
    }
    let always = always.unwrap_or_default();
    let always = always
        .iter()
        .filter_map(|given| fields.walk.parse(given, destination::glob));
    let spec = PlanSpec {
        always: always.collect(),
        title: fields.given("title").map(|given| given.text),
        instructions: fields.given("instructions").map(|given| given.text),
        members: members?,
        tools,
        limits,
        ..plan_spec(&name)
    };
    let max_sessions = fields.parsed("max_sessions", quantity::count);
    let plan = Plan::new(spec).map_err(|errors| {
        for error in errors {
            let (field, text) = (field_of(&error), error.to_string());
            fields.walk.fail(fields.place(fields.line(), &field), text);
        }
    });
    fields.finish();
    let plan = plan.ok()?;
    Some(endpoint(name, plan, max_sessions, surroundings))
}

/// Returns the field that an error is about.
fn field_of(error: &PlanError) -> String {
    match error {
        PlanError::NoMembers | PlanError::SameMember { .. } => "members".to_owned(),
        PlanError::SamePrefix { members, .. } => format!("members.{}.prefix", members.1),
        PlanError::BadPrefix { member, .. } => format!("members.{member}.prefix"),
        PlanError::RenameTaken { member, .. } | PlanError::BadRename { member, .. } => {
            format!("members.{member}.tools.rename")
        }
        PlanError::NameLimit { .. } => "name_limit".to_owned(),
        PlanError::EmptyPages => "page_size".to_owned(),
    }
}

/// Returns what tells this process from others, so that an aggregate which is its own member by an
/// address that its settings do not show can see that.
fn process_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| uuid::Uuid::new_v4().simple().to_string())
}

fn plan_spec(name: &str) -> PlanSpec {
    PlanSpec {
        id: format!("{}/{name}", process_id()),
        name: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..PlanSpec::default()
    }
}

fn endpoint(
    name: String,
    plan: Plan,
    max_sessions: Option<usize>,
    surroundings: &Surroundings<'_>,
) -> Destination {
    let defaults: &Defaults = &surroundings.globals.defaults;
    let members = surroundings.destinations.iter();
    let members = members.filter(|destination| plan.member(&destination.name).is_some());
    let largest = members.map(|destination| destination.max_message_bytes).max();
    let backend = BackendSpec::Aggregate(AggregateSpec { plan: Arc::new(plan) });
    let made = destination::in_front_of(backend, name, Sharing::Shared, defaults);
    Destination {
        max_message_bytes: largest.unwrap_or(made.max_message_bytes),
        max_sessions: defaults
            .max_sessions
            .or(max_sessions)
            .unwrap_or(made.max_sessions),
        ..made
    }
}

/// Reads `members`: a map of names with rules, or a list of names.
fn members(fields: &mut Fields<'_, '_>, surroundings: &Surroundings<'_>) -> Option<Vec<MemberSpec>> {
    const FORM: &str = "write `members: { DESTINATION: {} }`, or a list of destinations";
    let Some(node) = fields.take("members") else {
        if !fields.has_misspelt("members") {
            fields.fail(format!("has no `members`: {FORM}"));
        }
        return None;
    };
    let entries: Vec<(String, Node)> = match node.value {
        Value::Map(entries) => entries,
        Value::List(_) => {
            let names = fields.scalars(node, "members");
            let empty = |given: Given| {
                let line = given.place.line();
                let value = Value::Map(Vec::new());
                (given.text, Node { line, value })
            };
            names.into_iter().map(empty).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {
            let message = format!("must be a map or a list, not {}: {FORM}", node.value.kind());
            fields.walk.fail(fields.place(node.line, "members"), message);
            return None;
        }
    };
    let mut members = Vec::new();
    for (name, node) in entries {
        let prefix = format!("members.{name}.");
        let place = fields.place(node.line, &format!("members.{name}"));
        let entries = match node.value {
            Value::Map(entries) => entries,
            Value::Null => Vec::new(),
            Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                let message = format!("must be a map, not {}: write `{name}: {{}}`", node.value.kind());
                fields.walk.fail(place, message);
                continue;
            }
        };
        let inner = fields.inner(prefix, node.line, entries);
        let known = surroundings.destinations.iter();
        let Some(destination) = known.clone().find(|destination| destination.name == name) else {
            let names: Vec<&str> = known.map(|destination| destination.name.as_str()).collect();
            let message = match meant_of(&name, &names) {
                Some(meant) => format!("there is no destination `{name}`; did you mean `{meant}`?"),
                None => format!(
                    "there is no destination `{name}`: add it to `destinations`, or name one of {}",
                    names.join(", ")
                ),
            };
            fields.walk.fail(place, message);
            continue;
        };
        if let Err(message) = check_member(destination, surroundings.globals) {
            fields.walk.fail(place, message);
        }
        members.push(member(inner, destination));
    }
    Some(members)
}

/// Checks that a destination can be a member.
fn check_member(destination: &Destination, globals: &Globals) -> Result<(), String> {
    if is_this_gateway(destination, globals) {
        return Err(
            "is this gateway itself, so that each request would come back for ever: name the destinations \
             behind it as members instead"
                .to_owned(),
        );
    }
    if globals.cluster.is_some() && destination.placement == Placement::One {
        return Err(
            "has `placement: one`, and replicas cannot share such a member yet: leave it out of the \
             aggregate, or serve it without `placement`"
                .to_owned(),
        );
    }
    Ok(())
}

/// Returns whether a destination leads back to this gateway, as far as its settings show it.
pub(super) fn is_this_gateway(destination: &Destination, globals: &Globals) -> bool {
    match &destination.backend {
        BackendSpec::Remote(RemoteSpec { url, .. }) => is_own_address(url, globals),
        BackendSpec::Process(process) => is_own_program(&process.argv),
        BackendSpec::Aggregate(_) => false,
    }
}

fn is_own_address(url: &Url, globals: &Globals) -> bool {
    let public = globals.public_url.as_ref();
    if public.is_some_and(|public| {
        public.origin() == url.origin().ascii_serialization() && url.path().starts_with(public.path())
    }) {
        return true;
    }
    if url.port_or_known_default() != Some(globals.listen.port()) {
        return false;
    }
    let listens = globals.listen.ip();
    match url.host() {
        Some(url::Host::Domain(name)) => {
            name == "localhost" && (listens.is_loopback() || listens.is_unspecified())
        }
        Some(url::Host::Ipv4(address)) => is_reached(IpAddr::V4(address), listens),
        Some(url::Host::Ipv6(address)) => is_reached(IpAddr::V6(address), listens),
        None => false,
    }
}

fn is_reached(address: IpAddr, listens: IpAddr) -> bool {
    address == listens || (listens.is_unspecified() && (address.is_loopback() || address.is_unspecified()))
}

/// Returns whether a command is `rialto connect --config FILE`, which would serve the file that it
/// stands in.
fn is_own_program(argv: &[String]) -> bool {
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(std::path::Path::file_name);
    let Some((program, arguments)) = argv.split_first() else {
        return false;
    };
    let program = std::path::Path::new(program).file_name();
    let is_rialto = program.is_some() && (program == own || program == Some("rialto".as_ref()));
    is_rialto
        && arguments.first().is_some_and(|verb| verb == "connect")
        && arguments
            .iter()
            .any(|argument| argument == "--config" || argument.starts_with("--config="))
}

fn member(mut fields: Fields<'_, '_>, destination: &Destination) -> MemberSpec {
    let hides = fields.choice("when_down", &[("keep", false), ("hide", true)]) == Some(true);
    let line = fields.line();
    let grace = fields.parsed("grace", quantity::duration);
    if grace.is_some() && !hides {
        let place = fields.place(line, "grace");
        fields
            .walk
            .fail(place, "goes with `when_down: hide`: without it tools stay listed");
    }
    let spec = MemberSpec {
        title: fields.given("title").map(|given| given.text),
        prefix: fields.given("prefix").map(|given| given.text),
        when_down: match hides {
            true => WhenDown::Hide {
                grace: grace.unwrap_or(GRACE),
            },
            false => WhenDown::Keep,
        },
        tools: tools(&mut fields),
        ..of_destination(destination)
    };
    fields.finish();
    spec
}

/// Returns a member with what its destination decides.
fn of_destination(destination: &Destination) -> MemberSpec {
    let passes_headers_on = match &destination.backend {
        BackendSpec::Process(process) => !process.env_from_headers.is_empty(),
        BackendSpec::Remote(remote) => !remote.forward_headers.is_empty(),
        BackendSpec::Aggregate(_) => false,
    };
    MemberSpec {
        name: destination.name.clone(),
        // Its list is its caller's then, and no other caller may see it.
        per_caller: passes_headers_on || destination.instances.sharing == Sharing::PerIdentity,
        policy: destination.tools.clone(),
        ..MemberSpec::default()
    }
}

/// Reads `tools` of a member: which tools, under which names, and how they are described.
fn tools(fields: &mut Fields<'_, '_>) -> ToolRules {
    let Some(mut inner) = map(fields, "tools") else {
        return ToolRules::default();
    };
    let texts = |given: BTreeMap<String, Given>| -> BTreeMap<String, String> {
        let pairs = given.into_iter();
        pairs.map(|(name, given)| (name, given.text)).collect()
    };
    let rules = ToolRules {
        select: destination::policy(&mut inner),
        rename: texts(inner.named_values("rename")),
        describe: texts(inner.named_values("describe")),
        hide_args: fixed_arguments(&mut inner),
        annotations: annotations(&mut inner),
    };
    inner.finish();
    rules
}

/// Takes a map inside of another one.
fn map<'w, 'a>(fields: &mut Fields<'w, 'a>, key: &'static str) -> Option<Fields<'w, 'a>> {
    let node = fields.take(key)?;
    match node.value {
        Value::Map(entries) => {
            let prefix = fields.path_of(key);
            Some(fields.inner(format!("{prefix}."), node.line, entries))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
            let message = format!("must be a map, not {}", node.value.kind());
            fields.walk.fail(fields.place(node.line, key), message);
            None
        }
    }
}

/// Takes a map of maps, by the names of tools.
fn maps<'w, 'a>(fields: &mut Fields<'w, 'a>, key: &'static str) -> Vec<(String, Fields<'w, 'a>)> {
    let Some(inner) = map(fields, key) else {
        return Vec::new();
    };
    let mut maps = Vec::new();
    for (name, node) in inner.into_entries() {
        let field = format!("{key}.{name}");
        match node.value {
            Value::Map(entries) => {
                let prefix = format!("{}.", fields.path_of(&field));
                maps.push((name, fields.inner(prefix, node.line, entries)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                let message = format!("must be a map, not {}", node.value.kind());
                fields.walk.fail(fields.place(node.line, &field), message);
            }
        }
    }
    maps
}

/// Reads `hide_args: { TOOL: { ARGUMENT: value } }`.
fn fixed_arguments(fields: &mut Fields<'_, '_>) -> BTreeMap<String, BTreeMap<String, Json>> {
    let maps = maps(fields, "hide_args").into_iter();
    let fixed = maps.map(|(tool, inner)| {
        let (walk, place) = (inner.walk, inner.place(inner.line(), ""));
        let fixed = inner.into_entries().into_iter();
        let fixed = fixed.filter_map(|(argument, node)| {
            let place = Place::Field {
                file: walk.file.clone(),
                line: node.line,
                section: place.section(),
                field: format!("hide_args.{tool}.{argument}"),
            };
            Some((argument, json(walk, node, &place)?))
        });
        (tool.clone(), fixed.collect())
    });
    fixed.collect()
}

/// Returns a value of the file as JSON, with its references filled in.
fn json(walk: &Walk<'_>, node: Node, place: &Place) -> Option<Json> {
    Some(match node.value {
        Value::Null => Json::Null,
        Value::Bool(flag) => Json::Bool(flag),
        Value::Number(text) => serde_json::from_str(&text).unwrap_or(Json::String(text)),
        Value::Text(text) => Json::String(walk.fill(text, place)?),
        Value::List(items) => {
            let items = items.into_iter().map(|item| json(walk, item, place));
            Json::Array(items.collect::<Option<_>>()?)
        }
        Value::Map(entries) => {
            let entries = entries.into_iter();
            let entries = entries.map(|(name, node)| Some((name, json(walk, node, place)?)));
            Json::Object(entries.collect::<Option<_>>()?)
        }
    })
}

/// Reads `annotations: { TOOL: { read_only: false } }`.
fn annotations(fields: &mut Fields<'_, '_>) -> BTreeMap<String, Annotations> {
    let maps = maps(fields, "annotations").into_iter();
    let read = maps.map(|(tool, mut inner)| {
        let annotations = Annotations {
            read_only: stricter(&mut inner, "read_only", false),
            destructive: stricter(&mut inner, "destructive", true),
            idempotent: stricter(&mut inner, "idempotent", false),
            open_world: stricter(&mut inner, "open_world", true),
        };
        inner.finish();
        (tool, annotations)
    });
    read.collect()
}

/// Reads a hint, which can only be made stricter: hosts ask their users less for a laxer one.
fn stricter(fields: &mut Fields<'_, '_>, key: &'static str, strict: bool) -> Option<bool> {
    fields.parsed(key, |text| match quantity::truth(text)? {
        value if value == strict => Ok(value),
        _ => Err(format!(
            "a hint can only be made stricter: write `{key}: {strict}`, or leave it out"
        )),
    })
}

/// Returns an aggregate of every destination, as `--aggregate NAME` makes it.
pub(super) fn of_everything(
    given: &Given,
    walk: &Walk<'_>,
    surroundings: &Surroundings<'_>,
) -> Option<Destination> {
    let name = walk.parse(given, |text| {
        check_name(text, surroundings.destinations).map(|()| text.to_owned())
    })?;
    let mut members = Vec::new();
    for destination in surroundings.destinations {
        // An aggregate of the file shows the same destinations once more.
        if matches!(destination.backend, BackendSpec::Aggregate(_)) {
            continue;
        }
        match check_member(destination, surroundings.globals) {
            Ok(()) => members.push(MemberSpec {
                prefix: Some(made_prefix(&destination.name)),
                ..of_destination(destination)
            }),
            Err(why) => walk.note(format!(
                "`{}` is left out of `{name}`: it {why}",
                destination.name
            )),
        }
    }
    let spec = PlanSpec {
        members,
        ..plan_spec(&name)
    };
    match Plan::new(spec) {
        Ok(plan) => Some(endpoint(name, plan, None, surroundings)),
        Err(errors) => {
            for error in errors {
                let text = format!("{error} (under `aggregates` of a destinations.yml)");
                walk.fail(given.place.clone(), text);
            }
            None
        }
    }
}

/// Returns a prefix for a destination whose name need not be one.
fn made_prefix(name: &str) -> String {
    let mut prefix = String::new();
    for char in name.chars().take(MADE_PREFIX) {
        match char {
            '.' => prefix.push('-'),
            '_' if prefix.ends_with('_') => {}
            plain => prefix.push(plain),
        }
    }
    prefix.trim_end_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_that_a_flag_makes_can_stand_before_names() {
        for (name, prefix) in [
            ("files", "files"),
            ("my.server", "my-server"),
            ("a__b_", "a_b"),
            (&"x".repeat(60), &"x".repeat(24)),
        ] {
            assert_eq!(made_prefix(name), prefix);
        }
    }
}
