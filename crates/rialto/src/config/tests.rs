//! The configuration as a whole: what a file means, which source wins, and what each error says.

mod auth;
mod property;

use std::time::Duration;

use gateway::settings::{
    AuditSink, BackendSpec, Capabilities, OnAuditFailure, ProcessSpec, RemoteSpec, Retry, Secret, Sharing,
    SignIn, Start, Transport,
};

use super::*;

const FILE: &str = "destinations.yml";

fn load_with(text: &str, flags: &ServeFlags, environment: &Environment) -> Result<Loaded, ConfigError> {
    from_text(FILE, text, PathBuf::from("/base"), flags, environment)
}

fn load(text: &str) -> Result<Loaded, ConfigError> {
    load_with(text, &ServeFlags::default(), &Environment::default())
}

fn problems(text: &str) -> Vec<String> {
    problems_with(text, &ServeFlags::default(), &Environment::default())
}

fn problems_with(text: &str, flags: &ServeFlags, environment: &Environment) -> Vec<String> {
    match load_with(text, flags, environment) {
        Err(ConfigError::Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
        Err(other) => vec![other.to_string()],
        Ok(_) => panic!("problems were expected in:\n{text}"),
    }
}

/// One destination named `x` with these lines.
fn destination_file(lines: &[&str]) -> String {
    let mut text = String::from("destinations:\n  x:\n");
    for line in lines {
        text.push_str("    ");
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn process(destination: &Destination) -> &ProcessSpec {
    match &destination.backend {
        BackendSpec::Process(process) => process,
        BackendSpec::Remote(remote) => panic!("a program was expected, not {}", remote.url),
    }
}

fn remote(destination: &Destination) -> &RemoteSpec {
    match &destination.backend {
        BackendSpec::Remote(remote) => remote,
        BackendSpec::Process(process) => panic!("a remote server was expected, not {:?}", process.argv),
    }
}

fn only(loaded: &Loaded) -> &Destination {
    match loaded.settings.destinations.as_slice() {
        [only] => only,
        several => panic!("one destination was expected, not {}", several.len()),
    }
}

fn environment<const N: usize>(variables: [(&str, &str); N]) -> Environment {
    variables.into_iter().collect()
}

/// The example of the contract, without its remote destinations.
const CONTRACT: &str = r#"
listen: 127.0.0.1:3000
request_timeout: 30s            # global; 504 after it
max_message_bytes: 1MiB         # either way; also per destination
secrets_file: secrets.yml       # name: value; never committed
destinations:
  context7:
    type: stdio                 # stdio | streamable_http | sse; without it: `command` means stdio, `url` is tried as Streamable HTTP, then as SSE
    command: npx -y @upstash/context7-mcp      # a line, split like a shell would but run without one; or command + args
    env: { CONTEXT7_API_KEY: "${secret:context7}" }
    cwd: /srv/context7
    process: shared             # shared | per_session | per_identity
    env_from_headers: { GITHUB_TOKEN: X-GitHub-Token }   # needs per_identity or per_session
    start: eager                # eager | lazy
    start_timeout: 60s          # a first npx run downloads
    max_sessions: 10
"#;

fn contract_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(
        directory.path().join("secrets.yml"),
        "context7: s3cr3t\nother: 1\n",
    )
    .expect("written");
    directory
}

#[test]
fn the_example_of_the_contract_is_read_to_the_last_field() {
    let directory = contract_directory();
    // The contract shows every key at once; `env_from_headers` with `shared` is what its comment forbids.
    let text = CONTRACT.replace("process: shared ", "process: per_identity ");
    std::fs::write(directory.path().join(FILE), text).expect("written");
    let loaded =
        settings_in(directory.path(), &ServeFlags::default(), &Environment::default()).expect("loads");
    let settings = &loaded.settings;
    assert_eq!(settings.listen.to_string(), "127.0.0.1:3000");
    assert_eq!(settings.request_timeout, Duration::from_secs(30));
    assert_eq!(settings.max_message_bytes, 1 << 20);
    assert_eq!(settings.session_idle, Duration::from_secs(3600));
    assert_eq!(settings.drain, Duration::from_secs(10));
    assert_eq!(settings.audit.sink, AuditSink::Off);
    assert!(!settings.audit.bodies && !settings.keep_going);
    assert_eq!(settings.root_destination, None);
    let destination = only(&loaded);
    assert_eq!(destination.name, "context7");
    assert_eq!(destination.max_sessions, 10);
    assert_eq!(destination.request_timeout, Duration::from_secs(30));
    assert_eq!(destination.max_message_bytes, 1 << 20);
    let process = process(destination);
    assert_eq!(process.argv, ["npx", "-y", "@upstash/context7-mcp"]);
    assert_eq!(process.env["CONTEXT7_API_KEY"].expose(), "s3cr3t");
    assert_eq!(process.cwd.as_deref(), Some(Path::new("/srv/context7")));
    let lanes = &destination.lanes;
    assert_eq!(lanes.sharing, Sharing::PerIdentity);
    assert_eq!(process.env_from_headers["GITHUB_TOKEN"], "X-GitHub-Token");
    assert_eq!(process.start, Start::Eager);
    assert_eq!(lanes.start_timeout, Duration::from_secs(60));
    assert_eq!(lanes.max_children, 4);
    assert_eq!(lanes.linger, Duration::from_secs(300));
    assert_eq!(lanes.capabilities, Capabilities::PerClient);
    assert_eq!(loaded.notes, [""; 0]);
    assert!(!format!("{loaded:?}").contains("s3cr3t"));
}

#[test]
fn roots_are_uris_of_files() {
    let loaded = load("destinations:\n  x:\n    command: x\n    roots: [file:///srv/one, file:///srv/two]\n");
    let loaded = loaded.expect("loads");
    assert_eq!(only(&loaded).roots, ["file:///srv/one", "file:///srv/two"]);
    let error = load("destinations:\n  x:\n    command: x\n    roots: /srv/one\n").expect_err("refused");
    assert!(error.to_string().contains("file:///srv/project"), "{error}");
}

#[test]
fn the_example_word_for_word_has_one_problem_and_it_is_the_one_its_comment_names() {
    let directory = contract_directory();
    std::fs::write(directory.path().join(FILE), CONTRACT).expect("written");
    let error =
        settings_in(directory.path(), &ServeFlags::default(), &Environment::default()).expect_err("one");
    let text = error.to_string();
    assert!(
        text.starts_with("destinations.yml:13: destination `context7`, field `env_from_headers`: "),
        "{text}"
    );
    assert!(text.contains("process: per_identity"), "{text}");
}

#[test]
fn a_short_file_gets_every_default() {
    let loaded = load(&destination_file(&["command: cat"])).expect("loads");
    let destination = only(&loaded);
    assert_eq!(
        (destination.max_sessions, destination.max_message_bytes),
        (10, 1 << 20)
    );
    let process = process(destination);
    assert_eq!(
        (destination.lanes.sharing, process.start),
        (Sharing::Shared, Start::Eager)
    );
    assert_eq!(process.cwd, None);
    assert!(process.env.is_empty() && process.env_from_headers.is_empty());
}

#[test]
fn every_key_can_be_said_in_a_file() {
    let text = "\
listen: :0
request_timeout: 1m
max_message_bytes: 2MiB
session_idle: 2h
drain_timeout: 0s
allowed_hosts: [mcp.example.com, Other.example.com]
allowed_origins: https://app.example.com
audit: { sink: logs/audit.jsonl, bodies: true, on_failure: refuse, chain: true }
tls: { cert: tls/cert.pem, key: /keys/key.pem }
destinations:
  a:
    command: [my prog, 'x y', 5]
    args: [z]
    env: { PORT: 8080, VERSION: 1.10, FLAG: true, COUNTRY: no, EMPTY: }
    cwd: sub
    process: per_session
    env_from_headers: { T: X-T }
    start_timeout: 5s
    max_sessions: 3
    max_children: 2
    linger: 0s
    capabilities: union
    request_timeout: 10m
    max_message_bytes: 5MB
    legacy_sse: true
  b:
    command: cat
    args: ['-u']
    start: lazy
";
    let loaded = load(text).expect("loads");
    let settings = &loaded.settings;
    assert_eq!(settings.listen.to_string(), "127.0.0.1:0");
    assert_eq!(
        settings.max_message_bytes, 5_000_000,
        "the largest of the destinations"
    );
    assert_eq!(settings.session_idle, Duration::from_secs(7200));
    assert_eq!(settings.drain, Duration::ZERO);
    assert_eq!(settings.allowed_hosts, ["mcp.example.com", "other.example.com"]);
    assert_eq!(settings.allowed_origins, ["https://app.example.com"]);
    assert_eq!(
        settings.audit.sink,
        AuditSink::File("/base/logs/audit.jsonl".into())
    );
    assert!(settings.audit.bodies && settings.audit.chain);
    assert_eq!(settings.audit.on_failure, OnAuditFailure::Refuse);
    let tls = settings.tls.as_ref().expect("a certificate was named");
    assert_eq!(tls.cert, Path::new("/base/tls/cert.pem"));
    assert_eq!(tls.key, Path::new("/keys/key.pem"));
    let [a, b] = settings.destinations.as_slice() else {
        panic!("two destinations")
    };
    assert_eq!(
        (a.name.as_str(), a.max_sessions, a.max_message_bytes),
        ("a", 3, 5_000_000)
    );
    assert_eq!(a.request_timeout, Duration::from_secs(600));
    assert_eq!(b.request_timeout, Duration::from_secs(60));
    assert_eq!(b.max_message_bytes, 2 << 20);
    let lanes = a.lanes.clone();
    let (a, b) = (process(a), process(b));
    assert_eq!(a.argv, ["my prog", "x y", "5", "z"]);
    let env: Vec<(&str, &str)> = a
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(
        env,
        [
            ("COUNTRY", "no"),
            ("EMPTY", ""),
            ("FLAG", "true"),
            ("PORT", "8080"),
            ("VERSION", "1.10")
        ]
    );
    assert_eq!(a.cwd.as_deref(), Some(Path::new("/base/sub")));
    assert_eq!((lanes.sharing, a.start), (Sharing::PerSession, Start::Lazy));
    assert_eq!(lanes.start_timeout, Duration::from_secs(5));
    assert_eq!((lanes.max_children, lanes.linger), (2, Duration::ZERO));
    assert_eq!(lanes.capabilities, Capabilities::Union);
    assert_eq!(b.argv, ["cat", "-u"]);
    assert_eq!(b.start, Start::Lazy);
}

#[test]
fn values_are_filled_in_quoted_or_not_and_a_filled_in_word_stays_one() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("token"), "from a file\n").expect("written");
    std::fs::write(directory.path().join("s.yml"), "key: '${HOME} $$'\n").expect("written");
    let text = "\
secrets_file: ${WHICH}.yml
destinations:
  x:
    command: run ${DIR}/go \"--at=${DIR}\" '${NOPE:-a b}' $$5
    env: { A: \"${secret:key}\", B: \"${file:token}\", C: 'x${DIR}', D: $$, E: pa$word }
    max_sessions: ${N:-7}
";
    let environment = environment([("WHICH", "s"), ("DIR", "/my dir")]);
    let flags = ServeFlags::default();
    let loaded = from_text(FILE, text, directory.path().to_owned(), &flags, &environment).expect("loads");
    let destination = only(&loaded);
    assert_eq!(destination.max_sessions, 7);
    let process = process(destination);
    assert_eq!(process.argv, ["run", "/my dir/go", "--at=/my dir", "a b", "$5"]);
    let env: Vec<&str> = process.env.values().map(Secret::expose).collect();
    assert_eq!(env, ["${HOME} $$", "from a file", "x/my dir", "$", "pa$word"]);
}

#[test]
fn every_error_in_a_destination_names_file_line_destination_field_and_the_fix() {
    for (line, field, fix) in [
        ("request_timeout: 30", "request_timeout", "write 30s"),
        ("request_timeout: 0s", "request_timeout", "write a duration"),
        ("start_timeout: soon", "start_timeout", "30s"),
        ("linger: 5", "linger", "write 5s"),
        ("max_message_bytes: big", "max_message_bytes", "1MiB"),
        ("max_sessions: 0", "max_sessions", "at least 1"),
        ("max_sessions: many", "max_sessions", "whole number"),
        ("max_children: 1.5", "max_children", "whole number"),
        ("process: per-session", "process", "`per_session`"),
        (
            "process: banana",
            "process",
            "write one of shared, per_session, per_identity",
        ),
        ("start: egaer", "start", "`eager`"),
        ("capabilities: all", "capabilities", "per_client, union"),
        ("type: http", "type", "`streamable_http`"),
        ("env: [A]", "env", "must be a map"),
        ("env: { A: [1] }", "env.A", "single value"),
        ("env: { 'A=B': 1 }", "env.A=B", "API_KEY"),
        ("env: { A: \"x\\0y\" }", "env.A", "NUL"),
        (
            "env: { A: \"${NOPE}\" }",
            "env.A",
            "NOPE is not set: set it, or write ${NOPE:-default}",
        ),
        ("env: { A: \"${secret:k}\" }", "env.A", "secrets_file"),
        ("env: { A: \"${file:no/such}\" }", "env.A", "no/such"),
        ("args: -y", "args", "write [one, two]"),
        ("args: [a, \"${NOPE}\"]", "args[1]", "NOPE"),
        ("cwd: ~/x", "cwd", "${HOME}"),
        ("cwd: [a]", "cwd", "single value"),
        (
            "env_from_headers: { A: X-A }",
            "env_from_headers",
            "process: per_identity",
        ),
        ("legacy_sse: old", "legacy_sse", "true or false"),
        ("comand: x", "comand", "did you mean `command`"),
        ("timeout: 5s", "timeout", "did you mean `request_timeout`"),
        ("startTimeout: 5s", "startTimeout", "did you mean `start_timeout`"),
        ("banana: 5", "banana", "known here are type, process, command"),
    ] {
        let found = problems(&destination_file(&["command: cat", line]));
        let [problem] = found.as_slice() else {
            panic!("one problem was expected for `{line}`: {found:?}")
        };
        let start = format!("destinations.yml:4: destination `x`, field `{field}`: ");
        assert!(problem.starts_with(&start), "`{line}`: {problem}");
        assert!(problem.contains(fix), "`{line}`: {problem}");
    }
}

#[test]
fn a_wrong_command_is_named_with_its_fix() {
    for (line, fix) in [
        ("command: a | b", "without a shell"),
        ("command: a && b", "`&&`"),
        ("command: 'a > b'", "in quotes"),
        ("command: \"\"", "empty"),
        ("command: []", "empty"),
        ("command: ['']", "empty"),
        ("command: \"a 'b\"", "not closed"),
        ("command: run ${NOPE}", "NOPE is not set"),
        ("command: { a: b }", "single value"),
    ] {
        let found = problems(&destination_file(&[line]));
        let all = found.join("\n");
        assert!(
            all.starts_with("destinations.yml:3: destination `x`, field `command`: "),
            "`{line}`: {all}"
        );
        assert!(all.contains(fix), "`{line}`: {all}");
    }
}

#[test]
fn a_destination_that_is_none_is_named() {
    for (lines, fix) in [
        (&["cwd: /x"][..], "write `command:"),
        (&["type: stdio"], "write `command:"),
        (&["type: stdio", "url: https://x"], "needs a `command`"),
        (&["command: cat", "url: https://x"], "both `command` and `url`"),
        (&["type: sse", "command: cat"], "`type: stdio`"),
    ] {
        let found = problems(&destination_file(lines));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("destinations.yml:2: destination `x`: "),
            "{found:?}"
        );
        assert!(found[0].contains(fix), "{found:?}");
    }
}

