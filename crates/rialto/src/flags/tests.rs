use clap::CommandFactory;

use super::*;

fn parsed(line: &[&str]) -> Result<Invocation, UsageError> {
    parse_with(line, &Environment::default())
}

fn parse_with(line: &[&str], environment: &Environment) -> Result<Invocation, UsageError> {
    let args = std::iter::once("rialto")
        .chain(line.iter().copied())
        .map(OsString::from);
    parse(args, environment)
}

fn serve(line: &[&str]) -> ServeFlags {
    match parsed(line).expect("parses") {
        Invocation::Serve(flags) => flags,
        other => panic!("not serve: {other:?}"),
    }
}

#[test]
fn the_definition_of_the_command_line_is_sound() {
    use clap::CommandFactory as _;
    CommandLine::command().debug_assert();
}

#[test]
fn serve_takes_all_its_flags() {
    let flags = serve(&[
        "serve",
        "--config",
        "d.yml",
        "--listen",
        ":0",
        "--threads",
        "2",
        "--demo",
        "--keep-going",
        "--name",
        "n",
        "--audit",
        "off",
        "--state-dir",
        "s",
        "--tls-cert",
        "c.pem",
        "--tls-key",
        "k.pem",
        "--watch",
        "--log-format",
        "json",
        "--request-timeout",
        "5s",
        "--stream-timeout",
        "6m",
        "--max-message-bytes",
        "1MiB",
        "--process",
        "per_session",
        "--start-timeout",
        "1m",
        "--max-sessions",
        "3",
        "--session-idle",
        "7m",
        "--env-file",
        ".env",
        "--cwd",
        "/w",
        "--legacy-sse",
        "--admin-socket",
        "off",
        "--ui",
        "off",
        "--idle-exit",
        "8m",
        "--server",
        "s=cat",
        "--header",
        "A: b",
        "--auth",
        "oauth",
        "--transport",
        "sse",
        "--ca-file",
        "ca.pem",
        "-vv",
        "--allow-host",
        "a",
        "--allow-host",
        "b",
        "--allow-origin",
        "https://c",
        "--public-url",
        "https://d",
        "--token-hash",
        "e=sha256:f",
        "--allow-unauthenticated",
        "--env",
        "K=V=W",
        "--env",
        "L",
        "--",
        "npx",
        "-y",
        "--listen",
        "x",
    ]);
    let expected = ServeFlags {
        aggregate: None,
        config: Some("d.yml".into()),
        listen: Some(":0".into()),
        port: None,
        socket: None,
        source: SourceFlags {
            url: None,
            server: vec![Secret::new("s=cat")],
            env_file: Some(".env".into()),
            cwd: Some("/w".into()),
            header: vec![Secret::new("A: b")],
            auth: Some("oauth".into()),
            transport: Some("sse".into()),
            ca_file: Some("ca.pem".into()),
        },
        legacy_sse: true,
        session_idle: Some("7m".into()),
        admin_socket: Some("off".into()),
        ui: Some("off".into()),
        idle_exit: Some("8m".into()),
        verbosity: VerbosityFlags {
            verbose: 2,
            quiet: false,
        },
        notes: Vec::new(),
        threads: Some("2".into()),
        demo: true,
        keep_going: true,
        name: Some("n".into()),
        audit: Some("off".into()),
        state_dir: Some("s".into()),
        tls_cert: Some("c.pem".into()),
        tls_key: Some("k.pem".into()),
        watch: true,
        log_format: Some("json".into()),
        request_timeout: Some("5s".into()),
        stream_timeout: Some("6m".into()),
        max_message_bytes: Some("1MiB".into()),
        process: Some("per_session".into()),
        start_timeout: Some("1m".into()),
        max_sessions: Some("3".into()),
        allow_host: vec!["a".into(), "b".into()],
        allow_origin: vec!["https://c".into()],
        public_url: Some("https://d".into()),
        token_hash: vec!["e=sha256:f".into()],
        allow_unauthenticated: true,
        env: vec![Secret::new("K=V=W"), Secret::new("L")],
        command: ["npx", "-y", "--listen", "x"].map(String::from).to_vec(),
    };
    assert_eq!(flags, expected);
    assert!(
        !format!("{flags:?}").contains("V=W"),
        "the value of --env is never shown"
    );
}

#[test]
fn the_time_of_a_call_has_both_names_in_both_directions() {
    for flag in ["--request-timeout", "--timeout"] {
        let flags = serve(&["serve", flag, "5s"]);
        assert_eq!(flags.request_timeout.as_deref(), Some("5s"), "{flag}");
        let flags = connect(
            &["connect", flag, "5s", "https://mcp.example.com"],
            &Environment::default(),
        );
        assert_eq!(flags.request_timeout.as_deref(), Some("5s"), "{flag}");
    }
}

