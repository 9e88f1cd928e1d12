//! What servers have shown of their eras, remembered for as long as the gateway runs.
//!
//! It is a hint: it chooses which era is tried first, and whether clients with different
//! capabilities need different instances. What a server speaks is decided anew on every link, by
//! [`protocol::negotiation`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::negotiation::ShownEras;
use protocol::time::Moment;

use crate::settings::{BackendSpec, Secret};

/// A remote server may have been renewed, and would go on answering as it did before.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Servers that are remembered.
const MAX_SERVERS: usize = 1024;

/// What the servers of one command line, or at one URL, have shown.
#[derive(Debug, Default)]
pub(crate) struct ServerEras(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    shown: ShownEras,
    since: Option<Moment>,
}

impl ServerEras {
    pub(crate) fn shown(&self) -> ShownEras {
        self.0.lock().shown
    }

    pub(crate) fn learn(&self, now: Moment, shown: ShownEras) {
        let mut remembered = self.0.lock();
        remembered.shown.learn(shown);
        remembered.since.get_or_insert(now);
    }

    /// Forgets, after a day, that a server is of the legacy era alone.
    pub(crate) fn expire(&self, now: Moment) {
        let mut remembered = self.0.lock();
        let is_old = remembered
            .since
            .is_some_and(|since| now.since(since) > FORGOTTEN_AFTER);
        if is_old && remembered.shown.may_be_outdated() {
            *remembered = Remembered::default();
        }
    }
}

/// The servers that are remembered. A reload keeps them.
#[derive(Debug, Default)]
pub(crate) struct EraMemory(Mutex<BTreeMap<ServerKey, Arc<ServerEras>>>);

/// What makes two servers the same.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServerKey {
    Command {
        argv: Vec<String>,
        env: BTreeMap<String, Secret>,
        cwd: Option<PathBuf>,
    },
    Url(String),
}

impl EraMemory {
    pub(crate) fn of(&self, backend: &BackendSpec) -> Arc<ServerEras> {
        let key = match backend {
            BackendSpec::Process(spec) => ServerKey::Command {
                argv: spec.argv.clone(),
                env: spec.env.clone(),
                cwd: spec.cwd.clone(),
            },
            BackendSpec::Remote(spec) => ServerKey::Url(spec.url.to_string()),
            BackendSpec::Aggregate(_) => ServerKey::Url(String::new()),
        };
        let mut servers = self.0.lock();
        if servers.len() >= MAX_SERVERS {
            servers.retain(|_, eras| Arc::strong_count(eras) > 1);
        }
        Arc::clone(servers.entry(key).or_default())
    }
}