#[test]
fn a_remote_destination_needs_only_its_address() {
    let loaded = load(&destination_file(&["url: https://mcp.example.com/mcp"])).expect("loads");
    let destination = only(&loaded);
    let spec = remote(destination);
    assert_eq!(spec.url.as_str(), "https://mcp.example.com/mcp");
    assert_eq!((spec.transport, spec.retry), (Transport::Auto, Retry::Safe));
    assert!(spec.headers.is_empty() && spec.forward_headers.is_empty() && spec.ca_file.is_none());
    // A session at a remote server costs nothing here, so each client has its own.
    assert_eq!(destination.lanes.sharing, Sharing::PerSession);
    assert_eq!(destination.max_sessions, 1000);
}

#[test]
fn every_key_of_a_remote_destination_can_be_said_in_a_file() {
    let file = destination_file(&[
        "type: sse",
        "url: https://old.example.com/sse",
        "headers: { Authorization: \"Bearer x\", X-Team: blue }",
        "forward_headers: [X-Request-Id]",
        "ca_file: ca.pem",
        "retry: always",
        "auth: oauth",
        "process: per_identity",
    ]);
    // Tokens are kept in the user's own state.
    let environment = [("HOME", "/home/u")].into_iter().collect();
    let loaded = load_with(&file, &ServeFlags::default(), &environment).expect("loads");
    let spec = remote(only(&loaded));
    assert_eq!((spec.transport, spec.retry), (Transport::Sse, Retry::Always));
    assert!(only(&loaded).legacy_sse, "an old server keeps its old clients");
    let headers: Vec<(&str, &str)> = spec
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(headers, [("authorization", "Bearer x"), ("x-team", "blue")]);
    assert_eq!(spec.forward_headers[0].as_str(), "x-request-id");
    assert!(spec.ca_file.as_ref().is_some_and(|file| file.ends_with("ca.pem")));
    assert!(matches!(spec.sign_in, SignIn::OAuth(_)));
}

