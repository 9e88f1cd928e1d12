//! Other settings for a gateway that runs: what stays the same is not touched, what changed is replaced.
//!
//! Everything that can be wrong is looked at first, so that a reload either happens or changes nothing. A destination
//! that is gone or replaced takes no more sessions; calls that run on it may finish, then it is ended. Its clients reach what
//! is open there by its name until then. Calls that wait for its server are refused at once. What can only be set at the start is named, and stays as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Clock;
use crate::endpoint::{CloseReason, Endpoint, SharedState};
use crate::gateway::{Gateway, check_command};
use crate::guard::Guard;
use crate::guard::origin::OriginGuard;
use crate::settings::{AuditSettings, LimitSettings, PublicUrl, Settings};
use crate::tasks;
use crate::tls::{Pair, Tls, TlsError};

/// Everything about a gateway that a reload may change.
#[derive(Debug)]
pub(crate) struct ActiveConfig {
    pub(crate) origins: OriginGuard,
    pub(crate) guard: Arc<Guard>,
    pub(crate) destinations: BTreeMap<String, Arc<Endpoint>>,
    /// The destination that also answers at the bare `/mcp`.
    pub(crate) root: Option<Arc<Endpoint>>,
    /// The path of `public_url`: empty, or a slash and something that does not end with one.
    pub(crate) public_path: String,
    pub(crate) session_idle: Duration,
    pub(crate) drain: Duration,
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

/// What a reload did, by the names of destinations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub kept: Vec<String>,
    pub added: Vec<String>,
    pub replaced: Vec<String>,
    pub removed: Vec<String>,
    /// Sessions of principals who came in by something that is no longer good.
    pub sessions_ended: usize,
    /// Settings that have changed and wait for the next start.
    pub at_next_start: Vec<&'static str>,
}

/// The path below which clients reach the gateway.
pub(crate) fn public_path(settings: &Settings) -> String {
    let url = settings.public_url.as_ref();
    url.map(|url| url.path().to_owned()).unwrap_or_default()
}

/// Returns the guard of these destinations; those that drain are among them, so that their clients can finish.
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

/// Returns why destinations cannot be started, by their names: a program that is not found, a file that cannot be read.
pub(crate) fn check_commands(
    settings: &Settings,
    environment: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let destinations = settings.destinations.iter();
    destinations
        .filter_map(|wanted| Some((wanted.name.clone(), check_command(wanted, environment)?)))
        .collect()
}

/// The destinations that settings ask for: those that there are already, as far as they are the same, and new ones.
pub(crate) fn build_destinations(
    settings: &Settings,
    shared: &SharedState,
    present: &BTreeMap<String, Arc<Endpoint>>,
    unusable: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Arc<Endpoint>>, ReloadError> {
    let mut destinations = BTreeMap::new();
    for wanted in &settings.destinations {
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
                let made = Endpoint::new(wanted.clone(), shared.clone(), broken);
                let draining = || shared.draining.named(&wanted.name).into_iter().next();
                Arc::new(match present.get(&wanted.name).cloned().or_else(draining) {
                    Some(predecessor) => made.counting_on(&predecessor),
                    None => made,
                })
            }
        };
        destinations.insert(wanted.name.clone(), destination);
    }
    Ok(destinations)
}

impl Gateway {
    /// Takes other settings over. On error nothing has changed.
    pub async fn reload(self: &Arc<Self>, settings: &Settings) -> Result<Reloaded, ReloadError> {
        let pair = match (&self.tls, &settings.tls) {
            (Some(tls), Some(files)) => {
                let files = files.clone();
                Some((tls, tasks::blocking(move || Pair::read(files)).await))
            }
            (Some(_), None) | (None, _) => None,
        };
        // Looking for programs and certificates reads the disk, beside the threads that serve.
        let unusable = {
            let (settings, environment) = (settings.clone(), Arc::clone(&self.shared.environment));
            tasks::blocking(move || check_commands(&settings, &environment)).await
        };
        let outcome = self.apply(settings, pair, &unusable);
        self.reload_failed.store(outcome.is_err(), Ordering::Release);
        outcome
    }

    /// There was something to reload that could not even be read.
    pub fn reload_failed(&self) {
        self.reload_failed.store(true, Ordering::Release);
    }

