//! The files of hosts, their entries, and the copies of servers that run now.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::doctor::finding::{Cure, Finding, Fix, Group, Report, Weight};
use crate::terminal::text::size;

/// What was observed of a file of a host.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSeen {
    pub(crate) host: String,
    /// What the command line calls the host.
    pub(crate) id: String,
    pub(crate) shown: String,
    pub(crate) path: PathBuf,
    /// Others may read it, by its mode.
    pub(crate) is_open: bool,
    /// It belongs to a project, so that others share it.
    pub(crate) is_shared: bool,
    /// Why it cannot be read.
    pub(crate) failure: Option<String>,
    /// The key that has servers, and the key that the host reads.
    pub(crate) wrong_key: Option<WrongKey>,
    /// Keys that stand twice, with their lines.
    pub(crate) repeated: Vec<(String, u64)>,
    /// Files of the host that are not read because of this one.
    pub(crate) shadowed: Vec<ShadowedFile>,
    pub(crate) entries: Vec<EntrySeen>,
}

/// Servers under the key of another host.
#[derive(Debug, Clone)]
pub(crate) struct WrongKey {
    pub(crate) found: &'static str,
    pub(crate) read: String,
    /// The key to write instead, if only the name is wrong.
    pub(crate) renamed: Option<&'static str>,
}

/// A file that its host does not read.
#[derive(Debug, Clone)]
pub(crate) struct ShadowedFile {
    pub(crate) shown: String,
    /// How many servers it has.
    pub(crate) servers: usize,
}

/// An entry of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct EntrySeen {
    pub(crate) name: String,
    pub(crate) line: u64,
    /// What tells equal servers: empty for those that cannot be compared.
    pub(crate) identity: String,
    /// It starts a program, and not Rialto.
    pub(crate) is_stdio: bool,
    /// Why it cannot be used.
    pub(crate) unusable: Option<String>,
    /// Names of the values that are secrets and stand in the clear.
    pub(crate) secrets: Vec<String>,
    /// Absolute paths of this machine.
    pub(crate) paths: Vec<String>,
}

/// The copies of one server that run now, outside of Rialto.
#[derive(Debug, Clone, Default)]
pub(crate) struct CopiesSeen {
    pub(crate) name: String,
    /// Those that a living program has started.
    pub(crate) held: Vec<CopySeen>,
    /// Those whose host has gone.
    pub(crate) stale: Vec<CopySeen>,
}

/// A process with its children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CopySeen {
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
}

/// Judges the files of hosts.
pub(crate) fn judge(files: &[FileSeen], copies: &[CopiesSeen]) -> Report {
    let mut report = Report::default();
    for file in files {
        judge_file(file, &mut report);
    }
    judge_duplicates(files, &mut report);
    for copies in copies {
        judge_copies(copies, &mut report);
    }
    report
}

fn judge_file(file: &FileSeen, report: &mut Report) {
    let at = (Group::Hosts, file.host.as_str());
    let shown = &file.shown;
    if let Some(why) = &file.failure {
        return report.find(Finding::new(
            at,
            ("file_unreadable", Weight::Act),
            format!("cannot use {shown}: {why}"),
            "the host then starts no server at all, mostly without a word",
            Cure::Do(format!("correct {shown}")),
        ));
    }
    let names: Vec<String> = file.entries.iter().map(|entry| entry.name.clone()).collect();
    let named = match names.is_empty() {
        true => String::new(),
        false => format!(": {}", super::machine::list(&names)),
    };
    report.fact(
        Group::Hosts,
        &file.host,
        format!("{shown}, {}{named}", plural(names.len(), "server")),
    );
    for (key, line) in &file.repeated {
        report.find(Finding::new(
            at,
            ("key_twice", Weight::Act),
            format!("has the key `{key}` twice, the second time at {shown}:{line}"),
            "one of both is ignored, and which one depends on the host",
            Cure::Do(format!("keep one of them in {shown}")),
        ));
    }
    if let Some(wrong) = &file.wrong_key {
        let finding = Finding::new(
            at,
            ("wrong_key", Weight::Act),
            format!(
                "has servers under `{}` in {shown}, and reads `{}`",
                wrong.found, wrong.read
            ),
            "the host does not see these servers",
            match wrong.renamed {
                Some(_) => Cure::Run(format!("rialto doctor {} --fix", file.id)),
                None => Cure::Do(format!("rename the key in {shown}")),
            },
        );
        report.find(match wrong.renamed {
            Some(to) => finding.fixed_by(Fix::RenameKey {
                file: file.path.clone(),
                from: wrong.found,
                to,
            }),
            None => finding,
        });
    }
    for shadowed in &file.shadowed {
        report.find(Finding::new(
            at,
            ("file_shadowed", Weight::Act),
            format!(
                "does not read {} with {}, because {shown} exists",
                shadowed.shown,
                plural(shadowed.servers, "server")
            ),
            "of several files the host reads the first one",
            Cure::Do(format!(
                "move the servers to {shown}, and remove {}",
                shadowed.shown
            )),
        ));
    }
    judge_entries(file, report);
}

