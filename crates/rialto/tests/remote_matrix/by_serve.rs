//! The road by `rialto serve`: the client's own HTTP in front.

use serde_json::{Value, json};
use testkit::eras::remote::{Pair, Server};
use testkit::eras::{Played, through_serve};

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
    through_serve::play(pair.client, &destination(pair.server, origin), scenarios)
}
