//! What the page may do, and that it is recorded.

use serde_json::{Value, json};
use testkit::{PATIENCE, Result, Rialto, poll_until, wait_until};

use crate::fixture::{House, OWN, STUB, act, audited, json, send, state};

const AUDITED: &str = "audit: {dir}/audit.jsonl\n";

#[tokio::test]
async fn actions_of_other_sites_are_refused() -> Result<()> {
    let rialto = Rialto::with_config(&format!("{AUDITED}{STUB}")).await?;
    let client = rialto.session_of("files").await?;
    client.expect_echo("x").await?;
    let pid = state(&rialto).await?["destinations"][0]["instances"][0]["pid"].clone();
    for path in [
        "/ui/api/destination/files/restart",
        "/ui/api/destination/files/end-session",
        "/ui/api/destination/files/read",
        "/ui/api/mcp/files",
        "/ui/sign-out",
    ] {
        for headers in [
            &[][..],
            &[("X-Rialto-Page", "1")],
            &[("Sec-Fetch-Site", "same-origin")],
            &[("Sec-Fetch-Site", "cross-site"), ("X-Rialto-Page", "1")],
            &[("Sec-Fetch-Site", "same-site"), ("X-Rialto-Page", "1")],
            &[("Sec-Fetch-Site", "none"), ("X-Rialto-Page", "1")],
            &[("Origin", "http://localhost:5173"), OWN[0], OWN[1]],
        ] {
            let response = send(&rialto, "POST", path, headers, "{}").await?;
            assert_eq!(
                response.status,
                403,
                "{path} {headers:?}: {}",
                response.body_text()
            );
        }
    }
    assert_eq!(
        state(&rialto).await?["destinations"][0]["instances"][0]["pid"],
        pid
    );
    client.expect_echo("still here").await?;
    Ok(())
}

#[tokio::test]
async fn restart_of_an_instance_keeps_its_session_and_is_audited() -> Result<()> {
    let rialto = Rialto::with_config(&format!("{AUDITED}{STUB}")).await?;
    let client = rialto.session_of("files").await?;
    client.expect_echo("before").await?;
    let instance = |state: &Value| state["destinations"][0]["instances"][0].clone();
    let pid = instance(&state(&rialto).await?)["pid"].clone();
    let path = "/ui/api/destination/files/restart";
    let missing = act(&rialto, path, "{\"pid\":1}").await?;
    assert_eq!(
        (missing.status, &json(&missing)["reason"]),
        (404, &"unknown_instance".into())
    );
    let invalid = act(&rialto, path, "{\"pid\":\"x\"}").await?;
    assert_eq!(invalid.status, 400);
    let done = act(&rialto, path, &json!({ "pid": pid }).to_string()).await?;
    assert_eq!((done.status, json(&done)), (200, json!({ "restarted": 1 })));
    let after = poll_until("another process serves", PATIENCE, async || {
        let now = instance(&state(&rialto).await?);
        let is_other = now["pid"].is_u64() && now["pid"] != pid && now["state"] == "ready";
        Ok::<_, testkit::Failure>(is_other.then_some(now))
    })
    .await?;
    assert_eq!(after["restarts"], 1);
    client.expect_echo("the same session").await?;
    let line = wait_until("the restart is recorded", PATIENCE, || {
        let mut lines = audited(&rialto).into_iter();
        lines.find(|line| line["mcp_method"] == "rialto/restart" && line["status_code"] == 200)
    })
    .await;
    assert_eq!(
        (&line["destination"], &line["principal"]),
        (&"files".into(), &"anonymous".into())
    );
    assert_eq!(line["outcome"], "ok");
    Ok(())
}

/// What an operator has mended is tried at once, and not after the pause of a failed server.
#[tokio::test]
async fn restart_of_a_failed_server_begins_at_once() -> Result<()> {
    let config =
        "destinations:\n  files: { command: [sh, -c, 'test -e {dir}/mended && exec {stub}; exit 3'] }\n";
    let rialto = Rialto::with_config(config).await?;
    let is_failed = || async {
        let state = state(&rialto).await?;
        let word = state["destinations"][0]["state"].clone();
        Ok::<_, testkit::Failure>((word == "failed").then_some(()))
    };
    poll_until("the server has failed", PATIENCE, is_failed).await?;
    std::fs::write(rialto.dir().join("mended"), "").expect("written");
    let done = act(&rialto, "/ui/api/destination/files/restart", "{}").await?;
    assert_eq!(json(&done), json!({ "restarted": 1 }));
    poll_until("the server is ready", PATIENCE, async || {
        let state = state(&rialto).await?;
        let is_ready = state["destinations"][0]["state"] == "ready";
        Ok::<_, testkit::Failure>(is_ready.then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn admin_ends_a_session_and_is_named_in_the_audit_log() -> Result<()> {
    let house = House::start().await?;
    let client = house.rialto.client_of("files").await?;
    let client = client.with_header("authorization", &format!("Bearer {}", house.caller.token));
    client.handshake("2025-06-18", json!({})).await?;
    let cookie = house.cookie().await?;
    let with_cookie = [("Cookie", cookie.as_str()), OWN[0], OWN[1]];
    let state = send(&house.rialto, "GET", "/ui/api/state", &[("Cookie", &cookie)], "").await?;
    let session = json(&state)["destinations"][0]["session_list"][0]["session"].clone();
    let body = json!({ "session": session }).to_string();
    let path = "/ui/api/destination/files/end-session";
    let refused = send(&house.rialto, "POST", path, &OWN, &body).await?;
    assert_eq!(refused.status, 401, "without the cookie");
    let done = send(&house.rialto, "POST", path, &with_cookie, &body).await?;
    assert_eq!((done.status, json(&done)), (200, json!({ "ended": true })));
    let gone = client.call(2, "echo", json!({ "marker": "x" })).await?;
    assert_eq!(gone.status, 404);
    let again = send(&house.rialto, "POST", path, &with_cookie, &body).await?;
    assert_eq!(
        (again.status, &json(&again)["reason"]),
        (404, &"unknown_session".into())
    );
    let line = wait_until("the end is recorded", PATIENCE, || {
        let mut lines = audited(&house.rialto).into_iter();
        lines.find(|line| line["mcp_method"] == "rialto/end_session" && line["outcome"] == "ok")
    })
    .await;
    assert_eq!((&line["principal"], &line["session"]), (&"root".into(), &session));
    wait_until("the refusal is recorded", PATIENCE, || {
        let mut lines = audited(&house.rialto).into_iter();
        lines.find(|line| line["mcp_method"] == "rialto/end_session" && line["reason"] == "unknown_session")
    })
    .await;
    Ok(())
}