fn judge_entries(file: &FileSeen, report: &mut Report) {
    let at = (Group::Hosts, file.host.as_str());
    let shown = &file.shown;
    for entry in &file.entries {
        if let Some(why) = &entry.unusable {
            report.find(Finding::new(
                at,
                ("entry_unusable", Weight::Act),
                format!(
                    "has an entry that cannot be used, at {shown}:{}: `{}` {why}",
                    entry.line, entry.name
                ),
                "the host starts nothing for it",
                Cure::Do(format!("correct or remove `{}` in {shown}", entry.name)),
            ));
        }
        if file.is_shared && !entry.paths.is_empty() {
            report.find(Finding::new(
                at,
                ("path_in_shared_file", Weight::Note),
                format!(
                    "has a path of this machine in {shown}:{}, a file that others share: {}",
                    entry.line,
                    entry.paths.join(", ")
                ),
                "on another machine the path leads nowhere",
                Cure::Do("write ${workspaceFolder}, ${HOME} or the bare name of the program".into()),
            ));
        }
    }
    let secret: Vec<String> = file
        .entries
        .iter()
        .flat_map(|entry| {
            entry
                .secrets
                .iter()
                .map(move |name| format!("{} of {}", name, entry.name))
        })
        .collect();
    if secret.is_empty() {
        return;
    }
    let names = super::machine::list(&secret);
    if file.is_shared {
        report.find(Finding::new(
            at,
            ("secret_in_shared_file", Weight::Act),
            format!("has secrets in {shown}, a file that others share: {names}"),
            "they reach the repository, and each of its copies",
            Cure::Do(format!(
                "write ${{NAME}} in {shown}, set the variable, and replace the secret"
            )),
        ));
    }
    if file.is_open {
        let finding = Finding::new(
            at,
            ("secret_readable", Weight::Act),
            format!("has secrets in {shown}, which other users of this machine can read: {names}"),
            "the mode of the file lets them",
            Cure::Run(format!("chmod 600 {}", quoted(shown))),
        );
        report.find(finding.fixed_by(Fix::Close(file.path.clone())));
    }
}

fn judge_duplicates(files: &[FileSeen], report: &mut Report) {
    let mut hosts: BTreeMap<&str, (&str, Vec<&str>)> = BTreeMap::new();
    for file in files {
        for entry in file
            .entries
            .iter()
            .filter(|entry| entry.is_stdio && !entry.identity.is_empty())
        {
            let (_, names) = hosts.entry(&entry.identity).or_insert((&entry.name, Vec::new()));
            if !names.contains(&file.host.as_str()) {
                names.push(&file.host);
            }
        }
    }
    let several: Vec<(&str, Vec<&str>)> = hosts.into_values().filter(|(_, hosts)| hosts.len() > 1).collect();
    let Some((first, among)) = several.first() else {
        return;
    };
    let more = match several.len() {
        1 => String::new(),
        count => format!(", and {} more", plural(count - 1, "server")),
    };
    report.find(Finding::new(
        (Group::Hosts, first),
        ("server_in_several_hosts", Weight::Note),
        format!("is started by each of {}{more}", among.join(", ")),
        "each session of each host runs a copy of its own",
        Cure::Run("rialto adopt --dry-run".into()),
    ));
}

fn judge_copies(copies: &CopiesSeen, report: &mut Report) {
    let at = (Group::Hosts, copies.name.as_str());
    let memory = |copies: &[CopySeen]| size(copies.iter().map(|copy| copy.bytes).sum());
    if !copies.stale.is_empty() {
        let pids: Vec<String> = copies.stale.iter().map(|copy| copy.pid.to_string()).collect();
        report.find(Finding::new(
            at,
            ("stale_copies", Weight::Act),
            format!(
                "has {} whose host has gone, with {} of memory",
                copies_of(copies.stale.len()),
                memory(&copies.stale)
            ),
            "no program uses or ends them any more",
            Cure::Run(format!("kill {}", pids.join(" "))),
        ));
    }
    match copies.held.len() {
        0 => {}
        1 => {
            let text = format!("1 copy runs now, {}", memory(&copies.held));
            report.fact(Group::Hosts, &copies.name, text);
        }
        count => report.find(Finding::new(
            at,
            ("several_copies", Weight::Note),
            format!("runs {count} times now, with {} of memory", memory(&copies.held)),
            "each session of a host has started a copy of its own",
            Cure::Run("rialto adopt --dry-run    # one copy for all".into()),
        )),
    }
}

