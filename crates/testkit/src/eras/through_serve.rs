//! A client in front of a `rialto serve`, or of a fleet, that has one destination.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::stages::Played;
use crate::client::McpClient;
use crate::failure::{Failure, Result};
use crate::fleet::Served;
use crate::interop::sdk::player;
use crate::patience::{PATIENCE, poll_until};
use crate::revision::LEGACY;

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
        let served = Served::with(destinations, &aggregates).await?;
        // A change of the list that is still to come would look like the one of a scenario.
        wait_for_members(&served.url_of("server"), aggregate).await?;
        Ok(served)
    })
}

/// Waits until the tools of all members are listed.
async fn wait_for_members(url: &str, aggregate: &Value) -> Result<()> {
    let client = McpClient::connect(url).await?;
    client.initialize(LEGACY, json!({})).await?.expect_status(200)?;
    let members = aggregate["members"].as_object().cloned().unwrap_or_default();
    poll_until("the tools of all members", PATIENCE, async || {
        let list = client.request(1, "tools/list", json!({})).await?.answer();
        let tools = list["result"]["tools"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        let is_listed = |(member, settings): (&String, &Value)| match settings["prefix"].as_str() {
            Some("") => names.iter().any(|name| !name.contains("__")),
            Some(prefix) => names.iter().any(|name| name.starts_with(&format!("{prefix}__"))),
            None => names.iter().any(|name| name.starts_with(&format!("{member}__"))),
        };
        Ok::<_, Failure>(members.iter().all(is_listed).then_some(()))
    })
    .await?;
    client.delete().await?.expect_status(204)?;
    Ok(())
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
