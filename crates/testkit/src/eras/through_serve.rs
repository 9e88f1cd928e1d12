//! A client in front of a `rialto serve`, or of a fleet, that has one destination.

use std::time::Duration;

use serde_json::Value;

use super::client::Client;
use super::stages::Played;
use crate::fleet::Served;
use crate::interop::sdk::player;

/// A child that ignores SIGTERM is killed after five seconds; Rialto must be gone soon after that.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// Rialto with this destination from its start to its end, and what the client saw meanwhile.
pub fn play(client: Client, destination: &Value, scenarios: &str) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let served = runtime
        .block_on(Served::start("server", destination))
        .map_err(|failure| failure.to_string())?;
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
