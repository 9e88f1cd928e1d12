//! The home of a user: a configuration, a directory for sockets, and the services that are started
//! in it, which end with the test.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::patience::look_until;
use testkit::processes::{self, Process};
use testkit::rialto::binary;
use testkit::{Host, Journal, Result, text_of};

const ENDING: Duration = Duration::from_secs(10);

/// A user with a home directory.
pub(crate) struct Home {
    directory: TempDir,
}

impl Home {
    /// Makes a home with this configuration; `{stub}` and `{dir}` in it stand for the stub server
    /// and for the home.
    pub(crate) fn new(config: &str) -> Result<Self> {
        let home = Self {
            directory: tempfile::tempdir()?,
        };
        for directory in ["run", "config/rialto", "state", "one", "two"] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(home.path(directory))?;
        }
        home.configure(config)?;
        Ok(home)
    }

    /// Replaces the configuration, as an editor does.
    pub(crate) fn configure(&self, config: &str) -> Result<()> {
        let text = config
            .replace("{stub}", &binary("testkit-server").to_string_lossy())
            .replace("{dir}", &self.directory.path().to_string_lossy());
        let (new, file) = (self.path("config/rialto/new"), self.config());
        fs::write(&new, text)?;
        fs::rename(new, file)?;
        Ok(())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path("config/rialto/destinations.yml")
    }

    /// Returns the directory of the sockets.
    pub(crate) fn sockets(&self) -> PathBuf {
        self.path("run/rialto")
    }

    pub(crate) fn journal(&self, name: &str) -> Journal {
        Journal::at(self.path(name))
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.path(name).to_string_lossy().into_owned();
        vec![
            ("HOME", path(".")),
            ("XDG_RUNTIME_DIR", path("run")),
            ("XDG_CONFIG_HOME", path("config")),
            ("XDG_STATE_HOME", path("state")),
            // No test needs one for longer.
            ("RIALTO_IDLE_EXIT", "20s".to_owned()),
        ]
    }

    /// Starts `rialto attach NAME` in a directory of the home, with more variables.
    pub(crate) fn attach(&self, name: &str, project: &str, more: &[(&str, &str)]) -> Result<Host> {
        let variables = self.variables();
        let mut all: Vec<(&str, &str)> = variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        all.extend(more);
        Host::start_in(&self.path(project), &["attach", name], &all)
    }

    /// Returns a command line of Rialto, for this user.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("rialto"));
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(self.variables());
        command
    }

    /// Runs a command line of Rialto to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments).output()?)
    }

    /// Returns the snapshots of the gateways that run.
    pub(crate) fn gateways(&self) -> Result<Vec<Value>> {
        let output = self.run(&["ps", "--json"])?;
        let mut read: Value = serde_json::from_slice(&output.stdout)?;
        match read["gateways"].take() {
            Value::Array(gateways) => Ok(gateways),
            other => panic!("no list of gateways: {other}"),
        }
    }

    /// Returns a destination of the only gateway.
    pub(crate) fn destination(&self, name: &str) -> Result<Value> {
        let gateways = self.gateways()?;
        assert_eq!(gateways.len(), 1, "{gateways:?}");
        Ok(destination(&gateways[0], name))
    }
}

/// Returns a destination of a snapshot.
pub(crate) fn destination(snapshot: &Value, name: &str) -> Value {
    let all = snapshot["destinations"].as_array();
    let found = all
        .into_iter()
        .flatten()
        .find(|destination| destination["name"] == name);
    found
        .cloned()
        .unwrap_or_else(|| panic!("no {name} in {snapshot}"))
}

/// Returns the processes of a snapshot's servers.
pub(crate) fn servers(snapshot: &Value) -> Vec<u64> {
    let destinations = snapshot["destinations"].as_array();
    let instances = destinations
        .into_iter()
        .flatten()
        .flat_map(|destination| destination["instances"].as_array().into_iter().flatten());
    instances
        .filter_map(|instance| instance["pid"].as_u64())
        .collect()
}

/// Calls a tool of the stub, and returns its text.
pub(crate) async fn call(host: &Host, id: u64, tool: &str, arguments: Value) -> Result<String> {
    host.ask(id, "tools/call", json!({ "name": tool, "arguments": arguments }))?;
    let answer = host.answer(id).await;
    assert!(answer["error"].is_null(), "{answer}");
    Ok(text_of(&answer).to_owned())
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a process that runs.
pub(crate) fn process(pid: &Value) -> Process {
    let pid = pid.as_u64().and_then(|pid| u32::try_from(pid).ok());
    let found = pid.and_then(Process::read);
    found.unwrap_or_else(|| panic!("no process {pid:?}"))
}

/// Returns where a process runs.
pub(crate) fn directory_of(pid: &str) -> PathBuf {
    let link = Path::new("/proc").join(pid).join("cwd");
    fs::read_link(&link).unwrap_or_else(|error| panic!("{}: {error}", link.display()))
}

impl Drop for Home {
    fn drop(&mut self) {
        let gateways = self.gateways().unwrap_or_default();
        for gateway in gateways {
            let Some(pid) = gateway["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) else {
                continue;
            };
            processes::send_signal(pid, Signal::TERM);
            let ended = look_until(ENDING, || {
                let is_alive = Process::read(pid).is_some_and(|process| process.is_alive());
                (!is_alive).then_some(())
            });
            if ended.is_none() {
                processes::send_signal(pid, Signal::KILL);
                assert!(std::thread::panicking(), "the service does not end");
            }
        }
    }
}
