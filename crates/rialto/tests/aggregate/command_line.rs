//! `--aggregate`, `connect --config`, and `check` with aggregates.

use serde_json::{Value, json};
use testkit::{Host, PATIENCE, Result, Rialto, poll_until};

use crate::fixture::{OLD, in_place, keys, legacy, wait_for_tools};

#[tokio::test]
async fn demo_server_alone_is_an_aggregate() -> Result<()> {
    let rialto = Rialto::serve(&["--demo", "--aggregate", "all"]).await?;
    let client = legacy(&rialto).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "demo__echo")).await;
    assert_eq!(
        client.call(1, "demo__echo", json!({"text": "hi"})).await?.text(),
        "hi"
    );
    Ok(())
}

#[tokio::test]
async fn file_of_a_desktop_host_is_one_aggregate() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("claude_desktop_config.json");
    let stub = testkit::rialto::binary("testkit-server");
    let file = json!({"mcpServers": {
        "first": {"command": stub},
        "second": {"command": env!("CARGO_BIN_EXE_rialto"), "args": ["demo-server"]},
        "rialto": {"command": "rialto", "args": ["connect", "--config", path]},
    }});
    std::fs::write(&path, file.to_string())?;
    let rialto = Rialto::launcher()
        .args(&[
            "--config",
            &path.to_string_lossy(),
            "--aggregate",
            "everything",
            "--keep-going",
        ])
        .start()
        .await?;
    let client = rialto.client_of("everything").await?;
    client.handshake(testkit::LEGACY, json!({})).await?;
    wait_for_tools(&client, |tools| {
        ["first__echo", "second__echo"]
            .iter()
            .all(|name| tools.iter().any(|tool| tool == name))
    })
    .await;
    assert!(
        rialto
            .stderr()
            .iter()
            .any(|line| line.contains("`rialto` is left out of `everything`")),
        "the entry that would contain itself is left out: {:?}",
        rialto.stderr()
    );
    Ok(())
}

/// A file for `connect`, with its directory.
fn file(text: &str) -> Result<(tempfile::TempDir, String)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("servers.yml");
    let stub = testkit::rialto::binary("testkit-server");
    let text = in_place(text)
        .replace("{stub}", &stub.to_string_lossy())
        .replace("{dir}", &directory.path().to_string_lossy());
    std::fs::write(&path, text)?;
    let path = path.to_string_lossy().into_owned();
    Ok((directory, path))
}

async fn tools(host: &Host, id: u64, modern: bool) -> Result<Vec<String>> {
    match modern {
        true => host.ask_modern(id, "tools/list", json!({}), &json!({}))?,
        false => host.ask(id, "tools/list", json!({}))?,
    }
    let answer: Value = host.answer(id).await;
    Ok(keys(&answer["result"], "tools", "name"))
}

#[tokio::test]
async fn connect_serves_a_whole_file_to_a_host_of_either_era() -> Result<()> {
    let (_directory, path) = file(&format!(
        "destinations:\n{OLD}  demo: {{ command: ['{{rialto}}', demo-server] }}\n"
    ))?;
    for modern in [false, true] {
        let host = Host::start(&["connect", "--config", &path], &[])?;
        if !modern {
            host.shake_hands(json!({})).await?;
        }
        let mut id = 100;
        let shown = poll_until("both members", PATIENCE, async || {
            id += 1;
            let shown = tools(&host, id, modern).await?;
            let both = ["old__echo", "demo__echo"]
                .iter()
                .all(|name| shown.iter().any(|tool| tool == name));
            Ok::<_, testkit::Failure>(both.then_some(shown))
        })
        .await?;
        assert!(shown.iter().all(|tool| tool.contains("__")), "{shown:?}");
        host.close_stdin();
        assert!(host.wait(PATIENCE).await.success());
    }
    Ok(())
}

#[tokio::test]
async fn connect_names_the_aggregates_if_there_are_several() -> Result<()> {
    let (_directory, path) = file(&format!(
        "destinations:\n{OLD}aggregates: {{ one: {{ members: [old] }}, two: {{ members: [old] }} }}\n"
    ))?;
    let ended = Rialto::launcher()
        .verb(&["connect", "--config", &path])
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr_text().contains("name one of one, two"),
        "{}",
        ended.stderr_text()
    );
    let host = Host::start(&["connect", "--config", &path, "--aggregate", "two"], &[])?;
    let hello = host.shake_hands(json!({})).await?;
    assert_eq!(hello["serverInfo"]["name"], "two", "{hello}");
    Ok(())
}

#[tokio::test]
async fn check_reads_every_member_and_names_what_is_cut() -> Result<()> {
    let text = "destinations:\n  a-long-prefix: { command: '{stub}' }\naggregates: { all: { members: [a-long-prefix], name_limit: 24, instructions_limit: 8 } }\n";
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config(text)
        .run(PATIENCE * 3)
        .await?;
    let said = ended.stderr_text();
    assert_eq!(ended.code(), Some(0), "{said}");
    assert!(
        said.contains("the name `change_tools` is too long and is shown as `a-long-prefix__"),
        "{said}"
    );
    assert!(
        said.contains("under `members.a-long-prefix.tools.rename`"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn check_fails_where_members_claim_one_name() -> Result<()> {
    let text = "destinations:\n  a: { command: '{stub}' }\n  b: { command: '{stub}' }\naggregates: { all: { members: { a: { prefix: '' }, b: { prefix: '' } } } }\n";
    let ended = Rialto::launcher()
        .verb(&["check"])
        .config(text)
        .run(PATIENCE * 3)
        .await?;
    assert_eq!(ended.code(), Some(1));
    let shown = ended.stdout.join("\n");
    assert!(
        shown.contains("`echo` of `a`") && shown.contains("`echo` of `b`"),
        "{shown}"
    );
    Ok(())
}
