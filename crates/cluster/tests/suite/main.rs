//! One suite for every engine of the registry: what the contract of `cluster::registry` promises.
//!
//! A case is a function over an [`Engine`], and `suite!` makes one test of it for each engine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;
mod engine;
mod redis_faults;
mod redis_primary;

use engine::Engine;

/// Makes a test of each case, for one engine.
macro_rules! suite {
    ($engine:ty) => {
        suite!($engine:
            new_session_is_found_with_its_living_owner,
            unknown_session_is_not_found,
            record_keeps_every_member,
            record_written_twice_by_its_owner_stays,
            record_of_another_owner_is_not_replaced,
            record_of_a_lower_epoch_is_replaced,
            record_beyond_the_limit_is_refused,
            session_of_a_living_owner_is_not_taken_over,
            session_of_a_dead_owner_is_taken_over_once,
            session_of_an_owner_that_left_is_taken_over,
            take_over_with_an_old_epoch_is_lost,
            take_over_of_an_unknown_session_finds_nothing,
            owner_takes_its_own_session_over_after_a_lost_answer,
            superseded_owner_changes_nothing,
            owner_of_the_same_epoch_elsewhere_is_superseded,
            state_of_a_session_is_changed_by_its_owner,
            many_sessions_are_touched_each_by_its_claim,
            released_session_is_taken_by_exactly_one,
            released_session_is_released_again_after_a_lost_answer,
            removed_session_is_gone_and_a_late_update_finds_nothing,
            session_that_is_not_used_expires,
            session_that_is_touched_does_not_expire,
            nodes_are_listed_while_their_lease_lasts,
            lease_that_ended_is_not_renewed,
            engine_that_lost_everything_gets_the_records_again,
            operations_may_run_at_once,
            name_has_one_holder_while_its_lease_lasts,
            name_that_expired_has_no_holder,
            leased_name_stays_with_one_node_until_its_lease_ends,
            leased_name_returns_to_its_node_after_a_loss,
            bucket_holds_the_tokens_of_a_minute,
            tokens_that_were_spent_are_taken_from_the_bucket,
            bucket_refills_by_the_clock_of_the_engine,
            places_of_all_nodes_are_at_most_the_limit,
            places_of_a_node_end_with_its_lease,
            places_of_a_node_that_left_return,
            places_in_use_are_noted_again_after_a_loss,
        );
    };
    ($engine:ty: $($case:ident,)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut engine = <$engine as $crate::Engine>::start().await;
                $crate::cases::$case(&mut engine).await;
            }
        )*
    };
}

mod file {
    suite!(crate::engine::File);
}

mod redis {
    suite!(crate::engine::Redis<crate::engine::Single>);
}

mod sentinel {
    suite!(crate::engine::Redis<crate::engine::Watched>);
}

mod redis_cluster {
    suite!(crate::engine::Redis<crate::engine::Cluster>);
}

mod memory {
    suite!(crate::engine::Memory);
}
