//! `rialto check`: is the file right, and does every destination answer?

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use cluster::{ClusterKey, RedisRegistry, RedisSettings};
use gateway::settings::{BackendSpec, ClusterSettings, ProcessSpec, Settings, Sharing, Start};
use gateway::{Gateway, Probe, StartError, StateDir, escape};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::{self, ConfigError, Environment, Loaded, LogSettings};
use crate::flags::CheckFlags;
use crate::{exit, fail, serve, telemetry};

/// How long others may take to answer a question of the check itself.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn run(flags: &CheckFlags, environment: &Environment) -> ExitCode {
    let loaded = config::settings(&flags.as_serve(), environment);
    let Loaded { settings, notes, .. } = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    // The table tells what matters; what children write on stderr comes with it if they fail.
    let directives = flags
        .verbosity
        .directives()
        .or_else(|| environment.filled("RUST_LOG"));
    let directives = directives.unwrap_or("off");
    let _telemetry = match telemetry::init(&LogSettings::human(Some(directives), environment)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    serve::close_to_children();
    for text in flags.notes.iter().chain(&notes) {
        note(text);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    let output = match flags.json {
        true => Output::Json,
        false => Output::Table,
    };
    runtime.block_on(check(settings, environment, output))
}

/// How the result is printed.
#[derive(Debug, Clone, Copy)]
enum Output {
    Table,
    Json,
}

async fn check(mut settings: Settings, environment: &Environment, output: Output) -> ExitCode {
    // Every destination gets its line, also those whose command cannot be found.
    settings.keep_going = true;
    // The operator of the check may see everything.
    for destination in &mut settings.destinations {
        if let BackendSpec::Process(spec) = &mut destination.backend {
            spec.error_stderr = true;
        }
    }
    // Looked at and left alone: a gateway that runs may be using it.
    if let Some(path) = settings.state_dir.take()
        && let Err(error) = StateDir::check(&path)
    {
        return serve::cannot_start(error.into(), false);
    }
    // Looked at as well: a check joins no fleet.
    settings.offers_dir = None;
    let cluster = settings.cluster.take();
    if let Some(cluster) = &cluster
        && let Err((code, error)) = check_cluster(cluster).await
    {
        return fail(code, &error);
    }
    if let Err(error) = serve::bind(settings.listen) {
        let taken = error.kind() == std::io::ErrorKind::AddrInUse;
        if !taken || !is_gateway(&settings).await {
            return fail(
                exit::CANNOT_LISTEN,
                &serve::cannot_listen(settings.listen, &error),
            );
        }
        note(&format!(
            "a gateway runs at {} already; SIGHUP makes it reload the file",
            settings.listen
        ));
    } else if let Some(cluster) = &cluster
        && let Err(error) = serve::bind(cluster.listen)
    {
        let error = format!(
            "cannot listen on {} for the other replicas: {error}; choose another address with `cluster.listen`",
            cluster.listen
        );
        return fail(exit::CANNOT_LISTEN, &error);
    }
    if let Some(jwt) = &settings.auth.jwt
        && let Err(error) = find(jwt.keys_host()).await
    {
        let issuer = jwt.issuer.as_str();
        note(&format!(
            "the issuer {issuer} cannot be found ({error}); its tokens are refused with 503 until it can"
        ));
    }
    let gateway = match Gateway::new(&settings, settings.listen, serve::launcher(), environment.all()) {
        Ok(gateway) => gateway,
        Err(StartError::NothingStarts(broken)) => {
            let hopeless = |(destination, why)| Probe::hopeless(destination, why);
            show(&broken.into_iter().map(hopeless).collect::<Vec<_>>(), output);
            return ExitCode::from(exit::NOTHING_STARTS);
        }
        Err(error) => return serve::cannot_start(error, false),
    };
    let probes = gateway.probe().await;
    show(&probes, output);
    for probe in &probes {
        for text in &probe.notes {
            note(&format!("`{}`: {text}", probe.destination));
        }
    }
    for destination in &settings.destinations {
        if let BackendSpec::Process(spec) = &destination.backend
            && let Some(rest) = rest(destination.instances.sharing, spec)
        {
            note(&format!(
                "`{}` {rest}; the check has started it once",
                destination.name
            ));
        }
    }
    if probes.iter().all(|probe| probe.result.is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::FAILED)
    }
}

