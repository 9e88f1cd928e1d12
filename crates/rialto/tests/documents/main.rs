//! The newcomer's documents against the program: what they list exists, what exists they list, and
//! what they show happens.
//!
//! The program is asked, not its source, wherever it can tell: flags come from `--help`, keys from
//! the message about an unknown one. Variables and refusals are read from the source, since nothing
//! else lists them all. curl itself is not needed: its few options are read here, and one that is
//! not known fails the test.

mod catalogue;
mod markdown;
mod source;
mod transcript;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use markdown::Table;
use testkit::Rialto;

const README: &str = include_str!("../../../../README.md");
const CONFIGURATION: &str = include_str!("../../../../docs/configuration.md");
const HOSTS: &str = include_str!("../../../../docs/hosts.md");
const CONNECT: &str = include_str!("../../../../docs/connect.md");
const BENCHMARKS: &str = include_str!("../../../../docs/benchmarks.md");
const TUTORIAL: &str = include_str!("../../../../docs/tutorial.md");
const AGGREGATES: &str = include_str!("../../../../docs/aggregates.md");
const DOCTOR: &str = include_str!("../../../../docs/doctor.md");
const LOOKING: &str = include_str!("../../../../docs/looking.md");
const TROUBLESHOOTING: &str = include_str!("../../../../docs/troubleshooting.md");
const DEADLINE: Duration = Duration::from_secs(60);

fn sorted<'a>(words: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    words.into_iter().map(str::to_owned).collect()
}

/// The output of `rialto VERB --help`, one line for each flag.
fn help(verb: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_rialto"))
        .args(verb.split(' '))
        .arg("--help")
        .output()
        .expect("the binary runs");
    let text = String::from_utf8(output.stdout).expect("help is text");
    let mut flags: Vec<String> = Vec::new();
    // Flags are in groups. The argument without a name is none, and ends the flag before it.
    let mut is_flag = false;
    for line in text.lines().take_while(|line| *line != "Examples:") {
        let trimmed = line.trim();
        let (short, long) = trimmed.split_once(", ").unwrap_or(("", trimmed));
        let is_short = short.len() == 2 && short.starts_with('-');
        if trimmed.starts_with("--") || (is_short && long.starts_with("--")) {
            is_flag = !matches!(short, "-h" | "-V");
            flags.extend(is_flag.then(|| long_first(trimmed)));
        } else if trimmed.is_empty() {
            // The values of a flag stand apart, with its default after them.
        } else if !line.starts_with("          ") {
            is_flag = false;
        } else if let Some(flag) = flags.last_mut().filter(|_| is_flag) {
            flag.push(' ');
            flag.push_str(trimmed);
        }
    }
    assert!(text.contains("--help"), "every command has help: {text}");
    flags
}

/// A line of help that begins with the long name of its flag.
fn long_first(line: &str) -> String {
    match line.split_once(", ") {
        Some((short, long)) if short.len() == 2 => long.to_owned(),
        _ => line.to_owned(),
    }
}

fn flag_name(line: &str) -> &str {
    let name = line.split([' ', '=']).next().unwrap_or(line);
    name.trim_end_matches("...")
}

/// `[default: 30s]` of a line of help.
fn default_in_help(line: &str) -> Option<&str> {
    line.split("[default: ").nth(1)?.split(']').next()
}

/// The tables of the configuration page that have a column of this name.
fn tables_with(column: &str) -> Vec<Table> {
    let tables: Vec<Table> = markdown::tables(CONFIGURATION)
        .into_iter()
        .filter(|table| table.has(column))
        .collect();
    assert!(!tables.is_empty(), "no table has a column {column}");
    tables
}

#[test]
fn every_flag_is_documented_and_every_documented_flag_exists() {
    let lines: Vec<String> = [
        "serve",
        "check",
        "demo-server",
        "login",
        "logout",
        "status",
        "token",
        "man",
    ]
    .into_iter()
    .flat_map(help)
    .collect();
    let exist = sorted(lines.iter().map(|line| flag_name(line)));
    let tables = tables_with("Flag");
    let documented: Vec<String> = tables.iter().flat_map(|table| table.codes("Flag")).collect();
    let documented = sorted(
        documented
            .iter()
            .map(String::as_str)
            .filter(|flag| flag.starts_with("--") && !flag.starts_with("-- ")),
    );
    assert!(exist.len() > 10, "{exist:?}");
    assert_eq!(documented, exist);
}

