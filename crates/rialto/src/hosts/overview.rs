//! What the page shows of the hosts of this machine: which there are, where their entries lead, and
//! what `rialto doctor` finds in their files.
//!
//! Arguments, variables and headers of entries may hold secrets. None of them is shown.

use gateway::SetUp;
use serde_json::{Value, json};

use super::entry::{Entry, Transport};
use super::found::{self, HostFile};
use super::location::{Surroundings, System};
use super::program::Program;
use super::servers::Server;
use super::shape::{self, Address};
use super::table::{HOSTS, Host};
use crate::config::Environment;

/// What stands for a destination and for its address in a snippet.
const NAME: &str = "NAME";
const URL: &str = "URL";
/// What stands where a token goes.
const TOKEN: &str = "<your token>";

/// Judges the files of hosts. Returns findings, as `rialto doctor --json` has them.
pub(crate) type Judge = fn(&Surroundings<'_>) -> Value;

/// The hosts of the user that this process belongs to.
#[derive(Debug)]
pub(crate) struct OwnHosts {
    environment: Environment,
    judge: Judge,
}

impl OwnHosts {
    pub(crate) fn of(environment: &Environment, judge: Judge) -> Self {
        Self {
            environment: environment.clone(),
            judge,
        }
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            system: System::own(),
            environment: &self.environment,
        }
    }
}

impl SetUp for OwnHosts {
    fn look(&self) -> Value {
        let surroundings = self.surroundings();
        let found = found::of_hosts(&[], None, &surroundings);
        let hosts = found.files.iter().map(|file| host(file, &surroundings));
        json!({
            "hosts": hosts.collect::<Vec<_>>(),
            "findings": (self.judge)(&surroundings),
        })
    }

    fn snippets(&self, needs_token: bool) -> Value {
        let surroundings = self.surroundings();
        let program = Program::own(&self.environment);
        let snippet = |host: &&'static Host| {
            let program = program.written(host, false);
            let files = surroundings.user_files(host);
            json!({
                "host": host.id,
                "title": host.title,
                "file": files.first().map(|path| surroundings.shown(path)),
                "text": snippet(host, &program, needs_token),
            })
        };
        HOSTS.iter().map(snippet).collect()
    }
}

/// Returns one file of a host.
fn host(file: &HostFile, surroundings: &Surroundings<'_>) -> Value {
    let servers = file.servers.iter().map(|server| entry(server, surroundings));
    json!({
        "host": file.host.id,
        "title": file.host.title,
        "path": surroundings.shown(&file.path),
        "servers": servers.collect::<Vec<_>>(),
    })
}

/// Returns where an entry leads.
fn entry(server: &Server, surroundings: &Surroundings<'_>) -> Value {
    let (kind, points_at) = match &server.entry {
        Entry::Stdio(stdio) => {
            let program = stdio.words.first().and_then(|word| word.literal());
            let program = program.and_then(|program| program.split_whitespace().next());
            ("stdio", program.map(|program| last_part(program).to_owned()))
        }
        Entry::Remote(remote) => {
            let url = remote.url.literal().and_then(|url| url::Url::parse(url).ok());
            ("remote", url.map(|url| url.origin().ascii_serialization()))
        }
        Entry::Rialto { is_attached: true } => ("rialto", Some("the local service".to_owned())),
        Entry::Rialto { is_attached: false } => ("rialto", Some("Rialto".to_owned())),
        Entry::Unusable(why) => ("unusable", Some(why.clone())),
    };
    let project = server.project.as_ref();
    json!({
        "name": server.name,
        "kind": kind,
        "points_at": points_at,
        "project": project.map(|path| surroundings.shown(path)),
    })
}

fn last_part(program: &str) -> &str {
    program.rsplit(['/', '\\']).next().unwrap_or(program)
}

/// Returns what to paste into a host for a destination.
fn snippet(host: &Host, program: &str, needs_token: bool) -> String {
    let headers = match needs_token {
        true => vec![("Authorization".to_owned(), format!("Bearer {TOKEN}"))],
        false => Vec::new(),
    };
    let address = Address {
        url: URL,
        transport: Transport::Http,
        headers: &headers,
    };
    let entry = shape::remote(host, NAME, &address).unwrap_or_else(|| {
        let words = [program, "connect", URL].map(str::to_owned);
        let env = match needs_token {
            true => vec![("BEARER_TOKEN".to_owned(), TOKEN.to_owned())],
            false => Vec::new(),
        };
        shape::stdio(host, NAME, &words, &env)
    });
    shape::pasted(host, &[(NAME.to_owned(), entry)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overview_has_names_and_programs_and_no_arguments_or_variables() {
        let home = tempfile::tempdir().expect("a directory");
        let cursor = home.path().join(".cursor");
        std::fs::create_dir(&cursor).expect("made");
        let text = r#"{ "mcpServers": {
            "files": { "command": "/usr/bin/npx", "args": ["--key", "geheim"], "env": { "TOKEN": "geheim" } },
            "web": { "url": "https://user:geheim@mcp.example.com/mcp?key=geheim" } } }"#;
        std::fs::write(cursor.join("mcp.json"), text).expect("written");
        let home = home.path().to_str().expect("text");
        let hosts = OwnHosts::of(&[("HOME", home)].into_iter().collect(), |_| json!([]));
        let shown = hosts.look();
        assert!(!shown.to_string().contains("geheim"), "{shown}");
        let servers = &shown["hosts"][0]["servers"];
        assert_eq!(servers[0]["points_at"], "npx", "{shown}");
        assert_eq!(servers[1]["points_at"], "https://mcp.example.com", "{shown}");
        let snippets = hosts.snippets(true);
        for snippet in snippets.as_array().expect("a list") {
            let text = snippet["text"].as_str().expect("a text");
            assert!(text.contains(URL) && text.contains(TOKEN), "{text}");
        }
    }
}
