//! A Redis server of its own for each test, as Debian packages it (`cargo xtask setup` installs
//! it).

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::failure::{Failure, Result};
use crate::interop::test_deps;
use crate::patience::{PATIENCE, look_until};
use crate::processes::send_signal;

mod cluster;
mod sentinel;

pub use cluster::RedisCluster;
pub use sentinel::Sentinel;

/// How often another port is tried: between the choice and the start, another process may take it.
const TRIES: usize = 5;

/// A running server, without persistence. It ends with this value.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    port: u16,
    settings: Vec<String>,
    folder: tempfile::TempDir,
}

impl Redis {
    /// Starts a server with its defaults.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with settings of its own, such as `--requirepass secret`.
    pub fn start_with(settings: &[&str]) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, settings)
    }

    /// The same in a folder with files for it. `FOLDER` in a setting stands for the folder, `PORT` for
    /// another free port.
    pub fn start_in(folder: tempfile::TempDir, settings: &[&str]) -> Result<Self> {
        let path = folder.path().display().to_string();
        for _ in 0..TRIES {
            let (port, other) = (free_port()?, free_port()?.to_string());
            let settings: Vec<String> = settings
                .iter()
                .map(|setting| setting.replace("FOLDER", &path).replace("PORT", &other))
                .collect();
            if let Some(child) = spawn(folder.path(), port, &settings)? {
                return Ok(Self {
                    child,
                    port,
                    settings,
                    folder,
                });
            }
        }
        Err(Failure::new("redis-server found no free port"))
    }

    /// Kills the server, and starts it again at the same port, empty.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let started = spawn(self.folder.path(), self.port, &self.settings)?;
        self.child = started.ok_or_else(|| Failure::new("the port of the server was taken"))?;
        Ok(())
    }

    /// Returns `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port for plain connections.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder of the server's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends one command, without authentication, and returns the answer as the server wrote it.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        command(self.port, words)
    }

    /// Stops the process without ending it, as a machine that hangs.
    pub fn pause(&self) {
        send_signal(self.child.id(), Signal::STOP);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        send_signal(self.child.id(), Signal::CONT);
    }

    /// Kills the process.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.kill());
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Sends one command to the server at a port, and returns the answer as the server wrote it.
fn command(port: u16, words: &[&str]) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(text.as_bytes())?;
    let mut reader = BufReader::new(stream);
    read_answer(&mut reader)
}

/// Starts a server and waits until it listens. Returns `None` if another process has the port.
fn spawn(folder: &Path, port: u16, settings: &[String]) -> Result<Option<Child>> {
    let mut words = vec!["--bind".to_owned(), "127.0.0.1".to_owned(), "--port".to_owned()];
    words.push(port.to_string());
    words.extend(["--save", "", "--appendonly", "no", "--dir"].map(str::to_owned));
    words.push(folder.display().to_string());
    words.extend_from_slice(settings);
    launch(folder, &words, "Ready to accept connections")
}

/// Starts the program and waits until its log has this text. Returns `None` if another process has
/// the port.
fn launch(folder: &Path, words: &[String], ready: &str) -> Result<Option<Child>> {
    let root = test_deps().join("redis");
    let program = root.join("usr/bin/redis-server");
    let log = folder.join("log");
    let mut child = Command::new(&program)
        .env("LD_LIBRARY_PATH", libraries(&root)?)
        .args(words)
        .stdin(Stdio::null())
        .stdout(File::create(&log)?)
        .spawn()
        .map_err(|error| {
            let program = program.display();
            Failure::new(format!("{program} (cargo xtask setup installs it): {error}"))
        })?;
    let is_ready = look_until(PATIENCE, || {
        let ended = !matches!(child.try_wait(), Ok(None));
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let is_ready = text.contains(ready);
        (is_ready || ended).then_some(is_ready)
    });
    if is_ready == Some(true) {
        return Ok(Some(child));
    }
    child.kill()?;
    child.wait()?;
    let text = std::fs::read_to_string(&log)?;
    match text.contains("Address already in use") {
        true => Ok(None),
        false => Err(Failure::new(format!("redis-server did not start:\n{text}"))),
    }
}

/// Returns the folder of the libraries that came with the server: `usr/lib/TRIPLET`.
fn libraries(root: &Path) -> Result<PathBuf> {
    let found = std::fs::read_dir(root.join("usr/lib"))?;
    let mut folders = found.flatten().map(|entry| entry.path());
    folders
        .find(|path| path.join("libjemalloc.so.2").exists())
        .ok_or_else(|| Failure::new("redis-server has no libraries; run `cargo xtask setup`"))
}

/// Reads one answer. A list is its members, a line each.
fn read_answer(reader: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let length = || line.get(1..).and_then(|length| length.parse::<usize>().ok());
    match line.chars().next() {
        Some('$') => match length() {
            Some(length) => {
                let mut bytes = vec![0; length + 2];
                reader.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
            None => Ok(String::new()),
        },
        Some('*') => {
            let mut members = Vec::new();
            for _ in 0..length().unwrap_or(0) {
                members.push(read_answer(reader)?);
            }
            Ok(members.join("\n"))
        }
        _ => Ok(line.to_owned()),
    }
}
