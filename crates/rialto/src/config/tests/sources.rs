//! Where a setting comes from: flags, variables, one command, the usual file.

use super::*;

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
fn threads_come_from_a_flag_a_variable_or_the_file_and_there_is_one_by_default() {
    let plain = destination_file(&["command: cat"]);
    let file = format!("threads: 2\n{plain}");
    let variables = environment([("RIALTO_THREADS", "3")]);
    let flags = ServeFlags {
        threads: Some("auto".into()),
        ..ServeFlags::default()
    };
    let seen = |text: &str, flags: &ServeFlags, environment: &Environment| {
        let loaded = load_with(text, flags, environment).expect("loads");
        loaded.settings.threads.get()
    };
    let (none, unset) = (ServeFlags::default(), Environment::default());
    assert_eq!(seen(&plain, &none, &unset), 1);
    assert_eq!(seen(&file, &none, &unset), 2);
    assert_eq!(seen(&file, &none, &variables), 3);
    let cores = std::thread::available_parallelism().expect("this system names its cores");
    assert_eq!(seen(&file, &flags, &variables), cores.get().min(256));
}

#[test]
fn the_time_of_a_client_that_reads_events_comes_from_a_flag_a_variable_or_the_file() {
    let plain = destination_file(&["command: cat"]);
    let file = format!("stream_timeout: 1s\n{plain}");
    let variable = environment([("RIALTO_STREAM_TIMEOUT", "2s")]);
    let flag = ServeFlags {
        stream_timeout: Some("3s".into()),
        ..ServeFlags::default()
    };
    let (none, unset) = (ServeFlags::default(), Environment::default());
    for (text, flags, environment, seconds) in [
        (&plain, &none, &unset, 600),
        (&file, &none, &unset, 1),
        (&file, &none, &variable, 2),
        (&file, &flag, &variable, 3),
    ] {
        let loaded = load_with(text, flags, environment).expect("loads");
        assert_eq!(only(&loaded).stream_timeout.as_secs(), seconds);
        assert_eq!(loaded.settings.stream_timeout.as_secs(), seconds);
        assert_eq!(only(&loaded).request_timeout.as_secs(), 30);
    }
}

