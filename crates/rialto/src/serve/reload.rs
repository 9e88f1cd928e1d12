//! Reading the configuration again, on SIGHUP or when its files change.
//!
//! A configuration that is wrong changes nothing. The error is logged, and `/ready` shows that a
//! reload has failed.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gateway::{FileStamp, Gateway};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;

use crate::config::{self, Environment};
use crate::flags::ServeFlags;

use super::serving_status;
use super::systemd::Notifier;

/// Files are read when nothing has happened to them for this long: editors write in several steps.
const QUIET: Duration = Duration::from_millis(250);

/// The task that reloads the configuration.
pub(super) struct Reloader<'a> {
    pub(super) flags: &'a ServeFlags,
    pub(super) environment: &'a Environment,
    pub(super) gateway: Arc<Gateway>,
    pub(super) hangup: Signal,
    pub(super) watch: Option<Watch>,
    pub(super) notifier: Notifier,
}

impl Reloader<'_> {
    /// Reloads whenever there is a reason, for as long as it is let.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let changed = async {
                match &mut self.watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let why = tokio::select! {
                _ = self.hangup.recv() => "SIGHUP",
                () = changed => "a file has changed",
            };
            self.notifier.reloading();
            let status = match self.reload(why).await {
                Some(destinations) => serving_status(destinations),
                None => "serving; the last reload failed, and the log has the reason".to_owned(),
            };
            self.notifier.ready(&status);
        }
    }

    /// Reloads. Returns how many destinations there are now, or `None` if nothing has changed.
    async fn reload(&mut self, why: &str) -> Option<usize> {
        // Files may lie on a disk that does not answer; no client waits for them.
        let (flags, environment) = (self.flags.clone(), self.environment.clone());
        let read = tokio::task::spawn_blocking(move || config::settings(&flags, &environment));
        let loaded = match read.await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(error)) => {
                self.gateway.reload_failed();
                tracing::error!(why, %error, "reload failed, nothing has changed");
                return None;
            }
            Err(error) => {
                self.gateway.reload_failed();
                tracing::error!(why, %error, "reload failed, nothing has changed");
                return None;
            }
        };
        for note in &loaded.notes {
            tracing::warn!("{note}");
        }
        let reloaded = self.gateway.reload(&loaded.settings).await;
        let destinations = reloaded.is_ok().then_some(loaded.settings.destinations.len());
        match reloaded {
            Ok(report) => {
                let list = |names: &[String]| names.join(", ");
                tracing::info!(
                    why,
                    kept = report.kept.len(),
                    added = %list(&report.added),
                    replaced = %list(&report.replaced),
                    removed = %list(&report.removed),
                    sessions_ended = report.sessions_ended,
                    "reloaded"
                );
                for setting in report.at_next_start {
                    tracing::warn!(setting, "has changed; the new value holds from the next start on");
                }
            }
            Err(error) => tracing::error!(why, %error, "reload failed, nothing has changed"),
        }
        if let Some(watch) = &mut self.watch {
            watch.follow(loaded.files);
        }
        destinations
    }
}

/// A watch on the files of a configuration.
pub(super) struct Watch {
    watcher: RecommendedWatcher,
    hints: mpsc::Receiver<()>,
    directories: BTreeSet<PathBuf>,
    files: Vec<(PathBuf, Option<FileStamp>)>,
}

impl Watch {
    pub(super) fn new(files: Vec<PathBuf>) -> notify::Result<Self> {
        // One hint means as much as many.
        let (hint, hints) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |_| {
            let _ = hint.try_send(());
        })?;
        let mut watch = Self {
            watcher,
            hints,
            directories: BTreeSet::new(),
            files: Vec::new(),
        };
        watch.follow(files);
        Ok(watch)
    }

    /// Watches these files from now on. It is their directories that are watched: files are often
    /// replaced by others, or are links to what is replaced.
    fn follow(&mut self, files: Vec<PathBuf>) {
        for file in &files {
            let directory = match file.parent() {
                Some(parent) if parent != Path::new("") => parent.to_owned(),
                Some(_) | None => PathBuf::from("."),
            };
            if self.directories.contains(&directory) {
                continue;
            }
            match self.watcher.watch(&directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.directories.insert(directory);
                }
                Err(error) => {
                    tracing::error!(directory = %directory.display(), %error, "configuration directory cannot be watched");
                }
            }
        }
        self.files = files
            .into_iter()
            .map(|file| {
                let stamp = FileStamp::of(&file);
                (file, stamp)
            })
            .collect();
    }

    /// Waits until one of the files has changed, and then for a quiet time.
    async fn changed(&mut self) {
        loop {
            if self.hints.recv().await.is_none() {
                // The watcher is gone, so that no change will ever be noticed again.
                return std::future::pending().await;
            }
            while let Ok(Some(())) = tokio::time::timeout(QUIET, self.hints.recv()).await {}
            let mut changed = false;
            for (file, known) in &mut self.files {
                let now = FileStamp::of(file);
                changed |= std::mem::replace(known, now) != now;
            }
            if changed {
                return;
            }
        }
    }
}
