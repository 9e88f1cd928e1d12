//! Conversations: scripts of what clients and a server send and receive, run against the real
//! machines.
//!
//! Each file in `tests/conversations` is one idea, stated as a sentence in its first comment. The
//! fixture wires sessions and a multiplexer together as the gateway does: tells go to their
//! session, asks go to the multiplexer, a stream is read when the machine wakes its reader. The
//! language is described in `conversations/script.rs`.
//!
//! Everything received must be expected: before a peer sends again, and at the end, every mailbox
//! has to be empty. What the multiplexer still has at the end, or has counted, must have been
//! stated.
#![expect(
    clippy::disallowed_methods,
    reason = "a test reads its scripts, and writes them on request"
)]

mod fixture;
mod modern_requests;
mod pattern;
mod posts;
mod script;
mod update;

macro_rules! conversations {
    ($($name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                let text = include_str!(concat!(stringify!($name), ".conv"));
                check(stringify!($name), text);
            }
        )+

        const LISTED: &[&str] = &[$(stringify!($name)),+];
    };
}

conversations! {
    roots_of_no_session_in_particular_are_refused_at_once,
    poll_counts_though_the_request_for_the_outcome_did_not_arrive,
    roots_of_one_principal_are_not_sent_while_another_is_there,
    call_that_waits_for_its_own_client_is_not_refused_as_occupied,
    only_roots_that_a_modern_client_answered_are_kept,
    new_server_asks_the_only_session_after_a_crash_with_a_suspended_call,
    task_notification_without_a_task_is_a_stray,
    list_of_a_legacy_client_teaches_the_tools_of_a_modern_server,
    task_id_of_another_principal_stays_with_it,
    subscriptions_beyond_the_limit_are_refused,
    abandoned_calls_beyond_the_limit_are_counted,
    changes_of_several_tasks_are_looked_up_apart,
    roots_outside_a_call_wait_though_a_call_was_cancelled_that_cannot_ask,
    log_line_in_the_exchange_of_a_cancelled_call_is_dropped,
    question_of_a_session_that_ended_goes_to_the_other_of_its_principal,
    question_of_a_task_is_refused_in_time,
    task_is_polled_at_its_own_pace,
    log_line_of_a_modern_clients_task_has_no_stream,
    only_session_is_asked_after_its_suspended_call_went_on,
    client_that_reads_only_events_gets_its_answer_as_one,
    question_of_a_cancelled_call_comes_with_another_call_of_its_session,
    round_that_asks_more_than_the_limit_fails,
    undeclared_question_of_a_cancelled_call_does_not_end_the_next,
    ping_is_awaited_for_half_a_minute_at_most,
    lost_request_for_the_outcome_of_a_task_is_made_again,
    task_that_another_client_watches_is_granted_at_once,
    call_that_no_other_principal_keeps_waiting_any_more_waits_on,
    strays_of_a_modern_server_are_dropped,
    cancelled_call_over_posts_is_over_at_a_modern_server,
    sampling_with_tools_needs_a_client_that_declared_them,
    newer_client_gets_the_servers_version,
    withdrawn_question_of_a_task_is_not_shown,
    task_of_another_principal_is_not_watched,
    log_line_of_the_only_call_that_is_not_suspended,
    log_line_after_a_cancelled_call_goes_to_its_session,
    level_that_may_not_have_reached_the_server_is_sent_again,
    broken_listen_is_opened_again_over_posts,
    withdrawal_of_an_unknown_question_is_a_stray,
    server_that_is_reached_by_posts_suits_all_principals,
    server_is_kept_for_a_task_that_goes_on,
    server_belongs_to_the_principal_that_was_asked,
    returned_poll_of_a_task_is_repeated,
    request_lost_between_two_rounds_fails,
    notification_of_a_client_needs_a_server,
    denied_tools_are_left_out_of_lists_and_counts,
    answer_in_another_exchange_is_dropped,
    answer_without_room_is_a_refusal,
    as_many_questions_as_sessions_are_refused,
    as_many_questions_as_sessions_that_remain_are_refused,
    both_eras_share_a_legacy_server,
    both_eras_share_a_modern_server,
    call_waits_five_seconds_for_another_principals_client,
    calls_go_on_while_another_session_is_asked,
    calls_of_modern_clients_take_turns,
    calls_take_turns_once_a_server_has_asked,
    cancel_between_rounds_forgets_the_round,
    cancel_of_a_waiting_call_never_reaches_the_server,
    cancel_of_anothers_call_is_ignored,
    cancel_reaches_the_server,
    cancel_takes_the_newest_of_equal_ids,
    client_that_does_not_come_back_is_given_up,
    client_that_reads_events_waits_longer,
    configured_roots_answer_when_no_client_can,
    crash_fails_a_parked_call,
    crash_fails_calls_in_flight,
    crash_with_calls_waiting_asks_for_a_link,
    equal_ids_in_one_session,
    equal_ids_in_two_sessions,
    errors_of_a_legacy_server_are_not_misread,
    errors_of_a_modern_server_are_not_misread,
    failed_subscription_is_forgotten,
    finished_stream_is_refused,
    forgotten_session_is_initialized_anew,
    get_stream_is_resumed,
    handshake_refused_by_the_server,
    handshake_too_long_fails_the_pending_opens,
    disconnect_is_no_cancel,
    disconnect_of_a_modern_client_cancels,
    held_question_can_be_withdrawn,
    held_question_is_refused_in_time,
    held_question_is_refused_though_calls_have_no_limit,
    held_question_goes_to_the_call_that_remains_after_a_cancel,
    implicit_session,
    implicit_session_is_introduced_again_after_a_refusal,
    initialize_happens_once,
    json_only_client_receives_progress_on_its_get_stream,
    json_without_its_version_is_noise,
    large_calls_in_flight_are_bounded,
    legacy_client_answers_a_modern_server_in_rounds,
    legacy_client_gets_the_result_of_a_modern_servers_task,
    legacy_client_opens_a_session_with_a_modern_server,
    legacy_client_subscribes_by_a_new_listen,
    list_changed_reaches_every_session,
    listens_of_modern_clients_share_one,
    listens_that_end_together_are_counted,
    log_level_is_the_most_verbose_and_filtered,
    log_level_needs_a_server_that_logs,
    log_level_of_a_legacy_client_goes_with_each_call,
    log_level_of_one_session_does_not_silence_others,
    log_line_of_a_call_extends_it,
    log_line_of_a_call_goes_to_its_stream,
    log_line_that_its_client_does_not_receive_extends_a_call,
    log_lines_are_for_modern_clients_that_ask,
    log_lines_of_a_modern_call_do_not_depend_on_others,
    log_lines_of_a_suspended_call_stay_with_its_principal,
    log_lines_of_a_retry_are_as_the_retry_wants,
    log_lines_of_other_principals_are_not_shared,
    log_lines_of_the_only_running_call_survive_a_cancelled_one,
    long_wait_turns_a_post_into_a_stream,
    lost_events_leave_a_mark,
    lost_listen_is_opened_again,
    methods_that_are_gone_are_not_found,
    modern_client_and_modern_server_speak_as_they_are,
    modern_client_receives_progress_under_its_own_token,
    modern_client_is_asked_only_questions_of_its_era,
    modern_client_is_asked_twice_in_one_execution,
    modern_client_is_asked_questions_it_can_answer,
    modern_client_is_given_a_task_of_a_legacy_server,
    modern_client_discovers_a_legacy_server,
    modern_client_listens_for_a_task_of_a_legacy_server,
    modern_client_listens_to_a_legacy_server,
    modern_client_that_reads_events_waits_longer,
    modern_client_waits_for_a_server_that_starts,
    modern_peers_share_tasks_as_they_are,
    modern_servers_may_not_ask_by_requests,
    modern_servers_task_may_end_otherwise,
    name_that_is_none_is_not_passed_on,
    newest_progress_is_kept_while_parked,
    noise_and_strays_are_dropped,
    notices_wait_for_the_first_listener,
    older_call_within_its_limit_excuses_silence,
    older_client_gets_its_version,
    older_clients_are_not_primed,
    only_session_is_asked_after_a_cancel,
    only_some_modern_requests_can_be_asked_back,
    outage_makes_calls_wait,
    outcome_waits_for_a_parked_client,
    parking_stops_the_clock,
    partial_answers_make_a_new_round,
    ping_is_answered_by_the_bridge,
    plain_call,
    poll_that_is_answered_by_a_resumable_stream_goes_on,
    post_stream_is_resumed,
    post_that_broke_off_fails_its_caller_only,
    progress_extends_ten_times,
    progress_makes_a_stream,
    progress_without_a_token_is_dropped,
    question_a_client_cannot_answer_is_refused,
    question_a_modern_client_cannot_answer_ends_its_call,
    question_goes_to_one_stream_only,
    question_goes_to_the_only_asking_session,
    question_in_an_exchange_is_its_callers,
    question_is_refused_when_its_client_has_closed_its_streams,
    question_of_a_call_that_timed_out_reaches_no_other_principal,
    question_of_a_cancelled_call_reaches_no_other_principal,
    question_of_a_session_that_ended_reaches_no_other_principal,
    question_of_several_principals_is_refused,
    question_of_several_waits_until_one_remains,
    question_stops_the_clock,
    question_without_an_answer_is_refused,
    refusal_of_a_legacy_client_ends_the_call,
    refused_headers_are_mended_once,
    refused_log_level_is_asked_again,
    refused_resource_can_be_subscribed_again,
    restart_replays_the_state,
    lost_call_of_an_earlier_life_is_not_run_again,
    restored_session_listens_to_a_modern_server,
    restored_session_is_introduced_again_after_a_refusal,
    restored_sessions_share_a_server_that_runs,
    restored_session_is_introduced_in_its_clients_words,
    restarted_modern_server_is_listened_to_again,
    retry_that_does_not_fit_changes_nothing,
    retired_server_refuses_waiting_calls,
    returned_subscription_is_sent_again,
    roots_are_asked_with_a_call_that_waited,
    roots_at_start,
    roots_outside_a_call_wait_for_the_next,
    roots_that_no_call_carries_are_refused,
    rounds_are_capped,
    sampled_content_is_single_for_an_old_server,
    server_silent_at_the_handshake_is_replaced,
    server_that_forgets_every_session_is_given_up,
    server_that_stops_reading_is_bounded,
    start_goes_on_while_a_server_writes_to_stderr,
    server_withdraws_a_question,
    server_withdraws_while_parked,
    session_close_cleans_up,
    session_closed_while_opening,
    activity_keeps_a_server,
    silent_server_is_pinged_and_then_replaced,
    slow_start_is_not_a_slow_call,
    state_alone_means_try_again_soon,
    steps_of_a_call_that_ends_are_called_off_over_posts,
    other_principal_cannot_answer,
    stream_resumed_twice,
    stream_that_can_be_resumed_is_one_at_both_ends,
    strict_server_receives_initialized_first,
    subscription_given_up_before_its_listen_can_be_made_again,
    subscriptions_are_counted,
    task_id_that_is_given_twice_begins_anew,
    task_of_a_legacy_client_asks_its_session,
    task_of_a_legacy_server_asks_a_modern_client,
    failed_task_ends_its_call_with_an_error,
    tasks_are_their_principals_own,
    timeout_cancels_upstream,
    too_long_answer_fails_its_caller_only,
    too_long_list_of_tools_is_done_without,
    too_long_question_is_refused,
    tool_that_must_be_a_task_is_pursued_for_a_modern_client,
    tools_for_user_interfaces_are_for_clients_that_show_them,
    unanswered_update_of_a_task_is_forgotten_with_it,
    unavailable_server_fails_waiting_calls,
    undeclared_question_ends_with_its_call,
    unread_question_is_refused,
    union_declares_everything,
    unknown_notification_needs_one_principal,
    unknown_notification_needs_one_session,
    unreadable_answer_fails_its_caller_only,
    unreadable_initialize_result_fails_the_pending_opens,
    updates_go_to_subscribers,
    updates_reach_no_other_principal_that_never_subscribed,
    url_elicitation_declined_ends_the_call,
    url_elicitation_left_open_is_forgotten,
    url_elicitation_needs_a_capable_client,
    url_elicitation_required_becomes_a_round,
    url_question_of_a_modern_server_gets_an_id,
    messages_without_counterpart_are_dropped,
    initialize_of_the_only_client_is_kept,
    line_that_is_no_message_replaces_the_server,
    line_without_end_replaces_the_server,
    server_that_hangs_is_replaced_after_one_call,
    server_that_hangs_behind_an_older_call_is_replaced,
    second_silent_call_shows_that_a_server_hangs,
    answered_ping_keeps_a_server_with_an_older_call,
    stderr_shows_that_a_server_works_on_an_older_call,
    roots_are_refused_though_calls_have_no_limit,
    own_request_is_called_off_though_calls_have_no_limit,
    lost_question_about_a_task_is_asked_again,
    unconfirmed_subscription_fails_though_calls_have_no_limit,
    listen_is_acknowledged_without_unconfirmed_filters,
    impatient_clients_do_not_hide_a_hang,
    server_that_reads_nothing_is_replaced_though_no_call_is_open,
    server_that_reads_nothing_while_it_waits_for_an_answer_is_replaced,
    server_that_reads_late_is_kept,
    server_at_work_on_a_call_may_read_nothing,
    cancel_of_a_task_fails_as_its_server_wants,
    server_without_tasks_is_asked_about_none,
    ended_task_makes_room_before_an_older_one,
    whole_list_of_a_client_teaches_the_tools,
    list_of_tools_without_end_is_cut,
}

