//! An aggregate that is its own member by an address that its settings do not show.

use testkit::{PATIENCE, Result, poll_until};

use crate::fixture::{OLD, aggregate, legacy, ready, tools, wait_for_tools};

/// A bridge to an address that it learns after its start.
const BRIDGE: &str = "  far: { command: ['sh', '-c', 'until [ -e \"$1\" ]; do sleep 0.05; done; exec \"$2\" connect \"$(cat \"$1\")\"', 'sh', '{dir}/url', '{rialto}'] }\n";

#[tokio::test]
async fn aggregate_that_is_its_own_member_shows_no_name_twice_and_says_so() -> Result<()> {
    let rialto = aggregate(&format!("{OLD}{BRIDGE}"), "[old, far]").await?;
    let client = legacy(&rialto).await?;
    let shown = wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "old__echo")).await;
    let (draft, url) = (rialto.dir().join("url.draft"), rialto.dir().join("url"));
    std::fs::write(&draft, rialto.url_of("all"))?;
    std::fs::rename(draft, url)?;
    rialto
        .wait_for_log("the loop is reported", PATIENCE, |line| {
            let why = line["why"].as_str().unwrap_or_default();
            line["member"] == "far" && why.contains("leads back to this aggregate")
        })
        .await;
    poll_until("the member is down", PATIENCE, async || {
        let ready = ready(&rialto).await?;
        let state = &ready["destinations"]["all"]["members"]["far"]["state"];
        Result::Ok((*state == "down").then_some(()))
    })
    .await?;
    assert_eq!(tools(&client).await?, shown);
    Ok(())
}