    fn apply(
        self: &Arc<Self>,
        settings: &Settings,
        pair: Option<(&Arc<Tls>, Pair)>,
        unusable: &BTreeMap<String, String>,
    ) -> Result<Reloaded, ReloadError> {
        if self.is_draining() {
            return Err(ReloadError::Draining);
        }
        let before = self.config();
        let shared = SharedState {
            tells_callers_apart: settings.auth.is_on(),
            ..self.shared.clone()
        };
        let destinations = build_destinations(settings, &shared, &before.destinations, unusable)?;
        if let Some((tls, pair)) = pair {
            tls.use_pair(pair)?;
        }
        let mut report = Reloaded {
            at_next_start: self.startup_config.differences(settings),
            ..Reloaded::default()
        };
        for (name, destination) in &destinations {
            let list = match before.destinations.get(name) {
                Some(present) if Arc::ptr_eq(present, destination) => &mut report.kept,
                Some(_) => &mut report.replaced,
                None => &mut report.added,
            };
            list.push(name.clone());
        }
        let retiring: Vec<Arc<Endpoint>> = before
            .destinations
            .iter()
            .filter(|(name, _)| !report.kept.contains(name))
            .map(|(_, destination)| Arc::clone(destination))
            .collect();
        let is_gone = |name: &&String| !destinations.contains_key(*name);
        report.removed = before.destinations.keys().filter(is_gone).cloned().collect();
        for name in report.added.iter().chain(&report.replaced) {
            destinations[name].upstream.start();
        }
        // Found from now on where the new destinations have nothing.
        for destination in &retiring {
            self.shared.draining.add(destination);
        }
        let names = settings
            .destinations
            .iter()
            .map(|destination| destination.name.clone());
        let draining = self.shared.draining.all();
        let draining = draining.iter().map(|destination| destination.name.to_string());
        let names: BTreeSet<String> = names.chain(draining).collect();
        let guard = guard(settings, &names, self.listen, self.clock);
        self.set_config(ActiveConfig {
            origins: OriginGuard::new(settings, self.listen),
            guard: Arc::clone(&guard),
            root: settings
                .root_destination
                .as_ref()
                .and_then(|name| destinations.get(name))
                .cloned(),
            destinations,
            public_path: public_path(settings),
            session_idle: settings.session_idle,
            drain: settings.drain,
        });
        // Shares are for callers who are told apart.
        let buffers = self.shared.limits.buffers(settings.auth.is_on());
        self.shared.buffered.set_limits(buffers);
        // Those who came in by what is no longer good hold nothing open any more, wherever they are.
        for name in &report.kept {
            if let Some(destination) = before.destinations.get(name) {
                let leaves = |principal: &str| !guard.keeps(&before.guard, principal, name);
                report.sessions_ended += destination.dismiss(leaves);
            }
        }
        // Keys are fetched anew; who comes before they are there waits for them.
        tasks::spawn("guard", async move { guard.prepare().await });
        for destination in retiring {
            let why = match report.removed.iter().any(|name| **name == *destination.name) {
                true => CloseReason::Removed,
                false => CloseReason::Replaced,
            };
            self.retire(destination, why, settings.drain);
        }
        self.audit.reopen();
        Ok(report)
    }

    /// Lets the calls of a destination finish, then ends it.
    fn retire(self: &Arc<Self>, destination: Arc<Endpoint>, why: CloseReason, drain: Duration) {
        destination.retire(why);
        let gateway = Arc::clone(self);
        tasks::spawn("retirement", async move {
            tokio::select! {
                () = destination.clients_served() => {}
                () = gateway.drain_began() => {}
                () = tokio::time::sleep(drain) => {}
            }
            if gateway.is_draining() {
                // The drain of the whole gateway counts from here on.
                return;
            }
            destination.stop(why);
            let ended = destination.upstream.supervisors_ended();
            let _ = tokio::time::timeout(crate::backend::process::supervisor::STOP_GRACE * 2, ended).await;
            tracing::info!(destination = %destination.name, "destination ended");
            gateway.shared.draining.remove(&destination);
        });
    }
}

/// What can only be set when the gateway is made.
#[derive(Debug)]
pub(crate) struct StartupConfig {
    listen: SocketAddr,
    has_tls: bool,
    audit: AuditSettings,
    limits: LimitSettings,
    metrics: bool,
}

impl StartupConfig {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            listen: settings.listen,
            has_tls: settings.tls.is_some(),
            audit: settings.audit.clone(),
            limits: settings.limits.clone(),
            metrics: settings.metrics,
        }
    }

    /// What these settings have otherwise.
    fn differences(&self, settings: &Settings) -> Vec<&'static str> {
        let other = Self::of(settings);
        let changed = [
            ("listen", self.listen != other.listen),
            ("tls", self.has_tls != other.has_tls),
            ("audit", self.audit != other.audit),
            ("limits", self.limits != other.limits),
            ("metrics", self.metrics != other.metrics),
        ];
        let names = changed.iter().filter(|(_, changed)| *changed);
        names.map(|(name, _)| *name).collect()
    }
}
