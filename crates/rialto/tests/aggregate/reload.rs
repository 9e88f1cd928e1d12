//! A reload that changes the members while sessions are open.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;
use testkit::{PATIENCE, Result, Rialto, wait_until};

use crate::fixture::{
    NEW, OLD, aggregate, config, in_place, legacy, legacy_with, next, ready, wait_for_tools,
};

struct Reloadable {
    rialto: Rialto,
    file: PathBuf,
}

impl Reloadable {
    async fn start(destinations: &str, members: &str) -> Result<Self> {
        let rialto = aggregate(destinations, members).await?;
        let files = std::fs::read_dir(rialto.dir())?;
        let file = files
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "yml" || extension == "yaml")
            })
            .expect("the launcher has written a configuration");
        Ok(Self { rialto, file })
    }

    async fn reload(&self, destinations: &str, members: &str) -> Result<()> {
        let stub = testkit::rialto::binary("testkit-server");
        let text = in_place(&config(destinations, members))
            .replace("{stub}", &stub.to_string_lossy())
            .replace("{dir}", &self.rialto.dir().to_string_lossy());
        std::fs::write(&self.file, text)?;
        let before = self.reloads();
        self.rialto.signal(Signal::HUP);
        wait_until("the reload", PATIENCE, || (self.reloads() > before).then_some(())).await;
        Ok(())
    }

    fn reloads(&self) -> usize {
        let logs = self.rialto.logs();
        let reloaded = logs.iter().filter(|line| line["message"] == "reloaded");
        reloaded.count()
    }
}

#[tokio::test]
async fn members_come_and_go_while_sessions_stay_and_are_notified() -> Result<()> {
    let running = Reloadable::start(OLD, "[old]").await?;
    let client = legacy(&running.rialto).await?;
    let alone = wait_for_tools(&client, |tools| !tools.is_empty()).await;
    let mut stream = client.get_stream(None).await?;
    let session = client.session();
    running.reload(&format!("{OLD}{NEW}"), "[old, new]").await?;
    next(&mut stream, "notifications/tools/list_changed").await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "new__echo")).await;
    assert_eq!(
        client.call(1, "new__echo", json!({"text": "hi"})).await?.text(),
        "hi"
    );
    assert_eq!(client.session(), session);
    running.reload(OLD, "[old]").await?;
    let shown = wait_for_tools(&client, |tools| {
        !tools.iter().any(|tool| tool.starts_with("new__"))
    })
    .await;
    assert_eq!(shown, alone);
    let gone = client.call(1, "new__echo", json!({"text": "hi"})).await?.answer();
    assert_eq!(gone["error"]["code"], -32602, "{gone}");
    assert_eq!(
        client.call(1, "old__echo", json!({"marker": "x"})).await?.text(),
        "x"
    );
    Ok(())
}

#[tokio::test]
async fn call_at_a_member_that_is_replaced_finishes_and_the_next_one_reaches_its_successor() -> Result<()> {
    let running = Reloadable::start(&format!("{OLD}{NEW}"), "[old, new]").await?;
    let client = legacy(&running.rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__hold")).await;
    let before = client.call(1, "old__pid", json!({})).await?.text();
    let held = client
        .open_call(2, "old__hold", json!({"marker": "held", "every_ms": 20}), 2)
        .await?;
    let mut events = held.events();
    events.message().await?;
    let replaced = OLD.replace("{stub}", "{stub} --ignore-eof");
    running.reload(&format!("{replaced}{NEW}"), "[old, new]").await?;
    // A second session of the predecessor's own ends the wait of the first.
    let journal = testkit::Journal::at(running.rialto.dir().join("journal-old"));
    wait_until("the successor has started", PATIENCE, || {
        (journal.starts().len() > 1).then_some(())
    })
    .await;
    send_release(&before);
    let answer = loop {
        let message = events.message().await?;
        if message["id"] == 2 {
            break message;
        }
    };
    assert!(
        answer.get("result").is_some() || answer.get("error").is_some(),
        "{answer}"
    );
    let after = testkit::poll_until("the successor answers", PATIENCE, async || {
        let answer = client.call(3, "old__pid", json!({})).await?;
        let is_there = answer.answer().get("result").is_some();
        Ok::<_, testkit::Failure>(is_there.then(|| answer.text()))
    })
    .await?;
    assert_ne!(after, before);
    Ok(())
}

#[tokio::test]
async fn call_whose_question_is_open_has_its_result_from_the_member_that_a_reload_replaces() -> Result<()> {
    let running = Reloadable::start(OLD, "[old]").await?;
    let client = legacy_with(&running.rialto, json!({"elicitation": {}})).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__pid")).await;
    let before = client.call(1, "old__pid", json!({})).await?.text();
    let asking = client.open_call(2, "old__ask_elicit", json!({"marker": "m"}), 2);
    let mut events = asking.await?.events();
    let question = events.message().await?;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let replaced = OLD.replace("{stub}", "{stub} --ignore-eof");
    running.reload(&replaced, "[old]").await?;
    let journal = testkit::Journal::at(running.rialto.dir().join("journal-old"));
    wait_until("the successor has started", PATIENCE, || {
        (journal.starts().len() > 1).then_some(())
    })
    .await;
    let answer = json!({"action": "accept", "content": {"answer": "yes"}});
    client.respond(&question["id"], answer).await?;
    let result = events.message().await?;
    assert_eq!(result["id"], 2, "{result}");
    assert!(result["result"].to_string().contains("yes"), "{result}");
    let after = client.call(3, "old__pid", json!({})).await?.text();
    assert_ne!(after, before, "the next call reaches the successor");
    Ok(())
}

/// The server that drains has no other client: its end is the end of the call.
fn send_release(pid: &str) {
    testkit::processes::send_signal(pid.parse().expect("a number"), Signal::KILL);
}

#[tokio::test]
async fn other_prefix_gives_other_names_at_once() -> Result<()> {
    let running = Reloadable::start(OLD, "[old]").await?;
    let client = legacy(&running.rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__echo")).await;
    running.reload(OLD, "{ old: { prefix: other } }").await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "other__echo")).await;
    assert_eq!(
        client
            .call(1, "other__echo", json!({"marker": "x"}))
            .await?
            .text(),
        "x"
    );
    assert_eq!(
        ready(&running.rialto).await?["destinations"]["all"]["sessions"],
        1
    );
    Ok(())
}
