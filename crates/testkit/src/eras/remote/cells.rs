//! The cells of the matrices of remote servers, as macros: the tests of each road have the same
//! names.

/// Every cell of the matrix as a test. The road is a [`Road`](crate::eras::remote::Road).
#[macro_export]
macro_rules! remote_matrix {
    ($road:path) => {
        $crate::remote_scenarios! { $road;
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
        $crate::remote_cell! { $road; logs, a_server_logs_to_a_typescript_1_client_on_a_stream_of_its_own: TypeScript1, TypeScript1Stateful }
        $crate::remote_cell! { $road; logs, a_server_logs_to_a_python_1_client_on_a_stream_of_its_own: Python1, TypeScript1Stateful }

        /// So that the list of what cannot be only ever shrinks.
        #[test]
        fn the_cells_that_cannot_exist_are_counted() {
            // Eight scenarios of the stateless server with each of four clients, and of the one
            // that is stateless towards the two legacy ones; and the log lines that belong to no
            // call, for the two modern clients.
            assert_eq!($crate::eras::remote::missing_cells(), 8 * 4 + 8 * 2 + 2);
        }
    };
}

/// One scenario as a module, with a test for every server of a list and every client.
#[doc(hidden)]
#[macro_export]
macro_rules! remote_scenarios {
    ($road:path; $($scenario:ident: $judge:ident { $($server:ident),* } $(modern clients too: $modern:ident)?;)*) => {$(
        mod $scenario {
            $($crate::remote_cells! { $road; $judge, $server })*
            $($crate::remote_modern_cells! { $road; $judge, $modern })?
        }
    )*};
}

#[doc(hidden)]
#[macro_export]
macro_rules! remote_cells {
    ($road:path; $judge:ident, TypeScript1Stateful) => { $crate::remote_clients! { $road; $judge, TypeScript1Stateful;
        typescript_1_client_and_typescript_1_server, typescript_2_modern_client_and_typescript_1_server,
        python_1_client_and_typescript_1_server, python_2_modern_client_and_typescript_1_server } };
    ($road:path; $judge:ident, TypeScript1Stateless) => { $crate::remote_clients! { $road; $judge, TypeScript1Stateless;
        typescript_1_client_and_typescript_1_stateless_server, typescript_2_modern_client_and_typescript_1_stateless_server,
        python_1_client_and_typescript_1_stateless_server, python_2_modern_client_and_typescript_1_stateless_server } };
    ($road:path; $judge:ident, TypeScript1Sse) => { $crate::remote_clients! { $road; $judge, TypeScript1Sse;
        typescript_1_client_and_old_sse_server, typescript_2_modern_client_and_old_sse_server,
        python_1_client_and_old_sse_server, python_2_modern_client_and_old_sse_server } };
    ($road:path; $judge:ident, TypeScript2Modern) => { $crate::remote_clients! { $road; $judge, TypeScript2Modern;
        typescript_1_client_and_typescript_2_modern_server, typescript_2_modern_client_and_typescript_2_modern_server,
        python_1_client_and_typescript_2_modern_server, python_2_modern_client_and_typescript_2_modern_server } };
    ($road:path; $judge:ident, TypeScript2Dual) => { $crate::remote_clients! { $road; $judge, TypeScript2Dual;
        typescript_1_client_and_typescript_2_dual_server, typescript_2_modern_client_and_typescript_2_dual_server,
        python_1_client_and_typescript_2_dual_server, python_2_modern_client_and_typescript_2_dual_server } };
    ($road:path; $judge:ident, Python1) => { $crate::remote_clients! { $road; $judge, Python1;
        typescript_1_client_and_python_1_server, typescript_2_modern_client_and_python_1_server,
        python_1_client_and_python_1_server, python_2_modern_client_and_python_1_server } };
    ($road:path; $judge:ident, Python2) => { $crate::remote_clients! { $road; $judge, Python2;
        typescript_1_client_and_python_2_server, typescript_2_modern_client_and_python_2_server,
        python_1_client_and_python_2_server, python_2_modern_client_and_python_2_server } };
}

#[doc(hidden)]
#[macro_export]
macro_rules! remote_clients {
    ($road:path; $judge:ident, $server:ident; $typescript1:ident, $typescript2:ident, $python1:ident, $python2:ident) => {
        $crate::remote_cell! { $road; $judge, $typescript1: TypeScript1, $server }
        $crate::remote_cell! { $road; $judge, $typescript2: TypeScript2Modern, $server }
        $crate::remote_cell! { $road; $judge, $python1: Python1, $server }
        $crate::remote_cell! { $road; $judge, $python2: Python2Modern, $server }
    };
}

/// Those of a server that is stateless towards legacy clients only.
#[doc(hidden)]
#[macro_export]
macro_rules! remote_modern_cells {
    ($road:path; $judge:ident, $server:ident) => {
        $crate::remote_cell! { $road; $judge, typescript_2_modern_client_and_typescript_2_dual_server: TypeScript2Modern, $server }
        $crate::remote_cell! { $road; $judge, python_2_modern_client_and_typescript_2_dual_server: Python2Modern, $server }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! remote_cell {
    ($road:path; $judge:ident, $test:ident: $client:ident, $server:ident) => {
        #[test]
        fn $test() {
            let pair = $crate::eras::remote::Pair {
                client: $crate::eras::Client::$client,
                server: $crate::eras::remote::Server::$server,
            };
            let scenario = stringify!($judge);
            assert_eq!(pair.objection(scenario), None, "there is no such cell");
            let seen = pair.seen_in(scenario, $road);
            $crate::eras::judge::$judge(&pair.expected(), &seen);
        }
    };
}
