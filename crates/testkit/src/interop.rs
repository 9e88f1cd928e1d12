//! The matrix of foreign clients and scenarios: one column per client and era, one test per cell.
//!
//! Hides which server stands behind Rialto for a scenario and what a client must have seen there.
//! It knows no client: a column names its own player, a function from an endpoint and a scenario's
//! name to what was seen.

pub mod fixture;
pub mod judge;
mod remote_server;
pub mod restarts;
pub mod sdk;

pub use fixture::{Fixture, test_deps};
pub use remote_server::RemoteServer;

/// Every scenario as a test of a module that is named after the client and the era it speaks.
///
/// The player is an `FnOnce(&str, &str) -> Result<Value, String>`: endpoint and scenario in,
/// observations out.
#[macro_export]
macro_rules! interop_column {
    ($column:ident, $player:expr) => {
        mod $column {
            use super::*;

            $crate::interop_cells! { $player;
                connects: connect behind everything;
                lists_what_the_server_has: listing behind everything;
                gets_its_own_characters_back_from_a_call: call behind everything;
                gets_structured_content: structured behind everything;
                gets_the_errors_of_the_server_as_they_are: tool_error behind everything;
                gets_progress: progress behind everything;
                cancels_a_call_and_the_server_hears_of_it: cancellation behind demo;
                answers_two_elicitations_in_a_row_in_one_call: two_elicitations behind demo;
                accepts_declines_and_cancels_elicitations: elicitation behind everything;
                answers_sampling: sampling behind everything;
                tells_its_roots_and_their_change: roots behind everything;
                gets_the_resource_updates_it_subscribed_to: subscriptions behind everything;
                hears_that_the_list_of_resources_changed: list_changed behind everything;
                hears_that_the_list_of_tools_changed: tools_changed behind demo;
                gets_logs_at_its_level: logging behind everything;
                gets_a_message_of_five_megabytes_back: large_message behind everything;
                makes_fifty_calls_at_once: fifty_at_once behind everything;
                gets_prompts_and_completions: prompts_and_completion behind everything;
                reads_resources: resources_read behind everything;
                is_replayed_what_ended_while_it_was_away: resume_after_the_end behind everything;
                resumes_a_call_that_still_runs: resume_before_the_end behind everything;
                ends_its_session_for_good: terminate behind everything;
                samples_beside_another_with_a_process_per_session:
                    two_clients_sample_at_once behind everything_per_session;
            }
        }
    };
}

/// The scenarios that a client of the old transport can play: all but those about resuming and
/// ending a session.
#[macro_export]
macro_rules! interop_old_column {
    ($column:ident, $player:expr) => {
        mod $column {
            use super::*;

            $crate::interop_cells! { $player;
                lists_what_the_server_has: listing behind everything_by_old_sse;
                gets_its_own_characters_back_from_a_call: call behind everything_by_old_sse;
                gets_structured_content: structured behind everything_by_old_sse;
                gets_the_errors_of_the_server_as_they_are: tool_error behind everything_by_old_sse;
                gets_progress: progress behind everything_by_old_sse;
                cancels_a_call_and_the_server_hears_of_it: cancellation behind demo_by_old_sse;
                answers_two_elicitations_in_a_row_in_one_call: two_elicitations behind demo_by_old_sse;
                accepts_declines_and_cancels_elicitations: elicitation behind everything_by_old_sse;
                answers_sampling: sampling behind everything_by_old_sse;
                tells_its_roots_and_their_change: roots behind everything_by_old_sse;
                gets_the_resource_updates_it_subscribed_to: subscriptions behind everything_by_old_sse;
                hears_that_the_list_of_resources_changed: list_changed behind everything_by_old_sse;
                hears_that_the_list_of_tools_changed: tools_changed behind demo_by_old_sse;
                gets_logs_at_its_level: logging behind everything_by_old_sse;
                gets_a_message_of_five_megabytes_back: large_message behind everything_by_old_sse;
                makes_fifty_calls_at_once: fifty_at_once behind everything_by_old_sse;
                gets_prompts_and_completions: prompts_and_completion behind everything_by_old_sse;
                reads_resources: resources_read behind everything_by_old_sse;
            }
        }
    };
}

/// The scenarios of a legacy client through three replicas and the balancer.
#[macro_export]
macro_rules! interop_fleet_column {
    ($column:ident, $player:expr) => {
        mod $column {
            use super::*;

            $crate::interop_fleet_cells! { $player;
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
                terminate behind everything_in_a_fleet;
                two_clients_sample_at_once behind everything_per_session_in_a_fleet;
            }
        }
    };
}

/// Tests of one player, each with its own fleet, and played as often as `FLEET_RUNS` sets.
#[macro_export]
macro_rules! interop_fleet_cells {
    ($player:expr; $($scenario:ident behind $fixture:ident;)*) => {$(
        #[test]
        fn $scenario() {
            for _ in 0..$crate::interop::fleet_runs() {
                $crate::interop::Fixture::$fixture().run(
                    stringify!($scenario),
                    $player,
                    $crate::interop::judge::$scenario,
                );
            }
        }
    )*};
}

/// Returns how often each cell of a fleet is played: once, if `FLEET_RUNS` does not set it for a run
/// for the record.
pub fn fleet_runs() -> usize {
    let set = std::env::var_os("FLEET_RUNS");
    let text = set.and_then(|text| text.into_string().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Tests of one player, each with its own Rialto; the scenario's name is also its judge's.
#[macro_export]
macro_rules! interop_cells {
    ($player:expr; $($test:ident: $scenario:ident behind $fixture:ident;)*) => {$(
        #[test]
        fn $test() {
            $crate::interop::Fixture::$fixture().run(
                stringify!($scenario),
                $player,
                $crate::interop::judge::$scenario,
            );
        }
    )*};
}
