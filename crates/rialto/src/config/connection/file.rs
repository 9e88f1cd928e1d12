//! `rialto connect --config FILE`: the destinations of a file as one server on stdio.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use gateway::settings::{AuditSink, AuthSettings, BackendSpec, Destination, Settings, SignIn};

use super::{Connection, line_limits, max_queue};
use crate::config::problem::{ConfigError, Place, Problem};
use crate::config::{self, Environment, Loaded, walk};
use crate::flags::{ConnectFlags, ServeFlags};

/// What the aggregate of every destination is called where the user gives it no name.
const EVERYTHING: &str = "all";

/// Reads the file, and takes an aggregate of it: the one that is named, the only one, or one of
/// every destination.
pub(super) fn read(
    path: &str,
    flags: &ConnectFlags,
    environment: &Environment,
) -> Result<Connection, ConfigError> {
    let as_serve = |aggregate: Option<&str>| ServeFlags {
        config: Some(path.to_owned()),
        aggregate: aggregate.map(str::to_owned),
        request_timeout: flags.request_timeout.clone(),
        stream_timeout: flags.request_timeout.clone(),
        max_message_bytes: flags.max_message_bytes.clone(),
        ..ServeFlags::default()
    };
    let mut loaded = config::settings(&as_serve(None), environment)?;
    let chosen = match (flags.aggregate.as_deref(), aggregates(&loaded).as_slice()) {
        (Some(name), present) if present.contains(&name) => name.to_owned(),
        (None, [only]) => (*only).to_owned(),
        (None, [_, _, ..]) => {
            let names = aggregates(&loaded).join(", ");
            let message = format!("{path} has several aggregates: name one of {names}");
            return Err(problem(Place::Flag("--aggregate"), message));
        }
        (name, _) => {
            let name = name.unwrap_or(EVERYTHING).to_owned();
            loaded = config::settings(&as_serve(Some(&name)), environment)?;
            name
        }
    };
    let walk = walk("", std::path::PathBuf::new(), environment);
    let max_queue = max_queue(flags, environment, &walk);
    let (problems, _) = walk.into_findings();
    if !problems.is_empty() {
        return Err(ConfigError::Problems(problems));
    }
    let Loaded {
        mut settings, notes, ..
    } = loaded;
    if settings.audit.sink == AuditSink::Stdout {
        let place = Place::File {
            file: path.to_owned(),
            line: 0,
        };
        let message = "`audit` is `stdout`, which belongs to the protocol here: name a file, or write `off`";
        return Err(problem(place, message.to_owned()));
    }
    for destination in &mut settings.destinations {
        if destination.name == chosen {
            destination.max_calls = Some(max_queue);
        }
        sign_in_here(destination, environment);
    }
    Ok(Connection {
        name: flags.name.clone().unwrap_or_else(|| chosen.clone()),
        limits: line_limits(max_queue),
        settings: for_one_client(settings, chosen),
        notes,
    })
}

/// Has the user of the host sign in with a browser, when a call needs it.
fn sign_in_here(destination: &mut Destination, environment: &Environment) {
    if let BackendSpec::Remote(remote) = &mut destination.backend
        && let SignIn::OAuth(sign_in) = &remote.sign_in
        && let Ok(browser) = crate::sign_in::browser(environment)
    {
        remote.sign_in = SignIn::OAuth(sign_in.in_browser(browser, true));
    }
}

fn aggregates(loaded: &Loaded) -> Vec<&str> {
    let is_aggregate = |destination: &&Destination| matches!(destination.backend, BackendSpec::Aggregate(_));
    let destinations = loaded.settings.destinations.iter();
    let names = destinations
        .filter(is_aggregate)
        .map(|destination| destination.name.as_str());
    names.collect()
}

fn problem(place: Place, message: String) -> ConfigError {
    ConfigError::Problems(vec![Problem { place, message }])
}

/// Returns the settings of a gateway without a listener, whose one client has started it.
fn for_one_client(settings: Settings, root: String) -> Settings {
    Settings {
        // There is no listener.
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        tls: None,
        session_idle: Duration::MAX,
        drain: Duration::ZERO,
        // Another process may serve the same file, and no session outlives this one.
        state_dir: None,
        cluster: None,
        metrics: false,
        public_url: None,
        auth: AuthSettings::default(),
        root_destination: Some(root),
        // A host starts its other servers too when one of them cannot be started.
        keep_going: true,
        ..settings
    }
}
