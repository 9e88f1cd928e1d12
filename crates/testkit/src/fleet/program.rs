//! A fleet as a program, for what is no Rust test: `testkit-fleet NAME MAX_SESSIONS PROGRAM [ARGUMENT…]`.
//!
//! It prints the URL of its destination at the balancer on stderr, and serves until SIGTERM. Then it
//! ends each replica; a replica that does not end well makes its exit code 1.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::FleetConfig;
use crate::client::McpClient;
use crate::failure::{Failure, Result};
use crate::patience::{PATIENCE, poll_until};

/// A replica that ends takes up to a second for its connections, and five for a child.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// Runs the program.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(serve(args)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

async fn serve(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut next = |what: &str| {
        let found = args.next();
        found.ok_or_else(|| Failure::new(format!("{what} is missing")))
    };
    let (name, sessions) = (next("the name")?, next("the number of sessions")?);
    let program = next("the program")?;
    let sessions: u32 = sessions
        .parse()
        .map_err(|error| Failure::new(format!("{sessions}: {error}")))?;
    let mut terminated = signal(SignalKind::terminate())?;
    let arguments: Vec<String> = args.collect();
    // The server keeps its lists in memory, so there is one for all replicas. JSON is YAML too, and
    // quotes any character of a path.
    let destination = json!({
        "command": program,
        "args": arguments,
        "max_sessions": sessions,
        "placement": "one",
    });
    let config = FleetConfig::new(&format!("  {name}: {destination}\n"));
    let mut fleet = config.start().await?;
    wait_for_place(&fleet.url_of(&name)).await?;
    show(&format!("{} (fleet)", fleet.url_of(&name)));
    terminated.recv().await;
    for number in 0..fleet.size() {
        let status = fleet.terminate(number, END_DEADLINE).await?;
        if !status.success() {
            return Err(Failure::new(format!("replica {number} ended with {status}")));
        }
    }
    Ok(())
}

/// Waits until the engine gives the place of the server to a replica. A new engine waits as long as a
/// holder that it may have forgotten could still run its server.
async fn wait_for_place(url: &str) -> Result<()> {
    poll_until("the server has its place", PATIENCE, async || {
        let client = McpClient::connect(url).await?;
        let reply = client.initialize("2025-11-25", json!({})).await?;
        let has_place = reply.status != 503;
        if client.session().is_some() {
            client.delete().await?;
        }
        Ok::<_, Failure>(has_place.then_some(()))
    })
    .await
}

fn show(text: &str) {
    // The reader may have gone.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