/// Checks the key of a fleet and its engine. An error has the exit code.
async fn check_cluster(cluster: &ClusterSettings) -> Result<(), (u8, String)> {
    ClusterKey::read(&cluster.key_file)
        .map_err(|error| (exit::CONFIGURATION, format!("cluster.key_file: {error}")))?;
    let engine = RedisSettings {
        prefix: cluster.prefix.clone(),
        ..RedisSettings::new(&cluster.url)
    };
    RedisRegistry::connect(&engine)
        .await
        .map(drop)
        .map_err(|error| (exit::FAILED, format!("cluster.url: {error}")))
}

/// Something to know that does not fail the check.
fn note(text: &str) {
    let text = escape::one_line(text, escape::MAX_VALUE_BYTES);
    let _ = writeln!(std::io::stderr().lock(), "note: {text}");
}

/// Returns whether the program that listens there is a gateway: an operator checks the file of a
/// running one before a reload. With TLS that cannot be seen from here, and is believed.
pub(crate) async fn is_gateway(settings: &Settings) -> bool {
    if settings.tls.is_some() {
        return true;
    }
    let asked = async {
        let mut address = settings.listen;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(4096).read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        std::io::Result::Ok(answer.starts_with("HTTP/1.1 200 ") && answer.contains("{\"status\":\"ok\"}"))
    };
    tokio::time::timeout(NETWORK_TIMEOUT, asked)
        .await
        .is_ok_and(|answer| answer.unwrap_or(false))
}

/// Looks an address up by its name.
async fn find((host, port): (&str, u16)) -> std::io::Result<()> {
    let found = tokio::time::timeout(NETWORK_TIMEOUT, tokio::net::lookup_host((host, port))).await??;
    drop(found);
    Ok(())
}

/// Returns when no process of a server runs, if that is ever so.
fn rest(sharing: Sharing, spec: &ProcessSpec) -> Option<String> {
    let lazy = "starts at its first call";
    let idle = |limit: Duration| format!("stops after {} without a call", humantime::format_duration(limit));
    // A child of a session or of a caller starts with it in any case.
    let start = match sharing {
        Sharing::Shared => spec.start,
        Sharing::PerSession | Sharing::PerIdentity => Start::Eager,
    };
    match (start, spec.idle_stop) {
        (Start::Eager, None) => None,
        (Start::Eager, Some(limit)) => Some(idle(limit)),
        (Start::Lazy, None) => Some(lazy.to_owned()),
        (Start::Lazy, Some(limit)) => Some(format!("{lazy} and {}", idle(limit))),
    }
}