#[test]
fn documented_defaults_of_flags_are_those_of_the_help() {
    // Two commands may have a flag of the same name.
    let mut defaults: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
    for line in ["serve", "demo-server", "login", "token"]
        .into_iter()
        .flat_map(help)
    {
        let default = default_in_help(&line).map(str::to_owned);
        defaults
            .entry(flag_name(&line).to_owned())
            .or_default()
            .insert(default);
    }
    for table in tables_with("Flag") {
        for row in table.rows() {
            let flags = markdown::codes(row.cell("Flag"));
            let Some(help) = flags.first().and_then(|flag| defaults.get(flag)) else {
                continue;
            };
            let documented = row.cell("Default").trim_matches('`');
            let default = match documented {
                "off" | "none" if help.contains(&None) => None,
                other => Some(other.to_owned()),
            };
            assert!(help.contains(&default), "{flags:?}: {documented}, but {help:?}");
        }
    }
}

#[test]
fn every_flag_of_connect_is_on_its_page_with_its_default() {
    let mut help: BTreeMap<String, Option<String>> = BTreeMap::new();
    for line in self::help("connect") {
        let default = default_in_help(&line).map(str::to_owned);
        help.insert(flag_name(&line).to_owned(), default);
    }
    let tables = markdown::tables(CONNECT);
    let table = tables
        .iter()
        .find(|table| table.has("Flag"))
        .expect("the page has a table of flags");
    let mut documented = BTreeSet::new();
    for row in table.rows() {
        for flag in markdown::codes(row.cell("Flag")) {
            if let Some(default) = help.get(&flag) {
                let shown = row.cell("Default").trim_matches('`');
                assert_eq!(default.as_deref().unwrap_or("none"), shown, "{flag}");
            }
            documented.extend(flag.starts_with("--").then_some(flag));
        }
    }
    assert_eq!(documented, help.into_keys().collect());
}

#[test]
fn every_flag_about_hosts_is_on_their_page() {
    let verbs = ["import", "adopt", "install", "uninstall", "config"];
    let lines: Vec<String> = verbs.into_iter().flat_map(help).collect();
    let exist = sorted(lines.iter().map(|line| flag_name(line)));
    let tables = markdown::tables(HOSTS);
    let flags = tables.iter().filter(|table| table.has("Flag"));
    let documented: Vec<String> = flags.flat_map(|table| table.codes("Flag")).collect();
    let long = documented
        .iter()
        .map(String::as_str)
        .filter(|flag| flag.starts_with("--"));
    assert_eq!(sorted(long), exist);
}

#[test]
fn every_flag_of_the_doctor_is_on_its_page_with_its_default() {
    let lines = help("doctor");
    let exist = sorted(lines.iter().map(|line| flag_name(line)));
    let tables = markdown::tables(DOCTOR);
    let table = tables
        .iter()
        .find(|table| table.has("Flag"))
        .expect("a table of flags");
    assert_eq!(table.codes("Flag").into_iter().collect::<BTreeSet<_>>(), exist);
    for row in table.rows() {
        let flag = &markdown::codes(row.cell("Flag"))[0];
        let line = lines
            .iter()
            .find(|line| flag_name(line) == flag)
            .expect("it exists");
        if let Some(default) = default_in_help(line) {
            assert_eq!(default, row.cell("Default").replace('`', ""), "{flag}");
        }
    }
}

