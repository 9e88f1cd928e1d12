//! The language of the conversations, a line at a time.
//!
//! ```text
//! # The sentence that this conversation shows.
//! limits request_timeout=10s max_message_bytes=100      before anything else, if at all
//! client_hello union                                    or verbatim; newest by default
//! client a: version=2025-03-26 principal=alice accepts=json implicit capabilities={"roots":{}}
//! server offers {"tools":{"listChanged":true}}          its capabilities, for `opened`
//! era modern                                            of the server; legacy by default
//! client m: modern capabilities={"elicitation":{}}      every POST of such a client describes itself
//! opened a b                                            the link is up and these have shaken hands
//! client a> tools/call #7 {"name":"x"}                  a POST; `client a.second>` gives it a name of its own
//! client a< result #7 {…}                               its JSON answer, found by its id
//! client a.#7< event 3-1 notifications/progress {…}     an event of its stream; `…` for any event id
//! client a.#7< priming 3-0 | end | comment "…" | refused Finished
//! client a.get> listen | resume 3-1 | hang up
//! client a> delete
//! client m.#7< event notifications/progress {…}         events of this era have no ids
//! client m< result #7 {…,"requestState":"<sealed>"}     a state of ours; sent again it is the last one received
//! client m.#7> hang up
//! roots file:///a file:///b                             as configured
//! arguments are mirrored                                the server is reached by a way that has headers
//! listens are dismissed                                 as when the gateway is shut down
//! gateway restarts                                      sessions go on from their records when their clients come
//! server> … / server< …                                 as for clients; `server> line TEXT` for anything, `$w` filled in
//! server> too long #3 2000                              an answer of 2000 bytes; `too long question #3 2000`
//! server> too long text 2000                            a line of 2000 bytes that names no request
//! server> unfinished object 2000                        2000 bytes of a line that goes on; `unfinished text 2000`
//! server> stderr                                        anything on stderr
//! server stops reading / server reads
//! time +5s
//! server> half a line                                   bytes that are no line yet
//! link up / link down "exit status 3" / unavailable "why" / link wanted
//! replacement wanted / replacement wanted "why"         the server is to be replaced, for this reason
//! server is retired                                     as when a reload takes it away
//! server by posts                                       instead of a pipe: each request has its own exchange
//! server in #w> elicitation/create #9 {…}               what comes in the exchange of a request
//! post #w begun                                         an exchange is a stream that can be resumed
//! post #w lost "why" / post #w returned                 how an exchange ends without an answer
//! server forgets / outage                               it knows our session no more / it cannot be reached
//! waiting 1 / open 2 / questions 0 / abandoned 0        what the multiplexer still has
//! counted strays=1 timeouts=2                           all that it has counted; `counted nothing`
//!                                                       (at the end, what is not zero must have been stated)
//! suits ann / suits not bob / suits all                 whether a principal should use this server
//! tool x is known / tool x is unknown                   what is known of a server's tools
//! tools denied x*                                       tools that clients neither see nor call
//! shown 2 / shown unknown                               the tools that clients see
//! listening 1                                           our own listens at a modern server
//! tasks go on / no task goes on                         whether the server is kept for a task
//! post #w unanswered / post #w answered                 whether an answer is still missing
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::backend_face::legacy::ClientHello;
use protocol::exchange::Principal;
use protocol::session::Accepts;
use protocol::tool_policy::{Glob, ToolPolicy};
use protocol::version::Era;
use protocol::{multiplexer, session};
use serde_json::{Value, json};

use crate::fixture::{Character, Fixture, Received, is_request, label_of};
use crate::pattern::{self, Names};
use crate::update;

#[derive(Debug)]
pub(crate) struct Script {
    limits: multiplexer::Limits,
    session_limits: session::Limits,
    client_hello: ClientHello,
    era: Era,
    offers: Value,
    pub(crate) fixture: Option<Fixture>,
    linked: bool,
    characters: Vec<(String, Character)>,
    pub(crate) names: Names,
    /// The line that would have held, after one that did not.
    pub(crate) replacement: Option<String>,
    /// What the script has stated last about what the multiplexer has and has counted.
    stated: BTreeMap<&'static str, String>,
}

/// What a multiplexer may still have at the end of a conversation, which then states it.
const LEFT: [&str; 5] = ["waiting", "open", "questions", "abandoned", "counted"];