/// If stdout is closed, the exit code tells the same.
fn show(probes: &[Probe], output: Output) {
    let text = match output {
        Output::Table => table(probes),
        Output::Json => format!("{:#}\n", json(probes)),
    };
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Returns the result for a program.
fn json(probes: &[Probe]) -> serde_json::Value {
    let entry = |probe: &Probe| {
        let mut entry = serde_json::json!({
            "destination": probe.destination,
            "transport": probe.transport,
            "ok": probe.result.is_ok(),
            "milliseconds": u64::try_from(probe.took.as_millis()).unwrap_or(u64::MAX),
        });
        match &probe.result {
            Ok(presented) => {
                entry["era"] = presented.era.into();
                entry["version"] = presented.version.clone().into();
                entry["server"] = presented.server.clone().into();
                entry["tools"] = presented.tools.into();
            }
            Err(error) => entry["error"] = error.as_str().into(),
        }
        entry
    };
    serde_json::json!({
        "ok": probes.iter().all(|probe| probe.result.is_ok()),
        "destinations": probes.iter().map(entry).collect::<Vec<_>>(),
    })
}

/// The longest cell of the table.
const CELL_BYTES: usize = 200;

/// Returns the table, and below it what to fix.
fn table(probes: &[Probe]) -> String {
    let mut rows = vec![
        [
            "destination",
            "transport",
            "era",
            "version",
            "tools",
            "time",
            "server",
        ]
        .map(String::from),
    ];
    let mut errors = String::new();
    for probe in probes {
        let took = match probe.took {
            took if took < Duration::from_secs(10) => format!("{} ms", took.as_millis()),
            took => format!("{:.1} s", took.as_secs_f64()),
        };
        rows.push(match &probe.result {
            Ok(presented) => [
                probe.destination.clone(),
                probe.transport.into(),
                presented.era.into(),
                presented.version.clone(),
                presented.tools.map_or("none".into(), |tools| tools.to_string()),
                took,
                presented.server.clone(),
            ],
            Err(error) => {
                // Writing to a `String` cannot fail.
                let lines = error
                    .lines()
                    .map(|line| escape::one_line(line, escape::MAX_VALUE_BYTES));
                let error = lines.collect::<Vec<_>>().join("\n");
                let _ = writeln!(errors, "\n{}: {error}", probe.destination);
                let dash = || "-".to_owned();
                [
                    probe.destination.clone(),
                    probe.transport.into(),
                    dash(),
                    dash(),
                    dash(),
                    took,
                    "FAILED".into(),
                ]
            }
        });
    }
    // A server chooses its name and version.
    let rows: Vec<[String; 7]> = rows
        .into_iter()
        .map(|row| row.map(|cell| escape::one_line(&cell, CELL_BYTES)))
        .collect();
    let widths: Vec<usize> = (0..7)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &rows {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(text, "{}", line.join("  ").trim_end());
    }
    text + &errors
}

#[cfg(test)]
mod tests {
    use gateway::Presented;

    use super::*;

    #[test]
    fn the_table_shows_terminal_commands_and_obeys_none() {
        let probe = |result| Probe {
            destination: "demo".into(),
            transport: "stdio",
            took: Duration::ZERO,
            result,
            notes: Vec::new(),
        };
        let evil = "\u{1b}]0;pwn\u{7} \u{9b}2J";
        let text = table(&[
            probe(Ok(Presented {
                era: "legacy",
                version: evil.into(),
                server: evil.into(),
                tools: None,
            })),
            probe(Err(format!("failed: {evil}"))),
        ]);
        assert!(text.contains("failed: \\u{1b}]0;pwn"), "{text:?}");
        assert!(
            !text.lines().any(|line| line.contains(escape::is_hazard)),
            "{text:?}"
        );
    }

    #[test]
    fn json_has_what_the_table_has() {
        let probe = |destination: &str, result| Probe {
            destination: destination.into(),
            transport: "stdio",
            took: Duration::from_millis(12),
            result,
            notes: Vec::new(),
        };
        let presented = Presented {
            era: "legacy",
            version: "2025-11-25".into(),
            server: "demo 1".into(),
            tools: Some(14),
        };
        let shown = json(&[
            probe("demo", Ok(presented)),
            probe("broken", Err("`nope` was not found on PATH".into())),
        ]);
        let expected = serde_json::json!({"ok": false, "destinations": [
            {"destination": "demo", "transport": "stdio", "ok": true, "milliseconds": 12, "era": "legacy",
             "version": "2025-11-25", "server": "demo 1", "tools": 14},
            {"destination": "broken", "transport": "stdio", "ok": false, "milliseconds": 12,
             "error": "`nope` was not found on PATH"},
        ]});
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_table_is_aligned_and_errors_follow_it() {
        let probes = [
            Probe {
                destination: "demo".into(),
                transport: "stdio",
                took: Duration::from_millis(12),
                result: Ok(Presented {
                    era: "legacy",
                    version: "2025-11-25".into(),
                    server: "demo 1".into(),
                    tools: Some(14),
                }),
                notes: Vec::new(),
            },
            Probe {
                destination: "broken-one".into(),
                transport: "stdio",
                took: Duration::from_millis(15_072),
                result: Err("`nope` was not found on PATH".into()),
                notes: Vec::new(),
            },
        ];
        let text = table(&probes);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("transport"), lines[1].find("stdio"));
        assert!(
            lines[1].contains("12 ms") && lines[2].contains("15.1 s"),
            "{text}"
        );
        assert!(
            text.ends_with("\nbroken-one: `nope` was not found on PATH\n"),
            "{text}"
        );
    }
}
