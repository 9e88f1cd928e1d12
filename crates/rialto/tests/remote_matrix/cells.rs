// The cells of the matrices of remote servers: included, so that the tests of each road have the same names.

/// The 2.x lines are legacy clients too, but as such they speak as the 1.x lines do; `eras.rs` has them.
const CLIENTS: [Client; 4] = [
    Client::TypeScript1,
    Client::TypeScript2Modern,
    Client::Python1,
    Client::Python2Modern,
];
const SERVERS: [Server; 7] = [
    Server::TypeScript1Stateful,
    Server::TypeScript1Stateless,
    Server::TypeScript1Sse,
    Server::TypeScript2Modern,
    Server::TypeScript2Dual,
    Server::Python1,
    Server::Python2,
];

/// One scenario as a module, with a test for every server of a list and every client.
macro_rules! scenarios {
    ($($scenario:ident: $judge:ident { $($server:ident),* } $(modern clients too: $modern:ident)?;)*) => {$(
        mod $scenario {
            use super::*;

            $(cells! { $judge, $server })*
            $(modern_cells! { $judge, $modern })?
        }
    )*};
}

macro_rules! cells {
    ($judge:ident, TypeScript1Stateful) => { clients! { $judge, TypeScript1Stateful;
        typescript_1_client_and_typescript_1_server, typescript_2_modern_client_and_typescript_1_server,
        python_1_client_and_typescript_1_server, python_2_modern_client_and_typescript_1_server } };
    ($judge:ident, TypeScript1Stateless) => { clients! { $judge, TypeScript1Stateless;
        typescript_1_client_and_typescript_1_stateless_server, typescript_2_modern_client_and_typescript_1_stateless_server,
        python_1_client_and_typescript_1_stateless_server, python_2_modern_client_and_typescript_1_stateless_server } };
    ($judge:ident, TypeScript1Sse) => { clients! { $judge, TypeScript1Sse;
        typescript_1_client_and_old_sse_server, typescript_2_modern_client_and_old_sse_server,
        python_1_client_and_old_sse_server, python_2_modern_client_and_old_sse_server } };
    ($judge:ident, TypeScript2Modern) => { clients! { $judge, TypeScript2Modern;
        typescript_1_client_and_typescript_2_modern_server, typescript_2_modern_client_and_typescript_2_modern_server,
        python_1_client_and_typescript_2_modern_server, python_2_modern_client_and_typescript_2_modern_server } };
    ($judge:ident, TypeScript2Dual) => { clients! { $judge, TypeScript2Dual;
        typescript_1_client_and_typescript_2_dual_server, typescript_2_modern_client_and_typescript_2_dual_server,
        python_1_client_and_typescript_2_dual_server, python_2_modern_client_and_typescript_2_dual_server } };
    ($judge:ident, Python1) => { clients! { $judge, Python1;
        typescript_1_client_and_python_1_server, typescript_2_modern_client_and_python_1_server,
        python_1_client_and_python_1_server, python_2_modern_client_and_python_1_server } };
    ($judge:ident, Python2) => { clients! { $judge, Python2;
        typescript_1_client_and_python_2_server, typescript_2_modern_client_and_python_2_server,
        python_1_client_and_python_2_server, python_2_modern_client_and_python_2_server } };
}

macro_rules! clients {
    ($judge:ident, $server:ident; $typescript1:ident, $typescript2:ident, $python1:ident, $python2:ident) => {
        cell! { $judge, $typescript1: TypeScript1, $server }
        cell! { $judge, $typescript2: TypeScript2Modern, $server }
        cell! { $judge, $python1: Python1, $server }
        cell! { $judge, $python2: Python2Modern, $server }
    };
}

/// Those of a server that is stateless towards legacy clients only.
macro_rules! modern_cells {
    ($judge:ident, $server:ident) => {
        cell! { $judge, typescript_2_modern_client_and_typescript_2_dual_server: TypeScript2Modern, $server }
        cell! { $judge, python_2_modern_client_and_typescript_2_dual_server: Python2Modern, $server }
    };
}

macro_rules! cell {
    ($judge:ident, $test:ident: $client:ident, $server:ident) => {
        #[test]
        fn $test() {
            let pair = Pair {
                client: Client::$client,
                server: Server::$server,
            };
            let scenario = stringify!($judge);
            assert_eq!(pair.objection(scenario), None, "there is no such cell");
            judge::$judge(pair, &pair.seen_in(scenario));
        }
    };
}

scenarios! {
    a_call_comes_back_as_it_was: call
        { TypeScript1Stateful, TypeScript1Stateless, TypeScript1Sse, TypeScript2Modern, TypeScript2Dual, Python1, Python2 };
    a_call_is_cancelled_and_the_server_hears_of_it: cancellation
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_call_reports_its_progress: progress
        { TypeScript1Stateful, TypeScript1Stateless, TypeScript1Sse, TypeScript2Modern, TypeScript2Dual, Python1, Python2 };
    a_server_asks_for_a_sample: sampling
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_server_asks_for_roots_at_its_start: roots_at_start
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_server_asks_for_roots_in_a_call: roots_in_a_call
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_server_asks_twice_in_one_call: two_elicitations
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_server_ends_in_the_middle_of_a_call: restart
        { TypeScript1Stateful, TypeScript1Stateless, TypeScript1Sse, TypeScript2Modern, TypeScript2Dual, Python1, Python2 };
    a_server_logs: logs
        { TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_server_tells_that_a_resource_changed: resource_update
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
    a_server_tells_that_its_tools_changed: list_changed
        { TypeScript1Stateful, TypeScript1Sse, TypeScript2Modern, Python1, Python2 } modern clients too: TypeScript2Dual;
}

// The only scenario that this server can play with legacy clients alone.
cell! { logs, a_server_logs_to_a_typescript_1_client_on_a_stream_of_its_own: TypeScript1, TypeScript1Stateful }
cell! { logs, a_server_logs_to_a_python_1_client_on_a_stream_of_its_own: Python1, TypeScript1Stateful }

/// So that the list of what cannot be only ever shrinks.
#[test]
fn the_cells_that_cannot_exist_are_counted() {
    let mut missing = 0;
    for client in CLIENTS {
        for server in SERVERS {
            let pair = Pair { client, server };
            missing += SCENARIOS
                .iter()
                .filter(|scenario| pair.objection(scenario).is_some())
                .count();
        }
    }
    // Eight scenarios of the stateless server with each of four clients, and of the one that is stateless towards
    // the two legacy ones; and the log lines that belong to no call, for the two modern clients.
    assert_eq!(missing, 8 * 4 + 8 * 2 + 2);
}
