use gateway::settings::Secret;

use super::*;

fn connection(
    flags: &ConnectFlags,
    variables: &[(&'static str, &'static str)],
) -> Result<Connection, String> {
    let environment = variables.iter().copied().collect();
    read(flags, &environment).map_err(|error| error.to_string())
}

fn to(url: &str) -> ConnectFlags {
    ConnectFlags {
        url: Some(url.to_owned()),
        ..ConnectFlags::default()
    }
}

fn remote_of(connection: &Connection) -> &RemoteSpec {
    match &connection.settings.destinations[0].backend {
        BackendSpec::Remote(spec) => spec,
        BackendSpec::Process(_) | BackendSpec::Aggregate(_) => panic!("not remote"),
    }
}

fn headers_of(connection: &Connection) -> Vec<(String, String)> {
    remote_of(connection)
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.expose().to_owned()))
        .collect()
}

#[test]
fn the_variables_alone_are_enough() {
    let variables = [
        ("URI", "https://mcp.example.com/mcp"),
        ("BEARER_TOKEN", "geheim"),
        ("MCP_NAME", "My Server"),
        ("MCP_TIMEOUT_MS", "1500"),
        ("MCP_MAX_QUEUE", "7"),
    ];
    let connection = connection(&ConnectFlags::default(), &variables).unwrap();
    let destination = &connection.settings.destinations[0];
    assert_eq!(remote_of(&connection).url.as_str(), "https://mcp.example.com/mcp");
    assert_eq!(
        headers_of(&connection),
        [("authorization".to_owned(), "Bearer geheim".to_owned())]
    );
    assert_eq!(
        (connection.name.as_str(), destination.name.as_str()),
        ("My Server", "My Server")
    );
    assert_eq!(destination.request_timeout, Duration::from_millis(1500));
    assert_eq!(destination.stream_timeout, Duration::from_millis(1500));
    assert_eq!((connection.limits.messages, destination.max_calls), (7, Some(7)));
    assert!(!format!("{connection:?}").contains("geheim"));
}

/// Every flag has a variable that begins with `RIALTO_`, and `serve` has the same one.
#[test]
fn the_name_can_be_given_as_for_serve() {
    let variables = [("RIALTO_NAME", "ours"), ("MCP_NAME", "theirs")];
    let told = connection(&to("https://a.example/mcp"), &variables).unwrap();
    assert_eq!(told.name, "ours");
    let told = connection(&to("https://a.example/mcp"), &variables[1..]).unwrap();
    assert_eq!(told.name, "theirs");
}

#[test]
fn the_time_limit_can_be_switched_off() {
    let flags = ConnectFlags {
        request_timeout: Some("off".into()),
        ..to("https://a.example/mcp")
    };
    let told = connection(&flags, &[]).unwrap();
    let destination = &told.settings.destinations[0];
    let years = Duration::from_secs(50 * 365 * 24 * 60 * 60);
    assert!(destination.request_timeout > years && destination.stream_timeout > years);
}

#[test]
fn a_flag_beats_a_variable_and_a_variable_the_default() {
    let flags = ConnectFlags {
        request_timeout: Some("2s".into()),
        max_queue: Some("5".into()),
        transport: Some("sse".into()),
        retry: Some("always".into()),
        era: Some("legacy".into()),
        ..to("https://a.example/mcp")
    };
    let variables = [
        ("URI", "https://b.example/mcp"),
        ("RIALTO_REQUEST_TIMEOUT", "3s"),
        ("MCP_TIMEOUT_MS", "4000"),
        ("MCP_MAX_QUEUE", "6"),
    ];
    let told = connection(&flags, &variables).unwrap();
    let destination = &told.settings.destinations[0];
    assert_eq!(remote_of(&told).url.host_str(), Some("a.example"));
    assert_eq!(destination.request_timeout, Duration::from_secs(2));
    assert_eq!(destination.stream_timeout, Duration::from_secs(2));
    assert_eq!(told.limits.messages, 5);
    assert_eq!(
        (remote_of(&told).transport, remote_of(&told).retry),
        (Transport::Sse, Retry::Always)
    );
    assert_eq!(destination.era, EraChoice::Legacy);

    let usual = connection(&to("https://a.example/mcp"), &[]).unwrap();
    let destination = &usual.settings.destinations[0];
    assert_eq!(destination.request_timeout, TIMEOUT);
    assert_eq!(destination.stream_timeout, TIMEOUT);
    assert_eq!(
        (usual.limits.messages, destination.max_message_bytes),
        (10_000, 16 << 20)
    );
    assert_eq!(remote_of(&usual).outages, Outages::Wait);
}