#[test]
fn a_remote_destination_that_cannot_be_reached_safely_is_refused_by_name() {
    for (lines, fix) in [
        (&["type: sse"][..], "write `url: https"),
        (&["url: mcp.example.com"], "write https://host/path"),
        (&["url: ftp://mcp.example.com/mcp"], "only http and https"),
        (
            &["url: https://me:pw@mcp.example.com/mcp"],
            "credentials in an address",
        ),
        (
            &["url: https://x/mcp", "headers: { Mcp-Session-Id: x }"],
            "written by the transport",
        ),
        (
            &["url: https://x/mcp", "headers: { X: \"a\\nb\" }"],
            "no header can carry",
        ),
        (
            &["url: https://x/mcp", "forward_headers: [A B]"],
            "not the name of an HTTP header",
        ),
        (
            &["url: https://x/mcp", "process: shared", "forward_headers: [X-A]"],
            "process: per_identity",
        ),
        (&["url: https://x/mcp", "env: { A: b }"], "is given `headers`"),
        (&["command: cat", "headers: { A: b }"], "is given `env`"),
    ] {
        let found = problems(&destination_file(lines));
        assert_eq!(found.len(), 1, "{lines:?}: {found:?}");
        assert!(found[0].contains("destination `x`"), "{found:?}");
        assert!(found[0].contains(fix), "{lines:?}: {found:?}");
    }
}

