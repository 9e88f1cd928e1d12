//! One client in front of one server that Rialto starts.

use std::path::Path;

use serde_json::{Value, json};
use testkit::eras::{Client, Expected, Stages, through_serve};
use testkit::interop::test_deps;

/// A server written with an official SDK, and the eras it speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Server {
    /// Legacy only.
    TypeScript1,
    /// It refuses the legacy era.
    TypeScript2Modern,
    TypeScript2Dual,
    /// Legacy only.
    Python1,
    Python2Dual,
    /// The same program; the SDK cannot refuse an era, so Rialto is configured to use only one.
    Python2Modern,
}

/// The members of an aggregate of all kinds: both eras, both languages.
const MEMBERS: [(&str, Server); 3] = [
    ("typescript-1", Server::TypeScript1),
    ("typescript-2", Server::TypeScript2Modern),
    ("python-1", Server::Python1),
];
/// What the member is called whose questions the client answers.
const TITLE: &str = "The one that asks";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) client: Client,
    pub(crate) server: Server,
}

impl Server {
    pub(crate) fn destination(self) -> Value {
        let packages = test_deps();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/servers");
        let file = |name: &str| folder.join(name);
        let python = |environment: &str| packages.join(environment).join("bin/python");
        match self {
            Server::TypeScript1 => json!({"command": "node", "args": [file("ts1.mjs"), packages]}),
            Server::TypeScript2Modern => {
                json!({"command": "node", "args": [file("ts2.mjs"), packages, "modern"]})
            }
            Server::TypeScript2Dual => {
                json!({"command": "node", "args": [file("ts2.mjs"), packages, "both"]})
            }
            Server::Python1 => json!({"command": python("python1"), "args": [file("py1.py")]}),
            Server::Python2Dual => json!({"command": python("python2"), "args": [file("py2.py")]}),
            Server::Python2Modern => {
                json!({"command": python("python2"), "args": [file("py2.py")], "era": "modern"})
            }
        }
    }
}

impl Pair {
    /// What a judge must find.
    pub(crate) fn expected(self) -> Expected {
        Expected {
            version: self.client.version(),
            server_era: self.server_era(),
            lost_call: "the server ended while it worked on the request",
        }
    }

    /// The era in which the server must have been used: all clients share it, so it is the modern
    /// one where the server has it.
    fn server_era(self) -> &'static str {
        match self.server {
            Server::TypeScript1 | Server::Python1 => "legacy",
            Server::TypeScript2Modern
            | Server::Python2Modern
            | Server::TypeScript2Dual
            | Server::Python2Dual => "modern",
        }
    }

    /// What the client saw in a scenario in front of an aggregate of servers of all kinds, of which
    /// this pair's is shown under its own names.
    ///
    /// # Panics
    /// When the pair could not be played, or the client failed in this scenario.
    pub(crate) fn seen_through_an_aggregate_in(self, scenario: &str) -> Value {
        static STAGES: Stages<Pair> = Stages::new();
        // Without `roots_at_start`: members are read before any client comes, so that their start
        // belongs to none.
        const PLAYED: &str = "call,progress,two_elicitations,sampling,roots_in_a_call,list_changed,resource_update,logs,restart,cancellation";
        let mut seen = STAGES.seen_in(self, scenario, || {
            let (mut destinations, mut members) = (json!({}), json!({}));
            for (name, server) in MEMBERS {
                destinations[name] = server.destination();
                members[name] = match server == self.server {
                    true => json!({"prefix": "", "title": TITLE}),
                    false => json!({}),
                };
            }
            through_serve::play_aggregate(self.client, &destinations, &json!({"members": members}), PLAYED)
        });
        // Other members may have become known meanwhile.
        if let Some(added) = seen["added"].as_array_mut() {
            added.retain(|name| !name.as_str().is_some_and(|name| name.contains("__")));
        }
        // What users are asked names the member that asks.
        for asked in seen["asked"].as_array_mut().into_iter().flatten() {
            let text = asked
                .as_str()
                .and_then(|text| text.strip_prefix(&format!("[{TITLE}] ")));
            if let Some(text) = text {
                *asked = text.into();
            }
        }
        seen
    }

    /// What the client saw in a scenario.
    ///
    /// # Panics
    /// When the pair could not be played, or the client failed in this scenario.
    pub(crate) fn seen_in(self, scenario: &str) -> Value {
        static STAGES: Stages<Pair> = Stages::new();
        STAGES.seen_in(self, scenario, || {
            through_serve::play(self.client, &self.server.destination(), "all")
        })
    }
}
