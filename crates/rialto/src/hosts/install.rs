//! `rialto install` and `rialto uninstall`: one entry of one host.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::edit::{self, Change, Step};
use super::entry::Transport;
use super::found::{self, HostFile};
use super::location::{Surroundings, System};
use super::own_command::{self, Filling, Outcome};
use super::plain::Plain;
use super::program::{self, Program};
use super::search_path;
use super::shape::{self, Address};
use super::table::{Format, Host};
use super::{destinations_text, safe_file, servers};
use crate::config::{Environment, connection, is_web_address};
use crate::flags::hosts::{InstallFlags, UninstallFlags};
use crate::{exit, fail, user_files};

/// An entry to write.
struct Entry {
    name: String,
    value: Plain,
    /// Empty for a remote server.
    command: Vec<String>,
    url: String,
    headers: Vec<(String, String)>,
}

pub(crate) fn install(flags: &InstallFlags, environment: &Environment) -> ExitCode {
    let surroundings = Surroundings {
        system: System::own(),
        environment,
    };
    let done = entry(flags, environment).and_then(|entry| {
        let file = file_of(flags.host, flags.project, &surroundings)?;
        put(flags, &entry, &file, &surroundings)
    });
    match done {
        Ok(text) => told(&text),
        Err(message) => fail(exit::FAILED, &message),
    }
}

pub(crate) fn uninstall(flags: &UninstallFlags, environment: &Environment) -> ExitCode {
    let surroundings = Surroundings {
        system: System::own(),
        environment,
    };
    let done = file_of(flags.host, flags.project, &surroundings)
        .and_then(|file| take_out(flags, &file, &surroundings));
    match done {
        Ok(text) => told(&text),
        Err(message) => fail(exit::FAILED, &message),
    }
}

/// Prints what was done; that is for people, and so on stderr.
fn told(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "rialto: {text}");
    ExitCode::SUCCESS
}