#[test]
fn every_error_in_a_global_key_names_file_line_field_and_the_fix() {
    let rest = "destinations: { x: { command: cat } }\n";
    for (line, field, fix) in [
        ("listen: example.com:80", "listen", "127.0.0.1:80"),
        ("request_timeout: 30", "request_timeout", "write 30s"),
        ("max_message_bytes: 0", "max_message_bytes", "1MiB"),
        ("session_idle: 0s", "session_idle", "write a duration"),
        ("drain_timeout: 10", "drain_timeout", "write 10s"),
        ("allowed_hosts: ['a:80']", "allowed_hosts[0]", "without a port"),
        (
            "allowed_origins: [x]",
            "allowed_origins[0]",
            "https://app.example.com",
        ),
        ("audit: true", "audit", "stdout"),
        ("audit: [a]", "audit", "single value"),
        ("tls: cert.pem", "tls", "go together"),
        ("tls: { cert: a.pem }", "tls.cert", "go together"),
        ("tls: { crt: a.pem }", "tls.crt", "did you mean `tls.cert`"),
        (
            "audit: { sink: stdout, on_failure: panic }",
            "audit.on_failure",
            "count",
        ),
        (
            "audit: { sink: stdout, chain: 7 }",
            "audit.chain",
            "true or false",
        ),
        ("audit: { snik: x }", "audit.snik", "did you mean `audit.sink`"),
        (
            "audit: { sink: stdout, bodies: maybe }",
            "audit.bodies",
            "true or false",
        ),
        ("secrets_file: no/such.yml", "secrets_file", "cannot be read"),
        ("destination: {}", "destination", "did you mean `destinations`"),
        ("port: 80", "port", "did you mean `listen`"),
    ] {
        let found = problems(&format!("{line}\n{rest}"));
        let [problem] = found.as_slice() else {
            panic!("one problem was expected for `{line}`: {found:?}")
        };
        assert!(
            problem.starts_with(&format!("destinations.yml:1: field `{field}`: ")),
            "`{line}`: {problem}"
        );
        assert!(problem.contains(fix), "`{line}`: {problem}");
    }
}

