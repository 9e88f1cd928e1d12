//! `rialto cluster status`: the replicas of a fleet, and the engine that they share.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use cluster::redis::{EngineReport, SessionCount};
use cluster::{NodeId, NodeStatus, RedisRegistry, RedisSettings, Registry as _};
use gateway::escape;
use gateway::settings::{ClusterSettings, Placement};
use serde_json::json;

use crate::config::{self, ConfigError, Environment};
use crate::flags::{ClusterStatusFlags, ServeFlags};
use crate::{exit, fail};

/// The longest cell of the table.
const CELL_BYTES: usize = 200;

pub(crate) fn run(flags: &ClusterStatusFlags, environment: &Environment) -> ExitCode {
    let serve = ServeFlags {
        config: flags.config.clone(),
        ..ServeFlags::default()
    };
    let (cluster, destinations) = match config::settings(&serve, environment) {
        Ok(loaded) => (loaded.settings.cluster, loaded.settings.destinations),
        Err(error) => return fail(ConfigError::EXIT_CODE, &error.to_string()),
    };
    let Some(cluster) = cluster else {
        let text = "the configuration has no `cluster`, so this Rialto is no replica of a fleet: \
                    write `cluster: { url: redis://HOST:6379, key_file: FILE, listen: ADDRESS:PORT }`";
        return fail(exit::CONFIGURATION, text);
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::FAILED, &format!("cannot start the runtime: {error}")),
    };
    let is_placed = |placement| placement == Placement::One;
    let placed = destinations.into_iter().filter(|one| is_placed(one.placement));
    let placed: Vec<String> = placed.map(|destination| destination.name).collect();
    match runtime.block_on(ask(&cluster, placed)) {
        Ok(status) => {
            let text = match flags.json {
                true => format!("{}\n", status.json()),
                false => status.text(),
            };
            show(&text);
            match status.nodes.is_empty() {
                true => fail(
                    exit::FAILED,
                    "no replica has a lease: none runs, or none reaches the engine",
                ),
                false => ExitCode::SUCCESS,
            }
        }
        Err(error) => {
            if flags.json {
                show(&format!("{}\n", json!({ "error": error })));
            }
            fail(exit::FAILED, &error)
        }
    }
}

/// What the engine knows about a fleet.
#[derive(Debug)]
struct Status {
    engine: EngineReport,
    nodes: Vec<NodeStatus>,
    /// The destinations with one server in the fleet, and the replica that has it.
    placed: Vec<(String, Option<NodeId>)>,
}

/// Connects as a replica does, which tries every operation, and reads the registry.
async fn ask(cluster: &ClusterSettings, destinations: Vec<String>) -> Result<Status, String> {
    let settings = RedisSettings {
        prefix: cluster.prefix.clone(),
        ..RedisSettings::new(&cluster.url)
    };
    let registry = RedisRegistry::connect(&settings)
        .await
        .map_err(|error| error.to_string())?;
    let nodes = registry.nodes().await.map_err(|error| error.to_string())?;
    let mut placed = Vec::new();
    for destination in destinations {
        let name = cluster::singleton::name_of(&destination);
        let holder = registry.holder(&name).await.map_err(|error| error.to_string())?;
        placed.push((destination, holder));
    }
    Ok(Status {
        placed,
        engine: registry.inspect().await.map_err(|error| error.to_string())?,
        // A check of the engine joins for a moment, without an address.
        nodes: nodes
            .into_iter()
            .filter(|status| status.node.address.is_some())
            .collect(),
    })
}

impl Status {
    fn json(&self) -> serde_json::Value {
        let engine = &self.engine;
        let sessions = match engine.sessions {
            SessionCount::Exactly(sessions) | SessionCount::AtLeast(sessions) => Some(sessions),
            SessionCount::Forbidden => None,
        };
        let nodes = self.nodes.iter().map(|status| {
            json!({
                "id": status.node.id.as_str(),
                "name": status.node.id.name(),
                "address": status.node.address,
                "version": status.node.program,
                "is_draining": status.node.is_draining,
                "lease_ms": status.lease.as_millis() as u64,
            })
        });
        json!({
            "engine": {
                "address": engine.address,
                "product": engine.product,
                "version": engine.version,
                "eviction_policy": engine.eviction_policy,
                "latency_ms": engine.latency.as_secs_f64() * 1000.0,
                "rights": "complete",
            },
            "sessions": sessions,
            "nodes": nodes.collect::<Vec<_>>(),
            "placed": self.placed.iter().map(|(destination, holder)| {
                json!({ "destination": destination, "replica": holder.as_ref().map(NodeId::as_str) })
            }).collect::<Vec<_>>(),
        })
    }

