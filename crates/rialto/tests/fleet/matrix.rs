//! Official clients of both eras through three replicas: the balancer and nginx notice no session,
//! and the clients notice no fleet.
//!
//! `TESTKIT_FLEET=balancer` or `nginx` lets the matrix of the eras (`--test eras`) play through a
//! fleet as a whole. `FLEET_RUNS` repeats each cell here, for the record.

use serde_json::Value;
use testkit::interop::sdk::{Era, Sdk, player};
use testkit::interop::{Fixture, judge};

use super::fixture::number_from;

fn client(sdk: Sdk, era: Era) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    player("client", sdk, era)
}

/// Cells of one client: each scenario is played as often as the environment sets.
macro_rules! cells {
    ($column:ident, $sdk:expr, $era:expr; $($scenario:ident behind $fixture:ident;)*) => {
        mod $column {
            use super::*;

            $(
                #[test]
                fn $scenario() {
                    for _ in 0..number_from("FLEET_RUNS", 1) {
                        Fixture::$fixture().run(stringify!($scenario), client($sdk, $era), judge::$scenario);
                    }
                }
            )*
        }
    };
}

macro_rules! legacy_column {
    ($column:ident, $sdk:expr) => {
        cells! { $column, $sdk, Era::Legacy;
            connect behind everything_in_a_fleet;
            listing behind everything_in_a_fleet;
            call behind everything_in_a_fleet;
            structured behind everything_in_a_fleet;
            tool_error behind everything_in_a_fleet;
            progress behind everything_in_a_fleet;
            cancellation behind demo_in_a_fleet;
            two_elicitations behind demo_in_a_fleet;
            elicitation behind everything_in_a_fleet;
            sampling behind everything_in_a_fleet;
            roots behind everything_in_a_fleet;
            subscriptions behind everything_in_a_fleet;
            list_changed behind everything_in_a_fleet;
            tools_changed behind demo_in_a_fleet;
            logging behind everything_in_a_fleet;
            large_message behind everything_in_a_fleet;
            fifty_at_once behind everything_in_a_fleet;
            prompts_and_completion behind everything_in_a_fleet;
            resources_read behind everything_in_a_fleet;
            resume_after_the_end behind everything_in_a_fleet;
            resume_before_the_end behind everything_in_a_fleet;
            resume_with_token behind everything_in_a_fleet;
            terminate behind everything_in_a_fleet;
            two_clients_sample_at_once behind everything_per_session_in_a_fleet;
        }
    };
}

legacy_column!(typescript_1_client, Sdk::TypeScript1);
legacy_column!(typescript_2_client, Sdk::TypeScript2);
legacy_column!(python_1_client, Sdk::Python1);
legacy_column!(python_2_client, Sdk::Python2);

macro_rules! nginx_column {
    ($column:ident, $sdk:expr) => {
        cells! { $column, $sdk, Era::Legacy;
            call behind everything_behind_nginx;
            progress behind everything_behind_nginx;
            elicitation behind everything_behind_nginx;
            sampling behind everything_behind_nginx;
            subscriptions behind everything_behind_nginx;
            resume_before_the_end behind everything_behind_nginx;
            fifty_at_once behind everything_behind_nginx;
            large_message behind everything_behind_nginx;
            terminate behind everything_behind_nginx;
        }
    };
}

nginx_column!(typescript_1_client_behind_nginx, Sdk::TypeScript1);
nginx_column!(python_1_client_behind_nginx, Sdk::Python1);

macro_rules! old_column {
    ($column:ident, $sdk:expr) => {
        cells! { $column, $sdk, Era::OldTransport;
            call behind everything_by_old_sse_in_a_fleet;
            progress behind everything_by_old_sse_in_a_fleet;
            elicitation behind everything_by_old_sse_in_a_fleet;
            sampling behind everything_by_old_sse_in_a_fleet;
            subscriptions behind everything_by_old_sse_in_a_fleet;
            fifty_at_once behind everything_by_old_sse_in_a_fleet;
        }
    };
}

old_column!(typescript_1_client_of_the_old_transport, Sdk::TypeScript1);
old_column!(python_1_client_of_the_old_transport, Sdk::Python1);

cells! { typescript_2_client_of_the_modern_era, Sdk::TypeScript2, Era::Modern;
    discover behind everything_in_a_fleet;
    call behind everything_in_a_fleet;
}
cells! { python_2_client_that_looks_for_the_modern_era, Sdk::Python2, Era::Auto;
    discover behind everything_in_a_fleet;
    call behind everything_in_a_fleet;
}
