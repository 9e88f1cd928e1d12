//! The admin sockets of this user: where they are, what they are called, and which gateways answer.
//!
//! Each gateway has a socket in one directory that belongs to the user alone. Its name follows from
//! the configuration file, so that `rialto attach` finds the gateway of a file; a second gateway of
//! that file adds its process. A socket without a gateway is removed when it is found.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use gateway::local_client;
use serde_json::Value;

use crate::config::Environment;

/// The longest path that a socket may have. Linux takes 107 bytes, macOS 103.
const MAX_PATH: usize = 100;
/// The longest name within the directory: a number, a process, and what follows.
const MAX_NAME: usize = 34;

/// The directory of the sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory(PathBuf);

/// The socket of this process. Its name goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    inode: u64,
}

/// A gateway that answered.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) socket: PathBuf,
    pub(crate) snapshot: Value,
}

impl Directory {
    /// Returns where the sockets of this user are. Hosts start programs with few variables, so
    /// that the usual directory is found without one.
    pub(crate) fn of(environment: &Environment) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let runtime = match environment.filled("XDG_RUNTIME_DIR") {
            Some(directory) => PathBuf::from(directory),
            None => PathBuf::from(format!("/run/user/{user}")),
        };
        let directory = runtime.join("rialto");
        let is_short = directory.as_os_str().len() + 1 + MAX_NAME <= MAX_PATH;
        if runtime.is_absolute() && is_short && owner(&runtime) == Some(user) {
            return Self(directory);
        }
        Self(PathBuf::from(format!("/tmp/rialto-{user}")))
    }

    /// Makes the directory, if there is none, and checks that it belongs to this user alone.
    pub(crate) fn open(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        let shown = self.0.display();
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        let seen = fs::symlink_metadata(&self.0)?;
        let (mode, user) = (
            seen.permissions().mode() & 0o777,
            rustix::process::geteuid().as_raw(),
        );
        if !seen.is_dir() {
            return refuse(format!("{shown} is no directory: remove it"));
        }
        if seen.uid() != user {
            return refuse(format!("{shown} belongs to user {}", seen.uid()));
        }
        if mode & 0o077 != 0 {
            return refuse(format!(
                "{shown} has mode {mode:04o}, so that others can look into it: chmod 700 {shown}"
            ));
        }
        Ok(())
    }

    /// Holds a lock that one process of this user has at a time, for as long as the file lives.
    pub(crate) fn lock(&self, name: &str) -> io::Result<File> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.0.join(name))?;
        file.lock()?;
        Ok(file)
    }

    /// Returns the name that the gateway of a configuration file has.
    pub(crate) fn socket_of(&self, config: &Path) -> PathBuf {
        self.0.join(format!("{}.sock", key_of(config)))
    }

    /// Listens, on the name for this configuration file if no other gateway has it.
    pub(crate) fn bind(&self, config: Option<&Path>) -> io::Result<(UnixListener, Bound)> {
        self.open()?;
        let _lock = self.lock(".lock")?;
        self.sweep()?;
        let pid = std::process::id();
        let name = match config.map(key_of) {
            Some(key) if self.0.join(format!("{key}.sock")).exists() => format!("{key}-{pid}.sock"),
            Some(key) => format!("{key}.sock"),
            None => format!("{pid}.sock"),
        };
        // It gets its name when it listens and is closed to others.
        let new = self.0.join(format!(".{pid}"));
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
        let inode = fs::symlink_metadata(&new)?.ino();
        let path = self.0.join(name);
        fs::rename(&new, &path)?;
        listener.set_nonblocking(true)?;
        Ok((listener, Bound { path, inode }))
    }

    /// Returns the sockets, in the order of their names.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut sockets: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
            .collect();
        sockets.sort();
        sockets
    }

    /// Removes the sockets behind which no process listens. The caller holds the lock.
    fn sweep(&self) -> io::Result<()> {
        for socket in self.sockets() {
            let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if UnixStream::connect(&socket).is_err_and(refused) {
                fs::remove_file(&socket)?;
            }
        }
        Ok(())
    }

    /// Returns the gateways that answer, and why others do not.
    pub(crate) async fn running(&self) -> (Vec<Running>, Vec<String>) {
        if let Err(error) = self.check() {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let why = (!is_missing).then(|| error.to_string());
            return (Vec::new(), why.into_iter().collect());
        }
        if let Ok(_lock) = self.lock(".lock") {
            // What cannot be removed is reported below.
            let _ = self.sweep();
        }
        let (mut running, mut silent) = (Vec::new(), Vec::new());
        for socket in self.sockets() {
            match snapshot(&socket).await {
                Ok(snapshot) => running.push(Running { socket, snapshot }),
                // It has ended since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => silent.push(format!("{}: {error}", socket.display())),
            }
        }
        (running, silent)
    }
}

