//! One client in front of one server that is reached over HTTP.
//!
//! Names the cells that do not exist, and why: what a server cannot do over HTTP without a bridge,
//! no bridge can do.

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use super::Expected;
use super::client::Client;
use super::stages::{Played, Stages};
use crate::interop::{RemoteServer, test_deps};
use crate::revision::LEGACY;

mod cells;

/// The 2.x lines are legacy clients too, but as such they send what the 1.x lines send; the test
/// `eras` has them.
const CLIENTS: [Client; 4] = [
    Client::TypeScript1,
    Client::TypeScript2Modern,
    Client::Python1,
    Client::Python2Modern,
];
const SERVERS: [Server; 7] = [
    Server::TypeScript1Stateful,
    Server::TypeScript1Stateless,
    Server::TypeScript1Sse,
    Server::TypeScript2Modern,
    Server::TypeScript2Dual,
    Server::Python1,
    Server::Python2,
];

/// In the order in which clients play them.
const SCENARIOS: [&str; 11] = [
    "roots_at_start",
    "call",
    "progress",
    "two_elicitations",
    "sampling",
    "roots_in_a_call",
    "list_changed",
    "resource_update",
    "logs",
    "restart",
    "cancellation",
];

/// A server written with an official SDK, reached over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    TypeScript1Stateful,
    TypeScript1Stateless,
    /// The old transport with two endpoints.
    TypeScript1Sse,
    /// It refuses the legacy era.
    TypeScript2Modern,
    /// What it does by default: the legacy era without sessions.
    TypeScript2Dual,
    Python1,
    /// Sessions for the legacy era, none for the modern one.
    Python2,
}

/// How a client is brought to a server: pair, origin of the server and scenarios in, observations
/// out.
pub type Road = fn(Pair, &str, &str) -> Played;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub client: Client,
    pub server: Server,
}

impl Server {
    fn command(self) -> Vec<OsString> {
        let packages = test_deps();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/servers");
        let node = |file: &str, words: &[&str]| {
            let mut command: Vec<OsString> =
                vec!["node".into(), folder.join(file).into(), packages.clone().into()];
            command.extend(words.iter().map(OsString::from));
            command
        };
        let python = |environment: &str, file: &str| {
            let interpreter = packages.join(environment).join("bin/python");
            vec![interpreter.into(), folder.join(file).into(), "http".into()]
        };
        match self {
            Server::TypeScript1Stateful => node("ts1.mjs", &["stateful"]),
            Server::TypeScript1Stateless => node("ts1.mjs", &["stateless"]),
            Server::TypeScript1Sse => node("ts1.mjs", &["sse"]),
            Server::TypeScript2Modern => node("ts2.mjs", &["modern", "http"]),
            Server::TypeScript2Dual => node("ts2.mjs", &["both", "http"]),
            Server::Python1 => python("python1", "py1.py"),
            Server::Python2 => python("python2", "py2.py"),
        }
    }
}

impl Pair {
    /// What a judge must find.
    pub fn expected(self) -> Expected {
        Expected {
            version: self.client.version(),
            server_era: self.server_era(),
            lost_call: "the server ended its event stream",
        }
    }

    fn server_era(self) -> &'static str {
        match (self.server, self.client.version()) {
            (
                Server::TypeScript1Stateful
                | Server::TypeScript1Stateless
                | Server::TypeScript1Sse
                | Server::Python1,
                _,
            ) => "legacy",
            (Server::TypeScript2Modern, _) => "modern",
            (Server::TypeScript2Dual | Server::Python2, LEGACY) => "legacy",
            (Server::TypeScript2Dual | Server::Python2, _) => "modern",
        }
    }

    /// Whether the server answers in this pair without keeping a session.
    fn is_stateless(self) -> bool {
        match self.server {
            Server::TypeScript1Stateless => true,
            Server::TypeScript2Dual => self.server_era() == "legacy",
            Server::TypeScript1Stateful
            | Server::TypeScript1Sse
            | Server::TypeScript2Modern
            | Server::Python1
            | Server::Python2 => false,
        }
    }

    /// Why there is no such cell, with or without a bridge.
    pub fn objection(self, scenario: &str) -> Option<&'static str> {
        if scenario == "logs" && self.server == Server::TypeScript1Stateful && self.client.version() != LEGACY
        {
            return Some("it logs on a stream that belongs to no call, and a modern client has none");
        }
        if !self.is_stateless() {
            return None;
        }
        match scenario {
            "two_elicitations" | "sampling" | "roots_in_a_call" | "roots_at_start" => {
                Some("an answer is a request of its own, and reaches another instance")
            }
            "list_changed" | "resource_update" => Some("it has no stream for unsolicited messages"),
            "logs" => Some("it forgets the level that was set"),
            "cancellation" => Some("the cancellation reaches another instance"),
            _ => None,
        }
    }

    fn playable(self) -> Vec<&'static str> {
        let possible = |scenario: &&'static str| self.objection(scenario).is_none();
        SCENARIOS.into_iter().filter(possible).collect()
    }

    /// Returns what the client saw in a scenario.
    ///
    /// # Panics
    /// When the pair could not be played, or the client failed in this scenario.
    pub fn seen_in(self, scenario: &str, road: Road) -> Value {
        static STAGES: Stages<Pair> = Stages::new();
        STAGES.seen_in(self, scenario, || {
            let server =
                RemoteServer::start(&self.server.command()).map_err(|failure| failure.to_string())?;
            road(self, &server.origin(), &self.playable().join(","))
        })
    }
}

/// Returns how many cells cannot exist.
pub fn missing_cells() -> usize {
    let pairs = CLIENTS
        .into_iter()
        .flat_map(|client| SERVERS.map(|server| Pair { client, server }));
    let missing = |pair: Pair| {
        let objections = SCENARIOS
            .iter()
            .filter(move |scenario| pair.objection(scenario).is_some());
        objections.count()
    };
    pairs.map(missing).sum()
}