/// A host without a file is named with the place where one is expected.
#[test]
fn every_host_is_on_its_page_with_the_place_of_its_file() {
    let home = tempfile::tempdir().expect("a directory");
    let import = |host: &str| {
        let mut rialto = Command::new(env!("CARGO_BIN_EXE_rialto"));
        rialto.args(["import", host]).env_clear().env("HOME", home.path());
        String::from_utf8(rialto.output().expect("the binary runs").stderr).expect("text")
    };
    let answer = import("no-such-host");
    let listed = answer
        .split("[possible values: ")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    let exist = sorted(listed.expect("the hosts are listed").split(", "));
    let tables = markdown::tables(HOSTS);
    let table = tables
        .iter()
        .find(|table| table.has("File of the user"))
        .expect("a table of hosts");
    assert_eq!(table.codes("Name").into_iter().collect::<BTreeSet<_>>(), exist);
    for row in table.rows() {
        let (host, file) = (
            markdown::codes(row.cell("Name")),
            markdown::codes(row.cell("File of the user")),
        );
        let answer = import(&host[0]);
        assert!(
            answer.contains(&format!("{}: there is no {}", row.cell("Host"), file[0])),
            "{host:?}: {answer}"
        );
    }
}

#[test]
fn every_flag_of_the_commands_that_look_is_on_their_page_with_its_default() {
    const ALL: [&str; 6] = ["ps", "top", "tap", "tools", "call", "attach"];
    const SERVICE: [&str; 4] = ["install", "uninstall", "status", "logs"];
    let service = SERVICE.map(|command| format!("service {command}"));
    let commands = ALL.into_iter().chain(service.iter().map(String::as_str));
    let mut exist: BTreeSet<(String, String)> = BTreeSet::new();
    let mut defaults: BTreeMap<(String, String), String> = BTreeMap::new();
    for command in commands {
        for line in help(command) {
            let key = (command.to_owned(), flag_name(&line).to_owned());
            if let Some(default) = default_in_help(&line) {
                defaults.insert(key.clone(), default.replace('`', ""));
            }
            exist.insert(key);
        }
    }
    let mut documented = BTreeSet::new();
    for table in markdown::tables(LOOKING).iter().filter(|table| table.has("Flag")) {
        for row in table.rows() {
            let commands = match row.cell("Command") {
                "all four" => service.to_vec(),
                _ => markdown::codes(row.cell("Command")),
            };
            let flags = markdown::codes(row.cell("Flag"));
            let flag = flags.iter().find(|flag| flag.starts_with("--")).expect("a flag");
            for command in commands {
                let key = (command, flag.clone());
                if let Some(default) = defaults.get(&key) {
                    assert_eq!(*default, row.cell("Default").replace('`', ""), "{key:?}");
                }
                documented.insert(key);
            }
        }
    }
    assert!(exist.len() > 15, "{exist:?}");
    assert_eq!(documented, exist);
}

#[tokio::test]
async fn every_key_is_documented_and_every_documented_key_exists() {
    // No key is near this one, so that the message lists them all.
    let unknown = "zzzzzzzzzzzzzzzz";
    let file = format!(
        "{unknown}: 1\naudit: {{ {unknown}: 1 }}\nlimits: {{ {unknown}: 1 }}\notlp: {{ {unknown}: 1 }}\ncluster: {{ {unknown}: 1 }}\nauth: {{ {unknown}: 1, tokens: [{{ {unknown}: 1 }}], jwt: {{ {unknown}: 1 }}, proxy: {{ {unknown}: 1 }} }}\ntls: {{ {unknown}: 1 }}\ndestinations: {{ a: {{ command: cat, {unknown}: 1, tools: {{ {unknown}: 1 }} }} }}\naggregates: {{ b: {{ {unknown}: 1, members: {{ a: {{ {unknown}: 1, tools: {{ {unknown}: 1 }} }} }} }} }}\n"
    );
    let ended = Rialto::launcher().verb(&["check"]).config(&file).run(DEADLINE);
    let said = ended.await.expect("check ends").stderr_text();
    let known = |place: &str| -> BTreeSet<String> {
        let line = said.lines().find(|line| line.contains(place));
        let line = line.unwrap_or_else(|| panic!("nothing about {place} in {said}"));
        let keys = line.split("known here are ").nth(1).expect("the keys are listed");
        sorted(keys.split(", "))
    };
    let mut globals = known(&format!(": field `{unknown}`"));
    for map in ["audit", "cluster", "limits", "otlp", "tls"] {
        let keys = known(&format!(": field `{map}.{unknown}`"));
        globals.extend(keys.iter().map(|key| format!("{map}.{key}")));
    }
    let auth: BTreeSet<String> = ["auth", "auth.tokens", "auth.jwt", "auth.proxy"]
        .into_iter()
        .flat_map(|section| {
            let keys = known(&format!(": field `{section}.{unknown}`"));
            keys.into_iter().map(move |key| format!("{section}.{key}"))
        })
        .collect();
    let mut destination = known(&format!("destination `a`, field `{unknown}`"));
    let tools = known(&format!("destination `a`, field `tools.{unknown}`"));
    destination.extend(tools.iter().map(|key| format!("tools.{key}")));
    let mut aggregate = known(&format!("aggregate `b`, field `{unknown}`"));
    for map in ["members", "members.tools"] {
        let place = map.replacen("members", "members.a", 1);
        let keys = known(&format!("aggregate `b`, field `{place}.{unknown}`"));
        aggregate.extend(keys.iter().map(|key| format!("{map}.{key}")));
    }

    let documented = |heading: &str| -> BTreeSet<String> {
        let tables = tables_with("Key");
        let found = tables.iter().filter(|table| table.heading == heading);
        found.flat_map(|table| table.codes("Key")).collect()
    };
    let whole = &documented("The whole gateway") | &documented("Limits");
    assert_eq!(whole, globals);
    assert_eq!(documented("Authentication"), auth);
    assert_eq!(documented("A destination"), destination);
    assert_eq!(documented("An aggregate"), aggregate);
}