/// A flag that may be repeated has a variable in the plural.
#[test]
fn variable_of_a_flag_has_the_name_of_the_flag_in_every_command() {
    const PLURAL: [(&str, &str); 3] = [
        ("allow-host", "RIALTO_ALLOWED_HOSTS"),
        ("allow-origin", "RIALTO_ALLOWED_ORIGINS"),
        ("header", "RIALTO_HEADERS"),
    ];
    let mut variables = 0;
    for command in CommandLine::command().get_subcommands() {
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let (Some(flag), Some((_, rest))) = (argument.get_long(), help.split_once("[env: ")) else {
                continue;
            };
            let variable = rest.split([',', ']']).next().unwrap_or_default();
            let plural = PLURAL.into_iter().find(|(name, _)| *name == flag);
            let expected = plural.map_or_else(
                || format!("RIALTO_{}", flag.replace('-', "_").to_uppercase()),
                |(_, variable)| variable.to_owned(),
            );
            assert_eq!(variable, expected, "{} --{flag}", command.get_name());
            variables += 1;
        }
    }
    assert!(variables > 50, "{variables}");
}

#[test]
fn a_command_without_a_verb_is_served() {
    assert_eq!(serve(&["--", "cat", "-u"]).command, ["cat", "-u"]);
    assert!(serve(&["--demo"]).demo);
    assert_eq!(
        serve(&["--listen", ":0", "--", "cat"]).listen.as_deref(),
        Some(":0")
    );
}

#[test]
fn check_and_demo_server_are_known() {
    match parsed(&["check", "--config", "x", "--env", "A=1"]).expect("parses") {
        Invocation::Check(flags) => {
            let serve = flags.as_serve();
            assert_eq!(serve.config.as_deref(), Some("x"));
            assert_eq!(serve.env, [Secret::new("A=1")]);
        }
        other => panic!("not check: {other:?}"),
    }
    for (word, era) in [
        ("legacy", DemoEra::Legacy),
        ("modern", DemoEra::Modern),
        ("both", DemoEra::Both),
    ] {
        let invocation = parsed(&["demo-server", "--era", word]).expect("parses");
        assert_eq!(invocation, Invocation::DemoServer(DemoServerFlags { era }));
    }
    match parsed(&["warden", "--fd", "3", "-x"]).expect("parses") {
        Invocation::Warden(flags) => assert_eq!(flags.arguments, ["--fd", "3", "-x"]),
        other => panic!("not warden: {other:?}"),
    }
}

fn connect(line: &[&str], environment: &Environment) -> ConnectFlags {
    match parse_with(line, environment).expect("parses") {
        Invocation::Connect(flags) => flags,
        other => panic!("not connect: {other:?}"),
    }
}

#[test]
fn connect_is_meant_by_its_name_by_a_url_and_by_the_variable_uri() {
    let none = Environment::default();
    let with_uri = Environment::from_iter([("URI", "https://example.com/mcp")]);
    for line in [
        &["connect", "https://example.com/mcp"][..],
        &["https://example.com/mcp"],
    ] {
        assert_eq!(
            connect(line, &none).url.as_deref(),
            Some("https://example.com/mcp")
        );
    }
    assert_eq!(
        connect(&["HTTP://example.com", "--era", "modern"], &none)
            .era
            .as_deref(),
        Some("modern")
    );
    assert_eq!(connect(&[], &with_uri), ConnectFlags::default());
    assert_eq!(
        connect(&["connect", "--", "cat", "-u"], &none).command,
        ["cat", "-u"]
    );
    assert!(matches!(
        parse_with(&["serve"], &with_uri),
        Ok(Invocation::Serve(_))
    ));
    let flags = connect(
        &[
            "connect",
            "https://a",
            "--header",
            "A: geheim",
            "--print-config",
            "claude-desktop",
        ],
        &none,
    );
    assert_eq!(flags.print_config.map(|host| host.id), Some("claude-desktop"));
    assert!(
        !format!("{flags:?}").contains("geheim"),
        "the value of --header is never shown"
    );
}

#[test]
fn bad_usage_exits_with_2_and_help_with_0() {
    for line in [
        &[][..],
        &["serv"],
        &["serve", "--nope"],
        &["serve", "--port", "1", "--listen", ":2"],
        &["serve", "-v", "-q"],
        &["serve", "--", ""],
        &["connect", "https://a", "--", "cat"],
        &["connect", "https://a", "--print-config", "emacs"],
        &["--nope"],
    ] {
        assert_eq!(parsed(line).expect_err("bad usage").exit_code(), 2, "{line:?}");
    }
    for line in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["serve", "--help"],
        &["check", "-h"],
    ] {
        assert_eq!(parsed(line).expect_err("help").exit_code(), 0, "{line:?}");
    }
}

