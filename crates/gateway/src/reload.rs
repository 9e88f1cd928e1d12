//! Reload: new settings for a running gateway. Equal destinations are kept, changed ones are
//! replaced.
//!
//! All errors are found first, so that a reload happens completely or changes nothing. A
//! destination that was removed or replaced accepts no session. Its calls may finish, and its
//! clients reach what is open by its name until then. Calls that wait for its server are refused at
//! once. Settings that apply at the next start are named in the report.
//!
//! A destination whose settings changed is replaced as a whole, clients and server together, and
//! never changes itself. So a request keeps to one policy and one server, and reads neither under a
//! lock. Sessions stay with the server that they were opened at, and the limits of the new
//! destination do not count them. If only the server were exchanged, each session, waiting call and
//! listen would have to name its server, and each limit, each look-up and each end would have to
//! tell them apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::active_config::{self, ActiveConfig, ReloadError};
use crate::endpoint::{CloseReason, Endpoint, SharedState};
use crate::gateway::Gateway;
use crate::guard::origin::OriginGuard;
use crate::guard::page::PageAccess;
use crate::offer_store::OfferStore;
use crate::settings::{BackendSpec, Settings};
use crate::tasks;
use crate::tls::{Pair, Tls};

/// What a reload did, by the names of destinations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub kept: Vec<String>,
    pub added: Vec<String>,
    pub replaced: Vec<String>,
    pub removed: Vec<String>,
    /// Sessions of principals whose credential is no longer valid.
    pub sessions_ended: usize,
    /// Settings that have changed and wait for the next start.
    pub at_next_start: Vec<&'static str>,
}

impl Gateway {
    /// Applies new settings. On error nothing has changed.
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
            tasks::blocking(move || active_config::check_commands(&settings, &environment)).await
        };
        let outcome = self.apply(settings, pair, &unusable);
        self.reload_failed.store(outcome.is_err(), Ordering::Release);
        outcome
    }

    /// Notes that a configuration could not be read.
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
            offers: self.shared.offers.clone().or_else(|| first_offers(settings)),
            ..self.shared.clone()
        };
        if settings.auth.is_on() {
            shared.sign_in_pages.clear();
        }
        let destinations =
            active_config::build_destinations(settings, &shared, &before.destinations, unusable)?;
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
        let started = report.added.iter().chain(&report.replaced);
        let (aggregates, servers): (Vec<&String>, Vec<&String>) =
            started.partition(|name| destinations[*name].upstream.aggregate().is_some());
        for name in servers.into_iter().chain(aggregates) {
            destinations[name].upstream.start();
        }
        // Those that are kept take the members of the new settings, and keep their sessions.
        for wanted in &settings.destinations {
            if let BackendSpec::Aggregate(spec) = &wanted.backend
                && report.kept.contains(&wanted.name)
                && let Some(aggregate) = destinations[&wanted.name].upstream.aggregate()
            {
                aggregate.update(Arc::clone(&spec.plan), &destinations);
            }
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
        let guard = active_config::guard(settings, &names, self.listen, self.clock);
        self.set_config(ActiveConfig {
            origins: OriginGuard::new(settings, self.listen),
            guard: Arc::clone(&guard),
            page: PageAccess::of(settings, self.listen),
            root: settings
                .root_destination
                .as_ref()
                .and_then(|name| destinations.get(name))
                .cloned(),
            destinations,
            public_path: active_config::public_path(settings),
            session_idle: settings.session_idle,
            drain: settings.drain,
        });
        // Shares are for authenticated callers.
        let buffers = self.shared.limits.buffers(settings.auth.is_on());
        self.shared.buffered.set_limits(buffers);
        // Principals whose credential is no longer valid keep nothing open. At a destination that
        // drains, the end of the drain ends it.
        for name in &report.kept {
            if let Some(destination) = before.destinations.get(name) {
                let leaves = |principal: &str| !guard.keeps(&before.guard, principal, name);
                report.sessions_ended += destination.dismiss(leaves);
            }
        }
        // Keys are fetched anew; requests that come before they are there wait for them.
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

/// Returns where offers are kept, if the settings have an aggregate for the first time.
fn first_offers(settings: &Settings) -> Option<Arc<OfferStore>> {
    let opened = OfferStore::of(settings);
    let opened = opened.inspect_err(|error| tracing::warn!(%error, "what members offer is not stored"));
    opened.ok().flatten().map(Arc::new)
}