/// Runs a conversation. The error names the line, and what was received instead.
pub(crate) fn run(text: &str) -> Result<(), String> {
    let mut script = Script::new();
    let mut count = 0;
    for (number, line) in text.lines().enumerate() {
        count = number + 1;
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            script
                .perform(line)
                .map_err(|why| format!("line {count}: {line}\n  {why}"))?;
        }
    }
    script
        .all_received()
        .and_then(|()| match script.unstated().first() {
            Some(line) => Err(format!("it does not end with `{line}`")),
            None => Ok(()),
        })
        .map_err(|why| format!("line {count}, at the end\n  {why}"))
}

impl Script {
    pub(crate) fn new() -> Self {
        Self {
            limits: multiplexer::Limits::default(),
            session_limits: session::Limits::default(),
            client_hello: ClientHello::Newest,
            era: Era::Legacy,
            offers: json!({}),
            fixture: None,
            linked: false,
            characters: Vec::new(),
            names: Names::new(),
            replacement: None,
            stated: BTreeMap::new(),
        }
    }

    fn fixture(&mut self) -> &mut Fixture {
        let characters = &mut self.characters;
        self.fixture.get_or_insert_with(|| {
            let mut fixture = Fixture::new(
                self.limits.clone(),
                self.session_limits.clone(),
                self.client_hello,
                self.era,
            );
            for (name, character) in characters.drain(..) {
                fixture.enter(&name, character);
            }
            fixture
        })
    }