/// Returns the snapshot of one gateway.
pub(crate) async fn snapshot(socket: &Path) -> io::Result<Value> {
    let (status, body) = local_client::get(socket, "/v1/snapshot").await?;
    let read = serde_json::from_slice(&body).map_err(io::Error::other);
    match status.is_success() {
        true => read,
        false => Err(io::Error::other(format!("it answered with HTTP status {status}"))),
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // Another gateway may have the name by now.
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|seen| seen.ino() == self.inode);
        if is_own {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Bound {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn owner(path: &Path) -> Option<u32> {
    let seen = fs::metadata(path).ok()?;
    seen.is_dir().then(|| seen.uid())
}

/// Returns a short name for a configuration file, the same for every way to write its path.
pub(crate) fn key_of(config: &Path) -> String {
    let whole = fs::canonicalize(config)
        .or_else(|_| std::path::absolute(config))
        .unwrap_or_else(|_| config.to_owned());
    // FNV-1a: it names, and protects nothing.
    let bytes = whole.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Directory) {
        let whole = tempfile::tempdir().expect("a directory");
        let runtime = whole.path().to_str().expect("a text").to_owned();
        let environment = [("XDG_RUNTIME_DIR", runtime)].into_iter().collect();
        let directory = Directory::of(&environment);
        assert_eq!(directory.0, whole.path().join("rialto"));
        (whole, directory)
    }

    #[test]
    fn socket_is_closed_to_others_and_goes_with_its_owner() {
        let (_whole, directory) = directory();
        let (_listener, bound) = directory.bind(None).expect("bound");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(bound.path()), 0o600);
        assert_eq!(mode(&directory.0), 0o700);
        assert_eq!(directory.sockets(), [bound.path().to_owned()]);
        local_client::check_socket(bound.path()).expect("it is good");
        drop(bound);
        assert_eq!(directory.sockets(), Vec::<PathBuf>::new());
    }

    #[test]
    fn second_gateway_of_a_file_has_another_name_and_a_third_takes_what_is_stale() {
        let (_whole, directory) = directory();
        let config = Path::new("/etc/hosts");
        let (first, first_bound) = directory.bind(Some(config)).expect("bound");
        assert_eq!(first_bound.path(), directory.socket_of(config));
        let (_second, second_bound) = directory.bind(Some(config)).expect("bound");
        assert_ne!(second_bound.path(), first_bound.path());
        // The first one was killed: its socket stays, and no process listens.
        drop(first);
        std::mem::forget(first_bound);
        let (_third, third_bound) = directory.bind(Some(config)).expect("bound");
        assert_eq!(third_bound.path(), directory.socket_of(config));
    }

    #[test]
    fn directory_that_others_can_open_is_refused() {
        let (_whole, directory) = directory();
        directory.open().expect("made");
        fs::set_permissions(&directory.0, fs::Permissions::from_mode(0o755)).expect("set");
        let error = directory.bind(None).expect_err("refused");
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }

    #[test]
    fn file_has_one_name_however_its_path_is_written() {
        assert_eq!(
            key_of(Path::new("/etc/../etc/hosts")),
            key_of(Path::new("/etc/hosts"))
        );
        assert_ne!(key_of(Path::new("/etc/hosts")), key_of(Path::new("/etc/passwd")));
        assert_eq!(key_of(Path::new("/no/such/file")).len(), 16);
    }

    #[test]
    fn directory_with_a_long_path_is_not_used() {
        let whole = tempfile::tempdir().expect("a directory");
        let long = whole.path().join("x".repeat(80));
        fs::create_dir(&long).expect("made");
        let runtime = long.to_str().expect("a text").to_owned();
        let environment = [("XDG_RUNTIME_DIR", runtime)].into_iter().collect();
        assert!(Directory::of(&environment).0.starts_with("/tmp"));
    }
}
