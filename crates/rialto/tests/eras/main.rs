//! Every cell of the matrix of eras: official SDK clients of both, servers of both, the real binary
//! in between.
//!
//! A cell is (scenario, client, server). Each client plays all scenarios in one process in front of
//! one `rialto serve`, which the first test that asks for the pair starts; the others of that pair
//! look at what was seen. The servers are in `tests/interop/servers`, the clients in
//! `tests/interop/{node,python}`; both are written with the official packages that `cargo xtask
//! setup` installs. Nothing is configured for the crossing.

mod aggregate;
mod pair;

use pair::{Pair, Server};
use testkit::eras::{Client, judge};

/// One scenario as a module, with a test for every pair of client and server. Tests run in the
/// order of their names, so that different pairs are on stage at the same time.
macro_rules! scenarios {
    ($($scenario:ident: $judge:ident;)*) => {$(
        mod $scenario {
            use super::*;

            pairs! { $judge;
                typescript_1_client_and_typescript_1_server: TypeScript1, TypeScript1;
                typescript_1_client_and_typescript_2_modern_server: TypeScript1, TypeScript2Modern;
                typescript_1_client_and_typescript_2_dual_server: TypeScript1, TypeScript2Dual;
                typescript_1_client_and_python_1_server: TypeScript1, Python1;
                typescript_1_client_and_python_2_dual_server: TypeScript1, Python2Dual;
                typescript_1_client_and_python_2_modern_server: TypeScript1, Python2Modern;
                typescript_2_legacy_client_and_typescript_1_server: TypeScript2Legacy, TypeScript1;
                typescript_2_legacy_client_and_typescript_2_modern_server: TypeScript2Legacy, TypeScript2Modern;
                typescript_2_legacy_client_and_typescript_2_dual_server: TypeScript2Legacy, TypeScript2Dual;
                typescript_2_legacy_client_and_python_1_server: TypeScript2Legacy, Python1;
                typescript_2_legacy_client_and_python_2_dual_server: TypeScript2Legacy, Python2Dual;
                typescript_2_legacy_client_and_python_2_modern_server: TypeScript2Legacy, Python2Modern;
                typescript_2_modern_client_and_typescript_1_server: TypeScript2Modern, TypeScript1;
                typescript_2_modern_client_and_typescript_2_modern_server: TypeScript2Modern, TypeScript2Modern;
                typescript_2_modern_client_and_typescript_2_dual_server: TypeScript2Modern, TypeScript2Dual;
                typescript_2_modern_client_and_python_1_server: TypeScript2Modern, Python1;
                typescript_2_modern_client_and_python_2_dual_server: TypeScript2Modern, Python2Dual;
                typescript_2_modern_client_and_python_2_modern_server: TypeScript2Modern, Python2Modern;
                python_1_client_and_typescript_1_server: Python1, TypeScript1;
                python_1_client_and_typescript_2_modern_server: Python1, TypeScript2Modern;
                python_1_client_and_typescript_2_dual_server: Python1, TypeScript2Dual;
                python_1_client_and_python_1_server: Python1, Python1;
                python_1_client_and_python_2_dual_server: Python1, Python2Dual;
                python_1_client_and_python_2_modern_server: Python1, Python2Modern;
                python_2_legacy_client_and_typescript_1_server: Python2Legacy, TypeScript1;
                python_2_legacy_client_and_typescript_2_modern_server: Python2Legacy, TypeScript2Modern;
                python_2_legacy_client_and_typescript_2_dual_server: Python2Legacy, TypeScript2Dual;
                python_2_legacy_client_and_python_1_server: Python2Legacy, Python1;
                python_2_legacy_client_and_python_2_dual_server: Python2Legacy, Python2Dual;
                python_2_legacy_client_and_python_2_modern_server: Python2Legacy, Python2Modern;
                python_2_modern_client_and_typescript_1_server: Python2Modern, TypeScript1;
                python_2_modern_client_and_typescript_2_modern_server: Python2Modern, TypeScript2Modern;
                python_2_modern_client_and_typescript_2_dual_server: Python2Modern, TypeScript2Dual;
                python_2_modern_client_and_python_1_server: Python2Modern, Python1;
                python_2_modern_client_and_python_2_dual_server: Python2Modern, Python2Dual;
                python_2_modern_client_and_python_2_modern_server: Python2Modern, Python2Modern;
            }
        }
    )*};
}

macro_rules! pairs {
    ($judge:ident; $($test:ident: $client:ident, $server:ident;)*) => {$(
        #[test]
        fn $test() {
            let pair = Pair { client: Client::$client, server: Server::$server };
            judge::$judge(&pair.expected(), &pair.seen_in(stringify!($judge)));
        }
    )*};
}

scenarios! {
    a_call_comes_back_as_it_was: call;
    a_call_is_cancelled_and_the_server_hears_of_it: cancellation;
    a_call_reports_its_progress: progress;
    a_server_asks_for_a_sample: sampling;
    a_server_asks_for_roots_at_its_start: roots_at_start;
    a_server_asks_for_roots_in_a_call: roots_in_a_call;
    a_server_asks_twice_in_one_call: two_elicitations;
    a_server_ends_in_the_middle_of_a_call: restart;
    a_server_logs: logs;
    a_server_tells_that_a_resource_changed: resource_update;
    a_server_tells_that_its_tools_changed: list_changed;
}
