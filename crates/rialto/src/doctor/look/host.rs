//! Looks at the files of hosts, and at the processes that hosts have started.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gateway::backend::process::environment;
use gateway::platform::ProcessSeen;
use gateway::settings::{Inherits, Secret};

use super::machine::Needed;
use super::server::Startable;
use crate::config::tree::Value;
use crate::config::{self, Environment};
use crate::doctor::judge::host::{CopiesSeen, CopySeen, EntrySeen, FileSeen, ShadowedFile, WrongKey};
use crate::hosts::entry::{Entry, Stdio};
use crate::hosts::found::{self, HostFile};
use crate::hosts::location::Surroundings;
use crate::hosts::reference::{Carry, Phrase};
use crate::hosts::secret;
use crate::hosts::servers::{self, Server};
use crate::hosts::table::{Host, Listing};

/// Directories below which the home directories of people are.
const HOMES: [&str; 3] = ["/home/", "/Users/", "/root/"];
/// What an entry is when it is switched off: that is no fault.
const SWITCHED_OFF: &str = "is switched off there";

/// A file of a host, as it was read.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) host: &'static Host,
    pub(crate) seen: FileSeen,
    /// `None`: it cannot be read.
    pub(crate) file: Option<HostFile>,
}

/// Looks at the files of these hosts, and at those that they have in a directory.
pub(crate) fn files(
    hosts: &[&'static Host],
    project: Option<&Path>,
    surroundings: &Surroundings<'_>,
) -> Vec<Looked> {
    let mut looked: Vec<Looked> = Vec::new();
    for host in hosts {
        look(
            host,
            &surroundings.user_files(host),
            None,
            surroundings,
            &mut looked,
        );
        // In the home directory these are the files of the user.
        if let Some(directory) = project.filter(|directory| surroundings.home() != Some(directory)) {
            let files: Vec<PathBuf> = host.project.iter().map(|file| directory.join(file)).collect();
            look(host, &files, Some(directory), surroundings, &mut looked);
        }
    }
    looked
}

fn look(
    host: &'static Host,
    candidates: &[PathBuf],
    project: Option<&Path>,
    surroundings: &Surroundings<'_>,
    looked: &mut Vec<Looked>,
) {
    let mut existing = candidates.iter().filter(|path| path.symlink_metadata().is_ok());
    let Some(path) = existing.next() else {
        return;
    };
    // Two hosts may share the file of a project.
    if looked
        .iter()
        .any(|known| known.seen.path == *path && known.host.keys == host.keys)
    {
        return;
    }
    let mut seen = FileSeen {
        host: host.title.to_owned(),
        id: host.id.to_owned(),
        shown: surroundings.shown(path),
        path: path.clone(),
        is_open: std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o044 != 0),
        is_shared: project.is_some(),
        ..FileSeen::default()
    };
    for other in existing {
        let count = found::open(host, other, project).map_or(0, |file| file.servers.len());
        if count > 0 {
            seen.shadowed.push(ShadowedFile {
                shown: surroundings.shown(other),
                servers: count,
            });
        }
    }
    let file = match found::open(host, path, project) {
        Ok(file) => Some(file),
        Err(why) => {
            seen.failure = Some(why);
            None
        }
    };
    if let Some(file) = &file {
        seen.wrong_key = wrong_key(host, file);
        let repeated = file.document.repeated.iter();
        seen.repeated = repeated.map(|twice| (twice.key.clone(), twice.line)).collect();
        seen.entries = file.servers.iter().map(entry).collect();
    }
    looked.push(Looked { host, seen, file });
}

fn wrong_key(host: &Host, file: &HostFile) -> Option<WrongKey> {
    let root = &file.document.root;
    let found = servers::foreign_key(host, root)?;
    let read = host.keys.last().copied().unwrap_or_default();
    // With other entries beside, both would have to be merged.
    let has_own = match &root.value {
        Value::Map(entries) => entries.iter().any(|(key, _)| read.first() == Some(&key.as_str())),
        _ => false,
    };
    let is_json = host.format == crate::hosts::table::Format::Json;
    let renamed = match (read, host.listing) {
        ([key], Listing::ByName) if is_json && !has_own => Some(*key),
        _ => None,
    };
    Some(WrongKey {
        found,
        read: read.join("."),
        renamed,
    })
}