#[test]
fn all_problems_of_a_file_are_shown_at_once() {
    let text = "\
listen: nowhere
destinations:
  MCP Server: { command: cat }
  health: { command: cat }
  a: { comand: cat }
  b: { command: cat, linger: 5 }
  c: 5
";
    let found = problems(text);
    assert_eq!(found.len(), 7, "{found:#?}");
    let all = load(text).expect_err("problems").to_string();
    assert!(
        all.starts_with("7 problems in the configuration:\n  destinations.yml:1: field `listen`"),
        "{all}"
    );
    for part in [
        "write `mcp-server`",
        "did you mean `command`",
        "Rialto's own",
        "destination `a`",
        "destination `b`",
        "destination `c`",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
}

#[test]
fn a_file_without_destinations_says_what_to_write() {
    for text in [
        "",
        "# nothing\n",
        "listen: :0\n",
        "destinations:\n",
        "destinations: {}\n",
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with("destinations.yml"), "{found:?}");
        assert!(found[0].contains("there is no destination"), "{found:?}");
    }
    for text in ["- a\n", "hello\n", "5\n", "destinations: [a]\n"] {
        assert!(problems(text)[0].contains("must be a map"), "{text}");
    }
}

#[test]
fn text_that_is_no_yaml_is_named_with_its_line_and_not_quoted() {
    let found = problems("destinations:\n  x:\n    env: { KEY: \"hunter2\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("destinations.yml:"), "{found:?}");
    assert!(found[0].contains("not valid YAML"), "{found:?}");
    assert!(!found[0].contains("hunter2"), "{found:?}");
}

#[test]
fn no_value_that_was_filled_in_is_ever_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("s.yml"), "k: hunter2\n").expect("written");
    let text = "\
secrets_file: s.yml
listen: ${secret:k}
destinations:
  x: { command: cat, linger: \"${P}\", process: \"${secret:k}\", cwd: \"~/${P}\" }
";
    let environment = environment([("P", "hunter2")]);
    let flags = ServeFlags::default();
    let error =
        from_text(FILE, text, directory.path().to_owned(), &flags, &environment).expect_err("problems");
    let all = format!("{error} {error:?}");
    assert!(all.contains("${secret:k}") && all.contains("${P}"), "{all}");
    assert!(!all.contains("hunter2"), "{all}");
}

#[test]
fn a_broken_secrets_file_is_named_once_and_never_quoted() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = "secrets_file: s.yml\ndestinations:\n  x: { command: cat, env: { A: \"${secret:k}\" } }\n";
    for (secrets, message) in [
        ("k: \"hunter2\nx", "not valid YAML"),
        ("k: *hunter2", "not valid YAML"),
        ("- hunter2", "must be a map"),
        ("k: [hunter2]", "secret `k` must be a single text"),
        ("other: hunter2", "has no `k`"),
    ] {
        std::fs::write(directory.path().join("s.yml"), secrets).expect("written");
        let flags = ServeFlags::default();
        let base = directory.path().to_owned();
        let error = from_text(FILE, text, base, &flags, &Environment::default()).expect_err("broken");
        let error = error.to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(message), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let plain = destination_file(&["command: cat"]);
    let file = format!("listen: :1\nrequest_timeout: 1s\naudit: stdout\nallowed_hosts: [file]\n{plain}");
    let variables = environment([
        ("RIALTO_LISTEN", ":2"),
        ("RIALTO_REQUEST_TIMEOUT", "2s"),
        ("RIALTO_AUDIT", "two.jsonl"),
        ("RIALTO_ALLOWED_HOSTS", "two, zwei"),
        ("RIALTO_KEEP_GOING", "true"),
    ]);
    let flags = ServeFlags {
        listen: Some(":3".into()),
        request_timeout: Some("3s".into()),
        audit: Some("off".into()),
        allow_host: vec!["three".into()],
        ..ServeFlags::default()
    };
    let seen = |text: &str, flags: &ServeFlags, environment: &Environment| {
        let settings = load_with(text, flags, environment).expect("loads").settings;
        (
            settings.listen.port(),
            settings.request_timeout.as_secs(),
            settings.audit.sink,
            settings.allowed_hosts.join(" "),
        )
    };
    let (none, unset) = (ServeFlags::default(), Environment::default());
    assert_eq!(
        seen(&plain, &none, &unset),
        (3000, 30, AuditSink::Off, String::new())
    );
    assert_eq!(
        seen(&file, &none, &unset),
        (1, 1, AuditSink::Stdout, "file".into())
    );
    assert_eq!(
        seen(&file, &none, &variables),
        (2, 2, AuditSink::File("two.jsonl".into()), "two zwei".into())
    );
    assert_eq!(
        seen(&file, &flags, &variables),
        (3, 3, AuditSink::Off, "three".into())
    );
    assert!(
        load_with(&file, &none, &variables)
            .expect("loads")
            .settings
            .keep_going
    );
}

