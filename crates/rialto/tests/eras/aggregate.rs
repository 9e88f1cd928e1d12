//! Official clients in front of an aggregate of official servers: server-everything, a modern
//! server, a Python server and one with tasks, each under its own prefix. And the scenarios of the
//! eras, at a member that has no prefix.

use std::path::Path;

use serde_json::{Value, json};
use testkit::eras::{Client, Stages, aggregate, judge, through_serve};
use testkit::interop::test_deps;

use crate::pair::{Pair, Server};

/// Returns what a client saw in a scenario.
fn seen_in(client: Client, scenario: &str) -> Value {
    static STAGES: Stages<Client> = Stages::new();
    STAGES.seen_in(client, scenario, || {
        let (packages, everything) = (
            test_deps(),
            "node_modules/@modelcontextprotocol/server-everything",
        );
        let everything = packages.join("node").join(everything).join("dist/index.js");
        let tasks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/servers/ts1_tasks.mjs");
        let destinations = json!({
            "everything": {"command": "node", "args": [everything, "stdio"]},
            "modern": Server::TypeScript2Modern.destination(),
            "python": Server::Python1.destination(),
            "tasks": {"command": "node", "args": [tasks, packages]},
        });
        let members = json!({"members": aggregate::MEMBERS});
        through_serve::play_aggregate(client, &destinations, &members, "aggregate")
    })
}

macro_rules! of_an_aggregate {
    ($($scenario:ident;)*) => {$(
        mod $scenario {
            use super::*;

            #[test]
            fn typescript_1_client() {
                aggregate::$scenario(Client::TypeScript1, &seen_in(Client::TypeScript1, stringify!($scenario)));
            }

            #[test]
            fn typescript_2_modern_client() {
                let client = Client::TypeScript2Modern;
                aggregate::$scenario(client, &seen_in(client, stringify!($scenario)));
            }

            #[test]
            fn python_1_client() {
                aggregate::$scenario(Client::Python1, &seen_in(Client::Python1, stringify!($scenario)));
            }

            #[test]
            fn python_2_modern_client() {
                let client = Client::Python2Modern;
                aggregate::$scenario(client, &seen_in(client, stringify!($scenario)));
            }
        }
    )*};
}

of_an_aggregate! {
    calls;
    cancellation;
    elicitation;
    list_changed;
    listing;
    logging;
    progress;
    prompts_and_completion;
    resources;
    roots;
    sampling;
    subscriptions;
    tasks;
}

/// The scenarios of the eras at one member of an aggregate of three, which has no prefix.
macro_rules! under_own_names {
    ($($scenario:ident;)*) => {
        mod under_own_names {
            use super::*;

            $(
                mod $scenario {
                    use super::*;

                    fn is_as_without_an_aggregate(client: Client, server: Server) {
                        let pair = Pair { client, server };
                        let seen = pair.seen_through_an_aggregate_in(stringify!($scenario));
                        judge::$scenario(&pair.expected(), &seen);
                    }

                    #[test]
                    fn typescript_1_client_and_typescript_1_server() {
                        is_as_without_an_aggregate(Client::TypeScript1, Server::TypeScript1);
                    }

                    #[test]
                    fn typescript_1_client_and_typescript_2_modern_server() {
                        is_as_without_an_aggregate(Client::TypeScript1, Server::TypeScript2Modern);
                    }

                    #[test]
                    fn typescript_1_client_and_python_1_server() {
                        is_as_without_an_aggregate(Client::TypeScript1, Server::Python1);
                    }

                    #[test]
                    fn python_2_modern_client_and_typescript_1_server() {
                        is_as_without_an_aggregate(Client::Python2Modern, Server::TypeScript1);
                    }

                    #[test]
                    fn python_2_modern_client_and_typescript_2_modern_server() {
                        is_as_without_an_aggregate(Client::Python2Modern, Server::TypeScript2Modern);
                    }

                    #[test]
                    fn python_2_modern_client_and_python_1_server() {
                        is_as_without_an_aggregate(Client::Python2Modern, Server::Python1);
                    }
                }
            )*
        }
    };
}

under_own_names! {
    call;
    cancellation;
    list_changed;
    logs;
    progress;
    resource_update;
    restart;
    roots_in_a_call;
    sampling;
    two_elicitations;
}