#[test]
fn every_variable_is_documented_and_every_documented_variable_exists() {
    let sources = source::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let exist: BTreeSet<String> = source::texts(&sources)
        .into_iter()
        .filter(|text| source::is_variable_of_rialto(text))
        .collect();
    let documented: BTreeSet<String> = tables_with("Variable")
        .iter()
        .chain(
            markdown::tables(CONNECT)
                .iter()
                .filter(|table| table.has("Variable")),
        )
        .flat_map(|table| table.codes("Variable"))
        .collect();
    assert_eq!(documented, exist);
    // And the help names nothing else.
    for line in ["serve", "connect", "check", "login"].into_iter().flat_map(help) {
        if let Some(variables) = line
            .split("[env: ")
            .nth(1)
            .and_then(|rest| rest.split(']').next())
        {
            for variable in variables
                .split([',', ' '])
                .filter(|word| word.contains('_') && *word == word.to_uppercase())
            {
                assert!(
                    documented.contains(variable),
                    "{variable} of the help is not documented"
                );
            }
        }
    }
}

/// Every example must have no problem but the one that is put in beside it; so nothing is started.
async fn assert_accepted(text: &str) {
    let mut launcher = Rialto::launcher()
        .verb(&["check"])
        .config(text)
        .env("RIALTO_LISTEN", "nowhere");
    for variable in text.split("${").skip(1).filter_map(|rest| rest.split('}').next()) {
        if !variable.contains(':') {
            launcher = launcher.env(variable, "/filled/in");
        }
    }
    let ended = launcher.run(DEADLINE).await.expect("check ends");
    let problems: Vec<&String> = ended
        .stderr
        .iter()
        .filter(|line| !line.trim().is_empty())
        .collect();
    assert_eq!(ended.code(), Some(2), "{problems:?}");
    assert!(
        problems
            .iter()
            .all(|line| line.contains("RIALTO_LISTEN") || line.contains("1 problem")),
        "{text}\n{problems:#?}"
    );
}

#[tokio::test]
async fn every_file_shown_is_accepted() {
    let mut shown = 0;
    for document in [README, CONFIGURATION, AGGREGATES] {
        for block in markdown::blocks(document, "yaml") {
            assert_accepted(&block).await;
            shown += 1;
        }
        let hosts = markdown::blocks(document, "json");
        for block in hosts.iter().filter(|block| block.contains("\"command\"")) {
            assert_accepted(block).await;
            shown += 1;
        }
    }
    assert_eq!(shown, 5, "files shown; a new one is counted here");
}

