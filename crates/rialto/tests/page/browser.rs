//! A script that drives Chromium: started, spoken with by lines of JSON, and gone when the test ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::interop::test_deps;
use testkit::{Failure, Result, wait_until};

/// Longer than the deadline of any step in a script, so that the script itself names the step.
const DEADLINE: Duration = Duration::from_secs(240);

/// How many lines may wait for the test.
const LINES: usize = 64;

/// A scenario that is being played.
pub(crate) struct Script {
    name: String,
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    complaints: Receiver<String>,
}

impl Script {
    /// Starts a scenario at the page of the gateway with this address.
    pub(crate) fn start(name: &str, address: &str, options: &Value) -> Result<Self> {
        let scripts = scripts();
        let mut command = Command::new("node");
        command
            .arg(scripts.join("play.mjs"))
            .args([name, &format!("http://{address}/ui/"), &options.to_string()])
            .env("RIALTO_TEST_DEPS", test_deps())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (program, libraries) = chromium();
        command.env("RIALTO_TEST_CHROMIUM", program);
        command.env("RIALTO_TEST_CHROMIUM_LIBRARIES", libraries);
        let mut process = command.spawn()?;
        let input = process.stdin.take();
        let stdout = process
            .stdout
            .take()
            .ok_or_else(|| Failure::new("it has a stdout"))?;
        let mut stderr = process
            .stderr
            .take()
            .ok_or_else(|| Failure::new("it has a stderr"))?;
        let (sender, lines) = sync_channel(LINES);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let (sender, complaints) = sync_channel(1);
        thread::spawn(move || {
            let mut text = String::new();
            // What was read before an error is shown as well.
            let _ = stderr.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        Ok(Self {
            name: name.to_owned(),
            process,
            input,
            lines,
            complaints,
        })
    }

    /// Waits for the next line of the script.
    pub(crate) async fn next(&mut self) -> Result<Value> {
        let what = format!("the script {} tells something", self.name);
        let told = wait_until(&what, DEADLINE, || match self.lines.try_recv() {
            Ok(value) => Some(Some(value)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(None),
        });
        if let Some(value) = told.await {
            return Ok(value);
        }
        let complaint = self.complaints.recv_timeout(DEADLINE).unwrap_or_default();
        Err(Failure::new(format!(
            "the script {} failed:\n{complaint}",
            self.name
        )))
    }

    /// Sends a line to the script.
    pub(crate) fn tell(&mut self, value: &Value) -> Result<()> {
        let input = self
            .input
            .as_mut()
            .ok_or_else(|| Failure::new("its stdin is open"))?;
        writeln!(input, "{value}")?;
        Ok(())
    }

    /// Waits for the end of the scenario, and returns what it saw.
    pub(crate) async fn end(mut self) -> Result<Value> {
        let mut last = self.next().await?;
        let seen = last["done"].take();
        assert!(!seen.is_null(), "{last} is not the end of {}", self.name);
        Ok(seen)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // The driver ends its browser when its stdin and its pipe to the browser close.
        self.input = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays a scenario to its end, in which the page may do nothing that it must not.
pub(crate) async fn play(name: &str, address: &str, options: &Value) -> Result<Value> {
    let seen = Script::start(name, address, options)?.end().await?;
    if let Some(faults) = seen.get("faults") {
        assert_eq!(*faults, json!([]), "{name}");
    }
    Ok(seen)
}

/// Returns the folder of the scripts.
pub(crate) fn scripts() -> PathBuf {
    repository().join("tests/page")
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder of the packages that the scripts use.
pub(crate) fn packages() -> PathBuf {
    let folder = test_deps().join("page");
    assert!(
        folder.join(".installed").exists(),
        "the driver of the browser is not installed; run `cargo xtask setup`"
    );
    folder
}

/// Returns the browser, and where its libraries are if they were only unpacked.
fn chromium() -> (PathBuf, String) {
    let _ = packages();
    let unpacked = test_deps().join("chromium");
    if !unpacked.join(".installed").exists() {
        return (on_the_path("chromium"), String::new());
    }
    let libraries = unpacked.join("usr/lib");
    let triples = std::fs::read_dir(&libraries).expect("Chromium was unpacked");
    let folders = triples.filter_map(|entry| Some(entry.ok()?.path()));
    let folders = folders.filter(|path| path.to_string_lossy().ends_with("-linux-gnu"));
    let folders: Vec<String> = folders
        .flat_map(|folder| [folder.join("pulseaudio"), folder])
        .map(|folder| folder.display().to_string())
        .collect();
    (libraries.join("chromium/chromium"), folders.join(":"))
}

fn on_the_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.exists());
    found.expect("there is no Chromium; run `cargo xtask setup`")
}