    /// Returns the lines for a terminal. Other programs chose the names in them.
    fn text(&self) -> String {
        let engine = &self.engine;
        let mut rows = vec![["replica", "address", "version", "lease", "state"].map(str::to_owned)];
        for NodeStatus { node, lease } in &self.nodes {
            rows.push([
                node.id.as_str().to_owned(),
                node.address.clone().unwrap_or_else(|| "-".to_owned()),
                node.program.clone(),
                format!("{:.1} s", lease.as_secs_f64()),
                if node.is_draining { "draining" } else { "serving" }.to_owned(),
            ]);
        }
        let rows: Vec<[String; 5]> = rows
            .into_iter()
            .map(|row| row.map(|cell| escape::one_line(&cell, CELL_BYTES)))
            .collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let policy = engine.eviction_policy.as_deref().unwrap_or("not reported");
        let head = [
            format!("{} {} at {}", engine.product, engine.version, engine.address),
            latency(engine.latency),
            policy.to_owned(),
            "the user may run every command that Rialto needs".to_owned(),
            match engine.sessions {
                SessionCount::Exactly(sessions) => sessions.to_string(),
                SessionCount::AtLeast(sessions) => format!("{sessions} or more"),
                SessionCount::Forbidden => "unknown: give the user `+scan`".to_owned(),
            },
        ];
        let labels = ["engine", "latency", "eviction", "rights", "sessions"];
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        for (label, value) in labels.iter().zip(&head) {
            let _ = writeln!(text, "{label:<9} {}", escape::one_line(value, CELL_BYTES));
        }
        text.push('\n');
        for row in &rows {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = width(column);
                format!("{cell:<width$}")
            });
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        if !self.placed.is_empty() {
            text.push_str("\none server in the fleet:\n");
        }
        for (destination, holder) in &self.placed {
            let place = holder
                .as_ref()
                .map_or("on no replica until its next request", NodeId::as_str);
            let line = format!("{destination}  {place}");
            let _ = writeln!(text, "{}", escape::one_line(&line, CELL_BYTES));
        }
        text
    }
}

fn latency(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// If stdout is closed, the exit code has the result.
fn show(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use cluster::{Node, NodeId};

    use super::*;

    fn status(sessions: SessionCount) -> Status {
        let node = |name: &str, is_draining| NodeStatus {
            node: Node {
                id: NodeId::generate(name).expect("a name"),
                address: Some("10.0.0.5:3001".to_owned()),
                program: "0.1.0\u{1b}[2J".to_owned(),
                is_draining,
            },
            lease: Duration::from_millis(8_240),
        };
        Status {
            engine: EngineReport {
                address: "127.0.0.1:6379".to_owned(),
                product: "valkey",
                version: "8.0.1".to_owned(),
                eviction_policy: Some("noeviction".to_owned()),
                clock: None,
                latency: Duration::from_micros(120),
                sessions,
            },
            nodes: vec![node("replica-1", false), node("replica-2", true)],
            placed: vec![
                (
                    "memory".to_owned(),
                    Some(NodeId::generate("replica-1").expect("a name")),
                ),
                ("browser".to_owned(), None),
            ],
        }
    }

    #[test]
    fn text_names_engine_sessions_and_replicas_and_obeys_no_terminal_command() {
        let text = status(SessionCount::Exactly(12)).text();
        for part in [
            "engine    valkey 8.0.1 at 127.0.0.1:6379\n",
            "latency   0.12 ms\n",
            "eviction  noeviction\n",
            "sessions  12\n",
            "8.2 s  serving\n",
            "8.2 s  draining\n",
            "memory  replica-1/",
            "browser  on no replica until its next request\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert!(
            !text.lines().any(|line| line.contains(escape::is_hazard)),
            "{text:?}"
        );
        assert!(status(SessionCount::Forbidden).text().contains("`+scan`"));
        assert!(status(SessionCount::AtLeast(7)).text().contains("7 or more"));
    }

    #[test]
    fn json_has_the_same_figures() {
        let json = status(SessionCount::Exactly(12)).json();
        assert_eq!(json["sessions"], 12);
        assert_eq!(json["engine"]["product"], "valkey");
        assert_eq!(json["nodes"][1]["is_draining"], true);
        assert_eq!(json["nodes"][0]["lease_ms"], 8240);
        assert!(status(SessionCount::Forbidden).json()["sessions"].is_null());
    }
}