#[tokio::test]
async fn the_first_example_of_the_page_about_aggregates_works_as_it_says() {
    let block = markdown::blocks(AGGREGATES, "console").remove(0);
    let shown = transcript::commands(&block).remove(0);
    let words: Vec<&str> = shown.command.split_whitespace().collect();
    let Some(["rialto", "serve", flags @ ..]) = words.get(..) else {
        panic!("{} serves nothing", shown.command);
    };
    let rialto = Rialto::serve(flags).await.expect("it is served");
    for (name, tool) in [("all", "demo__echo"), ("demo", "echo")] {
        assert!(
            AGGREGATES.contains(&format!("/{name}/mcp`")),
            "the page names the path"
        );
        assert!(
            AGGREGATES.contains(&format!("`{tool}`")),
            "the page names the tool"
        );
        let client = rialto.client_of(name).await.expect("a client");
        let shaken = client.handshake(testkit::LEGACY, serde_json::json!({})).await;
        shaken.expect("a handshake");
        let called = client.call(1, tool, serde_json::json!({"text": "hi"})).await;
        assert_eq!(called.expect("an answer").text(), "hi");
    }
}

#[tokio::test]
async fn the_calls_that_readme_and_the_tutorial_show_are_answered_as_they_show() {
    let demo = Rialto::serve(&["--demo"]).await.expect("the demo is served");
    let program = env!("CARGO_BIN_EXE_rialto");
    let legacy = Rialto::serve(&["--", program, "demo-server", "--era", "legacy"])
        .await
        .expect("a server of one era is served");
    let mut states = transcript::States::default();
    let mut calls = 0;
    let blocks = [README, TUTORIAL].map(|document| markdown::blocks(document, "console"));
    for block in blocks.concat() {
        for shown in transcript::commands(&block) {
            if let Some(mut call) = shown.curl() {
                states.fill_in(&mut call);
                // The crossing is shown at the bare path, with a server that speaks one era.
                let server = if call.path() == "/mcp" { &legacy } else { &demo };
                let answer = call.send(server.address()).await.expect("an answer");
                states.note(&shown.output, &answer);
                assert_eq!(
                    transcript::normalised(&answer),
                    transcript::normalised(&shown.output),
                    "{}",
                    shown.command
                );
                calls += 1;
            }
        }
    }
    assert!(calls >= 7, "{calls} calls are shown");
}

#[tokio::test]
async fn the_check_that_the_documents_show_prints_what_they_show() {
    let ended = Rialto::launcher()
        .verb(&["check", "--demo"])
        .run(DEADLINE)
        .await
        .expect("check ends");
    for document in [TUTORIAL, CONFIGURATION] {
        let blocks = markdown::blocks(document, "console");
        let shown = blocks
            .iter()
            .flat_map(|block| transcript::commands(block))
            .find(|shown| shown.command == "rialto check --demo")
            .expect("the document shows it");
        assert_eq!(
            transcript::without_times(&ended.stdout.join("\n")),
            transcript::without_times(&shown.output)
        );
    }
}

#[test]
fn every_reason_is_in_the_troubleshooting_page_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut reasons = BTreeSet::new();
    for file in [
        "crates/gateway/src/reply/names.rs",
        "crates/protocol/src/exchange.rs",
    ] {
        let text = source::without_tests(&std::fs::read_to_string(root.join(file)).expect("the source"));
        let body = source::function(&text, "fn reason(&self)");
        reasons.extend(source::texts(&body));
    }
    let documented: BTreeSet<String> = refusals()
        .iter()
        .flat_map(|table| table.codes("`data.reason`"))
        .collect();
    assert!(reasons.len() > 10, "{reasons:?}");
    assert_eq!(documented, reasons);
}

/// The tables of the troubleshooting page that list refusals.
fn refusals() -> Vec<Table> {
    markdown::tables(TROUBLESHOOTING)
        .into_iter()
        .filter(|table| table.has("`data.reason`"))
        .collect()
}

