//! What the hosts of this machine have: their files, and the entries in them.
//!
//! Files are read here, and nowhere written.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::document::{self, Document};
use super::location::Surroundings;
use super::servers::{self, Server};
use super::table::{HOSTS, Host};

/// No file of a host is read beyond this. `~/.claude.json` has been seen with tens of megabytes.
const LARGEST: u64 = 64 << 20;

/// A file of a host.
#[derive(Debug, Clone)]
pub(crate) struct HostFile {
    pub(crate) host: &'static Host,
    pub(crate) path: PathBuf,
    /// The project whose file it is.
    pub(crate) project: Option<PathBuf>,
    pub(crate) text: String,
    pub(crate) document: Document,
    pub(crate) servers: Vec<Server>,
}

/// What was found, and what could not be read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: Vec<HostFile>,
    /// Each a sentence that names the file.
    pub(crate) problems: Vec<String>,
    /// Where nothing is, for hosts that were named.
    pub(crate) missing: Vec<String>,
}

/// Returns the files of these hosts, or of all if none is named, and those of a project.
pub(crate) fn of_hosts(
    hosts: &[&'static Host],
    project: Option<&Path>,
    surroundings: &Surroundings<'_>,
) -> Found {
    let mut found = Found::default();
    let is_named = !hosts.is_empty();
    let hosts = if is_named { hosts.to_vec() } else { HOSTS.to_vec() };
    for host in hosts {
        let user = surroundings.user_files(host);
        let mut has_file = look(host, &user, None, surroundings, &mut found);
        if let Some(directory) = project {
            let files: Vec<PathBuf> = host.project.iter().map(|file| directory.join(file)).collect();
            has_file |= look(host, &files, Some(directory), surroundings, &mut found);
        }
        if is_named && !has_file {
            let places: Vec<String> = user.iter().map(|path| surroundings.shown(path)).collect();
            found
                .missing
                .push(format!("{}: there is no {}", host.title, places.join(" or ")));
        }
    }
    found
}

/// Reads the first of these files that exists. Returns whether one does.
fn look(
    host: &'static Host,
    candidates: &[PathBuf],
    project: Option<&Path>,
    surroundings: &Surroundings<'_>,
    found: &mut Found,
) -> bool {
    let Some(path) = candidates.iter().find(|path| fs::symlink_metadata(path).is_ok()) else {
        return false;
    };
    // Two hosts may share the file of a project.
    if found
        .files
        .iter()
        .any(|file| file.path == *path && file.host.keys == host.keys)
    {
        return true;
    }
    let shown = surroundings.shown(path);
    match open(host, path, project) {
        Ok(file) => {
            if let Some(key) = servers::foreign_key(host, &file.document.root) {
                let own = host.keys.last().copied().unwrap_or_default().join(".");
                found.problems.push(format!(
                    "{shown}: has servers under `{key}`, but {} reads `{own}`: rename the key",
                    host.title
                ));
            }
            found.files.push(file);
        }
        Err(reason) => found.problems.push(format!("{shown}: {reason}")),
    }
    true
}

/// Reads one file of a host.
pub(crate) fn open(host: &'static Host, path: &Path, project: Option<&Path>) -> Result<HostFile, String> {
    let text = read(path)?.unwrap_or_default();
    let document = document::read(&text, host.format).map_err(|malformed| match malformed.line {
        0 => malformed.reason,
        line => format!("line {line}: {}", malformed.reason),
    })?;
    Ok(HostFile {
        host,
        path: path.to_owned(),
        project: project.map(Path::to_owned),
        servers: servers::all(host, &document, project),
        text,
        document,
    })
}

/// Returns the text of a file, or `None` if there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let mut bytes = Vec::new();
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_file {
        return Err("is no file".to_owned());
    }
    let length = file
        .take(LARGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if length as u64 > LARGEST {
        return Err("is larger than 64 MiB".to_owned());
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| "is not UTF-8 text".to_owned())
}
