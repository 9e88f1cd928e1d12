//! Official SDK clients against an official server, with the real binary in between.
//!
//! Each test is one cell of (client, scenario): it starts `rialto serve` in front of
//! `@modelcontextprotocol/server-everything`, lets the client script of `tests/interop` play the scenario, judges what
//! the client saw, ends Rialto and looks for processes left behind. The packages come from `cargo xtask setup`;
//! without them a test fails and says so.

mod interop {
    pub(crate) mod judge;
    pub(crate) mod stage;
}

use interop::judge;
use interop::stage::{Client, Rialto};

/// One test per client and scenario; the scenario's name is also its judge's.
macro_rules! cells {
    ($($scenario:ident: $typescript:ident, $python:ident;)*) => {$(
        #[test]
        fn $typescript() {
            Rialto::in_front_of_node().plays(Client::TypeScript1, stringify!($scenario), judge::$scenario);
        }

        #[test]
        fn $python() {
            Rialto::in_front_of_node().plays(Client::Python1, stringify!($scenario), judge::$scenario);
        }
    )*};
}

cells! {
    connect_and_list:
        typescript_1_client_connects_and_lists_what_server_everything_has,
        python_1_client_connects_and_lists_what_server_everything_has;
    echo:
        typescript_1_client_gets_its_own_characters_back_from_server_everything,
        python_1_client_gets_its_own_characters_back_from_server_everything;
    large_message:
        typescript_1_client_gets_half_a_megabyte_back_from_server_everything,
        python_1_client_gets_half_a_megabyte_back_from_server_everything;
    structured:
        typescript_1_client_gets_structured_content_from_server_everything,
        python_1_client_gets_structured_content_from_server_everything;
    tool_error:
        typescript_1_client_gets_the_errors_of_server_everything_as_they_are,
        python_1_client_gets_the_errors_of_server_everything_as_they_are;
    progress:
        typescript_1_client_gets_progress_from_server_everything,
        python_1_client_gets_progress_from_server_everything;
    sampling:
        typescript_1_client_samples_for_server_everything,
        python_1_client_samples_for_server_everything;
    elicitation:
        typescript_1_client_answers_three_elicitations_of_server_everything_in_a_row,
        python_1_client_answers_three_elicitations_of_server_everything_in_a_row;
    roots:
        typescript_1_client_tells_server_everything_its_roots_and_their_change,
        python_1_client_tells_server_everything_its_roots_and_their_change;
    logging:
        typescript_1_client_gets_the_logs_of_server_everything_at_its_level,
        python_1_client_gets_the_logs_of_server_everything_at_its_level;
    subscriptions:
        typescript_1_client_gets_the_updates_of_server_everything_it_subscribed_to,
        python_1_client_gets_the_updates_of_server_everything_it_subscribed_to;
    list_changed:
        typescript_1_client_hears_that_the_resources_of_server_everything_changed,
        python_1_client_hears_that_the_resources_of_server_everything_changed;
    cancellation:
        typescript_1_client_cancels_a_call_of_server_everything_and_goes_on,
        python_1_client_cancels_a_call_of_server_everything_and_goes_on;
    fifty_at_once:
        typescript_1_client_makes_fifty_calls_at_once_to_server_everything,
        python_1_client_makes_fifty_calls_at_once_to_server_everything;
    prompts_and_completion:
        typescript_1_client_gets_prompts_and_completions_from_server_everything,
        python_1_client_gets_prompts_and_completions_from_server_everything;
    resources_read:
        typescript_1_client_reads_resources_of_server_everything,
        python_1_client_reads_resources_of_server_everything;
    resume_after_the_end:
        typescript_1_client_is_replayed_what_ended_while_it_was_away,
        python_1_client_is_replayed_what_ended_while_it_was_away;
    resume_before_the_end:
        typescript_1_client_resumes_a_call_that_still_runs,
        python_1_client_resumes_a_call_that_still_runs;
    resume_with_token:
        typescript_1_client_resumes_from_a_token_in_a_new_connection,
        python_1_client_resumes_from_a_token_in_a_new_connection;
    terminate:
        typescript_1_client_ends_its_session_for_good,
        python_1_client_ends_its_session_for_good;
}

#[test]
fn two_typescript_1_clients_sample_at_once_with_a_process_per_session() {
    Rialto::with_a_process_per_session().plays(
        Client::TypeScript1,
        "two_clients_sample_at_once",
        judge::two_clients_sample_at_once,
    );
}

#[test]
fn two_python_1_clients_sample_at_once_with_a_process_per_session() {
    Rialto::with_a_process_per_session().plays(
        Client::Python1,
        "two_clients_sample_at_once",
        judge::two_clients_sample_at_once,
    );
}

#[test]
fn typescript_1_client_gets_progress_from_server_everything_started_by_npx() {
    Rialto::in_front_of_npx().plays(Client::TypeScript1, "progress", judge::progress);
}

#[test]
fn python_1_client_gets_progress_from_server_everything_started_by_npx() {
    Rialto::in_front_of_npx().plays(Client::Python1, "progress", judge::progress);
}
