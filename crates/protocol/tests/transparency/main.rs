//! Same era on both sides: client and server receive through Rialto what they would have received
//! directly, byte for byte, but for ids and tokens.
//!
//! A random scenario is performed twice by the same scripted client and server, once face to face
//! and once through the machines. What differs by design is not in the scenario: pings and doubled
//! subscriptions, which Rialto answers itself, and modern listens, which all clients share.
//!
//! The same holds of an aggregate with one member that has no prefix. There Rialto answers the
//! handshake, lists and log levels itself, so they are not in the scenario either.

mod scenario;
mod ways;

use proptest::prelude::*;
use scenario::{Step, perform};
use ways::{Direct, ThroughModernRequests, ThroughSession};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(what, values, token)| Step::Call { what, values, token }),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => any::<u8>().prop_map(Step::Notice),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(which, good)| Step::Reply { which, good }),
        4 => (any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(which, values, kind)| Step::Answer { which, values, kind }),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(which, values)| Step::Progress { which, values }),
        2 => any::<u8>().prop_map(Step::Log),
        2 => any::<u8>().prop_map(Step::Ask),
        1 => any::<u8>().prop_map(Step::Withdraw),
        2 => any::<u8>().prop_map(Step::Tell),
    ];
    proptest::collection::vec(step, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_legacy_client_and_a_legacy_server_notice_nothing(steps in steps()) {
        let direct = perform(&mut Direct::default(), &steps, scenario::LEGACY);
        let through = perform(&mut ThroughSession::default(), &steps, scenario::LEGACY);
        prop_assert_eq!(direct, through);
    }

    #[test]
    fn a_modern_client_and_a_modern_server_notice_nothing(steps in steps()) {
        let direct = perform(&mut Direct::default(), &steps, scenario::MODERN);
        let through = perform(&mut ThroughModernRequests::default(), &steps, scenario::MODERN);
        prop_assert_eq!(direct, through);
    }

    #[test]
    fn a_legacy_server_that_is_the_only_member_of_an_aggregate_is_as_it_is_alone(steps in steps()) {
        let direct = perform(&mut Direct::default(), &steps, scenario::LEGACY_MEMBER);
        let through = perform(&mut ThroughSession::in_an_aggregate(), &steps, scenario::LEGACY_MEMBER);
        prop_assert_eq!(direct, through);
    }

    #[test]
    fn a_modern_server_that_is_the_only_member_of_an_aggregate_is_as_it_is_alone(steps in steps()) {
        let direct = perform(&mut Direct::default(), &steps, scenario::MODERN_MEMBER);
        let through = perform(&mut ThroughModernRequests::in_an_aggregate(), &steps, scenario::MODERN_MEMBER);
        prop_assert_eq!(direct, through);
    }
}

#[test]
fn a_scenario_has_something_to_compare() {
    let steps: Vec<Step> = (0..40)
        .flat_map(|number: u8| {
            [
                Step::Call {
                    what: number,
                    values: number,
                    token: true,
                },
                Step::Progress {
                    which: number,
                    values: number,
                },
                Step::Ask(number),
                Step::Log(number),
                Step::Tell(number),
                Step::Reply {
                    which: number,
                    good: !number.is_multiple_of(3),
                },
                Step::Answer {
                    which: number,
                    values: number,
                    kind: number,
                },
            ]
        })
        .collect();
    for (era, least) in [
        (scenario::LEGACY, 80),
        (scenario::MODERN, 30),
        (scenario::LEGACY_MEMBER, 60),
        (scenario::MODERN_MEMBER, 30),
    ] {
        let received = perform(&mut Direct::default(), &steps, era);
        assert!(
            received.client.len() > least && received.server.len() > least,
            "{received:#?}"
        );
    }
}
