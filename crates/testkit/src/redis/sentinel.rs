//! A Sentinel that watches one primary, and decides alone.

use std::process::Child;

use super::{Redis, TRIES, command, free_port, launch};
use crate::failure::{Failure, Result};
use crate::patience::{PATIENCE, look_until};

/// The name that it has for the primary.
const NAME: &str = "mine";

/// A running Sentinel. It ends with this value.
#[derive(Debug)]
pub struct Sentinel {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    /// Starts a Sentinel that watches a server as the primary `mine`, with further lines of its
    /// configuration.
    pub fn start(primary: &Redis, more: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("sentinel.conf");
        for _ in 0..TRIES {
            let port = free_port()?;
            let text = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor {NAME} 127.0.0.1 {} 1\n\
                 sentinel down-after-milliseconds {NAME} 1000\nsentinel failover-timeout {NAME} 3000\n{more}\n",
                folder.path().display(),
                primary.port(),
            );
            std::fs::write(&file, text)?;
            let words = [file.display().to_string(), "--sentinel".to_owned()];
            if let Some(child) = launch(folder.path(), &words, "+monitor master")? {
                return Ok(Self {
                    child,
                    port,
                    _folder: folder,
                });
            }
        }
        Err(Failure::new("the Sentinel found no free port"))
    }

    /// Returns the port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the primary.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{NAME}", self.port)
    }

    /// Waits until it knows a copy, which may replace the primary then.
    pub fn wait_for_copy(&self, copy: &Redis) -> Result<()> {
        let port = copy.port().to_string();
        // It looks for copies every ten seconds.
        let known = look_until(PATIENCE, || {
            let copies = self.command(&["SENTINEL", "REPLICAS", NAME]).ok()?;
            copies.lines().any(|line| line == port).then_some(())
        });
        known.ok_or_else(|| Failure::new("the Sentinel does not learn of the copy"))
    }

    /// Sends one command, without authentication.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        command(self.port, words)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill().and_then(|()| self.child.wait()));
    }
}