#[test]
fn variables_that_people_have_already_still_work() {
    let older = environment([
        ("MAX_STDIO_CONNECTIONS", "2"),
        ("STDIO_REQUEST_TIMEOUT", "45"),
        ("AUDIT_LOG_BODIES", "true"),
        ("RIALTO_SESSION_IDLE", "5m"),
        ("RIALTO_DRAIN", "1s"),
        ("RIALTO_MAX_MESSAGE_BYTES", "2MiB"),
        ("RIALTO_LISTEN", ""),
    ]);
    let text = destination_file(&["command: cat", "max_sessions: 9"]);
    let loaded = load_with(&text, &ServeFlags::default(), &older).expect("loads");
    assert_eq!(only(&loaded).max_sessions, 2, "the environment beats the file");
    assert_eq!(only(&loaded).request_timeout, Duration::from_secs(45));
    assert_eq!(loaded.settings.session_idle, Duration::from_secs(300));
    assert_eq!(loaded.settings.drain, Duration::from_secs(1));
    assert_eq!(loaded.settings.max_message_bytes, 2 << 20);
    assert_eq!(
        loaded.settings.listen.port(),
        3000,
        "a variable set to nothing is not set"
    );
    assert!(loaded.settings.audit.bodies);
    assert!(loaded.notes[0].contains("audit log is off"), "{:?}", loaded.notes);
}

#[test]
fn wrong_flags_and_variables_are_named_as_such() {
    let text = destination_file(&["command: cat"]);
    let flags = ServeFlags {
        listen: Some("x".into()),
        max_sessions: Some("0".into()),
        allow_origin: vec!["x".into()],
        name: Some("n".into()),
        process: Some("shared".into()),
        env: vec![Secret::new("KEY=hunter2")],
        ..ServeFlags::default()
    };
    let environment = environment([
        ("RIALTO_REQUEST_TIMEOUT", "30"),
        ("STDIO_REQUEST_TIMEOUT", "7"),
        ("RIALTO_AUDIT_BODIES", "perhaps"),
    ]);
    let all = problems_with(&text, &flags, &environment).join("\n");
    for start in [
        "--listen: `x` is wrong",
        "--max-sessions: `0` is wrong",
        "--allow-origin: `x` is wrong",
        "--name: is for `-- COMMAND` only",
        "--process: is for `-- COMMAND` only",
        "--env: is for `-- COMMAND` only",
        "environment variable RIALTO_REQUEST_TIMEOUT: `30` is wrong: a duration needs a unit: write 30s",
        "environment variable RIALTO_AUDIT_BODIES: ",
    ] {
        assert!(all.lines().any(|line| line.starts_with(start)), "{start}:\n{all}");
    }
    assert!(!all.contains("hunter2"));
}

#[test]
fn a_single_command_is_served_at_the_root_too() {
    let flags = ServeFlags {
        command: ["npx", "-y", "@scope/server-everything", "a | b"]
            .map(String::from)
            .to_vec(),
        env: vec![Secret::new("A=b=c"), Secret::new("TOKEN")],
        process: Some("per_session".into()),
        max_sessions: Some("3".into()),
        ..ServeFlags::default()
    };
    let loaded = settings(
        &flags,
        &environment([("TOKEN", "t"), ("RIALTO_CONFIG", "ignored.yml")]),
    )
    .expect("loads");
    let destination = only(&loaded);
    assert_eq!(destination.name, "server-everything");
    assert_eq!(
        loaded.settings.root_destination.as_deref(),
        Some("server-everything")
    );
    assert_eq!(destination.max_sessions, 3);
    let process = process(destination);
    assert_eq!(process.argv, flags.command);
    assert_eq!(process.env["A"].expose(), "b=c");
    assert_eq!(process.env["TOKEN"].expose(), "t");
    assert_eq!(
        (destination.lanes.sharing, process.start),
        (Sharing::PerSession, Start::Lazy)
    );
}