    pub(crate) fn perform(&mut self, line: &str) -> Result<(), String> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match first {
            "limits" => return rest.split_whitespace().try_for_each(|limit| self.limit(limit)),
            "client_hello" => {
                self.client_hello = match rest {
                    "union" => ClientHello::Union,
                    "verbatim" => ClientHello::Verbatim,
                    _ => return Err("union or verbatim".into()),
                };
                return Ok(());
            }
            "era" => {
                self.era = match rest {
                    "modern" => Era::Modern,
                    "legacy" => Era::Legacy,
                    _ => return Err("modern or legacy".into()),
                };
                return Ok(());
            }
            "roots" => {
                let uris: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
                self.fixture().backend.offer_roots(&uris);
                return Ok(());
            }
            "client" => return self.client(rest),
            "server<" => return self.server_receives(rest),
            "waiting" | "open" | "questions" | "abandoned" | "counted" => return self.has(first, rest),
            "suits" => return self.suits(rest),
            "shown" | "listening" => return self.has(first, rest),
            _ => {}
        }
        if line == "link wanted" {
            let fixture = self.fixture();
            return std::mem::take(&mut fixture.link_wanted)
                .then_some(())
                .ok_or_else(|| "no link is wanted".into());
        }
        if let Some(expected) = line.strip_prefix("replacement wanted") {
            let why = self.fixture().replacement_wanted.take();
            let why = why.ok_or("no replacement is wanted")?;
            let expected = expected.trim().trim_matches('"');
            return (expected.is_empty() || expected == why)
                .then_some(())
                .ok_or_else(|| format!("it is to be replaced because of {why}"));
        }
        if let Some((name, known)) = line
            .strip_prefix("tool ")
            .and_then(|rest| rest.split_once(" is "))
        {
            let found = self.fixture().backend.tool(name).is_some();
            return (found == (known == "known"))
                .then_some(())
                .ok_or_else(|| format!("the tool is known: {found}"));
        }
        if let "tasks go on" | "no task goes on" = line {
            let fixture = self.fixture();
            let found = fixture.backend.has_live_tasks(fixture.now);
            return (found == (line == "tasks go on"))
                .then_some(())
                .ok_or_else(|| format!("a task goes on: {found}"));
        }
        self.all_received()?;
        if let Some(pattern) = line.strip_prefix("tools denied ") {
            let denied = Glob::parse(pattern).ok_or("tools denied PATTERN")?;
            let policy = ToolPolicy {
                deny: vec![denied],
                ..ToolPolicy::default()
            };
            self.fixture().backend.show_tools(Arc::new(policy));
            return Ok(());
        }
        if line == "arguments are mirrored" {
            self.fixture().backend.mirror_arguments();
            return Ok(());
        }
        if line == "gateway restarts" {
            self.fixture().restart_gateway();
            return Ok(());
        }
        if line == "listens are dismissed" {
            self.fixture().dismiss_listens();
            return Ok(());
        }
        match first {
            "post" => {
                let (id, how) = rest.split_once(' ').ok_or("post #ID HOW")?;
                let id = self.wire(id)?;
                self.fixture().post_ends(id, how)
            }
            "outage" => {
                self.fixture().outage();
                Ok(())
            }
            "opened" => rest.split_whitespace().try_for_each(|name| self.open(name)),
            "server>" => self.server_sends(rest),
            "server" => match rest.split_once(' ') {
                Some(("offers", offers)) => {
                    self.offers = serde_json::from_str(offers).map_err(|error| error.to_string())?;
                    Ok(())
                }
                Some(("by", "posts")) => {
                    self.fixture().use_posts();
                    Ok(())
                }
                Some(("in", sent)) => {
                    let (id, sent) = sent.split_once("> ").ok_or("server in #ID> MESSAGE")?;
                    let id = self.wire(id)?;
                    let sent = pattern::filled(&pattern::message(sent)?, &self.names)?;
                    self.fixture().server_sends_in(id, &sent.to_string());
                    Ok(())
                }
                Some(("is", "retired")) => {
                    self.fixture().retire();
                    Ok(())
                }
                _ if rest == "forgets" => {
                    self.fixture().server_forgets();
                    Ok(())
                }
                Some(("stops", "reading")) => {
                    self.fixture().server_reads = false;
                    Ok(())
                }
                _ if rest == "reads" => {
                    let fixture = self.fixture();
                    fixture.server_reads = true;
                    fixture.pass(Duration::ZERO);
                    fixture.pass(Duration::from_nanos(1));
                    Ok(())
                }
                _ => Err("offers, stops reading or reads".into()),
            },
            "time" => {
                let span = span(rest.trim_start_matches('+'))?;
                self.fixture().pass(span);
                Ok(())
            }
            "link" => match rest.split_once(' ') {
                Some(("down", why)) => {
                    self.fixture().link_down(why.trim_matches('"'));
                    Ok(())
                }
                _ if rest == "up" => {
                    self.linked = true;
                    self.fixture().link_up();
                    Ok(())
                }
                _ => Err("up or down".into()),
            },
            "unavailable" => {
                self.fixture().unavailable(rest.trim_matches('"'));
                Ok(())
            }
            _ => Err("there is no such line in the language".into()),
        }
    }

    /// The id that we gave to a request, by its name in the script.
    fn wire(&self, name: &str) -> Result<u64, String> {
        let id = pattern::filled(&pattern::message(&format!("x {name}"))?["id"], &self.names)?;
        id.as_u64().ok_or_else(|| format!("{name} is no id of ours"))
    }

    fn limit(&mut self, limit: &str) -> Result<(), String> {
        let (key, text) = limit.split_once('=').ok_or("key=value")?;
        let number = || {
            text.parse::<usize>()
                .map_err(|error: std::num::ParseIntError| error.to_string())
        };
        match key {
            // For clients that read events as well, unless `stream_timeout` comes after it.
            "request_timeout" => {
                self.limits.request_timeout = span(text)?;
                self.limits.stream_timeout = self.limits.request_timeout;
            }
            "stream_timeout" => self.limits.stream_timeout = span(text)?,
            "start_timeout" => self.limits.start_timeout = span(text)?,
            "stream_after" => self.limits.stream_after = span(text)?,
            "question_timeout" => self.limits.question_timeout = span(text)?,
            "max_message_bytes" => self.limits.max_message_bytes = number()?,
            "in_flight" => self.limits.in_flight = number()?,
            "in_flight_bytes" => self.limits.in_flight_bytes = number()?,
            "max_waiting" => self.limits.waiting = number()?,
            "max_tasks" => self.limits.tasks = number()?,
            "max_questions" => self.limits.questions = number()?,
            "subscriptions" => self.limits.subscriptions = number()?,
            "max_abandoned" => self.limits.abandoned = number()?,
            "outgoing_bytes" => self.limits.outgoing_bytes = number()?,
            "question_read_timeout" => self.session_limits.question_timeout = span(text)?,
            "kept_events" => self.session_limits.retention.events = number()?,
            "kept_age" => self.session_limits.retention.age = span(text)?,
            "ended_streams" => self.session_limits.ended_streams = number()?,
            "calls" => self.session_limits.calls = number()?,
            "listeners" => self.session_limits.listeners = number()?,
            _ => return Err(format!("no limit is called {key}")),
        }
        Ok(())
    }

    /// Returns what there is of this kind, or what was counted, as a line of the language has it.
    fn found(&mut self, what: &str) -> String {
        let backend = &self.fixture().backend;
        let found = match what {
            "waiting" => Some(backend.waiting_calls()),
            "open" => Some(backend.open_calls()),
            "abandoned" => Some(backend.abandoned().0),
            "shown" => backend.number_of_shown_tools(),
            "listening" => Some(backend.listens()),
            "counted" => return counted(&backend.counters()),
            _ => Some(backend.open_questions()),
        };
        found.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
    }

    fn has(&mut self, what: &str, expected: &str) -> Result<(), String> {
        let found = self.found(what);
        if let Some(what) = LEFT.into_iter().find(|left| *left == what) {
            self.stated.insert(what, found.clone());
        }
        if found == expected {
            Ok(())
        } else {
            self.replacement = Some(format!("{what} {found}"));
            Err(format!("found: {what} {found}"))
        }
    }

    /// Returns the lines that state what the multiplexer still has, as far as the script has not
    /// stated it.
    pub(crate) fn unstated(&mut self) -> Vec<String> {
        if self.fixture.is_none() {
            return Vec::new();
        }
        let left = LEFT.into_iter().filter_map(|what| {
            let found = self.found(what);
            let is_stated = self.stated.get(what) == Some(&found);
            (!is_stated && found != "0" && found != "nothing").then(|| format!("{what} {found}"))
        });
        left.collect()
    }

    fn suits(&mut self, principal: &str) -> Result<(), String> {
        let (name, expected) = match principal.strip_prefix("not ") {
            Some(name) => (name, false),
            None => (principal, true),
        };
        let backend = &self.fixture().backend;
        let found = match name {
            "all" => !backend.is_owned(),
            name => backend.suits(&Principal::named(name)),
        };
        (found == expected)
            .then_some(())
            .ok_or_else(|| format!("suits {name}: {found}"))
    }

    fn client(&mut self, rest: &str) -> Result<(), String> {
        let end = rest
            .find([':', '>', '<', ' '])
            .ok_or("client NAME then : > or <")?;
        let (client, rest) = rest.split_at(end);
        let mark = rest.chars().next().unwrap_or(' ');
        let what = rest.get(1..).unwrap_or_default().trim();
        let (name, label) = match client.split_once('.') {
            Some((name, label)) => (name, Some(label.trim_start_matches('#').to_owned())),
            None => (client, None),
        };
        match mark {
            ':' => self.introduce(name, what),
            '>' => {
                self.all_received()?;
                self.client_sends(name, label, what)
            }
            '<' => self.client_receives(name, label, what),
            _ => Err("client NAME then : > or <".into()),
        }
    }

    fn introduce(&mut self, name: &str, traits: &str) -> Result<(), String> {
        let mut character = Character::default();
        for part in traits.split_whitespace() {
            match part.split_once('=') {
                Some(("version", version)) => character.version = version.into(),
                Some(("principal", principal)) => character.principal = principal.into(),
                Some(("capabilities", json)) => {
                    character.capabilities = serde_json::from_str(json).map_err(|error| error.to_string())?;
                }
                Some(("accepts", "json")) => character.accepts = Accepts::Json,
                Some(("accepts", "events")) => character.accepts = Accepts::Events,
                None if part == "implicit" => character.implicit = true,
                None if part == "modern" => character.era = Era::Modern,
                _ => return Err(format!("{part} is no trait")),
            }
        }
        match &mut self.fixture {
            Some(fixture) => fixture.enter(name, character),
            None => self.characters.push((name.into(), character)),
        }
        Ok(())
    }

    /// The usual beginning, which is no news.
    fn open(&mut self, name: &str) -> Result<(), String> {
        if !std::mem::replace(&mut self.linked, true) {
            self.fixture().link_up();
        }
        let offers = self.offers.clone();
        let fixture = self.fixture();
        let character = fixture.character(name);
        let hello = match character.era {
            Era::Legacy => json!({"jsonrpc":"2.0","id":0,"method":"initialize","params":{
                "protocolVersion":character.version,"capabilities":character.capabilities,
                "clientInfo":{"name":name,"version":"1"}}}),
            Era::Modern => json!({"jsonrpc":"2.0","id":0,"method":"server/discover","params":{}}),
        };
        fixture.post(name, "hello", &hello)?;
        if let Some(asked) = fixture.server_mail.pop_front() {
            let result = match fixture.backend.era() {
                Era::Legacy => json!({"protocolVersion":asked["params"]["protocolVersion"],
                    "capabilities":offers,"serverInfo":{"name":"stub","version":"1"}}),
                Era::Modern => json!({"resultType":"complete","supportedVersions":["2026-07-28"],
                    "capabilities":offers,"ttlMs":0,"cacheScope":"private",
                    "_meta":{"io.modelcontextprotocol/serverInfo":{"name":"stub","version":"1"}}}),
            };
            let server_info = json!({"jsonrpc":"2.0","id":asked["id"],"result":result});
            fixture.server_sends(&server_info.to_string());
        }
        if character.era == Era::Legacy {
            let ready = json!({"jsonrpc":"2.0","method":"notifications/initialized"});
            fixture.post(name, "ready", &ready)?;
        }
        // What a modern server receives after that is expected by the script: the listen.
        if fixture.backend.era() == Era::Legacy {
            fixture.server_mail.clear();
        }
        let opened = fixture.client_mail.remove(&(name.into(), "hello".into()));
        match opened.as_ref().and_then(|mail| mail.back()) {
            Some(Received::Json(answer)) if answer.get("result").is_some() => Ok(()),
            Some(Received::End) if character.accepts == Accepts::Events => Ok(()),
            other => Err(format!("{name} was not welcomed: {other:?}")),
        }
    }

    fn client_sends(&mut self, name: &str, label: Option<String>, what: &str) -> Result<(), String> {
        let label_or = |fallback: &str| label.clone().unwrap_or_else(|| fallback.into());
        match what.split_once(' ') {
            Some(("hang", "up")) => return self.fixture().handle_disconnect(name, &label_or("get")),
            Some(("resume", id)) => {
                let id = match id.strip_prefix('$') {
                    Some(known) => match self.names.get(known) {
                        Some(Value::String(id)) => id.clone(),
                        _ => return Err(format!("{id} was never received")),
                    },
                    None => id.to_owned(),
                };
                return self.fixture().get(name, &label_or("get"), Some(&id));
            }
            _ => {}
        }
        match what {
            "listen" => return self.fixture().get(name, &label_or("get"), None),
            "delete" => return self.fixture().end(name),
            _ => {}
        }
        let mut sent = pattern::filled(&pattern::message(what)?, &self.names)?;
        let fixture = self.fixture();
        if sent["method"] == "initialize" && sent.get("params").is_none() {
            let character = fixture.character(name);
            sent["params"] = json!({"protocolVersion":character.version,
                "capabilities":character.capabilities,"clientInfo":{"name":name,"version":"1"}});
        }
        let label = label.unwrap_or_else(|| {
            if is_request(&sent) {
                label_of(&sent)
            } else {
                "notification".into()
            }
        });
        fixture.post(name, &label, &sent)
    }

    fn client_receives(&mut self, name: &str, label: Option<String>, what: &str) -> Result<(), String> {
        let (first, rest) = what.split_once(' ').unwrap_or((what, ""));
        let expected = match first {
            "event" if self.fixture().character(name).era == Era::Modern => {
                Received::Event(String::new(), pattern::message(rest)?)
            }
            "event" => {
                let (id, message) = rest.trim().split_once(' ').ok_or("event ID MESSAGE")?;
                Received::Event(id.into(), pattern::message(message)?)
            }
            "priming" => Received::Priming(rest.into()),
            "comment" => Received::Comment(rest.trim_matches('"').into()),
            "end" => Received::End,
            "refused" => Received::Refused(rest.into()),
            _ => Received::Json(pattern::message(what)?),
        };
        let label = match (label, &expected) {
            (Some(label), _) => label,
            (None, Received::Json(message)) => {
                label_of(&pattern::filled(message, &self.names).unwrap_or_else(|_| message.clone()))
            }
            (None, _) => "get".into(),
        };
        let key = (name.to_owned(), label);
        let received = self
            .fixture()
            .client_mail
            .get_mut(&key)
            .and_then(|mail| mail.pop_front());
        let Some(received) = received else {
            let mail = &self.fixture().client_mail;
            return Err(format!(
                "received nothing on {}.{}; all mail: {mail:?}",
                key.0, key.1
            ));
        };
        let names = &mut self.names;
        let same_id = |pattern: &str, received: &str, names: &mut Names| {
            pattern == "…" || pattern::matches(&json!(pattern), &json!(received), names)
        };
        let fits = match (&expected, &received) {
            (Received::Json(pattern), Received::Json(received)) => pattern::matches(pattern, received, names),
            (Received::Event(id, pattern), Received::Event(received_id, received)) => {
                same_id(id, received_id, names) && pattern::matches(pattern, received, names)
            }
            (Received::Priming(id), Received::Priming(received)) => same_id(id, received, names),
            (expected, received) => expected == received,
        };
        if fits {
            Ok(())
        } else {
            let line = update::received_by_client(&key.0, &key.1, &received, Some(&expected), names);
            self.replacement = Some(line);
            Err(format!("received {received}"))
        }
    }

    fn server_sends(&mut self, what: &str) -> Result<(), String> {
        if what == "half a line" {
            self.fixture().server_sends_something();
            return Ok(());
        }
        if let Some(line) = what.strip_prefix("line ") {
            // From the end, so that a longer name is not taken for a shorter one.
            let line = self
                .names
                .iter()
                .rev()
                .fold(line.to_owned(), |line, (name, value)| {
                    line.replace(&format!("${name}"), &value.to_string())
                });
            self.fixture().server_sends(&line);
            return Ok(());
        }
        if what == "stderr" {
            self.fixture().server_writes_to_stderr();
            return Ok(());
        }
        if let Some(rest) = what.strip_prefix("unfinished ") {
            let (what, length) = rest.split_once(' ').ok_or("text or object, LENGTH")?;
            let length = length
                .parse()
                .map_err(|error: std::num::ParseIntError| error.to_string())?;
            self.fixture().server_goes_on(length, what == "object");
            return Ok(());
        }
        if let Some(length) = what.strip_prefix("too long text ") {
            let length = length
                .parse()
                .map_err(|error: std::num::ParseIntError| error.to_string())?;
            self.fixture().server_sends_too_much(None, false, length);
            return Ok(());
        }
        if let Some(rest) = what.strip_prefix("too long ") {
            let (rest, question) = match rest.strip_prefix("question ") {
                Some(rest) => (rest, true),
                None => (rest, false),
            };
            let (id, length) = rest.split_once(' ').ok_or("#ID LENGTH")?;
            let id = pattern::filled(&pattern::message(&format!("x {id}"))?["id"], &self.names)?.to_string();
            let length = length
                .parse()
                .map_err(|error: std::num::ParseIntError| error.to_string())?;
            self.fixture().server_sends_too_much(Some(&id), question, length);
            return Ok(());
        }
        let sent = pattern::filled(&pattern::message(what)?, &self.names)?;
        self.fixture().server_sends(&sent.to_string());
        Ok(())
    }

    fn server_receives(&mut self, what: &str) -> Result<(), String> {
        let expected = pattern::message(what)?;
        let received = self.fixture().server_mail.pop_front().ok_or("received nothing")?;
        if pattern::matches(&expected, &received, &mut self.names) {
            Ok(())
        } else {
            let line = update::message(&received, Some(&expected), &mut self.names);
            self.replacement = Some(format!("server< {line}"));
            Err(format!("received {received}"))
        }
    }

    fn all_received(&mut self) -> Result<(), String> {
        let Some(fixture) = &self.fixture else {
            return Ok(());
        };
        if let Some(line) = fixture.server_mail.front() {
            return Err(format!("the server received what was not expected: {line}"));
        }
        if fixture.replacement_wanted.is_some() {
            return Err("it was not expected that the server is to be replaced".into());
        }
        for ((name, label), mail) in &fixture.client_mail {
            if let Some(received) = mail.front() {
                return Err(format!(
                    "{name}.{label} received what was not expected: {received}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns all counters that are not zero.
fn counted(counters: &multiplexer::Counters) -> String {
    let named = [
        ("noise", counters.noise),
        ("strays", counters.strays),
        ("unattributed", counters.unattributed),
        ("questions_refused", counters.questions_refused),
        ("overloads", counters.overloads),
        ("timeouts", counters.timeouts),
    ];
    let found: Vec<String> = named
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    if found.is_empty() {
        "nothing".into()
    } else {
        found.join(" ")
    }
}

fn span(text: &str) -> Result<Duration, String> {
    // As the configuration has it.
    if text == "off" {
        return Ok(Duration::from_secs(100 * 365 * 24 * 60 * 60));
    }
    let (number, unit) = text
        .find(|character: char| character.is_ascii_alphabetic())
        .map_or((text, "s"), |at| text.split_at(at));
    let number: u64 = number.parse().map_err(|_| format!("{text} is no time"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "min" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("{text} is no time")),
    }
}