#[test]
fn a_time_limit_can_be_switched_off_by_a_flag_or_a_variable() {
    let plain = destination_file(&["command: cat"]);
    let years = Duration::from_secs(50 * 365 * 24 * 60 * 60);
    let flags = ServeFlags {
        request_timeout: Some("off".into()),
        ..ServeFlags::default()
    };
    let variable = environment([("RIALTO_STREAM_TIMEOUT", "off")]);
    let loaded = load_with(&plain, &flags, &variable).expect("loads");
    assert!(only(&loaded).request_timeout > years);
    assert!(only(&loaded).stream_timeout > years);
    let older = environment([("STDIO_REQUEST_TIMEOUT", "off")]);
    let loaded = load_with(&plain, &ServeFlags::default(), &older).expect("loads");
    assert!(only(&loaded).request_timeout > years);
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
fn max_stdio_connections_is_for_stdio_destinations_and_their_processes() {
    let text = "destinations:\n  shared: { command: cat }\n  own: { command: cat, process: per_session }\n  \
                few: { command: cat, process: per_session, max_children: 3 }\n  far: { url: 'https://mcp.example.com/mcp' }\n";
    let caps = |environment: &Environment| -> Vec<(String, usize, usize)> {
        let loaded = load_with(text, &ServeFlags::default(), environment).expect("loads");
        let destinations = loaded.settings.destinations.into_iter();
        destinations
            .map(|one| (one.name, one.max_sessions, one.instances.max_children))
            .collect()
    };
    let expected = |rows: [(&str, usize, usize); 4]| {
        rows.map(|(name, sessions, children)| (name.to_owned(), sessions, children))
            .to_vec()
    };
    assert_eq!(
        caps(&Environment::default()),
        expected([
            ("shared", 1000, 10),
            ("own", 1000, 10),
            ("few", 1000, 3),
            ("far", 1000, 1000)
        ])
    );
    assert_eq!(
        caps(&environment([("MAX_STDIO_CONNECTIONS", "20")])),
        expected([
            ("shared", 20, 10),
            ("own", 20, 20),
            ("few", 20, 3),
            ("far", 1000, 1000)
        ])
    );
    let both = environment([("MAX_STDIO_CONNECTIONS", "20"), ("RIALTO_MAX_SESSIONS", "5")]);
    assert_eq!(
        caps(&both),
        expected([("shared", 5, 10), ("own", 5, 10), ("few", 5, 3), ("far", 5, 5)])
    );
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
        "--name: is for servers of the command line",
        "--process: is for servers of the command line",
        "--env: is for servers of the command line",
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
        start_timeout: Some("90s".into()),
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
    assert_eq!(destination.instances.start_timeout, Duration::from_secs(90));
    let process = process(destination);
    assert_eq!(process.argv, flags.command);
    assert_eq!(process.env["A"].expose(), "b=c");
    assert_eq!(process.env["TOKEN"].expose(), "t");
    assert_eq!(
        (destination.instances.sharing, process.start),
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
    assert_eq!(only(&loaded).instances.sharing, Sharing::PerIdentity);
    assert_eq!(process(only(&loaded)).env["B"].expose(), "x,y");
}

#[test]
fn servers_of_the_command_line_have_their_names_and_one_environment() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("keys.env");
    std::fs::write(&file, "# keys\nexport A='x y'\nB=\"2\"\nC=3\n\n").expect("written");
    let flags = ServeFlags {
        source: SourceFlags {
            server: ["files=npx -y 'a b' ${HOME}", "linear=https://mcp.linear.app/mcp"]
                .map(Secret::new)
                .to_vec(),
            env_file: file.to_str().map(str::to_owned),
            cwd: Some("/w".into()),
            header: vec![Secret::new("X-Key: ${KEY}")],
            ..SourceFlags::default()
        },
        env: vec![Secret::new("C=4")],
        legacy_sse: true,
        port: Some("8080".into()),
        ..ServeFlags::default()
    };
    let loaded = settings(
        &flags,
        &environment([("HOME", "/h"), ("KEY", "k"), ("BEARER_TOKEN", "t")]),
    );
    let settings = loaded.expect("loads").settings;
    assert_eq!(settings.listen, "127.0.0.1:8080".parse().expect("an address"));
    assert_eq!(settings.root_destination, None, "there are two");
    let [files, linear] = settings.destinations.as_slice() else {
        panic!("{:?}", settings.destinations);
    };
    assert_eq!((files.name.as_str(), linear.name.as_str()), ("files", "linear"));
    assert!(files.legacy_sse && linear.legacy_sse);
    let process = process(files);
    assert_eq!(process.argv, ["npx", "-y", "a b", "/h"]);
    assert_eq!(process.cwd.as_deref(), Some(Path::new("/w")));
    let env = |name: &str| process.env.get(name).map(|value| value.expose().to_owned());
    assert_eq!(
        [env("A"), env("B"), env("C")].map(Option::unwrap),
        ["x y", "2", "4"]
    );
    let remote = remote(linear);
    let headers: Vec<_> = remote
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    assert_eq!(
        headers,
        [("x-key", "k")],
        "a gateway takes no token that merely is there"
    );
    assert!(matches!(remote.sign_in, SignIn::No));
}

#[test]
fn one_remote_server_is_served_at_the_root_too() {
    let flags = ServeFlags {
        source: SourceFlags {
            url: Some("http://127.0.0.1:9/files/mcp".into()),
            transport: Some("http-only".into()),
            ..SourceFlags::default()
        },
        ..ServeFlags::default()
    };
    let loaded = settings(&flags, &Environment::default()).expect("loads");
    assert_eq!(loaded.settings.root_destination.as_deref(), Some("files"));
    let remote = remote(only(&loaded));
    assert_eq!(remote.transport, Transport::StreamableHttp);
    assert_eq!(remote.outages, Outages::Refuse);
}

#[test]
fn wrong_servers_of_the_command_line_are_named_and_their_secrets_are_not() {
    let with = |change: fn(&mut ServeFlags)| {
        let mut flags = ServeFlags::default();
        change(&mut flags);
        let error = settings(&flags, &Environment::default())
            .expect_err("wrong")
            .to_string();
        assert!(!error.contains("geheim"), "{error}");
        error
    };
    let error = with(|flags| flags.source.server = vec![Secret::new("npx --key geheim")]);
    assert!(
        error.starts_with("--server: write a name and a command"),
        "{error}"
    );
    let error = with(|flags| flags.source.server = vec![Secret::new("A b=npx geheim")]);
    assert!(error.contains("write `a-b`"), "{error}");
    let error = with(|flags| flags.source.server = ["a=cat", "a=cat geheim"].map(Secret::new).to_vec());
    assert!(error.contains("`a` is the name of two servers"), "{error}");
    let error = with(|flags| {
        flags.command = vec!["cat".into()];
        flags.source.header = vec![Secret::new("A: geheim")];
    });
    assert!(error.contains("--header: is for a remote server"), "{error}");
    let error = with(|flags| {
        flags.demo = true;
        flags.source.url = Some("https://u:geheim@h".into());
    });
    assert!(error.contains("does not go together"), "{error}");
    let error = with(|flags| flags.source.url = Some("https://u:geheim@h".into()));
    assert!(error.contains("credentials in an address"), "{error}");
    let error = with(|flags| {
        flags.demo = true;
        flags.source.env_file = Some("/nowhere/at/all".into());
    });
    assert!(
        error.contains("/nowhere/at/all") && error.contains("--env-file"),
        "{error}"
    );
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
fn error_without_a_destination_names_a_command() {
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
fn how_to_log_is_known_before_the_settings() {
    let flags = ServeFlags {
        log_format: Some("json".into()),
        ..ServeFlags::default()
    };
    let environment = environment([("RUST_LOG", "debug"), ("RIALTO_LOG_FORMAT", "xml")]);
    let log = log_settings(flags.log_format.as_deref(), flags.verbosity, &environment).expect("settings");
    assert_eq!(
        log,
        LogSettings {
            format: LogFormat::Json,
            filter: Some("debug".into()),
            colour: true,
        }
    );
    for (variable, value, colour) in [
        ("NO_COLOR", "1", false),
        ("NO_COLOR", "", true),
        ("TERM", "dumb", false),
        ("TERM", "xterm", true),
    ] {
        let log = log_settings(
            None,
            VerbosityFlags::default(),
            &super::environment([(variable, value)]),
        )
        .expect("settings");
        assert_eq!(log.colour, colour, "{variable}={value}");
    }
    let error = log_settings(None, VerbosityFlags::default(), &environment)
        .expect_err("xml")
        .to_string();
    assert!(
        error.starts_with("environment variable RIALTO_LOG_FORMAT: `xml` is wrong"),
        "{error}"
    );
}

#[test]
fn fleet_comes_from_the_file_or_from_variables_and_there_is_none_by_default() {
    let plain = destination_file(&["command: cat"]);
    let file = format!("cluster: {{ url: 'redis://file', key_file: file.key, listen: ':0' }}\n{plain}");
    let seen = |text: &str, environment: &Environment| {
        let loaded = load_with(text, &ServeFlags::default(), environment).expect("loads");
        loaded.settings.cluster
    };
    assert_eq!(seen(&plain, &Environment::default()), None);
    let of_file = seen(&file, &environment([("HOSTNAME", "host (1)")])).expect("a fleet");
    assert_eq!(of_file.url, "redis://file");
    assert_eq!(of_file.key_file, Path::new("/base/file.key"));
    assert_eq!(of_file.advertise, "127.0.0.1:0");
    assert_eq!(
        (of_file.prefix.as_str(), of_file.name.as_str()),
        ("rialto", "host--1-")
    );
    let variables = environment([
        ("RIALTO_CLUSTER_URL", "redis://variable"),
        ("RIALTO_CLUSTER_KEY_FILE", "variable.key"),
        ("RIALTO_CLUSTER_LISTEN", "0.0.0.0:3001"),
        ("RIALTO_CLUSTER_ADVERTISE", "10.0.0.5:3001"),
        ("RIALTO_CLUSTER_PREFIX", "green"),
        ("RIALTO_CLUSTER_NAME", "pod-1"),
    ]);
    for text in [&plain, &file] {
        let cluster = seen(text, &variables).expect("a fleet");
        assert_eq!(cluster.url, "redis://variable");
        assert_eq!(cluster.key_file, Path::new("variable.key"));
        assert_eq!(cluster.listen.to_string(), "0.0.0.0:3001");
        assert_eq!(cluster.advertise, "10.0.0.5:3001");
        assert_eq!(
            (cluster.prefix.as_str(), cluster.name.as_str()),
            ("green", "pod-1")
        );
    }
    let alone = environment([("RIALTO_CLUSTER_NAME", "pod-1")]);
    let found = problems_with(&plain, &ServeFlags::default(), &alone);
    assert_eq!(found.len(), 3, "{found:?}");
    let missing = "environment variable RIALTO_CLUSTER_NAME: `cluster.url` is missing";
    assert!(
        found.iter().any(|problem| problem.starts_with(missing)),
        "{found:?}"
    );
}

#[test]
fn password_of_the_engine_is_in_no_message() {
    let plain = destination_file(&["command: cat"]);
    for url in ["http://u:geheim@host", "redis://u:geheim@host:port", "geheim"] {
        let text = format!("cluster: {{ url: '{url}', key_file: k, listen: ':0' }}\n{plain}");
        let found = problems(&text).join("\n");
        assert!(found.contains("field `cluster.url`"), "{found}");
        assert!(!found.contains("geheim"), "{found}");
    }
}
