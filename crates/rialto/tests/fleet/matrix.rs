//! Official clients of both eras through three replicas: the balancer and nginx notice no session,
//! and the clients notice no fleet.
//!
//! `TESTKIT_FLEET=balancer` or `nginx` lets the matrix of the eras (`--test eras`) play through a
//! fleet as a whole. `FLEET_RUNS` repeats each cell here, for the record. rmcp's cells are in its crate.

use serde_json::Value;
use testkit::interop::sdk::{Era, Sdk, player};

fn client(sdk: Sdk, era: Era) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    player("client", sdk, era)
}

/// Cells of one client.
macro_rules! cells {
    ($column:ident, $sdk:expr, $era:expr; $($cells:tt)*) => {
        mod $column {
            use super::*;

            testkit::interop_fleet_cells! { client($sdk, $era); $($cells)* }
        }
    };
}

macro_rules! legacy_column {
    ($column:ident, $resuming:ident, $sdk:expr) => {
        testkit::interop_fleet_column!($column, client($sdk, Era::Legacy));
        cells! { $resuming, $sdk, Era::Legacy;
            resume_with_token behind everything_in_a_fleet;
        }
    };
}

legacy_column!(
    typescript_1_client,
    typescript_1_client_with_a_token,
    Sdk::TypeScript1
);
legacy_column!(
    typescript_2_client,
    typescript_2_client_with_a_token,
    Sdk::TypeScript2
);
legacy_column!(python_1_client, python_1_client_with_a_token, Sdk::Python1);
legacy_column!(python_2_client, python_2_client_with_a_token, Sdk::Python2);

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
