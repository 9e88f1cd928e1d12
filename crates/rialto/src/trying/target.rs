//! Which server a URL or a name stands for: a remote one, a destination of a gateway that runs, or
//! one of the configuration, which this process then runs itself.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gateway::settings::{BackendSpec, Outages};

use crate::admin_socket::Directory;
use crate::config::connection::{self, Connection};
use crate::config::{self, ConfigError, Environment, is_web_address};
use crate::flags::ConnectFlags;
use crate::flags::ServeFlags;
use crate::flags::looking::ServerFlags;
use crate::trying::client::Problem;
use crate::{attach, exit, looking, user_files};

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A server that was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) connection: Connection,
    pub(super) timeout: Duration,
}

/// Finds the server.
pub(super) async fn find(flags: &ServerFlags, environment: &Environment) -> Result<Found, Problem> {
    let timeout = match flags.timeout.as_deref().map(config::some_time) {
        None => TIMEOUT,
        Some(Ok(timeout)) => timeout,
        Some(Err(message)) => return Err(Problem::usage(format!("flag --timeout: {message}"))),
    };
    let connection = if is_web_address(&flags.server) {
        let flags = ConnectFlags {
            url: Some(flags.server.clone()),
            header: flags.header.clone(),
            request_timeout: flags.timeout.clone(),
            ..ConnectFlags::default()
        };
        refusing_outages(connection::read(&flags, environment).map_err(wrong)?)
    } else {
        named(flags, environment).await?
    };
    Ok(Found { connection, timeout })
}

/// Returns a connection whose calls fail while the server is out of reach: a person waits for the
/// reason, and not for the server.
fn refusing_outages(mut connection: Connection) -> Connection {
    for destination in &mut connection.settings.destinations {
        if let BackendSpec::Remote(spec) = &mut destination.backend {
            spec.outages = Outages::Refuse;
        }
    }
    connection
}

/// Looks a name up: at the gateways that run, then in the configuration.
async fn named(flags: &ServerFlags, environment: &Environment) -> Result<Connection, Problem> {
    let name = &flags.server;
    let (running, _) = Directory::of(environment).running().await;
    let chosen = looking::choose(&running, name, flags.gateway).map_err(Problem::usage)?;
    if let Some(gateway) = chosen {
        // Hosts of this directory share what is tried here.
        let own = user_files::destinations(environment).and_then(|path| std::path::absolute(path).ok());
        let is_local_service = own.is_some_and(|own| gateway.snapshot["config"] == *own.to_string_lossy());
        let handed_over = match is_local_service {
            true => attach::as_a_host(&gateway.socket, name, environment).await,
            false => None,
        };
        return Ok(connection::through_gateway(name, &gateway.socket, handed_over));
    }
    match file(flags.config.as_deref(), environment) {
        Ok(Some(file)) => of_file(name, &file, environment),
        Ok(None) => Err(Problem::usage(looking::unknown(&running, name))),
        Err(foreign) => Err(Problem::usage(foreign.to_string())),
    }
}

/// A configuration in this directory that another user has put there. Its commands would run as
/// this user.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file} belongs to user {owner}, and its commands would run as this user: name it with --config if you trust it"
)]
pub(crate) struct ForeignFile {
    pub(crate) file: String,
    pub(crate) owner: u32,
}

/// Returns the configuration that a command reads: the named one, the one in this directory, or
/// that of the user.
pub(crate) fn file(named: Option<&str>, environment: &Environment) -> Result<Option<String>, ForeignFile> {
    let flags = ServeFlags {
        config: named.map(str::to_owned),
        ..ServeFlags::default()
    };
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    match config::file(&flags, environment) {
        Some(path) => {
            let is_named = named.is_some() || environment.filled("RIALTO_CONFIG").is_some();
            let file = text(path);
            match foreign_owner(Path::new(&file)).filter(|_| !is_named) {
                Some(owner) => Err(ForeignFile { file, owner }),
                None => Ok(Some(file)),
            }
        }
        None => Ok(user_files::destinations(environment)
            .filter(|path| path.exists())
            .map(text)),
    }
}

/// Returns the owner of a file, or of a link to it, if that is neither this user nor root.
fn foreign_owner(path: &Path) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    let owners = [fs::symlink_metadata(path), fs::metadata(path)];
    let mut owners = owners.into_iter().flatten().map(|metadata| metadata.uid());
    owners.find(|owner| *owner != own && *owner != 0)
}

/// Returns a destination of a file, for this process to run.
pub(crate) fn of_file(name: &str, file: &str, environment: &Environment) -> Result<Connection, Problem> {
    let flags = ServeFlags {
        config: Some(file.to_owned()),
        ..ServeFlags::default()
    };
    let settings = config::settings(&flags, environment).map_err(wrong)?.settings;
    let names: Vec<String> = settings
        .destinations
        .iter()
        .map(|destination| destination.name.clone())
        .collect();
    let found = settings
        .destinations
        .into_iter()
        .find(|destination| destination.name == name);
    match found {
        Some(destination) => Ok(connection::directly(destination)),
        None => Err(Problem::usage(format!(
            "no gateway that runs has a destination `{name}`, nor has {}; it has {}",
            PathBuf::from(file).display(),
            names.join(", ")
        ))),
    }
}

fn wrong(error: ConfigError) -> Problem {
    Problem {
        code: exit::CONFIGURATION,
        text: error.to_string(),
    }
}
