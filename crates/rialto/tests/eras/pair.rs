//! One client in front of one server, played once however many tests want to know what was seen.
//!
//! Hides the commands, the configuration and the end of Rialto. A pair that cannot be played to its end, or that
//! leaves a process behind, fails every cell of it.

use std::collections::BTreeMap;
use std::panic;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::Rialto;
use testkit::interop::test_deps;

use crate::client::{Client, LEGACY};
use crate::sdk::player;

/// A child that ignores SIGTERM is killed after five seconds; Rialto must be gone soon after that.
const END_DEADLINE: Duration = Duration::from_secs(15);

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
    /// The same program; the SDK cannot be told to refuse an era, so Rialto is told to use only one.
    Python2Modern,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) client: Client,
    pub(crate) server: Server,
}

/// By scenario what the client saw, or why there is nothing to see.
type Played = Result<Value, String>;

impl Server {
    fn destination(self) -> Value {
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
    /// The era in which the server must have been spoken to: the client's own where the server has it.
    pub(crate) fn server_era(self) -> &'static str {
        match (self.server, self.client.version()) {
            (Server::TypeScript1 | Server::Python1, _) => "legacy",
            (Server::TypeScript2Modern | Server::Python2Modern, _) => "modern",
            (Server::TypeScript2Dual | Server::Python2Dual, LEGACY) => "legacy",
            (Server::TypeScript2Dual | Server::Python2Dual, _) => "modern",
        }
    }

    /// What a caller is told whose call was lost because the server ended.
    pub(crate) fn lost_call(self) -> &'static str {
        "the server ended while it worked on the request"
    }

    /// What the client saw in a scenario.
    ///
    /// # Panics
    /// When the pair could not be played, or the client failed in this scenario.
    pub(crate) fn seen_in(self, scenario: &str) -> Value {
        let played = self.played();
        let seen = match played.get_or_init(|| self.play()) {
            Ok(seen) => &seen[scenario],
            Err(why) => panic!("the pair could not be played: {why}"),
        };
        match seen.get("error") {
            Some(error) => panic!(
                "the client failed in {scenario}: {}",
                error.as_str().unwrap_or_default()
            ),
            None => seen.clone(),
        }
    }

    fn played(self) -> Arc<OnceLock<Played>> {
        static STAGES: Mutex<BTreeMap<Pair, Arc<OnceLock<Played>>>> = Mutex::new(BTreeMap::new());
        let mut stages = STAGES.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(stages.entry(self).or_default())
    }

    fn play(self) -> Played {
        // A panic here, such as that of a Rialto that leaves a child behind, is for every cell of the pair.
        panic::catch_unwind(|| self.play_once())
            .unwrap_or_else(|_| Err("see the panic of the test that played it".to_owned()))
    }

    fn play_once(self) -> Played {
        // JSON is YAML too, and quotes whatever a path may contain.
        let file = json!({"destinations": {"server": self.server.destination()}}).to_string();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let launcher = Rialto::launcher().config(&file);
        let rialto = runtime
            .block_on(launcher.start())
            .map_err(|failure| failure.to_string())?;
        let (sdk, era) = self.client.sdk();
        let seen = player("eras", sdk, era)(&rialto.url_of("server"), "all")?;
        rialto.sigterm();
        let status = runtime.block_on(rialto.wait(END_DEADLINE));
        if status.success() {
            Ok(seen)
        } else {
            Err(format!("rialto ended with {status}"))
        }
    }
}
