//! Official clients of the legacy era that go on calling while Rialto is restarted and killed.
//!
//! A restart by SIGTERM costs them nothing. A kill costs the calls that were open, which end with the
//! error that the client's HTTP library has for a broken connection.

use testkit::interop::restarts::{CALLERS, Cost, Costs, outlive};
use testkit::interop::sdk::{Era, Sdk, player};

fn play(sdk: Sdk) -> Costs {
    let costs = outlive(player("client", sdk, Era::Legacy));
    // A drain answers what it has received, and leaves the rest to the next process.
    assert_eq!(costs.of_restarts, Cost::default(), "{costs:?}");
    costs
}

/// The pool of the client may hold a second connection that is broken too, for each call.
fn play_with_a_pool(sdk: Sdk) {
    let costs = play(sdk);
    assert!(costs.of_kills.failures.len() <= 2 * CALLERS, "{costs:?}");
    assert_eq!(costs.of_kills.transports, 0, "{costs:?}");
}

/// Both lines of Python run each POST as a task of the transport's task group. A connection that breaks
/// before the response has begun is an exception of such a task: it cancels the group with all open
/// calls, and the transport ends. The client goes on with its session on another transport.
fn play_with_a_transport_that_ends(sdk: Sdk) {
    let costs = play(sdk);
    assert!(costs.of_kills.failures.len() <= CALLERS, "{costs:?}");
    assert!(costs.of_kills.transports <= 1, "{costs:?}");
}

#[test]
fn typescript_1_client_goes_on_without_initialize() {
    play_with_a_pool(Sdk::TypeScript1);
}

#[test]
fn typescript_2_client_goes_on_without_initialize() {
    play_with_a_pool(Sdk::TypeScript2);
}

#[test]
fn python_1_client_goes_on_without_initialize() {
    play_with_a_transport_that_ends(Sdk::Python1);
}

#[test]
fn python_2_client_goes_on_without_initialize() {
    play_with_a_transport_that_ends(Sdk::Python2);
}
