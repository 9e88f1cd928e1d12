//! What a gateway runs with: what a reload may change, and what only a start can set.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::process::{environment, resolve};
use crate::backend::remote;
use crate::clock::Clock;
use crate::endpoint::{Endpoint, SharedState};
use crate::guard::Guard;
use crate::guard::origin::OriginGuard;
use crate::guard::page::PageAccess;
use crate::settings::{
    self, AuditSettings, BackendSpec, ClusterSettings, LimitSettings, PublicUrl, RemoteSpec, Settings,
};
use crate::tls::TlsError;

/// Everything about a gateway that a reload may change.
#[derive(Debug)]
pub(crate) struct ActiveConfig {
    pub(crate) origins: OriginGuard,
    pub(crate) guard: Arc<Guard>,
    /// For which visitors there is a page.
    pub(crate) page: PageAccess,
    pub(crate) destinations: BTreeMap<String, Arc<Endpoint>>,
    /// The destination that also answers at the bare `/mcp`.
    pub(crate) root: Option<Arc<Endpoint>>,
    /// The path of `public_url`: empty, or a slash and something that does not end with one.
    pub(crate) public_path: String,
    pub(crate) session_idle: Duration,
    pub(crate) drain: Duration,
}

impl ActiveConfig {
    /// Returns the destinations in the order in which they are to be started: the members of an
    /// aggregate before it.
    pub(crate) fn in_order_of_start(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        let is_aggregate = |endpoint: &&Arc<Endpoint>| endpoint.upstream.aggregate().is_some();
        let servers = self
            .destinations
            .values()
            .filter(move |endpoint| !is_aggregate(endpoint));
        servers.chain(self.destinations.values().filter(is_aggregate))
    }
}

/// Why settings cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("destination `{destination}`: {why}")]
    Command { destination: String, why: String },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the gateway is shutting down")]
    Draining,
}

/// Returns the path below which clients reach the gateway.
pub(crate) fn public_path(settings: &Settings) -> String {
    let url = settings.public_url.as_ref();
    url.map(|url| url.path().to_owned()).unwrap_or_default()
}

/// Returns the guard of these destinations; those that drain are among them, so that their clients
/// can finish.
pub(crate) fn guard(
    settings: &Settings,
    destinations: &BTreeSet<String>,
    listen: SocketAddr,
    clock: Clock,
) -> Arc<Guard> {
    let base = settings.public_url.clone();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    Arc::new(Guard::new(
        &settings.auth,
        base.unwrap_or_else(|| PublicUrl::of_listener(scheme, listen)),
        destinations.iter().map(String::as_str),
        settings.root_destination.as_deref(),
        clock,
    ))
}

/// Returns why destinations cannot be started, by their names: a program that is not found, a file
/// that cannot be read.
pub(crate) fn check_commands(
    settings: &Settings,
    environment: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let destinations = settings.destinations.iter();
    destinations
        .filter_map(|wanted| Some((wanted.name.clone(), check_command(wanted, environment)?)))
        .collect()
}

/// Returns the destinations that settings ask for: those that there are already, as far as they are
/// the same, and new ones.
pub(crate) fn build_destinations(
    settings: &Settings,
    shared: &SharedState,
    present: &BTreeMap<String, Arc<Endpoint>>,
    unusable: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Arc<Endpoint>>, ReloadError> {
    let mut destinations = BTreeMap::new();
    // The members of an aggregate come before it.
    let is_aggregate = |wanted: &&settings::Destination| matches!(wanted.backend, BackendSpec::Aggregate(_));
    let servers = settings
        .destinations
        .iter()
        .filter(|wanted| !is_aggregate(wanted));
    let aggregates = settings.destinations.iter().filter(is_aggregate);
    for wanted in servers.chain(aggregates) {
        let same = present
            .get(&wanted.name)
            .filter(|present| present.is_as_wanted(wanted, shared));
        let destination = match same {
            Some(present) => Arc::clone(present),
            None => {
                let broken = unusable.get(&wanted.name).cloned();
                if let Some(why) = &broken {
                    if !settings.keep_going {
                        return Err(ReloadError::Command {
                            destination: wanted.name.clone(),
                            why: why.clone(),
                        });
                    }
                    tracing::error!(destination = %wanted.name, %why, "cannot start");
                }
                let made = Endpoint::new(wanted.clone(), shared.clone(), broken, &destinations);
                let draining = || shared.draining.named(&wanted.name).into_iter().next();
                let made = match present.get(&wanted.name).cloned().or_else(draining) {
                    Some(predecessor) => made.counting_on(&predecessor),
                    None => made,
                };
                Endpoint::shared(made)
            }
        };
        destinations.insert(wanted.name.clone(), destination);
    }
    Ok(destinations)
}

/// What can only be set when the gateway is made.
#[derive(Debug)]
pub(crate) struct StartupConfig {
    listen: SocketAddr,
    has_tls: bool,
    audit: AuditSettings,
    limits: LimitSettings,
    metrics: bool,
    state_dir: Option<PathBuf>,
    cluster: Option<ClusterSettings>,
    threads: NonZeroUsize,
}

impl StartupConfig {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            listen: settings.listen,
            has_tls: settings.tls.is_some(),
            audit: settings.audit.clone(),
            limits: settings.limits.clone(),
            metrics: settings.metrics,
            state_dir: settings.state_dir.clone(),
            cluster: settings.cluster.clone(),
            threads: settings.threads,
        }
    }

    /// Returns what these settings have otherwise.
    pub(crate) fn differences(&self, settings: &Settings) -> Vec<&'static str> {
        let other = Self::of(settings);
        let changed = [
            ("listen", self.listen != other.listen),
            ("tls", self.has_tls != other.has_tls),
            ("audit", self.audit != other.audit),
            ("limits", self.limits != other.limits),
            ("metrics", self.metrics != other.metrics),
            ("state_dir", self.state_dir != other.state_dir),
            ("cluster", self.cluster != other.cluster),
            ("threads", self.threads != other.threads),
        ];
        let names = changed.iter().filter(|(_, changed)| *changed);
        names.map(|(name, _)| *name).collect()
    }
}

fn check_command(destination: &settings::Destination, parent: &BTreeMap<String, String>) -> Option<String> {
    let spec = match &destination.backend {
        BackendSpec::Process(spec) => spec,
        BackendSpec::Remote(spec) => return check_remote(spec),
        BackendSpec::Aggregate(_) => return None,
    };
    let program = spec.argv.first().map(String::as_str).unwrap_or_default();
    let child = environment(parent.iter(), spec.inherits, &spec.env);
    resolve(program, spec.cwd.as_deref(), child.path())
        .err()
        .map(|error| error.to_string())
}

/// Returns why a remote server cannot be used, as far as that is known before a connection.
fn check_remote(spec: &RemoteSpec) -> Option<String> {
    let file = spec.ca_file.as_deref()?;
    remote::certificates(file).err()
}