fn entry(server: &Server) -> EntrySeen {
    let mut seen = EntrySeen {
        name: server.name.clone(),
        line: server.node.line,
        ..EntrySeen::default()
    };
    match &server.entry {
        Entry::Stdio(stdio) => {
            seen.is_stdio = true;
            seen.identity = format!("{:?} {:?} {:?}", stdio.words, stdio.env, stdio.cwd);
            let words: Vec<Option<&str>> = stdio.words.iter().map(Phrase::literal).collect();
            let mut before = None;
            for word in words.iter().copied() {
                if let Some(word) = word
                    && secret::in_argument(before, word).is_some()
                {
                    seen.secrets.push("an argument".to_owned());
                }
                before = word;
            }
            secrets_of(&stdio.env, &mut seen.secrets);
            let values = stdio.env.iter().filter_map(|(_, value)| value.literal());
            let cwd = stdio.cwd.as_ref().and_then(Phrase::literal);
            seen.paths = own_paths(words.into_iter().flatten().chain(values).chain(cwd));
        }
        Entry::Remote(remote) => {
            secrets_of(&remote.headers, &mut seen.secrets);
            let url = remote.url.literal().unwrap_or_default();
            if secret::is_secret("url", url) {
                seen.secrets.push("the URL".to_owned());
            }
        }
        Entry::Rialto { .. } => {
            let gone = command_of(server).filter(|command| {
                let path = Path::new(command);
                path.is_absolute() && !path.exists()
            });
            seen.unusable = gone.map(|command| format!("starts Rialto at {command}, where nothing is"));
        }
        Entry::Unusable(why) if why == SWITCHED_OFF => {}
        Entry::Unusable(why) => seen.unusable = Some(why.clone()),
    }
    seen
}

