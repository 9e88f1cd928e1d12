//! `rialto attach`: what a host starts instead of a server. It connects its stdin and stdout with
//! the local service, which runs one copy of the server for all hosts of a project.
//!
//! A service that does not run is started, once, also by hosts that start at the same moment. If
//! there is none to be had, the server runs in this process, as it would without Rialto.

mod start;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gateway::attachment::Attachment;
use gateway::settings::{BackendSpec, Secret};
use gateway::tasks;

use crate::config::connection::{self, Connection};
use crate::config::{self, ConfigError, Environment};
use crate::flags::looking::AttachFlags;
use crate::flags::source::VerbosityFlags;
use crate::serve::close_to_children;
use crate::trying::target;
use crate::{connect, exit, fail, telemetry, user_files};
pub(crate) use start::{DETACHED, detached};
use start::{Service, Starter};

/// How long what still runs may take to notice the end. A thread that waits for stdin never does.
const LAST_STEPS: Duration = Duration::from_millis(50);
/// The pause after the service could not be had again; it doubles up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(crate) fn run(flags: &AttachFlags, environment: &Environment) -> ExitCode {
    let logs = match config::log_settings(None, VerbosityFlags::default(), environment) {
        Ok(logs) => logs,
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    let named = flags.config.as_deref().or(environment.filled("RIALTO_CONFIG"));
    let Some(file) = named
        .map(PathBuf::from)
        .or_else(|| user_files::destinations(environment))
    else {
        let text = "there is no home directory to look for destinations.yml in: name it with --config";
        return fail(exit::CONFIGURATION, text);
    };
    if !file.exists() {
        let text = format!(
            "the configuration {} does not exist: `rialto adopt` makes it, or name another with --config",
            file.display()
        );
        return fail(exit::CONFIGURATION, &text);
    }
    let telemetry = match telemetry::init(&logs) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    close_to_children();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    let code = runtime.block_on(attach(&flags.name, &file, environment));
    runtime.shutdown_timeout(LAST_STEPS);
    drop(telemetry);
    code
}

async fn attach(name: &str, file: &Path, environment: &Environment) -> ExitCode {
    let starter = Arc::new(Starter::new(name, file, environment));
    let attached = match starter.reach().await {
        Ok(service) => hand_over(&service, environment)
            .map(|handed_over| (service, handed_over))
            .map_err(|error| error.to_string()),
        Err(why) => Err(why),
    };
    match attached {
        Ok((service, handed_over)) => {
            let socket = starter.socket();
            let connection = connection::through_gateway(name, &socket, Some(handed_over));
            tracing::info!(pid = service.pid, "attached to the local service");
            let keeping = tasks::spawn("keeper", keep(Arc::clone(&starter), service));
            let code = connect::serve_stdio(&connection, environment).await;
            keeping.abort();
            code
        }
        Err(why) => {
            tracing::warn!(%why, "no local service: this process runs the server itself");
            match alone(name, file, environment) {
                Ok(connection) => connect::serve_stdio(&connection, environment).await,
                Err((code, text)) => fail(code, &text),
            }
        }
    }
}

/// Returns what the service receives: the directory of the project, and the variables that the
/// destination names and this process has.
fn hand_over(
    service: &Service,
    environment: &Environment,
) -> Result<Secret, gateway::attachment::AttachmentError> {
    let directory = service.wants_directory.then(|| std::env::current_dir().ok());
    Attachment {
        directory: directory.flatten(),
        env: own_values(service.variables.iter().map(String::as_str), environment),
    }
    .header()
}

/// Returns what a host in this directory would hand over to a gateway that runs.
pub(crate) async fn as_a_host(socket: &Path, name: &str, environment: &Environment) -> Option<Secret> {
    let service = Service::at(socket, name).await?;
    hand_over(&service, environment).ok()
}

/// Returns the variables among these that the host has set.
fn own_values<'a>(
    names: impl Iterator<Item = &'a str>,
    environment: &Environment,
) -> BTreeMap<String, Secret> {
    let value = |name: &str| environment.filled(name).map(Secret::new);
    names
        .filter_map(|name| Some((name.to_owned(), value(name)?)))
        .collect()
}

/// Stays connected with the service, so that it knows that it is used. When it ends, it is started
/// again: calls wait for it meanwhile.
async fn keep(starter: Arc<Starter>, mut service: Service) {
    let mut pause = PAUSE;
    loop {
        service.ended().await;
        tracing::warn!("the local service has ended; starting it again");
        service = loop {
            match starter.reach().await {
                Ok(service) => break service,
                Err(why) => {
                    tracing::warn!(%why, "the local service cannot be started");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        };
        pause = PAUSE;
        tracing::info!(pid = service.pid, "attached to the local service again");
    }
}

/// Returns the server for this process to run, as its host would: with the variables of the host.
fn alone(name: &str, file: &Path, environment: &Environment) -> Result<Connection, (u8, String)> {
    let file = file.to_string_lossy();
    let mut connection =
        target::of_file(name, &file, environment).map_err(|problem| (problem.code, problem.text))?;
    for destination in &mut connection.settings.destinations {
        if let BackendSpec::Process(spec) = &mut destination.backend {
            let own = own_values(spec.env.keys().map(String::as_str), environment);
            spec.env.extend(own);
        }
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_the_host_has_set_are_handed_over_and_no_others() {
        let environment = [("KEY", "k"), ("EMPTY", ""), ("OTHER", "o")]
            .into_iter()
            .collect();
        let values = own_values(["KEY", "EMPTY", "MISSING"].into_iter(), &environment);
        let shown: Vec<_> = values
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        assert_eq!(shown, [("KEY", "k")]);
    }
}
