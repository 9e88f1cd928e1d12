//! `rialto connect`: the stdio frontend in front of one server, for hosts that start programs.
//!
//! stdout belongs to the protocol; everything else goes to the log on stderr.

mod snippet;
mod standard;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gateway::settings::BackendSpec;
use gateway::{DisconnectReason, Gateway, StartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::config::connection::{self, Connection};
use crate::config::{self, ConfigError, Environment};
use crate::flags::ConnectFlags;
use crate::serve::{close_to_children, launcher};
use crate::{exit, fail, telemetry};

/// Returns the hint for a person in front of a terminal.
fn for_a_person(connection: &Connection) -> String {
    let mut destinations = connection.settings.destinations.iter();
    if destinations.any(|destination| matches!(destination.backend, BackendSpec::Aggregate(_))) {
        return "rialto connect waits for an MCP host on stdin, one JSON-RPC message a line.\n  to test the \
                servers:  rialto check --config FILE\n  to paste into a host:  rialto connect --config FILE \
                --print-config claude-desktop|claude-code|cursor|vscode\n  Ctrl-D ends it."
            .to_owned();
    }
    let server = match connection
        .settings
        .destinations
        .first()
        .map(|found| &found.backend)
    {
        Some(BackendSpec::Remote(remote)) => {
            // A query may hold a secret.
            let mut shown = remote.url.clone();
            shown.set_query(None);
            shown.to_string()
        }
        // Its arguments may hold a secret.
        Some(BackendSpec::Process(_) | BackendSpec::Aggregate(_)) | None => "-- COMMAND".to_owned(),
    };
    format!(
        "rialto connect waits for an MCP host on stdin, one JSON-RPC message a line. The server is not \
         contacted before the first one.\n  to test the server:  rialto check {server}\n  to paste into a host:  \
         rialto connect {server} --print-config HOST\n  Ctrl-D ends it."
    )
}

/// How long what still runs may take to notice the end. A thread that waits for stdin never does.
const LAST_STEPS: Duration = Duration::from_millis(50);

pub(crate) fn run(flags: &ConnectFlags, environment: &Environment) -> ExitCode {
    let logs = match config::log_settings(flags.log_format.as_deref(), flags.verbosity, environment) {
        Ok(logs) => logs,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    let connection = match connection::read(flags, environment) {
        Ok(connection) => connection,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    if let Some(host) = flags.print_config {
        return print_config(&snippet::of(host, &connection.name, flags, environment));
    }
    let telemetry = match telemetry::init(&logs) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    close_to_children();
    for note in flags.notes.iter().chain(&connection.notes) {
        tracing::warn!("{note}");
    }
    #[cfg(debug_assertions)]
    if environment.filled("TEST_PANICS").is_some() {
        gateway::fault_injection::enable();
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    let code = runtime.block_on(serve_stdio(&connection, environment));
    runtime.shutdown_timeout(LAST_STEPS);
    drop(telemetry);
    code
}

/// Here, and only here, stdout is for people.
fn print_config(text: &str) -> ExitCode {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("cannot write to stdout: {error}")),
    }
}

pub(crate) async fn serve_stdio(connection: &Connection, environment: &Environment) -> ExitCode {
    let settings = &connection.settings;
    let gateway = match Gateway::new(settings, settings.listen, launcher(), environment.all()) {
        Ok(gateway) => gateway,
        Err(
            error @ (StartError::Audit { .. }
            | StartError::Tls(_)
            | StartError::StateDir(_)
            | StartError::Sessions(_)
            | StartError::Cluster(_)),
        ) => {
            return fail(exit::CONFIGURATION, &error.to_string());
        }
        Err(error @ (StartError::Command { .. } | StartError::NothingStarts(_))) => {
            return fail(exit::NOTHING_STARTS, &error.to_string());
        }
    };
    let (mut terminate, mut interrupt) =
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
            (Err(error), _) | (_, Err(error)) => {
                return fail(exit::FAILED, &format!("cannot catch signals: {error}"));
            }
        };
    let signalled = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tracing::info!(server = %connection.name, "waiting for messages of a client on stdin");
    if std::io::stdin().is_terminal() {
        // A person started it, and would take the silence for a fault. stdout stays the protocol's.
        let _ = writeln!(std::io::stderr().lock(), "{}", for_a_person(connection));
    }
    let reason = Arc::clone(&gateway)
        .serve_stdio(
            standard::input(),
            standard::output(),
            &connection.limits,
            signalled,
        )
        .await;
    match reason {
        DisconnectReason::InputEnded => tracing::info!("the client has gone"),
        DisconnectReason::OutputBroken => tracing::warn!("the client does not read any more"),
        DisconnectReason::Shutdown => tracing::info!("ended by a signal"),
    }
    ExitCode::SUCCESS
}
