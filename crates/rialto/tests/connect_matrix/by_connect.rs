//! The road by `rialto connect`: the client starts it as a stdio server, as hosts do, and it
//! reaches the server.

use testkit::eras::Played;
use testkit::eras::remote::{Pair, Server};
use testkit::interop::sdk::{Road, traveller};

pub(crate) fn play(pair: Pair, origin: &str, scenarios: &str) -> Played {
    let url = match pair.server {
        Server::TypeScript1Sse => format!("{origin}/sse"),
        Server::TypeScript1Stateful
        | Server::TypeScript1Stateless
        | Server::TypeScript2Modern
        | Server::TypeScript2Dual
        | Server::Python1
        | Server::Python2 => format!("{origin}/mcp"),
    };
    let (sdk, era) = pair.client.sdk();
    traveller("eras", sdk, era, Road::Connect)(&url, scenarios)
}
