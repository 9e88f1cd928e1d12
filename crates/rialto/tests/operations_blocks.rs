//! The blocks of the page about operations that other programs read: systemd, a container,
//! Kubernetes, Caddy. Each is parsed, and all that it names of Rialto (flags, variables, paths,
//! ports, times) is tried on Rialto.

mod documents {
    #[expect(dead_code, reason = "this test follows no links")]
    pub(crate) mod markdown;
}

use std::collections::BTreeMap;
use std::process::Command;

use documents::markdown;

use serde_json::Value;
use testkit::{PATIENCE, RawHttp, Result, Rialto};

const PAGE: &str = include_str!("../../../docs/operations.md");
const SERVICE: &str = include_str!("../../../packaging/systemd/rialto.service");
const SOCKET: &str = include_str!("../../../packaging/systemd/rialto.socket");
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");
/// What children get to end beyond the drain.
const CHILDREN_SECONDS: u64 = 5;

fn only_block(language: &str) -> String {
    let mut blocks = markdown::blocks(PAGE, language);
    assert_eq!(blocks.len(), 1, "the page has one block of {language}");
    blocks.remove(0)
}

/// The row of a key, of all tables of the page about configuration.
fn default_of(key: &str) -> String {
    let tables = markdown::tables(CONFIGURATION);
    let rows = tables
        .iter()
        .filter(|table| table.has("Key") && table.has("Default"))
        .flat_map(markdown::Table::rows);
    let mut defaults = rows
        .filter(|row| markdown::codes(row.cell("Key")).iter().any(|name| name == key))
        .map(|row| row.cell("Default").trim_matches('`').to_owned());
    defaults.next().unwrap_or_else(|| panic!("{key} is documented"))
}

/// How long Rialto may take to end, by its own defaults.
fn end_seconds() -> u64 {
    let drain = default_of("drain_timeout");
    let drain: u64 = drain.trim_end_matches('s').parse().expect("seconds");
    drain + CHILDREN_SECONDS
}

/// Rialto takes this command line: the one thing it complains about is the address that was put
/// into its environment, so that nothing is started.
async fn assert_taken(words: &[&str]) -> Result<()> {
    let config = "destinations: { demo: { command: rialto demo-server } }";
    let mut launcher = Rialto::launcher();
    let file = launcher.dir().join("shown.yml");
    std::fs::write(&file, config)?;
    let file = file.to_string_lossy().into_owned();
    let words: Vec<&str> = words
        .iter()
        .map(|word| match *word {
            "/etc/rialto/destinations.yml" => file.as_str(),
            // The flag would hide the variable.
            "0.0.0.0:3000" => "nowhere",
            other => other,
        })
        .collect();
    launcher = launcher.verb(&words).env("RIALTO_LISTEN", "nowhere");
    let ended = launcher.run(PATIENCE).await?;
    let said = ended.stderr_text();
    assert_eq!(ended.code(), Some(2), "{said}");
    assert!(
        said.contains("nowhere") && said.trim().lines().count() == 1,
        "{words:?}: {said}"
    );
    Ok(())
}

/// `Key=Value` by section. Comments are left out.
fn unit(text: &str) -> BTreeMap<(String, String), String> {
    let mut section = String::new();
    let mut entries = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
        } else if !line.is_empty() && !line.starts_with('#') {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("no entry: {line}"));
            assert!(!section.is_empty(), "{line} is in no section");
            entries.insert((section.clone(), key.to_owned()), value.to_owned());
        }
    }
    entries
}

#[test]
fn units_of_the_page_are_those_that_packages_ship() {
    assert_eq!(markdown::blocks(PAGE, "ini"), [SOCKET, SERVICE]);
}

#[tokio::test]
async fn service_starts_rialto_as_it_wants_to_be_started() -> Result<()> {
    let (unit, socket) = (unit(SERVICE), unit(SOCKET));
    let service = |key: &str| unit[&("Service".to_owned(), key.to_owned())].clone();
    let start = service("ExecStart");
    let words: Vec<&str> = start.split_whitespace().collect();
    assert_eq!(words[0], "/usr/bin/rialto");
    assert_taken(&words[1..]).await?;
    let variables = service("Environment");
    let state = format!("RIALTO_STATE_DIR=/var/lib/{}/", service("StateDirectory"));
    assert!(
        variables.split(' ').any(|word| word.starts_with(&state)),
        "{variables}"
    );
    // Rialto sends all of its notifications itself, and reloads on SIGHUP, the default of the type.
    assert_eq!(service("Type"), "notify-reload");
    assert_eq!(service("KillMode"), "mixed", "Rialto ends its children by itself");
    let stop: u64 = service("TimeoutStopSec").parse().expect("seconds");
    assert!(stop > end_seconds(), "{stop} s");
    let files: u64 = service("LimitNOFILE").parse().expect("a number");
    let connections: u64 = default_of("limits.connections").parse().expect("a number");
    assert!(files > 2 * connections, "{files} for {connections} connections");
    let listens = &socket[&("Socket".to_owned(), "ListenStream".to_owned())];
    assert_eq!(*listens, default_of("listen"), "one address in all documents");
    assert!(!socket.contains_key(&("Socket".to_owned(), "Accept".to_owned())));
    Ok(())
}

