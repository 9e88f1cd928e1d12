//! A client in front of a `rialto serve` that has one destination.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::stages::Played;
use crate::Rialto;
use crate::interop::sdk::player;

/// A child that ignores SIGTERM is killed after five seconds; Rialto must be gone soon after that.
const END_DEADLINE: Duration = Duration::from_secs(15);

/// Rialto with this destination from its start to its end, and what the client saw meanwhile.
pub fn play(client: Client, destination: &Value, scenarios: &str) -> Played {
    // JSON is YAML too, and quotes any character of a path.
    let file = json!({"destinations": {"server": destination}}).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let launcher = Rialto::launcher().config(&file);
    let rialto = runtime
        .block_on(launcher.start())
        .map_err(|failure| failure.to_string())?;
    let (sdk, era) = client.sdk();
    let seen = player("eras", sdk, era)(&rialto.url_of("server"), scenarios)?;
    rialto.sigterm();
    let status = runtime.block_on(rialto.wait(END_DEADLINE));
    if status.success() {
        Ok(seen)
    } else {
        Err(format!("rialto ended with {status}"))
    }
}