/// Returns the program of an entry, as it is written.
fn command_of(server: &Server) -> Option<&str> {
    let Value::Map(fields) = &server.node.value else {
        return None;
    };
    let field = fields
        .iter()
        .find(|(key, _)| matches!(key.as_str(), "command" | "cmd"));
    match &field?.1.value {
        Value::Text(text) => Some(text),
        Value::List(items) => match items.first().map(|item| &item.value) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn secrets_of(values: &[(String, Phrase)], secrets: &mut Vec<String>) {
    let literal = values
        .iter()
        .filter_map(|(name, value)| Some((name, value.literal()?)));
    let found = literal.filter(|(name, value)| secret::is_secret(name, value));
    secrets.extend(found.map(|(name, _)| name.clone()));
}

fn own_paths<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_own = |text: &&str| HOMES.iter().any(|home| text.starts_with(home));
    texts.filter(is_own).map(str::to_owned).collect()
}

/// Returns the programs that the entries of files need.
pub(crate) fn needed(looked: &[Looked]) -> Vec<Needed> {
    let mut needed = Vec::new();
    for file in looked {
        let servers = file.file.iter().flat_map(|file| &file.servers);
        for server in servers {
            if let Entry::Stdio(stdio) = &server.entry
                && let Some(program) = stdio.words.first().and_then(Phrase::literal)
                && !program.is_empty()
            {
                needed.push(Needed {
                    program: program.to_owned(),
                    cwd: server.project.clone(),
                    server: server.name.clone(),
                    window: file.host.is_gui.then_some(file.host.title),
                });
            }
        }
    }
    needed
}

/// Returns an entry as it can be started here, or why it cannot.
pub(crate) fn startable(
    server: &Server,
    stdio: &Stdio,
    home: Option<&Path>,
    variables: &Environment,
) -> Result<Startable, String> {
    let carry = Carry {
        project: server.project.as_deref(),
        home,
    };
    let filled = |phrase: &Phrase| {
        phrase
            .carried(carry)
            .and_then(|text| config::filled(&text, variables))
    };
    let argv = stdio.words.iter().map(filled).collect::<Result<Vec<_>, _>>()?;
    let mut configured = std::collections::BTreeMap::new();
    for (name, value) in &stdio.env {
        configured.insert(name.clone(), Secret::new(filled(value)?));
    }
    let cwd = stdio.cwd.as_ref().map(filled).transpose()?.map(PathBuf::from);
    Ok(Startable {
        name: server.name.clone(),
        argv,
        variables: environment(variables.all(), Inherits::Everything, &configured),
        cwd: cwd.or_else(|| server.project.clone()).filter(|cwd| cwd.is_dir()),
    })
}

/// Counts the copies of each stdio server that run now.
pub(crate) fn copies(looked: &[Looked], processes: &[ProcessSeen]) -> Vec<CopiesSeen> {
    let mut seen: Vec<(Vec<String>, CopiesSeen)> = Vec::new();
    let servers = looked
        .iter()
        .filter_map(|file| file.file.as_ref())
        .flat_map(|file| &file.servers);
    for server in servers {
        let Entry::Stdio(stdio) = &server.entry else {
            continue;
        };
        let words: Option<Vec<String>> = stdio
            .words
            .iter()
            .map(|word| word.literal().map(str::to_owned))
            .collect();
        let Some(words) = words.filter(|words| !words.is_empty()) else {
            continue;
        };
        if seen.iter().any(|(known, _)| *known == words) {
            continue;
        }
        let copies = copies_of(&server.name, &words, processes);
        seen.push((words, copies));
    }
    let is_found = |copies: &CopiesSeen| !copies.held.is_empty() || !copies.stale.is_empty();
    seen.into_iter()
        .map(|(_, copies)| copies)
        .filter(is_found)
        .collect()
}

fn copies_of(name: &str, words: &[String], processes: &[ProcessSeen]) -> CopiesSeen {
    let mut copies = CopiesSeen {
        name: name.to_owned(),
        ..CopiesSeen::default()
    };
    let is_copy = |process: &ProcessSeen| !process.is_dead && is_started_as(&process.words, words);
    let process = |pid: u32| processes.iter().find(|process| process.pid == pid);
    for found in processes.iter().filter(|process| is_copy(process)) {
        let parent = process(found.parent);
        // A runner and what it runs are one copy.
        if parent.is_some_and(is_copy) || has_ancestor(found, processes, &is_rialto) {
            continue;
        }
        let copy = CopySeen {
            pid: found.pid,
            bytes: memory_of(found, processes),
        };
        let is_stale = found.parent == 1 || parent.is_some_and(is_service_manager);
        match is_stale {
            true => copies.stale.push(copy),
            false => copies.held.push(copy),
        }
    }
    copies
}

/// Orphans become children of it.
fn is_service_manager(process: &ProcessSeen) -> bool {
    process
        .words
        .first()
        .is_some_and(|word| matches!(base(word), "systemd" | "launchd" | "init"))
}

fn is_rialto(process: &ProcessSeen) -> bool {
    process.words.first().is_some_and(|word| base(word) == "rialto")
}

fn has_ancestor(of: &ProcessSeen, processes: &[ProcessSeen], is: &dyn Fn(&ProcessSeen) -> bool) -> bool {
    let mut pid = of.parent;
    for _ in 0..processes.len() {
        let Some(parent) = processes.iter().find(|process| process.pid == pid) else {
            return false;
        };
        if is(parent) {
            return true;
        }
        pid = parent.parent;
    }
    false
}

/// Returns the memory of a process and of those below it.
fn memory_of(of: &ProcessSeen, processes: &[ProcessSeen]) -> u64 {
    let children = processes
        .iter()
        .filter(|process| process.parent == of.pid && process.pid != of.pid);
    of.resident_bytes + children.map(|child| memory_of(child, processes)).sum::<u64>()
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns whether a process was started with these words: by itself, through the interpreter of a
/// script, or as a package by its runner.
fn is_started_as(process: &[String], words: &[String]) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    let is_at = |at: usize| {
        let rest = process.get(at..).unwrap_or_default();
        rest.split_first()
            .is_some_and(|(first, rest)| base(first) == base(program) && rest == arguments)
    };
    if is_at(0) || (process.len() > 1 && is_at(1)) {
        return true;
    }
    let package = arguments.iter().find(|argument| !argument.starts_with('-'));
    let (runner, package) = match (base(program), package) {
        ("npx", Some(package)) => ("npm exec ", package),
        ("uvx", Some(package)) => ("uv tool uvx ", package),
        _ => return false,
    };
    // A runner may show its whole command line as one word.
    let shown = process.join(" ");
    let shown = shown.rsplit_once('/').map_or(shown.as_str(), |_| &shown);
    shown.contains(runner) && shown.split(' ').any(|word| word == package)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, line: &str) -> ProcessSeen {
        ProcessSeen {
            pid,
            parent,
            words: line.split(' ').map(str::to_owned).collect(),
            resident_bytes: 10,
            ..ProcessSeen::default()
        }
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn processes_are_known_by_the_words_they_were_started_with() {
        for (shown, started, expected) in [
            ("/usr/bin/server --x", "server --x", true),
            ("/bin/sh /opt/server --x", "/opt/server --x", true),
            ("server --y", "server --x", false),
            ("npm exec @a/b --root /x", "npx -y @a/b --root /x", true),
            ("npm exec @a/bc", "npx -y @a/b", false),
            ("/usr/bin/uv tool uvx mcp-x", "uvx mcp-x", true),
            ("vi server", "node server", false),
        ] {
            assert_eq!(is_started_as(&words(shown), &words(started)), expected, "{shown}");
        }
    }

    #[test]
    fn copies_are_held_stale_or_of_rialto() {
        let processes = [
            process(10, 1, "/opt/cursor"),
            process(11, 10, "server --x"),
            process(12, 11, "helper"),
            process(13, 1, "server --x"),
            process(20, 1, "/usr/lib/systemd/systemd --user"),
            process(21, 20, "server --x"),
            process(30, 1, "/usr/bin/rialto serve"),
            process(31, 30, "server --x"),
            process(40, 10, "npm exec p"),
            process(41, 40, "npx -y p"),
        ];
        let seen = copies_of("a", &words("server --x"), &processes);
        assert_eq!(seen.held, [CopySeen { pid: 11, bytes: 20 }]);
        let stale: Vec<u32> = seen.stale.iter().map(|copy| copy.pid).collect();
        assert_eq!(stale, [13, 21]);
        let runner = copies_of("p", &words("npx -y p"), &processes);
        assert_eq!(runner.held, [CopySeen { pid: 40, bytes: 20 }]);
    }
}