/// Where systemd is there, it checks the units, too.
#[test]
fn units_are_accepted_by_systemd() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let files = ["rialto.service", "rialto.socket"].map(|name| folder.path().join(name));
    // The program has to be where the unit names it.
    let service = SERVICE.replace("/usr/bin/rialto", env!("CARGO_BIN_EXE_rialto"));
    std::fs::write(&files[0], service)?;
    std::fs::write(&files[1], SOCKET)?;
    let verified = match Command::new("systemd-analyze")
        .arg("verify")
        .args(&files)
        .output()
    {
        Ok(verified) => verified,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            return Ok(());
        }
    };
    // It reports about other units of the machine as well. Before version 253 it ignores one line.
    let report = String::from_utf8_lossy(&verified.stderr).into_owned();
    let ours = report.lines().filter(|line| line.contains("rialto."));
    let unknown = "Failed to parse service type, ignoring: notify-reload";
    let ours: Vec<&str> = ours.filter(|line| !line.ends_with(unknown)).collect();
    assert!(ours.is_empty(), "{ours:?}");
    Ok(())
}

#[tokio::test]
async fn the_container_starts_rialto_with_words_that_it_takes() -> Result<()> {
    let text = only_block("dockerfile");
    let instruction = |name: &str| {
        let line = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("there is {name}")).to_owned()
    };
    let entry: Vec<String> = serde_json::from_str(&instruction("ENTRYPOINT"))?;
    assert_eq!(entry, ["rialto"]);
    let words: Vec<String> = serde_json::from_str(&instruction("CMD"))?;
    let listen = words.iter().find(|word| word.starts_with("0.0.0.0:"));
    assert_eq!(
        listen.map(|listen| listen.trim_start_matches("0.0.0.0:").to_owned()),
        Some(instruction("EXPOSE"))
    );
    assert_eq!(instruction("STOPSIGNAL"), "SIGTERM");
    assert!(text.contains("cargo build --profile dist --locked -p rialto"));
    assert_taken(&words.iter().map(String::as_str).collect::<Vec<_>>()).await
}

#[tokio::test]
async fn the_probes_for_kubernetes_are_answered_and_its_variables_are_known() -> Result<()> {
    let text = markdown::blocks(PAGE, "yaml")
        .into_iter()
        .find(|block| block.contains("livenessProbe"))
        .expect("the page shows a deployment");
    let deployment: Value = serde_saphyr::from_str(&text).expect("it is YAML");
    let spec = &deployment["spec"];
    let grace = spec["terminationGracePeriodSeconds"].as_u64();
    assert!(grace.is_some_and(|grace| grace > end_seconds()), "{grace:?}");
    let container = &spec["containers"][0];
    let port = &container["ports"][0]["containerPort"];
    assert_eq!(
        default_of("listen").rsplit(':').next(),
        Some(port.to_string().as_str())
    );

    let mut launcher = Rialto::launcher().args(&["--demo"]);
    for variable in container["env"].as_array().into_iter().flatten() {
        let text = |key: &str| variable[key].as_str().expect("a text").to_owned();
        assert!(
            CONFIGURATION.contains(&format!("`{}`", text("name"))),
            "{variable} is documented"
        );
        launcher = launcher.env(&text("name"), &text("value"));
    }
    let rialto = launcher.start().await?;
    // A gateway is ready once a server has answered.
    rialto.session_of("demo").await?;
    for probe in ["livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        assert_eq!(&get["port"], port);
        let path = get["path"].as_str().expect("a path");
        // Kubernetes names the address of the pod.
        let request = format!("GET {path} HTTP/1.1\r\nHost: 10.1.2.3:3000\r\n\r\n");
        let answer = RawHttp::connect(rialto.address())
            .await?
            .exchange(request)
            .await?;
        assert_eq!(answer.status, 200, "{probe}");
    }
    Ok(())
}

/// Caddy itself is asked where it is there. Everywhere: its blocks are closed, its words are known
/// ones, and what it names of Rialto is true.
#[test]
fn the_file_for_caddy_has_known_words_and_names_what_rialto_has() -> Result<()> {
    const WORDS: [&str; 8] = [
        "mcp.example.com",
        "@public",
        "reverse_proxy",
        "flush_interval",
        "lb_retries",
        "transport",
        "read_timeout",
        "write_timeout",
    ];
    let text = only_block("caddyfile");
    let mut depth = 0_usize;
    for line in text.lines().map(str::trim) {
        let first = line.split_whitespace().next().unwrap_or_default();
        match first {
            "" | "#" => {}
            "}" => depth = depth.checked_sub(1).expect("what is closed was open"),
            word => assert!(WORDS.contains(&word), "{line}"),
        }
        depth += usize::from(line.ends_with('{'));
    }
    assert_eq!(depth, 0, "a block is not closed");
    for needed in [
        &format!("reverse_proxy @public {} {{", default_of("listen")) as &str,
        "flush_interval -1",
        "lb_retries 0",
        "@public not path /metrics",
    ] {
        assert!(text.contains(needed), "{needed}");
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("Caddyfile");
    std::fs::write(&file, &text)?;
    let validate = ["validate", "--adapter", "caddyfile", "--config"];
    match Command::new("caddy").args(validate).arg(&file).output() {
        Ok(validated) => assert!(validated.status.success(), "{validated:?}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
    Ok(())
}