/// clap would advise to put the flag behind `--`, where it is a program.
#[test]
fn unknown_flag_is_not_answered_with_a_program_of_that_name() {
    let error = parsed(&["serve", "--potr", "1"])
        .expect_err("unknown")
        .to_string();
    assert!(error.contains("--potr") && error.contains("--port"), "{error}");
    assert!(!error.contains("-- --potr"), "{error}");
    let error = parsed(&["serve", "--zzzzzz"]).expect_err("unknown").to_string();
    assert!(
        error.contains("--zzzzzz") && !error.contains("-- --zzzzzz"),
        "{error}"
    );
}

#[test]
fn verbosity_becomes_log_directives() {
    for (flags, directives) in [
        (&["serve", "--demo"][..], None),
        (&["serve", "--demo", "-q"], Some("warn")),
        (&["connect", "https://a", "-vv"], Some("trace")),
    ] {
        let verbosity = match parsed(flags).expect("parses") {
            Invocation::Serve(flags) => flags.verbosity,
            Invocation::Connect(flags) => flags.verbosity,
            other => panic!("{other:?}"),
        };
        assert_eq!(verbosity.directives(), directives, "{flags:?}");
    }
}

/// Help is read in a terminal of 80 columns too, where a longer line of an example would be broken.
#[test]
fn no_line_of_an_example_is_broken() {
    let mut command = CommandLine::command().term_width(80);
    command.build();
    let mut commands = vec![&command];
    let mut examples = 0;
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands());
        let text = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            examples += 1;
        }
    }
    assert!(examples > 40, "{examples}");
}

#[test]
fn copying_the_program_looks_like_a_flag() {
    let expected = Invocation::CopySelf(CopySelfFlags {
        path: "/shared".into(),
    });
    assert_eq!(parsed(&["--copy-self", "/shared"]).unwrap(), expected);
    assert_eq!(parsed(&["--copy-self"]).expect_err("no path").exit_code(), 2);
}

#[test]
fn version_says_whether_this_is_a_package() {
    let text = parsed(&["--version"]).expect_err("the version").to_string();
    let build = option_env!("RIALTO_BUILD").unwrap_or("not a package");
    assert_eq!(text, format!("rialto {} ({build})\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_help_of_every_command_has_an_example_and_names_every_variable() {
    for verb in [
        "serve",
        "connect",
        "check",
        "demo-server",
        "login",
        "logout",
        "status",
        "token",
    ] {
        let help = parsed(&[verb, "--help"]).expect_err("help").to_string();
        assert!(help.contains("Examples:"), "{verb}");
    }
    let key = parsed(&["cluster", "key", "--help"])
        .expect_err("help")
        .to_string();
    assert!(key.contains("Examples:") && key.contains("umask 077"), "{key}");
    let status = parsed(&["cluster", "status", "--help"])
        .expect_err("help")
        .to_string();
    assert!(
        status.contains("Examples:") && status.contains("--json"),
        "{status}"
    );
    let serve = parsed(&["serve", "--help"]).expect_err("help").to_string();
    for variable in [
        "RIALTO_CONFIG",
        "RIALTO_LISTEN",
        "RIALTO_DEMO",
        "RIALTO_KEEP_GOING",
        "RIALTO_NAME",
        "RIALTO_AUDIT",
        "RIALTO_LOG_FORMAT",
        "RIALTO_REQUEST_TIMEOUT",
        "RIALTO_STREAM_TIMEOUT",
        "RIALTO_MAX_MESSAGE_BYTES",
        "RIALTO_PROCESS",
        "RIALTO_START_TIMEOUT",
        "RIALTO_MAX_SESSIONS",
        "RIALTO_ALLOWED_HOSTS",
        "RIALTO_ALLOWED_ORIGINS",
        "RIALTO_PUBLIC_URL",
        "RIALTO_TOKEN_HASH",
        "RIALTO_ALLOW_UNAUTHENTICATED",
        "RIALTO_ENV",
        "RIALTO_SESSION_IDLE",
        "RIALTO_DRAIN",
        "RIALTO_DRAIN_TIMEOUT",
        "RIALTO_TLS_CERT",
        "RIALTO_TLS_KEY",
        "RIALTO_WATCH",
        "RIALTO_AUDIT_ON_FAILURE",
        "RIALTO_AUDIT_CHAIN",
        "RIALTO_SECRETS_FILE",
        "RIALTO_CLUSTER_URL",
        "RIALTO_CLUSTER_KEY_FILE",
        "RIALTO_CLUSTER_LISTEN",
        "RIALTO_CLUSTER_ADVERTISE",
        "RIALTO_CLUSTER_PREFIX",
        "RIALTO_CLUSTER_NAME",
        "RIALTO_AUDIT_BODIES",
        "RUST_LOG",
        "MAX_STDIO_CONNECTIONS",
        "AUDIT_LOG_BODIES",
        "STDIO_REQUEST_TIMEOUT",
    ] {
        assert!(serve.contains(variable), "{variable}");
    }
    let whole = parsed(&["--help"]).expect_err("help").to_string();
    assert!(!whole.contains("warden"), "the warden is internal");
}
