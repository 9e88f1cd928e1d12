//! A client in front of a `rialto serve`, or of a fleet, that has one destination.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::stages::Played;
use crate::failure::Result;
use crate::fleet::Served;
use crate::interop::sdk::player;

/// A child that ignores SIGTERM is killed after five seconds; Rialto must be gone soon after that.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// Rialto with this destination from its start to its end, and what the client saw meanwhile.
pub fn play(client: Client, destination: &Value, scenarios: &str) -> Played {
    play_in(client, scenarios, Served::start("server", destination))
}

/// The same for an aggregate of several destinations, whose name is `server`.
pub fn play_aggregate(client: Client, destinations: &Value, aggregate: &Value, scenarios: &str) -> Played {
    let aggregates = json!({ "server": aggregate });
    play_in(client, scenarios, async {
        Served::with(destinations, &aggregates).await
    })
}

fn play_in(client: Client, scenarios: &str, started: impl Future<Output = Result<Served>>) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let served = runtime.block_on(started).map_err(|failure| failure.to_string())?;
    let (sdk, era) = client.sdk();
    let seen = player("eras", sdk, era)(&served.url_of("server"), scenarios)?;
    let ended = runtime.block_on(served.end(END_DEADLINE));
    for status in ended.map_err(|failure| failure.to_string())? {
        if !status.success() {
            return Err(format!("rialto ended with {status}"));
        }
    }
    Ok(seen)
}
