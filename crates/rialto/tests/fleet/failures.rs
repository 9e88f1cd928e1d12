//! What fails in a fleet, and what a client sees of it: one test for each row of the table.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::processes::send_signal;
use testkit::{Fleet, FleetConfig, McpClient, PATIENCE, Result, Sandbox, marked, poll_until, wait_until};

use super::fixture::{
    answers_to, assert_none_ran_twice, assert_owner_lost, echo_until_served, id_of, in_background, modern,
    moved, session_at,
};

/// Longer than a lease and everything that follows its end.
const TAKE_OVER: Duration = Duration::from_secs(60);

async fn three() -> Result<Fleet> {
    FleetConfig::of_stub("process: per_session").start().await
}

/// Waits until the engine names this replica as the owner.
async fn wait_for_owner(fleet: &Fleet, client: &McpClient, replica: usize) -> Result<()> {
    let id = id_of(client);
    poll_until("the session has another owner", TAKE_OVER, async || {
        Ok((fleet.owner_of(&id)? == Some(replica)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn owner_killed_before_the_request_was_sent_to_it() -> Result<()> {
    let mut fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    let there = moved(&fleet, &client, 1).await?;
    // The route is known, and the connection stands.
    there.expect_echo("before").await?;
    fleet.kill(0).await?;
    echo_until_served(&there, "after").await?;
    assert_eq!(fleet.journal().executions("after"), 1);
    assert_eq!(fleet.owner_of(&id_of(&client))?, Some(1));
    moved(&fleet, &client, 2).await?.expect_echo("elsewhere").await?;
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn owner_killed_after_the_request_was_sent() -> Result<()> {
    for has_begun in [false, true] {
        let mut fleet = three().await?;
        let client = session_at(&fleet, 0).await?;
        let there = moved(&fleet, &client, 1).await?;
        let caller = there.clone();
        let pace = if has_begun { r#","every_ms":20"# } else { "" };
        let arguments = format!(r#"{{"marker":"held"{pace}}}"#);
        let call = in_background(async move {
            let opened = caller.open_call(r#""lost.1""#, "hold", arguments, 1).await?;
            opened.reply().await
        });
        let journal = fleet.journal();
        wait_until("the call runs", PATIENCE, || {
            (journal.executions("held") == 1).then_some(())
        })
        .await;
        fleet.kill(0).await?;
        let reply = call.end().await?;
        assert_owner_lost(&reply.answer(), &json!("lost.1"));
        echo_until_served(&there, "after").await?;
        assert_none_ran_twice(&fleet.journal());
    }
    Ok(())
}

#[tokio::test]
async fn owner_killed_while_a_client_is_connected_to_it() -> Result<()> {
    let mut fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    let arguments = r#"{"marker":"held","every_ms":20}"#;
    let mut stream = client
        .open_call(r#""lost.2""#, "hold", arguments, 1)
        .await?
        .events();
    stream.message().await?;
    let last = stream.last_event_id().expect("events have ids").to_owned();
    fleet.kill(0).await?;
    // What was under way still arrives; then the connection breaks.
    while let Ok(Some(_)) = stream.next().await {}
    let there = moved(&fleet, &client, 1).await?;
    let message = poll_until("the stream is resumed", TAKE_OVER, async || {
        let response = there.get(Some(&last)).await?;
        match response.status {
            200 => Result::Ok(Some(response.events().message().await?)),
            503 => Ok(None),
            status => panic!("{status}: {:?}", response.reply().await?),
        }
    })
    .await?;
    assert_owner_lost(&message, &json!("lost.2"));
    moved(&fleet, &client, 2).await?.expect_echo("after").await?;
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn owner_paused_and_taken_over_and_resumed() -> Result<()> {
    let mut fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    let pid: u32 = client.call(1, "pid", "{}").await?.text().parse().expect("a pid");
    let waiting = client.clone();
    let call = in_background(async move { waiting.call(r#""late""#, "hold", marked("held")).await });
    let journal = fleet.journal();
    wait_until("the call runs", PATIENCE, || {
        (journal.executions("held") == 1).then_some(())
    })
    .await;
    fleet.pause(0)?;
    let there = moved(&fleet, &client, 1).await?;
    fleet.wait_for_end_of_lease(0).await?;
    echo_until_served(&there, "taken over").await?;
    assert_eq!(fleet.owner_of(&id_of(&client))?, Some(1));
    fleet.resume(0)?;
    // The copy of the replica that was paused ends, and its server with it.
    wait_until("the server of the lost copy has ended", TAKE_OVER, || {
        let children = fleet.replica(0).rialto().children();
        (!children.iter().any(|child| child.pid == pid)).then_some(())
    })
    .await;
    // The call ends with an error, or its connection breaks. It is never sent again.
    if let Ok(reply) = call.end().await {
        assert_eq!(reply.answer()["id"], "late");
        assert!(reply.reason().is_some(), "{}", reply.answer_text());
    }
    moved(&fleet, &client, 0).await?.expect_echo("by proxy").await?;
    assert_eq!(fleet.owner_of(&id_of(&client))?, Some(1));
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn owner_cut_off_from_the_registry_and_taken_over_and_reconnected() -> Result<()> {
    let fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    client.expect_echo("before").await?;
    fleet.replica(0).engine_link().cut();
    // The owner serves the clients that reach it.
    client.expect_echo("cut off").await?;
    let there = moved(&fleet, &client, 1).await?;
    fleet.wait_for_end_of_lease(0).await?;
    client.expect_echo("still cut off").await?;
    // The replica may learn of the owner's life from the owner itself; both are right.
    echo_until_served(&there, "at the winner").await?;
    fleet.replica(0).engine_link().mend();
    wait_until("the owner is back", PATIENCE, || {
        fleet.has_lease(0).ok().filter(|has_lease| *has_lease)
    })
    .await;
    let winner = fleet
        .owner_of(&id_of(&client))?
        .expect("the session has an owner");
    let pid = moved(&fleet, &client, winner)
        .await?
        .call(3, "pid", "{}")
        .await?
        .text();
    for replica in 0..3 {
        let same = poll_until("each replica asks the winner", TAKE_OVER, async || {
            let reply = moved(&fleet, &client, replica)
                .await?
                .call(4, "pid", "{}")
                .await?;
            // A call that meets the copy while it is dropped may fail, for a reason.
            let is_served = reply.status == 200 && reply.reason().is_none();
            Result::Ok((is_served && reply.text() == pid).then_some(()))
        });
        same.await?;
    }
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn registry_killed_and_restarted_empty() -> Result<()> {
    let mut fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    fleet.engine_mut().kill()?;
    client.expect_echo("without the engine").await?;
    let there = moved(&fleet, &client, 1).await?;
    let refused = there.call(1, "echo", marked("refused")).await?;
    refused.expect_status(503)?;
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.reason().as_deref(), Some("registry_unavailable"));
    // New sessions are local until the engine is back.
    let local = session_at(&fleet, 2).await?;
    local.expect_echo("local").await?;
    fleet.engine_mut().restart()?;
    for client in [&client, &local] {
        let there = moved(&fleet, client, 1).await?;
        poll_until("the owner has written its record again", TAKE_OVER, async || {
            let reply = there.call(2, "echo", marked(&id_of(client))).await?;
            // While the record is missing, the session looks like one that never was.
            assert!([200, 404, 503].contains(&reply.status), "{reply:?}");
            Result::Ok((reply.status == 200).then_some(()))
        })
        .await?;
        assert_eq!(fleet.journal().executions(&id_of(client)), 1);
    }
    assert_eq!(fleet.journal().executions("refused"), 0);
    client.expect_echo("after").await?;
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn primary_of_the_registry_killed_behind_a_sentinel() -> Result<()> {
    let config = FleetConfig::of_stub("process: per_session").with_sentinel();
    let mut fleet = config.start().await?;
    let client = session_at(&fleet, 0).await?;
    moved(&fleet, &client, 1).await?.expect_echo("before").await?;
    fleet.whole_copy().await?;
    fleet.engine_mut().kill()?;
    client.expect_echo("without the engine").await?;
    // A replica that does not know the session yet asks the new primary.
    let there = moved(&fleet, &client, 2).await?;
    echo_until_served(&there, "after").await?;
    let later = session_at(&fleet, 2).await?;
    echo_until_served(&moved(&fleet, &later, 0).await?, "later").await?;
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn registry_that_is_slow() -> Result<()> {
    let fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    let foreign = session_at(&fleet, 1).await?;
    for replica in 0..3 {
        fleet.replica(replica).engine_link().delay(Duration::from_secs(2));
    }
    let there = moved(&fleet, &foreign, 2).await?;
    let look_up = in_background(async move { there.call(1, "echo", marked("foreign")).await });
    for number in 0..50 {
        client.expect_echo(&format!("local-{number}")).await?;
    }
    let reply = look_up.end().await?;
    match reply.status {
        200 => assert_eq!(fleet.journal().executions("foreign"), 1),
        503 => {
            assert!(reply.header("retry-after").is_some());
            assert!(reply.reason().is_some());
            assert_eq!(fleet.journal().executions("foreign"), 0);
        }
        status => panic!("{status}: {reply:?}"),
    }
    for replica in 0..3 {
        fleet.replica(replica).engine_link().mend();
    }
    let there = moved(&fleet, &foreign, 2).await?;
    echo_until_served(&there, "mended").await?;
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn partition_between_two_replicas() -> Result<()> {
    let config = FleetConfig::of_stub("process: per_session").with_peer_links();
    let fleet = config.start().await?;
    let client = session_at(&fleet, 0).await?;
    let id = id_of(&client);
    let there = moved(&fleet, &client, 1).await?;
    there.expect_echo("before").await?;
    fleet.replica(0).peer_link().cut();
    for number in 0..10 {
        let refused = there.call(1, "echo", marked("refused")).await?;
        // The first may have been sent before the cut was noticed.
        if number == 0 && refused.reason().as_deref() == Some("owner_lost") {
            continue;
        }
        refused.expect_status(503)?;
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        assert!(refused.reason().is_some(), "{refused:?}");
    }
    assert_eq!(fleet.owner_of(&id)?, Some(0), "the lease lives");
    assert_eq!(fleet.epoch_of(&id)?, Some(1));
    client.expect_echo("at the owner").await?;
    fleet.replica(0).peer_link().mend();
    echo_until_served(&there, "mended").await?;
    assert_eq!(fleet.epoch_of(&id)?, Some(1));
    assert!(fleet.journal().executions("refused") <= 1);
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn two_replicas_take_over_at_once() -> Result<()> {
    let mut fleet = three().await?;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(session_at(&fleet, 0).await?);
    }
    fleet.kill(0).await?;
    fleet.wait_for_end_of_lease(0).await?;
    let greetings = fleet.journal().received("initialize").len();
    for (number, client) in clients.iter().enumerate() {
        let (one, two) = (moved(&fleet, client, 1).await?, moved(&fleet, client, 2).await?);
        let (first, second) = (format!("{number}/one"), format!("{number}/two"));
        let (first, second) = tokio::join!(echo_until_served(&one, &first), echo_until_served(&two, &second));
        first?;
        second?;
        assert_eq!(fleet.epoch_of(&id_of(client))?, Some(2), "one of them won");
    }
    let restored = fleet.journal().received("initialize").len() - greetings;
    assert_eq!(restored, clients.len(), "each session has one server");
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn clocks_of_two_replicas_differ_by_five_minutes() -> Result<()> {
    let mut fleet = three().await?;
    let sandboxes = [Sandbox::new()?, Sandbox::new()?];
    for (number, (sandbox, skew)) in sandboxes.iter().zip([300, 0]).enumerate() {
        sandbox.set_clock(skew)?;
        fleet.kill(number).await?;
        fleet.set_env(number, &sandbox.env())?;
        fleet.up(number).await?;
    }
    for home in 0..3 {
        let client = session_at(&fleet, home).await?;
        for replica in 0..3 {
            let there = moved(&fleet, &client, replica).await?;
            there.expect_echo(&format!("{home}-{replica}")).await?;
        }
        let call = json!({"name": "ask_elicit", "arguments": marked(&format!("asks-{home}"))});
        let asker = fleet.replica(home).rialto().client_of("one").await?;
        let asked = modern(&asker, "tools/call", "ask_elicit", &call).await?.answer();
        let mut retry = answers_to(&asked);
        retry["name"] = call["name"].clone();
        retry["arguments"] = call["arguments"].clone();
        let there = fleet.replica((home + 1) % 3).rialto().client_of("one").await?;
        let reply = modern(&there, "tools/call", "ask_elicit", &retry).await?;
        assert!(reply.answer()["error"].is_null(), "{}", reply.answer_text());
    }
    // A take-over from the replica whose clock is behind, and one from that which is ahead.
    for (dead, heir) in [(1, 0), (0, 2)] {
        let client = session_at(&fleet, dead).await?;
        fleet.kill(dead).await?;
        let there = moved(&fleet, &client, heir).await?;
        echo_until_served(&there, &format!("heir-{heir}")).await?;
        wait_for_owner(&fleet, &client, heir).await?;
        fleet.up(dead).await?;
    }
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}

#[tokio::test]
async fn call_that_waits_for_its_client_is_lost_with_its_replica() -> Result<()> {
    let mut fleet = FleetConfig::of_stub("process: shared").start().await?;
    let call = json!({"name": "ask_elicit", "arguments": marked("asks")});
    let asker = fleet.replica(0).rialto().client_of("one").await?;
    let asked = modern(&asker, "tools/call", "ask_elicit", &call).await?.answer();
    let mut retry = answers_to(&asked);
    retry["name"] = call["name"].clone();
    retry["arguments"] = call["arguments"].clone();
    fleet.kill(0).await?;
    let there = fleet.replica(1).rialto().client_of("one").await?;
    let answer: Value = poll_until("the replica is known to be lost", TAKE_OVER, async || {
        let reply = modern(&there, "tools/call", "ask_elicit", &retry).await?;
        Result::Ok((reply.status != 503).then(|| reply.answer()))
    })
    .await?;
    assert_owner_lost(&answer, &json!(7));
    assert_eq!(fleet.journal().executions("asks"), 1);
    Ok(())
}

#[tokio::test]
async fn server_that_dies_at_the_owner_is_no_death_of_the_owner() -> Result<()> {
    let fleet = three().await?;
    let client = session_at(&fleet, 0).await?;
    let there = moved(&fleet, &client, 1).await?;
    let pid: u32 = there.call(1, "pid", "{}").await?.text().parse().expect("a pid");
    send_signal(pid, Signal::KILL);
    let mut attempts = 0;
    poll_until("another server answers", PATIENCE, async || {
        attempts += 1;
        let marker = format!("after-{attempts}");
        let reply = there.call(1, "echo", marked(&marker)).await?;
        Result::Ok(reply.reason().is_none().then_some(()))
    })
    .await?;
    assert_eq!(fleet.owner_of(&id_of(&client))?, Some(0));
    assert_none_ran_twice(&fleet.journal());
    Ok(())
}