fn copies_of(count: usize) -> String {
    match count {
        1 => "1 copy".to_owned(),
        count => format!("{count} copies"),
    }
}

fn plural(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Returns a path for the shell. `~` stays outside of quotes, where the shell replaces it.
pub(crate) fn quoted(shown: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-~".contains(c);
    if shown.chars().all(is_plain) {
        return shown.to_owned();
    }
    match shown.strip_prefix("~/") {
        Some(below) => format!("~/'{}'", below.replace('\'', "'\\''")),
        None => format!("'{}'", shown.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(files: &[FileSeen], copies: &[CopiesSeen]) -> Vec<&'static str> {
        judge(files, copies)
            .findings
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    fn file(host: &str) -> FileSeen {
        FileSeen {
            host: host.into(),
            id: host.to_lowercase(),
            shown: format!("~/.{host}/mcp.json"),
            entries: vec![EntrySeen {
                name: "a".into(),
                line: 3,
                identity: host.into(),
                is_stdio: true,
                ..EntrySeen::default()
            }],
            ..FileSeen::default()
        }
    }

    #[test]
    fn good_files_have_facts_only() {
        let report = judge(&[file("Cursor"), file("Codex")], &[]);
        assert!(report.findings.is_empty(), "{report:?}");
        assert_eq!(report.facts[0].text, "~/.Cursor/mcp.json, 1 server: a");
    }

    #[test]
    fn each_fault_of_a_file_is_named() {
        let broken = FileSeen {
            failure: Some("line 3: not valid JSON".into()),
            ..file("Cursor")
        };
        assert_eq!(ids(&[broken], &[]), ["file_unreadable"]);
        let wrong = FileSeen {
            wrong_key: Some(WrongKey {
                found: "mcpServers",
                read: "servers".into(),
                renamed: Some("servers"),
            }),
            ..file("VS Code")
        };
        let found = judge(&[wrong], &[]).findings.remove(0);
        assert_eq!(found.id, "wrong_key");
        assert!(found.fix.is_some());
        let shadowed = FileSeen {
            shadowed: vec![ShadowedFile {
                shown: "opencode.json".into(),
                servers: 2,
            }],
            repeated: vec![("a".into(), 7)],
            ..file("OpenCode")
        };
        assert_eq!(ids(&[shadowed], &[]), ["key_twice", "file_shadowed"]);
    }

    #[test]
    fn secrets_matter_where_others_can_read_them() {
        let with = |is_open, is_shared| {
            let mut file = FileSeen {
                is_open,
                is_shared,
                ..file("Cursor")
            };
            file.entries[0].secrets = vec!["API_KEY".into()];
            file
        };
        assert!(ids(&[with(false, false)], &[]).is_empty());
        assert_eq!(ids(&[with(true, false)], &[]), ["secret_readable"]);
        assert_eq!(ids(&[with(false, true)], &[]), ["secret_in_shared_file"]);
    }

    #[test]
    fn equal_servers_of_several_hosts_are_one_note() {
        let mut other = file("Codex");
        other.entries[0].identity = "Cursor".into();
        let report = judge(&[file("Cursor"), other], &[]);
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].what, "is started by each of Cursor, Codex");
        assert_eq!(report.exit_code(), 0);
    }

    #[test]
    fn copies_are_counted_and_stale_ones_end() {
        let copy = |pid| CopySeen {
            pid,
            bytes: 50_000_000,
        };
        let copies = CopiesSeen {
            name: "a".into(),
            held: vec![copy(1), copy(2)],
            stale: vec![copy(7), copy(8)],
        };
        let report = judge(&[], &[copies]);
        assert_eq!(report.findings[0].cure, Cure::Run("kill 7 8".into()));
        assert!(
            report.findings[0]
                .what
                .contains("2 copies whose host has gone, with 100 MB")
        );
        assert_eq!(report.findings[1].id, "several_copies");
        let alone = CopiesSeen {
            held: vec![copy(1)],
            ..CopiesSeen::default()
        };
        assert!(ids(&[], &[alone]).is_empty());
    }

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(quoted("~/.cursor/mcp.json"), "~/.cursor/mcp.json");
        assert_eq!(quoted("~/a b/it's"), "~/'a b/it'\\''s'");
        assert_eq!(quoted("/a b"), "'/a b'");
    }
}