/// Returns the entry that the flags describe.
fn entry(flags: &InstallFlags, environment: &Environment) -> Result<Entry, String> {
    let host = flags.host;
    let program = Program::own(environment).written(host, flags.project);
    if !is_web_address(&flags.target) {
        if !flags.header.is_empty() {
            return Err("--header is for an address: a destination has its own in its file".to_owned());
        }
        let destination = destination(flags, environment)?;
        let config = match &flags.config {
            Some(config) => Some(absolute(Path::new(config))?),
            None => user_files::destinations(environment)
                .filter(|usual| !user_files::is_found_by_home(usual, environment)),
        };
        let command = program::attach(program, &destination, config.as_deref());
        // Without it, the service has the `PATH` of the host that starts it.
        let _ = search_path::remember(environment);
        let name = flags.name.clone().unwrap_or(destination);
        return Ok(Entry {
            value: shape::stdio(host, &name, &command, &[]),
            name,
            command,
            url: String::new(),
            headers: Vec::new(),
        });
    }
    let headers = flags
        .header
        .iter()
        .map(|header| {
            let (name, value) = header
                .expose()
                .split_once(':')
                .ok_or("--header: write it as 'Name: value'")?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect::<Result<Vec<_>, String>>()?;
    let name = match &flags.name {
        Some(name) => name.clone(),
        None => connection::name_of_address(&flags.target)?,
    };
    let address = Address {
        url: &flags.target,
        transport: Transport::Http,
        headers: &headers,
    };
    if let Some(value) = shape::remote(host, &name, &address) {
        return Ok(Entry {
            name,
            value,
            command: Vec::new(),
            url: flags.target.clone(),
            headers,
        });
    }
    // The host's file takes servers on stdio only.
    let mut command = vec![program, "connect".to_owned(), flags.target.clone()];
    for (name, value) in &headers {
        command.extend(["--header".to_owned(), format!("{name}: {value}")]);
    }
    Ok(Entry {
        value: shape::stdio(host, &name, &command, &[]),
        name,
        command,
        url: String::new(),
        headers: Vec::new(),
    })
}

/// Returns the name of a destination that exists.
fn destination(flags: &InstallFlags, environment: &Environment) -> Result<String, String> {
    let path = match &flags.config {
        Some(path) => PathBuf::from(path),
        None => user_files::destinations(environment).ok_or("HOME is not set: name a file with --config")?,
    };
    let shown = path.display();
    let text = found::read(&path).map_err(|reason| format!("{shown}: {reason}"))?;
    let text = text.ok_or_else(|| {
        format!("there is no {shown}: write an address, or import your servers with `rialto import --output {shown}`")
    })?;
    let present = destinations_text::present(&text).map_err(|reason| format!("{shown}: {reason}"))?;
    match present.destinations.contains_key(&flags.target) {
        true => Ok(flags.target.clone()),
        false => {
            let names: Vec<&str> = present.destinations.keys().map(String::as_str).collect();
            Err(format!(
                "{shown} has no destination `{}`; it has {}",
                flags.target,
                names.join(", ")
            ))
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the file that the host reads, or would read.
fn file_of(
    host: &'static Host,
    is_project: bool,
    surroundings: &Surroundings<'_>,
) -> Result<HostFile, String> {
    let directory = match is_project {
        true => Some(
            std::env::current_dir()
                .map_err(|error| format!("the working directory is not known: {error}"))?,
        ),
        false => None,
    };
    let files: Vec<PathBuf> = match &directory {
        Some(directory) => host.project.iter().map(|file| directory.join(file)).collect(),
        None => surroundings.user_files(host),
    };
    let existing = files.iter().find(|path| path.symlink_metadata().is_ok());
    let path = existing.or(files.first()).ok_or_else(|| match is_project {
        true => format!("{} has no file for one project", host.title),
        false => format!("the place of {}'s file is not known: set HOME", host.title),
    })?;
    found::open(host, path, directory.as_deref())
        .map_err(|reason| format!("{}: {reason}; nothing was changed", surroundings.shown(path)))
}

fn put(
    flags: &InstallFlags,
    entry: &Entry,
    file: &HostFile,
    surroundings: &Surroundings<'_>,
) -> Result<String, String> {
    let host = flags.host;
    let shown = surroundings.shown(&file.path);
    let known = file
        .servers
        .iter()
        .find(|server| server.name == entry.name && (server.project.is_none() || flags.project));
    if let Some(known) = known {
        return match Plain::of(&known.node).same(&entry.value) {
            true => Ok(format!("{shown} has this entry for `{}` already", entry.name)),
            false => Err(format!(
                "{shown} has another entry `{0}`: remove it with `rialto uninstall {1} {0}`, or choose another name \
                 with --name",
                entry.name, host.id
            )),
        };
    }
    if host.format == Format::Yaml {
        let text = shape::pasted(host, &[(entry.name.clone(), entry.value.clone())]);
        std::io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .map_err(|error| format!("cannot write to stdout: {error}"))?;
        return Ok(format!("add these lines to {shown}: Rialto does not edit YAML"));
    }
    let own = host.own.filter(|_| !flags.edit && !flags.project);
    let template = own.map(|own| {
        if entry.url.is_empty() {
            own.add
        } else {
            own.add_remote
        }
    });
    let filling = Filling {
        name: &entry.name,
        command: &entry.command,
        url: &entry.url,
        transport: Transport::Http,
        headers: &entry.headers,
        entry: &entry.value,
    };
    if let Some((own, words)) = own.zip(template.and_then(|template| own_command::words(template, &filling)))
    {
        match own_command::run(host, &words) {
            Outcome::Done => {
                return Ok(format!(
                    "`{}` was added to {} by {}{}",
                    entry.name,
                    host.title,
                    own.program,
                    exposed(flags, file, &shown)
                ));
            }
            Outcome::Failed(reason) => {
                return Err(format!(
                    "{} did not take the entry: {reason}\n  to have Rialto edit {shown} itself: add --edit",
                    own.program
                ));
            }
            Outcome::NotInstalled => {}
        }
    }
    let mut place: Vec<Step> = servers::keys_of(host, &file.document.root)
        .iter()
        .map(|key| Step::Key((*key).to_owned()))
        .collect();
    place.push(shape::step(host, &entry.name));
    write(file, &shown, place, None, Some(entry.value.clone()))?;
    Ok(format!(
        "`{}` was added to {shown}; {} reads it when it starts again{}",
        entry.name,
        host.title,
        exposed(flags, file, &shown)
    ))
}

/// Returns what to do about a header in a file that is not for this user alone. A header mostly is a
/// secret.
fn exposed(flags: &InstallFlags, file: &HostFile, shown: &str) -> String {
    if flags.header.is_empty() {
        return String::new();
    }
    let is_open = fs::metadata(&file.path).is_ok_and(|metadata| metadata.mode() & 0o044 != 0);
    match (flags.project, is_open) {
        (true, _) => {
            format!("\n  {shown} belongs to the project, and has the header: do not share it as it is")
        }
        (false, true) => format!("\n  other users can read the header: chmod 600 {shown}"),
        (false, false) => String::new(),
    }
}

fn take_out(
    flags: &UninstallFlags,
    file: &HostFile,
    surroundings: &Surroundings<'_>,
) -> Result<String, String> {
    let host = flags.host;
    let shown = surroundings.shown(&file.path);
    let is_wanted =
        |server: &&servers::Server| server.name == flags.name && (server.project.is_none() || flags.project);
    let Some(server) = file.servers.iter().find(is_wanted) else {
        let names: Vec<&str> = file.servers.iter().map(|server| server.name.as_str()).collect();
        return Err(match names.as_slice() {
            [] => format!("{shown} has no servers"),
            names => format!("{shown} has no `{}`; it has {}", flags.name, names.join(", ")),
        });
    };
    if host.format == Format::Yaml {
        return Err(format!(
            "remove `{}` from {shown} by hand (line {}): Rialto does not edit YAML",
            flags.name, server.node.line
        ));
    }
    let own = host.own.filter(|_| !flags.edit && !flags.project);
    let filling = Filling {
        name: &flags.name,
        command: &[],
        url: "",
        transport: Transport::Auto,
        headers: &[],
        entry: &Plain::Null,
    };
    if let Some((own, words)) = own.and_then(|own| Some((own, own_command::words(own.remove, &filling)?))) {
        match own_command::run(host, &words) {
            Outcome::Done => {
                return Ok(format!(
                    "`{}` was removed from {} by {}",
                    flags.name, host.title, own.program
                ));
            }
            Outcome::Failed(reason) => {
                return Err(format!(
                    "{} did not remove the entry: {reason}\n  to have Rialto edit {shown} itself: add --edit",
                    own.program
                ));
            }
            Outcome::NotInstalled => {}
        }
    }
    write(
        file,
        &shown,
        server.place.clone(),
        Some(Plain::of(&server.node)),
        None,
    )?;
    Ok(format!("`{}` was removed from {shown}", flags.name))
}

/// Changes one value of a file.
fn write(
    file: &HostFile,
    shown: &str,
    place: Vec<Step>,
    before: Option<Plain>,
    after: Option<Plain>,
) -> Result<(), String> {
    let refused = |reason: &dyn std::fmt::Display| format!("{shown}: {reason}; nothing was changed");
    let exists = safe_file::inspect(&file.path).map_err(|refusal| format!("{shown} {refusal}"))?;
    let change = Change { place, before, after };
    let text = edit::apply(&file.text, file.host.format, &[change]).map_err(|error| refused(&error))?;
    let written = match exists {
        Some(_) => safe_file::replace(&file.path, file.text.as_bytes(), text.as_bytes()),
        None => safe_file::create(&file.path, text.as_bytes(), 0o600),
    };
    written.map_err(|refusal| format!("{shown} {refusal}"))
}