#[test]
fn every_refusal_of_the_source_has_its_message_in_the_troubleshooting_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read =
        |file: &str| source::without_tests(&std::fs::read_to_string(root.join(file)).expect("the source"));
    let legacy = read("crates/protocol/src/client_face/legacy.rs");
    let scan = read("crates/protocol/src/message/scan.rs");
    let mut messages = source::texts(&source::function(
        &read("crates/gateway/src/reply.rs"),
        "fn row(&self)",
    ));
    messages.extend(source::texts(&source::function(
        &legacy,
        "pub const fn text(self)",
    )));
    messages.extend(
        legacy
            .split("Objection::BadParams(")
            .skip(1)
            .filter_map(|rest| source::texts(rest.get(..80)?).into_iter().next()),
    );
    messages.extend(
        source::texts(&scan)
            .into_iter()
            .filter(|text| text.starts_with("the me") || text.starts_with("JSON-RPC")),
    );
    assert!(messages.len() > 30, "{messages:?}");
    let rows: Vec<String> = refusals()
        .iter()
        .flat_map(Table::rows)
        .map(|row| row.cell("Message").replace('`', ""))
        .collect();
    for message in messages {
        // What is filled in cannot be listed; the longest piece around it is what a user would
        // search for.
        let plain = message.replace('`', "");
        let pieces: Vec<&str> = plain.split(['{', '}']).step_by(2).collect();
        let longest = pieces
            .iter()
            .map(|piece| piece.trim())
            .max_by_key(|piece| piece.len())
            .unwrap_or_default();
        if longest.len() < 5 || longest == ", " {
            continue;
        }
        assert!(
            rows.iter()
                .any(|row| row.len() > 5 && (longest.contains(row.as_str()) || row.contains(longest))),
            "no row of docs/troubleshooting.md is about `{message}`"
        );
    }
}

#[test]
fn every_conversation_named_in_the_page_about_the_eras_exists() {
    let page = include_str!("../../../../docs/eras.md");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/tests/conversations");
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let last = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let mut names = 0;
    for name in last.flat_map(markdown::codes) {
        if name.contains('/') {
            continue;
        }
        names += 1;
        assert!(
            folder.join(format!("{name}.conv")).is_file(),
            "docs/eras.md names `{name}`"
        );
    }
    assert!(names > 25, "the page names {names} conversations");
}

#[test]
fn every_row_of_the_fault_catalogue_names_tests_that_are_there() {
    let tables = markdown::tables(include_str!("../../../../docs/testing.md"));
    let tables = tables.iter().filter(|table| table.has("Row"));
    let mut tests = catalogue::Tests::default();
    let mut rows = BTreeSet::new();
    for row in tables.flat_map(Table::rows) {
        let id = row.cell("Row").to_owned();
        let named = markdown::codes(row.cell("Shown by"));
        assert!(!named.is_empty(), "{id} is shown by nothing");
        for name in named {
            assert!(tests.have(&name), "{id} names `{name}`, which is no test");
        }
        assert!(rows.insert(id.clone()), "{id} stands twice");
    }
    assert_eq!(rows, catalogue::rows());
}

#[test]
fn every_client_in_the_page_about_tests_is_pinned_as_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop");
    let tables = markdown::tables(include_str!("../../../../docs/testing.md"));
    let pinned = tables.iter().filter(|table| table.has("Pinned in"));
    let mut clients = 0;
    for row in pinned.flat_map(Table::rows) {
        let (pins, files) = (
            markdown::codes(row.cell("Pin")),
            markdown::codes(row.cell("Pinned in")),
        );
        let ([pin], [file]) = (&pins[..], &files[..]) else {
            panic!("{} has one pin in one file", row.cell("Client"));
        };
        let text =
            std::fs::read_to_string(folder.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut lines = text.lines().map(|line| line.trim().trim_end_matches(','));
        assert!(lines.any(|line| line == pin), "{file} does not pin {pin}");
        clients += 1;
    }
    assert!(clients > 10, "the page names {clients} clients");
}

