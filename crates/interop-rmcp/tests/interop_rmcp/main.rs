//! The official Rust client against real servers, with the real binary in between.
//!
//! One more column of the matrix in `crates/rialto/tests/interop.rs`: the same scenarios before the
//! same judges, played in the test's own process.

mod scenarios;
mod watched_http;
mod witness;

use std::time::Duration;

use serde_json::Value;
use testkit::interop::restarts::{CALLERS, Cost, outlive};
use witness::Era;

/// The same as that of the other clients' scripts.
const DEADLINE: Duration = Duration::from_secs(40);

testkit::interop_column!(rmcp_3_client_in_the_legacy_era, client(Era::Legacy));

testkit::interop_fleet_column!(rmcp_3_client_through_a_fleet, client(Era::Legacy));

mod rmcp_3_client_that_looks_for_the_modern_era_in_a_fleet {
    use super::*;

    testkit::interop_fleet_cells! { client(Era::Auto);
        discover behind everything_in_a_fleet;
        call behind everything_in_a_fleet;
    }
}

testkit::interop_cells! { client(Era::Legacy);
    rmcp_3_client_opens_a_new_session_when_its_own_was_ended: renewed_session behind everything;
}

testkit::interop_cells! { client(Era::Auto);
    rmcp_3_client_that_looks_for_the_modern_era_finds_it: discover behind everything;
    rmcp_3_client_that_looks_for_the_modern_era_calls: call behind everything;
}

#[test]
fn rmcp_3_client_goes_on_without_initialize_while_rialto_is_restarted() {
    let costs = outlive(client(Era::Legacy));
    assert_eq!(costs.of_restarts, Cost::default(), "{costs:?}");
    // As for the other clients with a pool of connections.
    assert!(costs.of_kills.failures.len() <= 2 * CALLERS, "{costs:?}");
}

fn client(era: Era) -> impl FnOnce(&str, &str) -> Result<Value, String> {
    move |url, scenario| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let seen = tokio::time::timeout(DEADLINE, scenarios::play(era, url, scenario)).await;
            let seen = seen.map_err(|_| format!("it did not end within {DEADLINE:?}"))?;
            seen.map_err(|error| error.to_string())
        })
    }
}