#[test]
fn a_single_command_takes_its_name_and_environment_from_variables_too() {
    let flags = ServeFlags {
        command: vec!["cat".into()],
        ..ServeFlags::default()
    };
    let variables = environment([
        ("RIALTO_NAME", "kitty"),
        ("RIALTO_PROCESS", "per_identity"),
        ("RIALTO_ENV", "A=1\nB=x,y\n"),
    ]);
    let loaded = settings(&flags, &variables).expect("loads");
    assert_eq!(only(&loaded).name, "kitty");
    assert_eq!(only(&loaded).lanes.sharing, Sharing::PerIdentity);
    assert_eq!(process(only(&loaded)).env["B"].expose(), "x,y");
}

#[test]
fn a_wrong_flag_of_a_single_command_is_named() {
    for (flags, start) in [
        (
            ServeFlags {
                name: Some("A B".into()),
                ..ServeFlags::default()
            },
            "--name: `A B` is wrong",
        ),
        (
            ServeFlags {
                name: Some("mcp".into()),
                ..ServeFlags::default()
            },
            "--name: `mcp` is wrong",
        ),
        (
            ServeFlags {
                process: Some("x".into()),
                ..ServeFlags::default()
            },
            "--process: `x` is wrong",
        ),
        (
            ServeFlags {
                env: vec![Secret::new("=x")],
                ..ServeFlags::default()
            },
            "--env: ",
        ),
        (
            ServeFlags {
                env: vec![Secret::new("NOPE")],
                ..ServeFlags::default()
            },
            "--env: the variable NOPE is not set",
        ),
        (
            ServeFlags {
                demo: true,
                ..ServeFlags::default()
            },
            "--demo: does not go together",
        ),
        (
            ServeFlags {
                config: Some("x".into()),
                ..ServeFlags::default()
            },
            "--config: does not go together",
        ),
    ] {
        let flags = ServeFlags {
            command: vec!["cat".into()],
            ..flags
        };
        let error = settings(&flags, &Environment::default())
            .expect_err("wrong")
            .to_string();
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn the_demo_is_this_program_itself() {
    for (flags, environment) in [
        (
            ServeFlags {
                demo: true,
                ..ServeFlags::default()
            },
            Environment::default(),
        ),
        (ServeFlags::default(), environment([("RIALTO_DEMO", "1")])),
    ] {
        let loaded = settings(&flags, &environment).expect("loads");
        assert_eq!(only(&loaded).name, "demo");
        assert_eq!(loaded.settings.root_destination.as_deref(), Some("demo"));
        let argv = &process(only(&loaded)).argv;
        assert_eq!(argv.len(), 2);
        assert!(Path::new(&argv[0]).is_absolute());
        assert_eq!(argv[1], "demo-server");
    }
}

#[test]
fn without_anything_to_serve_the_error_says_what_to_type() {
    let directory = tempfile::tempdir().expect("a directory");
    let error =
        settings_in(directory.path(), &ServeFlags::default(), &Environment::default()).expect_err("nothing");
    assert_eq!(error, ConfigError::NothingToServe);
    for part in ["rialto serve --demo", "rialto serve -- npx -y", "destinations:"] {
        assert!(error.to_string().contains(part), "{part}");
    }
}

#[test]
fn the_usual_file_is_found_and_a_named_one_that_is_missing_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let flags = ServeFlags {
        config: Some("other.yml".into()),
        ..ServeFlags::default()
    };
    let error = settings_in(directory.path(), &flags, &Environment::default())
        .expect_err("missing")
        .to_string();
    assert!(error.starts_with("other.yml: the file cannot be read"), "{error}");
    std::fs::write(directory.path().join("other.yml"), b"\xff").expect("written");
    let error = settings_in(directory.path(), &flags, &Environment::default())
        .expect_err("binary")
        .to_string();
    assert!(error.contains("not UTF-8"), "{error}");
    std::fs::write(
        directory.path().join("other.yml"),
        destination_file(&["command: cat"]),
    )
    .expect("written");
    let by_variable = environment([("RIALTO_CONFIG", "other.yml")]);
    assert!(settings_in(directory.path(), &ServeFlags::default(), &by_variable).is_ok());
    std::fs::write(directory.path().join(FILE), destination_file(&["command: dog"])).expect("written");
    let loaded =
        settings_in(directory.path(), &ServeFlags::default(), &Environment::default()).expect("loads");
    assert_eq!(process(only(&loaded)).argv, ["dog"]);
}

#[test]
fn the_file_of_a_desktop_host_is_read() {
    let text = r#"{
        "globalShortcut": "x",
        "mcpServers": {
            "everything": {
                "command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything"],
                "env": { "KEY": "pa$$${env:W}", "PORT": 1 }, "autoApprove": [], "timeout": 5
            },
            "My Files!": { "type": "stdio", "command": "/opt/my program/run", "process": "per_session" },
            "off": { "command": "x", "disabled": true }
        }
    }"#;
    let loaded = load_with(text, &ServeFlags::default(), &environment([("W", "w")])).expect("loads");
    let names: Vec<&str> = loaded
        .settings
        .destinations
        .iter()
        .map(|each| each.name.as_str())
        .collect();
    assert_eq!(names, ["my-files", "everything"]);
    let [files, everything] = loaded.settings.destinations.as_slice() else {
        panic!("two destinations")
    };
    assert_eq!(
        process(everything).argv,
        ["npx", "-y", "@modelcontextprotocol/server-everything"]
    );
    assert_eq!(process(everything).env["KEY"].expose(), "pa$$w");
    assert_eq!(process(files).argv, ["/opt/my program/run"]);
    assert_eq!(files.lanes.sharing, Sharing::PerSession);
    let notes = loaded.notes.join("\n");
    for part in [
        "`My Files!` is served as `my-files`",
        "autoApprove, timeout",
        "`off` is disabled",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn the_file_of_vs_code_is_read() {
    let text = r#"{ "inputs": [], "servers": { "a": { "type": "stdio", "command": "cat", "args": [] } } }"#;
    assert_eq!(process(only(&load(text).expect("loads"))).argv, ["cat"]);
}

#[test]
fn problems_in_the_file_of_a_host_are_named_like_any_other() {
    let text = r#"{ "mcpServers": {
        "A B": { "command": "cat" }, "a-b": { "command": "cat" },
        "!!!": { "command": "cat" },
        "key": { "command": "cat", "env": { "K": "${input:key}" } },
        "slow": { "command": "cat", "request_timeout": 5 },
        "none": {}
    } }"#;
    let all = problems(text).join("\n");
    for part in [
        "destination `a-b`: would be served as `a-b`, and so would `A B`",
        "destination `!!!`: a name is part of the URL",
        "destination `key`, field `env.K`: `${input:…}` is not known here",
        "destination `slow`, field `request_timeout`: `5` is wrong",
        "destination `none`: has nothing to run",
    ] {
        assert!(all.contains(part), "{part}\n{all}");
    }
    assert_eq!(all.lines().count(), 5, "{all}");
}