#[test]
fn the_figures_that_the_tutorial_quotes_are_those_of_the_benchmarks() {
    let measured: BTreeSet<&str> = BENCHMARKS.lines().collect();
    let (_, quoted) = TUTORIAL
        .split_once("| Work | figure |")
        .expect("the tutorial quotes figures");
    let quoted: Vec<&str> = quoted
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(quoted.len() > 3, "{quoted:?}");
    for row in quoted {
        assert!(measured.contains(row), "docs/benchmarks.md does not have: {row}");
    }
}

#[test]
fn the_numbers_of_readme_are_those_of_the_benchmarks() {
    let row = |beginning: &str| -> Vec<&str> {
        let row = BENCHMARKS.lines().find(|line| line.starts_with(beginning));
        let row = row.unwrap_or_else(|| panic!("docs/benchmarks.md has no {beginning}"));
        row.split('|').map(str::trim).collect()
    };
    let readme = README.split_whitespace().collect::<Vec<_>>().join(" ");
    for (target, peer) in [
        (
            "| 64 in flight: throughput against supergateway |",
            "supergateway",
        ),
        (
            "| `connect`, 64 in flight: throughput against mcp-remote |",
            "mcp-remote",
        ),
    ] {
        let times = row(target)[4].split('.').next().unwrap_or_default();
        let claim = format!("{times} times as many calls as {peer}");
        assert!(readme.contains(&claim), "README does not have: {claim}");
    }
    let (heads, memory) = (row("| Work | figure |"), row("| idle memory (PSS) |"));
    for system in ["Rialto", "supergateway"] {
        let column = heads.iter().position(|head| head.starts_with(system));
        let figure = memory[column.expect("a column")];
        assert!(
            readme.contains(figure),
            "README does not have {figure} of {system}"
        );
    }
}

/// [`markdown::tables`] minds each row.
#[test]
fn every_table_of_every_document_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = |folder: &Path| std::fs::read_dir(folder).expect("a folder").flatten();
    let documents = files(&root).chain(files(&root.join("docs")));
    let documents = documents.filter(|file| file.path().extension().is_some_and(|kind| kind == "md"));
    let tables: usize = documents
        .map(|file| markdown::tables(&std::fs::read_to_string(file.path()).expect("a document")).len())
        .sum();
    assert!(tables > 20, "{tables}");
}

#[test]
fn every_link_between_the_documents_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut links = 0;
    for folder in [root.clone(), root.join("docs")] {
        let files = std::fs::read_dir(&folder).expect("a folder").flatten();
        let pages = files.filter(|file| file.path().extension().is_some_and(|kind| kind == "md"));
        for page in pages.map(|file| file.path()) {
            let document = std::fs::read_to_string(&page).expect("a document");
            for link in markdown::links(&document) {
                let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
                let target = if file.is_empty() {
                    page.clone()
                } else {
                    folder.join(file)
                };
                assert!(target.exists(), "{}: {link} leads nowhere", page.display());
                if !anchor.is_empty() {
                    let text = std::fs::read_to_string(&target).expect("a document");
                    let found = markdown::anchors(&text).contains(anchor);
                    assert!(found, "{}: {link}: there is no such heading", page.display());
                }
                links += 1;
            }
        }
    }
    assert!(links > 100, "{links} links");
}

#[test]
fn index_of_the_documents_names_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let links = markdown::links(include_str!("../../../../docs/README.md"));
    for file in std::fs::read_dir(&root).expect("the documents").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        if name != "README.md" && name.ends_with(".md") {
            assert!(links.contains(&name), "docs/README.md does not name {name}");
        }
    }
}

/// A reader with knowledge of MCP, HTTP and proxies searches in these words.
#[test]
fn mechanisms_are_found_by_the_words_of_the_field() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let product = ["protocol", "oauth", "gateway", "rialto"];
    let text: String = product
        .map(|name| source::read(&crates.join(name).join("src")).to_lowercase())
        .concat();
    for words in [
        "restart backoff",
        "Last-Event-ID",
        "429",
        "header validation",
        "refresh single-flight",
        "SIGHUP",
        "keep-alive",
        "retry after a broken connection",
        "id rewriting",
        "back-pressure on stdin",
        "version negotiation",
        "liveness ping",
    ] {
        assert!(text.contains(&words.to_lowercase()), "no source has `{words}`");
    }
}
