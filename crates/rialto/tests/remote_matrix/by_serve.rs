//! The road by `rialto serve`: the client's own HTTP in front.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::Rialto;

use crate::pair::{Pair, Played, Server};
use crate::sdk::player;

const END_DEADLINE: Duration = Duration::from_secs(15);

/// Each is configured in one of the three ways.
fn destination(server: Server, origin: &str) -> Value {
    match server {
        Server::TypeScript1Sse => json!({"type": "sse", "url": format!("{origin}/sse")}),
        Server::TypeScript1Stateful | Server::TypeScript2Modern | Server::Python1 => {
            json!({"type": "streamable_http", "url": format!("{origin}/mcp")})
        }
        Server::TypeScript1Stateless | Server::TypeScript2Dual | Server::Python2 => {
            json!({"url": format!("{origin}/mcp")})
        }
    }
}

pub(crate) fn play(pair: Pair, origin: &str, scenarios: &str) -> Played {
    // JSON is YAML too.
    let file = json!({"destinations": {"server": destination(pair.server, origin)}}).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let launcher = Rialto::launcher().config(&file);
    let rialto = runtime
        .block_on(launcher.start())
        .map_err(|failure| failure.to_string())?;
    let (sdk, era) = pair.client.sdk();
    let seen = player("eras", sdk, era)(&rialto.url_of("server"), scenarios)?;
    rialto.sigterm();
    let status = runtime.block_on(rialto.wait(END_DEADLINE));
    if status.success() {
        Ok(seen)
    } else {
        Err(format!("rialto ended with {status}"))
    }
}
