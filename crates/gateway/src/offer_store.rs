//! What servers offered last, on disk: one file for each destination that an aggregate has as a
//! member.
//!
//! A file names the server that it is about, so that an offer is never shown as that of another
//! one. It is written as a whole or not at all. A file that cannot be used is as good as none: the
//! server is read again.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use protocol::aggregate::Offer;

use crate::settings::{BackendSpec, Settings};
use crate::state_dir::{StateDir, StateDirError, write_private};
use crate::tasks;

/// No file is larger, since lists have limits.
const MAX_BYTES: u64 = 64 << 20;

/// A directory of offers.
#[derive(Debug)]
pub(crate) struct OfferStore {
    directory: StateDir,
}

impl OfferStore {
    /// Opens the directory that the settings name, if they have an aggregate.
    pub(crate) fn of(settings: &Settings) -> Result<Option<Self>, StateDirError> {
        let mut destinations = settings.destinations.iter();
        let has_aggregates =
            destinations.any(|destination| matches!(destination.backend, BackendSpec::Aggregate(_)));
        let path = settings.offers_dir.as_deref().filter(|_| has_aggregates);
        path.map(Self::open).transpose()
    }

    /// Opens the directory. Makes it, for Rialto's user alone, if it does not exist.
    fn open(path: &std::path::Path) -> Result<Self, StateDirError> {
        Ok(Self {
            directory: StateDir::open(path)?,
        })
    }

    fn path(&self, destination: &str) -> PathBuf {
        self.directory.path().join(format!("{destination}.json"))
    }

    /// Returns what the server of a destination offered last.
    pub(crate) fn load(&self, destination: &str, backend: &BackendSpec) -> Option<Arc<Offer>> {
        let path = self.path(destination);
        let length = std::fs::metadata(&path).ok()?.len();
        if length > MAX_BYTES {
            return None;
        }
        let text = std::fs::read_to_string(&path).ok()?;
        let (server, offer) = text.split_once('\n')?;
        let is_same = server == name_of(backend);
        let offer = is_same.then(|| Offer::from_json(offer.trim_end())).flatten();
        if offer.is_none() {
            tracing::debug!(destination, "a stored offer is not used");
        }
        offer.map(Arc::new)
    }

    /// Writes an offer, beside the threads that serve.
    pub(crate) fn keep(&self, destination: &str, backend: &BackendSpec, offer: &Arc<Offer>) {
        let path = self.path(destination);
        let draft = self
            .directory
            .path()
            .join(format!("{destination}.{}.draft", uuid::Uuid::new_v4().simple()));
        let (server, offer) = (name_of(backend), Arc::clone(offer));
        let destination = destination.to_owned();
        tasks::spawn("offer", async move {
            let written = tasks::blocking(move || {
                let text = format!("{server}\n{}\n", offer.to_json());
                let written =
                    write_private(&draft, text.as_bytes()).and_then(|()| std::fs::rename(&draft, &path));
                // If the draft cannot be removed either, the first error is the one to report.
                written.inspect_err(|_| drop(std::fs::remove_file(&draft)))
            });
            if let Err(error) = written.await {
                tracing::warn!(destination, %error, "what a server offers cannot be stored");
            }
        });
    }
}

/// Returns a name for a server that holds none of its secrets.
fn name_of(backend: &BackendSpec) -> String {
    let text = match backend {
        BackendSpec::Process(process) => format!("{:?} {:?}", process.argv, process.cwd),
        BackendSpec::Remote(remote) => remote.url.to_string(),
        BackendSpec::Aggregate(_) => String::new(),
    };
    let mut name = String::new();
    for byte in digest(&SHA256, text.as_bytes()).as_ref() {
        // Writing to a `String` cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}
