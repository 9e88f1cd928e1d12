//! A Debian with a running systemd, as on a machine: what units ask of it is tried there.
//!
//! Hides systemd-nspawn. The network is one of its own, so the port of the service is free, and
//! nothing reaches other machines.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::server::{self, PATIENCE, PAUSE, command};
use crate::package::tools;

/// A file that is in the root and not on this machine.
const MARK: &str = "/root-of-a-trial";

/// Runs a command if the root is that of the trial: a process that is about to enter its root has
/// that of this machine still.
const GUARD: &str = r#"test -e "$0" && exec "$@""#;

/// A running system. Dropping it shuts it down.
#[derive(Debug)]
pub struct Booted {
    nspawn: Child,
    /// The number of its first process, as this machine counts.
    init: u32,
}

impl Booted {
    /// Starts systemd in a root, and waits until it has started everything.
    pub fn start(root: &Path, log: &Path) -> anyhow::Result<Self> {
        fs::write(root.join(MARK.trim_start_matches('/')), "")?;
        ensure!(!Path::new(MARK).exists(), "{MARK} is on this machine: remove it");
        let output = File::create(log)?;
        let nspawn = command("systemd-nspawn")
            .arg("--directory")
            .arg(root)
            // The systemd of this machine, where there is one, does not know of it.
            .args(["--register=no", "--keep-unit", "--private-network", "--boot"])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("systemd-nspawn does not run")?;
        let mut booted = Self { nspawn, init: 0 };
        let deadline = Instant::now() + PATIENCE;
        while !booted.runs() {
            let ended = booted.nspawn.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("systemd does not start: {}", fs::read_to_string(log)?);
            }
            thread::sleep(PAUSE);
        }
        Ok(booted)
    }

    /// Returns whether systemd has started everything. Units that fail are those of the image.
    fn runs(&mut self) -> bool {
        let children = server::children(self.nspawn.id()).unwrap_or_default();
        let [init] = children[..] else {
            return false;
        };
        self.init = init;
        let mut asked = self.inside(&["systemctl", "is-system-running"]);
        let state = asked.output().map(|output| output.stdout).unwrap_or_default();
        matches!(String::from_utf8_lossy(&state).trim(), "running" | "degraded")
    }

    fn inside(&self, words: &[&str]) -> Command {
        let mut nsenter = command("nsenter");
        nsenter
            .args(["--target", &self.init.to_string(), "--all"])
            .args(["sh", "-c", GUARD, MARK])
            .args(words);
        nsenter
    }

    /// Runs a command to its end, and returns what it printed.
    pub fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        tools::stdout(&mut self.inside(words))
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // systemd-nspawn shuts the system down when it is asked to end.
        let pid = Pid::from_child(&self.nspawn);
        let _ = kill_process(pid, Signal::TERM);
        let _ = server::wait(&mut self.nspawn);
    }
}
