//! `rialto check`: is the file right, and does every destination answer?

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use gateway::settings::{BackendSpec, Settings};
use gateway::{Gateway, Probe, StartError, escape};

use crate::config::{self, ConfigError, Environment, Loaded, LogFormat};
use crate::flags::CheckFlags;
use crate::{exit, fail, serve, telemetry};

pub(crate) fn run(flags: &CheckFlags, environment: &Environment) -> ExitCode {
    let loaded = config::settings(&flags.as_serve(), environment);
    let Loaded { settings, notes, .. } = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    // The table tells what matters; what children write on stderr comes with it if they fail.
    let directives = environment.filled("RUST_LOG").unwrap_or("off");
    let _telemetry = match telemetry::init(LogFormat::Human, Some(directives)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    for note in notes {
        let _ = writeln!(std::io::stderr().lock(), "note: {note}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    runtime.block_on(check(settings, environment))
}

async fn check(mut settings: Settings, environment: &Environment) -> ExitCode {
    // Every destination gets its line, also those whose command cannot be found.
    settings.keep_going = true;
    // The operator who runs the check may see everything.
    for destination in &mut settings.destinations {
        if let BackendSpec::Process(spec) = &mut destination.backend {
            spec.error_stderr = true;
        }
    }
    let gateway = match Gateway::new(&settings, settings.listen, serve::launcher(), environment.all()) {
        Ok(gateway) => gateway,
        Err(error @ (StartError::Audit(_) | StartError::Tls(_))) => {
            return fail(exit::CONFIGURATION, &format!("{:#}", anyhow::Error::from(error)));
        }
        Err(error @ StartError::Command { .. }) => return fail(exit::NOTHING_STARTS, &error.to_string()),
        Err(StartError::NothingStarts(broken)) => {
            let hopeless = |(destination, why)| Probe::hopeless(destination, why);
            show(&broken.into_iter().map(hopeless).collect::<Vec<_>>());
            return ExitCode::from(exit::NOTHING_STARTS);
        }
    };
    let probes = gateway.probe().await;
    show(&probes);
    if probes.iter().all(|probe| probe.result.is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::FAILED)
    }
}

/// If stdout is closed nobody reads this; the exit code tells the same.
fn show(probes: &[Probe]) {
    let _ = std::io::stdout().lock().write_all(table(probes).as_bytes());
}

/// The longest cell of the table.
const CELL_BYTES: usize = 200;

/// The table, and below it what to fix.
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
    let mut troubles = String::new();
    for probe in probes {
        let took = format!("{} ms", probe.took.as_millis());
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
            Err(trouble) => {
                // Writing to a `String` cannot fail.
                let lines = trouble
                    .lines()
                    .map(|line| escape::one_line(line, escape::MAX_VALUE_BYTES));
                let trouble = lines.collect::<Vec<_>>().join("\n");
                let _ = writeln!(troubles, "\n{}: {trouble}", probe.destination);
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
    text + &troubles
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gateway::Presented;

    use super::*;

    #[test]
    fn the_table_shows_terminal_commands_and_obeys_none() {
        let probe = |result| Probe {
            destination: "demo".into(),
            transport: "stdio",
            took: Duration::ZERO,
            result,
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
    fn the_table_is_aligned_and_troubles_follow_it() {
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
            },
            Probe {
                destination: "broken-one".into(),
                transport: "stdio",
                took: Duration::from_millis(3),
                result: Err("`nope` was not found on PATH".into()),
            },
        ];
        let text = table(&probes);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("transport"), lines[1].find("stdio"));
        assert!(
            text.ends_with("\nbroken-one: `nope` was not found on PATH\n"),
            "{text}"
        );
    }
}
