//! The configuration as a whole: what a file means, which source wins, and the text of each error.

mod aggregate;
mod any_text;
mod auth;
mod destination;
mod host_file;
mod property;
mod sources;

use std::time::Duration;

use gateway::settings::{
    AuditSink, BackendSpec, Capabilities, OnAuditFailure, Outages, Placement, ProcessSpec, RemoteSpec, Retry,
    Secret, Sharing, SignIn, Start, Transport,
};

use super::*;
use crate::flags::source::SourceFlags;

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
        BackendSpec::Aggregate(_) => panic!("a program was expected, not an aggregate"),
    }
}

fn remote(destination: &Destination) -> &RemoteSpec {
    match &destination.backend {
        BackendSpec::Remote(remote) => remote,
        BackendSpec::Process(process) => panic!("a remote server was expected, not {:?}", process.argv),
        BackendSpec::Aggregate(_) => panic!("a remote server was expected, not an aggregate"),
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
request_timeout: 30s            # for an answer as plain JSON; 504 after it. `off` is allowed
stream_timeout: 10m             # for a client that accepts event streams: silence of the server beyond it ends the call
max_message_bytes: 16MiB        # either way; also per destination
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
    max_sessions: 1000          # `max_children` (10) bounds processes
"#;

fn contract_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let secrets = directory.path().join("secrets.yml");
    std::fs::write(&secrets, "context7: s3cr3t\nother: 1\n").expect("written");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(0o600)).expect("changed");
    }
    directory
}

#[test]
fn the_example_of_the_contract_is_read_to_the_last_field() {
    let directory = contract_directory();
    // The contract shows every key at once; `env_from_headers` with `shared` is what its comment
    // forbids.
    let text = CONTRACT.replace("process: shared ", "process: per_identity ");
    std::fs::write(directory.path().join(FILE), text).expect("written");
    let loaded =
        settings_in(directory.path(), &ServeFlags::default(), &Environment::default()).expect("loads");
    let settings = &loaded.settings;
    assert_eq!(settings.listen.to_string(), "127.0.0.1:3000");
    assert_eq!(settings.request_timeout, Duration::from_secs(30));
    assert_eq!(settings.max_message_bytes, 16 << 20);
    assert_eq!(settings.session_idle, Duration::from_secs(3600));
    assert_eq!(settings.drain, Duration::from_secs(10));
    assert_eq!(settings.audit.sink, AuditSink::Off);
    assert!(!settings.audit.bodies && !settings.keep_going);
    assert_eq!(settings.root_destination, None);
    let destination = only(&loaded);
    assert_eq!(destination.name, "context7");
    assert_eq!(destination.max_sessions, 1000);
    assert_eq!(destination.request_timeout, Duration::from_secs(30));
    assert_eq!(destination.stream_timeout, Duration::from_secs(600));
    assert_eq!(destination.max_message_bytes, 16 << 20);
    let process = process(destination);
    assert_eq!(process.argv, ["npx", "-y", "@upstash/context7-mcp"]);
    assert_eq!(process.env["CONTEXT7_API_KEY"].expose(), "s3cr3t");
    assert_eq!(process.cwd.as_deref(), Some(Path::new("/srv/context7")));
    let instances = &destination.instances;
    assert_eq!(instances.sharing, Sharing::PerIdentity);
    assert_eq!(process.env_from_headers["GITHUB_TOKEN"], "X-GitHub-Token");
    assert_eq!(process.start, Start::Eager);
    assert_eq!(instances.start_timeout, Duration::from_secs(60));
    assert_eq!(instances.max_children, 10);
    assert_eq!(instances.linger, Duration::from_secs(300));
    assert_eq!(instances.capabilities, Capabilities::PerClient);
    assert_eq!(loaded.notes, [""; 0]);
    assert!(!format!("{loaded:?}").contains("s3cr3t"));
}

#[test]
fn the_example_word_for_word_has_one_problem_and_it_is_the_one_its_comment_names() {
    let directory = contract_directory();
    std::fs::write(directory.path().join(FILE), CONTRACT).expect("written");
    let error =
        settings_in(directory.path(), &ServeFlags::default(), &Environment::default()).expect_err("one");
    let text = error.to_string();
    assert!(
        text.starts_with("destinations.yml:14: destination `context7`, field `env_from_headers`: "),
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
        (1000, 16 << 20)
    );
    let instances = &destination.instances;
    assert_eq!(
        (instances.max_children, instances.start_timeout),
        (10, Duration::from_secs(300))
    );
    let process = process(destination);
    assert_eq!(
        (destination.instances.sharing, process.start),
        (Sharing::Shared, Start::Eager)
    );
    assert_eq!(process.cwd, None);
    assert!(process.env.is_empty() && process.env_from_headers.is_empty());
}