#[test]
fn how_to_log_is_known_before_the_settings() {
    let flags = ServeFlags {
        log_format: Some("json".into()),
        ..ServeFlags::default()
    };
    let environment = environment([("RUST_LOG", "debug"), ("RIALTO_LOG_FORMAT", "xml")]);
    let log = log_settings(flags.log_format.as_deref(), &environment).expect("settings");
    assert_eq!(
        log,
        LogSettings {
            format: LogFormat::Json,
            filter: Some("debug".into())
        }
    );
    let error = log_settings(None, &environment).expect_err("xml").to_string();
    assert!(
        error.starts_with("environment variable RIALTO_LOG_FORMAT: `xml` is wrong"),
        "{error}"
    );
}

/// Texts that look enough like a configuration to get past the parser.
fn almost_a_configuration() -> impl proptest::strategy::Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "destinations:",
        "\n  ",
        "\n    ",
        "x:",
        "command: ",
        "cat",
        "env: ",
        "{ A: ",
        " }",
        "[",
        "]",
        "${",
        "}",
        "secret:",
        "file:",
        ":-",
        "$$",
        "listen: ",
        "audit: ",
        "sink: ",
        "'",
        "\"",
        "30s",
        "5",
        "mcpServers: ",
        "ä",
        "\t",
        "&a ",
        "*a",
        "<<: ",
        "- ",
        "process: per_session",
        "url: ",
        "type: sse",
        "null",
        ", ",
        "\\",
        "|",
        "#",
    ]);
    proptest::strategy::Strategy::prop_map(proptest::collection::vec(piece, 0..40), |pieces| pieces.concat())
}

#[test]
fn every_text_of_the_corpus_is_read_or_refused_alike_twice() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/configuration");
    let mut texts = 0;
    for entry in std::fs::read_dir(folder).expect("there is a corpus") {
        let path = entry.expect("the folder can be read").path();
        property::holds(&std::fs::read(path).expect("the file can be read"));
        texts += 1;
    }
    assert!(texts > 0, "the corpus is empty");
}

proptest::proptest! {
    #[test]
    fn any_text_like_a_configuration_is_read_or_refused_alike_twice(text in almost_a_configuration()) {
        property::holds(text.as_bytes());
    }

    #[test]
    fn any_text_as_a_configuration_is_read_or_refused_without_a_panic(text in ".*") {
        let _ = load(&text);
    }

    #[test]
    fn any_text_over_several_lines_is_read_or_refused_without_a_panic(text in "(?s).{0,200}") {
        let _ = load(&text);
    }

    #[test]
    fn almost_a_configuration_is_read_or_refused_without_a_panic(text in almost_a_configuration()) {
        if let Err(error) = load(&text) {
            proptest::prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_value_of_any_key_is_read_or_refused_without_a_panic(
        key in proptest::sample::select(vec![
            "command", "args", "env", "cwd", "process", "env_from_headers", "start", "start_timeout", "max_sessions",
            "max_children", "linger", "capabilities", "era", "show", "roots", "request_timeout", "max_message_bytes", "type", "url",
            "headers", "forward_headers", "ca_file", "retry", "auth",
        ]),
        value in "\\PC{0,30}",
    ) {
        let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = load(&format!("destinations:\n  x:\n    {key}: \"{quoted}\"\n"));
    }
}