/// Runs a conversation. With `UPDATE_CONVERSATIONS` set, one that went otherwise is written anew.
fn check(name: &str, text: &str) {
    let Err(why) = script::run(text) else { return };
    assert!(
        std::env::var_os("UPDATE_CONVERSATIONS").is_some(),
        "{name}.conv, {why}\n  UPDATE_CONVERSATIONS=1 writes what was received into the file"
    );
    let rewritten = update::rewritten(text).unwrap_or_else(|why| panic!("{name}.conv, {why}"));
    let path = format!("{}/tests/conversations/{name}.conv", env!("CARGO_MANIFEST_DIR"));
    std::fs::write(path, &rewritten).expect("the conversation can be written");
    if let Err(why) = script::run(&rewritten) {
        panic!("{name}.conv, as written anew, {why}");
    }
}

#[test]
fn every_conversation_is_listed_and_begins_with_its_sentence() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conversations");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "conv") {
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap();
            assert!(LISTED.contains(&name), "{name}.conv is not run");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(
                text.lines()
                    .next()
                    .is_some_and(|line| line.starts_with("# ") && line.ends_with('.')),
                "{name}.conv does not say what it shows"
            );
        }
    }
}

#[test]
fn a_conversation_that_went_otherwise_is_reported_with_its_line() {
    let wrong = "# x.\nopened a\nclient a> tools/call #1 {}\nserver< tools/call #w {\"other\":1}\n";
    let why = script::run(wrong).unwrap_err();
    assert!(why.starts_with("line 4"), "{why}");
    let unexpected = "# x.\nopened a\nclient a> tools/call #1 {}\ntime +1s\n";
    let why = script::run(unexpected).unwrap_err();
    assert!(
        why.starts_with("line 4") && why.contains("was not expected"),
        "{why}"
    );
    let left = "# x.\nopened a\nclient a> tools/call #1 {}\nserver< tools/call #w {}\n";
    let why = script::run(left).unwrap_err();
    assert!(why.contains("does not end with `open 1`"), "{why}");
}