#[test]
fn variables_in_headers_are_filled_in_and_an_unset_one_is_named() {
    let flags = ConnectFlags {
        url: Some("https://a.example/mcp".into()),
        header: vec![
            Secret::new("Authorization:Bearer ${TOKEN_OF_A}"),
            Secret::new("X-Cost: $5"),
        ],
        ..ConnectFlags::default()
    };
    let environment: Environment = [("TOKEN_OF_A", "geheim"), ("HOME", "/h")].into_iter().collect();
    let told = read(&flags, &environment).unwrap();
    let values: Vec<String> = headers_of(&told).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["Bearer geheim", "$5"]);
    let error = read(&flags, &[("HOME", "/h")].into_iter().collect()).unwrap_err();
    assert!(error.to_string().contains("TOKEN_OF_A"), "{error}");
}

#[test]
fn headers_come_from_flags_files_and_variables() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headers");
    std::fs::write(&file, "# mine\n\nX-Two: b: c\r\nX-Three:d\n").unwrap();
    let flags = ConnectFlags {
        header: vec![Secret::new("X-One:  a "), Secret::new("Authorization: Basic x")],
        header_file: file.to_str().map(str::to_owned),
        ..to("https://a.example/mcp")
    };
    let told = connection(&flags, &[("BEARER_TOKEN", "t")]).unwrap();
    let expected = [
        ("x-one", "a"),
        ("authorization", "Basic x"),
        ("x-two", "b: c"),
        ("x-three", "d"),
    ];
    assert_eq!(
        headers_of(&told),
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );

    let named = ConnectFlags {
        bearer_env: Some("MY_TOKEN".into()),
        ..to("https://a.example/mcp")
    };
    let told = connection(&named, &[("MY_TOKEN", "u"), ("BEARER_TOKEN", "t")]).unwrap();
    assert_eq!(headers_of(&told)[0].1, "Bearer u");
    let told = connection(
        &to("https://a.example"),
        &[("RIALTO_HEADERS", "A-B: 1\n C-D: 2\n")],
    )
    .unwrap();
    assert_eq!(headers_of(&told).len(), 2);
}

#[test]
fn secrets_on_an_open_line_are_noted() {
    let variables = [("BEARER_TOKEN", "t")];
    for (url, notes) in [
        ("http://example.com/mcp", 1),
        ("https://example.com/mcp", 0),
        ("http://127.0.0.1:3000/mcp", 0),
        ("http://localhost/mcp", 0),
    ] {
        assert_eq!(
            connection(&to(url), &variables).unwrap().notes.len(),
            notes,
            "{url}"
        );
    }
}

#[test]
fn mistakes_are_named_and_no_secret_is_shown() {
    let with = |change: &dyn Fn(&mut ConnectFlags)| {
        let mut flags = to("https://a.example/mcp");
        change(&mut flags);
        flags
    };
    let secret = |text: &str| vec![Secret::new(text)];
    for (flags, expected) in [
        (ConnectFlags::default(), "no server to connect to"),
        (to("ftp://a/b"), "only http and https"),
        (to("https://me:geheim@a.example/"), "credentials in an address"),
        (with(&|flags| flags.header = secret("geheim")), "'Name: value'"),
        (
            with(&|flags| flags.header = secret("Host: geheim")),
            "written by the transport",
        ),
        (
            with(&|flags| flags.header = secret("A: gehe\nim")),
            "no header can carry",
        ),
        (
            with(&|flags| flags.bearer_env = Some("NOT_SET".into())),
            "NOT_SET is not set",
        ),
        (
            with(&|flags| {
                flags.bearer_env = Some("TOKEN".into());
                flags.header = secret("Authorization: geheim");
            }),
            "keep one of them",
        ),
        (
            with(&|flags| flags.transport = Some("carrier-pigeon".into())),
            "--transport",
        ),
        (
            with(&|flags| flags.request_timeout = Some("soon".into())),
            "--request-timeout",
        ),
        (with(&|flags| flags.max_queue = Some("0".into())), "--max-queue"),
        (
            with(&|flags| flags.header_file = Some("/no/such/file".into())),
            "--header-file",
        ),
    ] {
        let error = connection(&flags, &[("TOKEN", "geheim")]).unwrap_err();
        assert!(error.contains(expected), "{error} has no {expected}");
        assert!(!error.contains("geheim"), "{error}");
    }
    let error = connection(&to("https://a.example"), &[("MCP_TIMEOUT_MS", "soon")]).unwrap_err();
    assert!(error.contains("MCP_TIMEOUT_MS"), "{error}");
}

#[test]
fn servers_are_called_by_their_hosts() {
    for (url, name) in [
        ("https://mcp.linear.app/mcp", "linear"),
        ("https://example.com", "example"),
        ("http://127.0.0.1:3000/mcp", "remote"),
        ("http://localhost:3000/mcp", "remote"),
        ("https://api.githubcopilot.com/mcp/", "githubcopilot"),
    ] {
        assert_eq!(name_of(&url.parse().unwrap()), name, "{url}");
    }
}