#[test]
fn every_key_can_stand_in_a_file() {
    let text = "\
listen: :0
threads: 3
request_timeout: 1m
stream_timeout: off
max_message_bytes: 2MiB
session_idle: 2h
drain_timeout: 0s
state_dir: state
allowed_hosts: [mcp.example.com, Other.example.com]
allowed_origins: https://app.example.com
audit: { sink: logs/audit.jsonl, bodies: true, on_failure: refuse, chain: true }
tls: { cert: tls/cert.pem, key: /keys/key.pem }
cluster: { url: 'rediss://u:geheim@valkey.internal:6379/1', key_file: cluster.key, listen: 0.0.0.0:3001, advertise: 10.0.0.5:3001, prefix: blue, name: replica-1 }
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
    request_timeout: off
    stream_timeout: 20m
    max_message_bytes: 5MB
    legacy_sse: true
  b:
    command: cat
    args: ['-u']
    start: lazy
    placement: one
";
    let loaded = load(text).expect("loads");
    let settings = &loaded.settings;
    assert_eq!(settings.listen.to_string(), "127.0.0.1:0");
    assert_eq!(settings.threads.get(), 3);
    assert_eq!(
        settings.max_message_bytes, 5_000_000,
        "the largest of the destinations"
    );
    assert_eq!(settings.session_idle, Duration::from_secs(7200));
    assert_eq!(settings.drain, Duration::ZERO);
    assert_eq!(settings.state_dir.as_deref(), Some(Path::new("/base/state")));
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
    let years = Duration::from_secs(50 * 365 * 24 * 60 * 60);
    assert!(a.request_timeout > years, "off");
    assert_eq!(a.stream_timeout, Duration::from_secs(1200));
    assert_eq!(b.request_timeout, Duration::from_secs(60));
    assert!(b.stream_timeout > years, "off");
    assert_eq!(b.max_message_bytes, 2 << 20);
    let instances = a.instances.clone();
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
    assert_eq!((instances.sharing, a.start), (Sharing::PerSession, Start::Lazy));
    assert_eq!(instances.start_timeout, Duration::from_secs(5));
    assert_eq!((instances.max_children, instances.linger), (2, Duration::ZERO));
    assert_eq!(instances.capabilities, Capabilities::Union);
    assert_eq!(b.argv, ["cat", "-u"]);
    assert_eq!(b.start, Start::Lazy);
    let placements: Vec<Placement> = settings.destinations.iter().map(|one| one.placement).collect();
    assert_eq!(placements, [Placement::Replica, Placement::One]);
    let cluster = settings.cluster.as_ref().expect("a fleet was named");
    assert_eq!(cluster.url, "rediss://u:geheim@valkey.internal:6379/1");
    assert_eq!(cluster.key_file, Path::new("/base/cluster.key"));
    assert_eq!(cluster.listen.to_string(), "0.0.0.0:3001");
    assert_eq!(cluster.advertise, "10.0.0.5:3001");
    assert_eq!(
        (cluster.prefix.as_str(), cluster.name.as_str()),
        ("blue", "replica-1")
    );
    assert!(!format!("{loaded:?}").contains("geheim"));
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
fn every_error_in_a_global_key_names_file_line_field_and_the_fix() {
    let rest = "destinations: { x: { command: cat } }\n";
    for (line, field, fix) in [
        ("listen: example.com:80", "listen", "127.0.0.1:80"),
        ("threads: 0", "threads", "from 1 to 256"),
        ("threads: 257", "threads", "or auto"),
        ("threads: many", "threads", "or auto"),
        ("request_timeout: 30", "request_timeout", "write 30s"),
        ("max_message_bytes: 0", "max_message_bytes", "1MiB"),
        ("session_idle: 0s", "session_idle", "write a duration"),
        ("drain_timeout: 10", "drain_timeout", "write 10s"),
        ("state_dir: ''", "state_dir", "write the path of a directory"),
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
        (
            "audit: { sink: stdout, chain_key: short }",
            "audit.chain_key",
            "16 characters",
        ),
        ("secrets_file: no/such.yml", "secrets_file", "cannot be read"),
        ("destination: {}", "destination", "did you mean `destinations`"),
        ("port: 80", "port", "did you mean `listen`"),
        ("cluster: redis://127.0.0.1", "cluster", "must be a map"),
        (
            "cluster: { key_file: k, listen: ':1' }",
            "cluster",
            "`cluster.url` is missing",
        ),
        (
            "cluster: { url: 'redis://h', listen: ':1' }",
            "cluster",
            "rialto cluster key",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k }",
            "cluster",
            "`cluster.listen` is missing",
        ),
        (
            "cluster: { url: 'http://h', key_file: k, listen: ':1' }",
            "cluster.url",
            "use redis://HOST:PORT",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k, listen: '0.0.0.0:1' }",
            "cluster.listen",
            "set `cluster.advertise`",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k, listen: ':3000' }",
            "cluster.listen",
            "choose another port",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k, listen: ':1', advertise: here }",
            "cluster.advertise",
            "HOST:PORT",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k, listen: ':1', prefix: '*' }",
            "cluster.prefix",
            "such as rialto",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k, listen: ':1', name: a/b }",
            "cluster.name",
            "letters, digits",
        ),
        (
            "cluster: { url: 'redis://h', key_file: k, listen: ':1', nmae: x }",
            "cluster.nmae",
            "did you mean `cluster.name`",
        ),
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
    assert_eq!(found.len(), 6, "{found:#?}");
    let lines: Vec<&str> = found
        .iter()
        .filter_map(|problem| problem.split(':').nth(1))
        .collect();
    assert_eq!(lines, ["1", "3", "4", "5", "6", "7"], "the order of the file");
    let all = load(text).expect_err("problems").to_string();
    assert!(
        all.starts_with("6 problems in the configuration:\n  destinations.yml:1: field `listen`"),
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
fn file_without_destinations_is_refused_with_an_example() {
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
