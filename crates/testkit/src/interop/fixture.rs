//! The real binary with a real server behind it, set up for one scenario and taken down after it.
//!
//! Hides where the server's package is. It refuses to leave anything running: a Rialto that does
//! not end well, and a child that outlives it, fail the test.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{FleetConfig, Front, Served};
use crate::rialto::{Launcher, Rialto, binary};

/// A child that ignores SIGTERM is killed after five seconds; Rialto must be gone soon after that.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// A running `rialto serve`, or a fleet of them, with one server behind it.
#[derive(Debug)]
pub struct Fixture {
    served: Served,
    url: String,
    /// Whether the server stays when its last session has ended.
    keeps_its_server: bool,
}

impl Fixture {
    /// server-everything, one process for all sessions.
    pub fn everything() -> Self {
        Self::of_command(&[], &["node", &server_file(), "stdio"])
    }

    /// The built-in demo server, which can do what server-everything cannot.
    pub fn demo() -> Self {
        let rialto = binary("rialto");
        let demo = [&rialto.to_string_lossy(), "demo-server", "--era", "legacy"];
        Self::of_command(&[], &demo)
    }

    /// The demo server, with room for ten sessions.
    pub fn demo_with_ten_sessions() -> Self {
        let rialto = binary("rialto");
        let launcher = Rialto::launcher().env("MAX_STDIO_CONNECTIONS", "10").args(&[
            "--",
            &rialto.to_string_lossy(),
            "demo-server",
            "--era",
            "legacy",
        ]);
        Self::start(launcher, Rialto::url)
    }

    /// The demo server, one process for each session; ten of them at once is the default.
    pub fn demo_per_session() -> Self {
        let rialto = binary("rialto");
        let demo = [&rialto.to_string_lossy(), "demo-server", "--era", "legacy"];
        let mut fixture = Self::of_command(&["--process", "per_session"], &demo);
        fixture.keeps_its_server = false;
        fixture
    }

    /// server-everything, started as its documentation shows. The package is found in the folder it
    /// is started in, so nothing is downloaded.
    pub fn everything_by_npx() -> Self {
        Self::of_destination(json!({
            "command": "npx",
            "args": ["-y", "--offline", "@modelcontextprotocol/server-everything", "stdio"],
            "cwd": test_deps().join("node"),
        }))
    }

    /// server-everything, one process for each session.
    pub fn everything_per_session() -> Self {
        let mut fixture = Self::of_destination(json!({
            "command": "node",
            "args": [server_file(), "stdio"],
            "process": "per_session",
        }));
        fixture.keeps_its_server = false;
        fixture
    }

    /// server-everything for clients of the old transport.
    pub fn everything_by_old_sse() -> Self {
        Self::by_old_sse(json!({"command": "node", "args": [server_file(), "stdio"], "legacy_sse": true}))
    }

    /// The demo server, likewise.
    pub fn demo_by_old_sse() -> Self {
        let rialto = binary("rialto");
        Self::by_old_sse(json!({
            "command": rialto.to_string_lossy(),
            "args": ["demo-server", "--era", "legacy"],
            "legacy_sse": true,
        }))
    }

    /// server-everything behind three replicas and the balancer.
    pub fn everything_in_a_fleet() -> Self {
        Self::in_a_fleet(&everything(), Front::Balancer)
    }

    /// The demo server, likewise.
    pub fn demo_in_a_fleet() -> Self {
        let rialto = binary("rialto");
        let demo = json!({"command": rialto.to_string_lossy(), "args": ["demo-server", "--era", "legacy"]});
        Self::in_a_fleet(&demo, Front::Balancer)
    }

    /// server-everything behind three replicas and the balancer, one process for each session.
    pub fn everything_per_session_in_a_fleet() -> Self {
        let mut destination = everything();
        destination["process"] = "per_session".into();
        let mut fixture = Self::in_a_fleet(&destination, Front::Balancer);
        fixture.keeps_its_server = false;
        fixture
    }

    /// server-everything behind three replicas and the balancer, for clients of the old transport.
    pub fn everything_by_old_sse_in_a_fleet() -> Self {
        let mut destination = everything();
        destination["legacy_sse"] = true.into();
        let mut fixture = Self::in_a_fleet(&destination, Front::Balancer);
        fixture.url = fixture.url.replace("/mcp", "/sse");
        fixture
    }

    /// server-everything behind three replicas and nginx.
    pub fn everything_behind_nginx() -> Self {
        Self::in_a_fleet(&everything(), Front::Nginx)
    }

    fn in_a_fleet(destination: &Value, front: Front) -> Self {
        let config = FleetConfig::new(&format!("  server: {destination}\n"));
        let served = wait_for(Served::fleet(config, front)).expect("a fleet starts");
        Self {
            url: served.url_of("server"),
            served,
            keeps_its_server: true,
        }
    }

    fn by_old_sse(destination: Value) -> Self {
        let file = json!({"destinations": {"old": destination}}).to_string();
        let launcher = Rialto::launcher().config(&file);
        Self::start(launcher, |rialto| format!("http://{}/old/sse", rialto.address()))
    }

    fn of_command(flags: &[&str], command: &[&str]) -> Self {
        let launcher = Rialto::launcher().args(flags).args(&["--"]).args(command);
        Self::start(launcher, Rialto::url)
    }

    fn of_destination(destination: Value) -> Self {
        // JSON is YAML too, and quotes any character of a path.
        let file = json!({"destinations": {"everything": destination}}).to_string();
        let launcher = Rialto::launcher().config(&file);
        Self::start(launcher, |rialto| rialto.url_of("everything"))
    }

    fn start(launcher: Launcher, url: impl Fn(&Rialto) -> String) -> Self {
        let rialto = wait_for(launcher.start()).expect("rialto starts");
        Self {
            url: url(&rialto),
            served: Served::One(rialto),
            keeps_its_server: true,
        }
    }

    /// Lets the client play, judges what it saw, ends Rialto and looks for what it left behind.
    pub fn run(
        self,
        scenario: &str,
        player: impl FnOnce(&str, &str) -> Result<Value, String>,
        judge: fn(&Value),
    ) {
        match player(&self.url, scenario) {
            Ok(seen) => judge(&seen),
            Err(why) => panic!("the client failed in {scenario}: {why}"),
        }
        if self.keeps_its_server {
            // Otherwise finding nothing after the end would prove nothing.
            assert!(self.served.has_children(), "rialto has a server");
        }
        for status in wait_for(self.served.end(END_DEADLINE)).expect("rialto ends") {
            assert!(status.success(), "rialto ended with {status}");
        }
    }
}

/// Players are not asynchronous, or bring a runtime of their own.
pub(super) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
        .block_on(future)
}

/// Where `cargo xtask setup` put the packages.
///
/// # Panics
/// When it has not run.
pub fn test_deps() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("..");
    let folder =
        std::env::var_os("RIALTO_TEST_DEPS").map_or_else(|| repository.join(".test-deps"), PathBuf::from);
    for environment in ["node", "node2", "python1", "python2"] {
        assert!(
            folder.join(environment).join(".installed").exists(),
            "the interop tests need packages that are not installed; run `cargo xtask setup`"
        );
    }
    folder.canonicalize().expect("the folder is there")
}

fn everything() -> Value {
    json!({"command": "node", "args": [server_file(), "stdio"]})
}

fn server_file() -> String {
    let file = test_deps().join("node/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    file.to_string_lossy().into_owned()
}
