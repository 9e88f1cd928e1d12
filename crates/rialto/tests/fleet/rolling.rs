//! A rolling update of three replicas under load: each gets SIGTERM and is started again.

use std::time::Duration;

use testkit::{FleetConfig, PATIENCE, Result, wait_until};

use super::fixture::{Ending, Load, assert_none_ran_twice, drain_with_call, id_of, moved, session_at};

/// Longer than `drain_timeout` below.
const DRAIN: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_update_loses_no_session_and_no_call() -> Result<()> {
    const SESSIONS: usize = 24;
    let config = FleetConfig::of_stub("process: shared, max_sessions: 200").more("drain_timeout: 30s");
    let mut fleet = config.start().await?;
    let load = Load::start(&fleet, SESSIONS).await?;
    load.goes_on(SESSIONS * 2).await;
    for replica in 0..3 {
        // As `preStop` does: a socket that is closed would reset what waits in its queue.
        fleet.take_out(replica)?;
        load.goes_on(SESSIONS).await;
        let status = fleet.terminate(replica, DRAIN).await?;
        assert!(status.success(), "{status}");
        load.goes_on(SESSIONS).await;
        fleet.up(replica).await?;
        load.goes_on(SESSIONS).await;
    }
    let endings = load.finish(&fleet).await?;
    let lost: Vec<_> = endings
        .iter()
        .filter(|(ending, _)| **ending != Ending::Answered)
        .collect();
    assert!(lost.is_empty(), "calls were lost: {lost:?}");
    Ok(())
}

#[tokio::test]
async fn drain_hands_sessions_over_and_lets_calls_finish() -> Result<()> {
    let config = FleetConfig::of_stub("process: per_session").more("drain_timeout: 30s");
    let mut fleet = config.start().await?;
    let (idle, busy) = (session_at(&fleet, 0).await?, session_at(&fleet, 0).await?);
    let call = drain_with_call(&fleet, &busy, 0).await?;
    // A session without a call is handed over at once, and goes on elsewhere during the drain.
    let id = id_of(&idle);
    wait_until("the session has no owner", PATIENCE, || {
        fleet.owner_of(&id).ok().filter(Option::is_none)
    })
    .await;
    moved(&fleet, &idle, 2)
        .await?
        .expect_echo("during the drain")
        .await?;
    assert_eq!(fleet.owner_of(&id)?, Some(2));
    // The other one stays while its call runs.
    assert_eq!(fleet.owner_of(&id_of(&busy))?, Some(0));
    let caller = call.release().await?;
    let status = fleet.terminate(0, DRAIN).await?;
    assert!(status.success(), "{status}");
    caller.expect_echo("after").await?;
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}
