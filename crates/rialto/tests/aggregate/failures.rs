//! Members that start slowly, hang, die, or want a sign-in: the others go on.

use rustix::process::Signal;
use serde_json::json;
use testkit::processes::send_signal;
use testkit::upstream::Step;
use testkit::{PATIENCE, Result, Rialto, Upstream, poll_until};

use crate::fixture::{
    OLD, TWO, aggregate, config, legacy, modern, next, ready, result, tools, wait_for_tools, wait_for_two,
    with_config,
};

const HANGING: &str = "  hangs: { command: '{stub} --wait-for {dir}/go' }\n";

async fn state_of(rialto: &Rialto, member: &str) -> Result<String> {
    let list = modern(rialto, "tools/list", json!({})).await?;
    let state = &list["result"]["_meta"]["rialto/members"][member]["state"];
    Ok(state.as_str().unwrap_or_default().to_owned())
}

async fn wait_for_state(rialto: &Rialto, member: &str, wanted: &str) -> Result<()> {
    poll_until(&format!("`{member}` is {wanted}"), PATIENCE, async || {
        Ok((state_of(rialto, member).await? == wanted).then_some(()))
    })
    .await
}

#[tokio::test]
async fn member_that_hangs_at_start_does_not_delay_the_others() -> Result<()> {
    let rialto = aggregate(&format!("{OLD}{HANGING}"), "[hangs, old]").await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_tools(&client, |tools| !tools.is_empty()).await;
    assert!(shown.iter().all(|name| name.starts_with("old__")), "{shown:?}");
    assert_eq!(state_of(&rialto, "hangs").await?, "starting");
    client
        .call(1, "old__echo", json!({"marker": "x"}))
        .await?
        .expect_status(200)?;
    // It comes, and the client is notified.
    let mut stream = client.get_stream(None).await?;
    std::fs::write(rialto.dir().join("go"), "")?;
    next(&mut stream, "notifications/tools/list_changed").await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "hangs__echo")).await;
    wait_for_state(&rialto, "hangs", "ok").await
}

#[tokio::test]
async fn no_tools_is_never_the_answer_while_members_start() -> Result<()> {
    let text = config(HANGING, "[hangs], ready_timeout: 300ms");
    let rialto = with_config(&text).await?;
    let client = rialto.client_of("all").await?;
    let listed = modern(&rialto, "tools/list", json!({})).await?;
    assert!(listed.get("result").is_none(), "{listed}");
    let message = listed["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("hangs"), "the error names the member: {listed}");
    std::fs::write(rialto.dir().join("go"), "")?;
    client.handshake(testkit::LEGACY, json!({})).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "hangs__echo")).await;
    Ok(())
}

#[tokio::test]
async fn member_without_sign_in_does_not_empty_the_list() -> Result<()> {
    let upstream = Upstream::legacy().start().await?;
    upstream.always(|_| true, vec![Step::status(401)]);
    let remote = format!("  remote: {{ url: '{}' }}\n", upstream.url());
    let rialto = aggregate(&format!("{OLD}{remote}"), "[remote, old]").await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_tools(&client, |tools| !tools.is_empty()).await;
    assert!(shown.iter().any(|name| name == "old__echo"), "{shown:?}");
    wait_for_state(&rialto, "remote", "sign_in_needed").await?;
    let members = &ready(&rialto).await?["destinations"]["all"]["members"];
    assert_eq!(members["remote"]["state"], "sign_in_needed", "{members}");
    Ok(())
}

#[tokio::test]
async fn killed_member_fails_its_own_call_and_comes_back() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_two(&client).await;
    let pid = client.call(1, "a__pid", json!({})).await?.text();
    let on_a = client
        .open_call(2, "a__hold", json!({"marker": "on-a", "every_ms": 20}), 2)
        .await?;
    let on_b = client
        .open_call(3, "b__hold", json!({"marker": "on-b", "every_ms": 20}), 3)
        .await?;
    send_signal(pid.parse().expect("a number"), Signal::KILL);
    let failed = on_a.reply().await?.answer();
    assert!(failed["error"].is_object(), "{failed}");
    client.call(4, "b__release", json!({"marker": "release"})).await?;
    assert_eq!(
        on_b.reply().await?.text(),
        "on-b",
        "the other member was not touched"
    );
    // Its tools stay, and so does the session.
    assert_eq!(tools(&client).await?, shown);
    let again = poll_until("the member is back", PATIENCE, async || {
        let answer = client.call(5, "a__pid", json!({})).await?;
        let is_there = answer.answer().get("result").is_some();
        Ok::<_, testkit::Failure>(is_there.then(|| answer.text()))
    })
    .await?;
    assert_ne!(again, pid);
    Ok(())
}

#[tokio::test]
async fn kill_of_a_member_during_a_list_keeps_the_list() -> Result<()> {
    let rialto = aggregate(TWO, "[a, b]").await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_two(&client).await;
    for round in 0..5 {
        let pid = poll_until("the member is there", PATIENCE, async || {
            let answer = client.call(round, "a__pid", json!({})).await?;
            let is_there = answer.answer().get("result").is_some();
            Ok::<_, testkit::Failure>(is_there.then(|| answer.text()))
        })
        .await?;
        // The member reads its list again, and dies of it.
        client.call(1, "a__change_tools", json!({})).await?;
        client.call(1, "a__change_tools", json!({})).await?;
        send_signal(pid.parse().expect("a number"), Signal::KILL);
        let now = tools(&client).await?;
        let known = |tool: &String| tool == "a__extra" || shown.contains(tool);
        assert!(now.len() >= shown.len() && now.iter().all(known), "{now:?}");
        if round == 1 {
            break;
        }
    }
    Ok(())
}

#[tokio::test]
async fn tools_of_a_member_that_is_down_are_hidden_after_the_grace_if_that_is_wanted() -> Result<()> {
    let upstream = Upstream::legacy().start().await?;
    let remote = format!("  remote: {{ url: '{}' }}\n", upstream.url());
    let members = "{ old: {}, remote: { when_down: hide, grace: 100ms } }";
    let rialto = aggregate(&format!("{OLD}{remote}"), members).await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| {
        tools.iter().any(|tool| tool.starts_with("remote__"))
    })
    .await;
    drop(upstream);
    // A remote server that is gone is noticed by the next call.
    let failed = client.call(1, "remote__echo", json!({})).await?.answer();
    assert!(
        failed.get("error").is_some() || failed["result"]["isError"] == true,
        "{failed}"
    );
    let shown = wait_for_tools(&client, |tools| {
        !tools.iter().any(|tool| tool.starts_with("remote__"))
    })
    .await;
    assert!(shown.iter().any(|tool| tool == "old__echo"), "{shown:?}");
    let answer = client.request(9, "tools/list", json!({})).await?.answer();
    assert_eq!(
        answer["result"]["_meta"]["rialto/members"]["remote"]["state"], "down",
        "{answer}"
    );
    assert!(result(&client, "ping", json!({})).await.is_ok());
    Ok(())
}
