//! What a hostile server, a hostile client and a caller without the right can do to the page: nothing.

use serde_json::{Value, json};
use testkit::token::token;
use testkit::{Result, Rialto};

use crate::browser::{Script, play, scripts};
use crate::fixture::{client, configuration};

const MARKUP: &str = "<img src=x onerror=\"alert(1)\"><script>alert(2)</script>";

#[tokio::test]
async fn texts_of_a_hostile_server_inject_nothing() -> Result<()> {
    let server = scripts().join("hostile-server.mjs").canonicalize()?;
    let config = configuration().replace(
        "aggregates:",
        &format!(
            "  evil: {{ command: node, args: ['{}'] }}\naggregates:",
            server.display()
        ),
    );
    let rialto = Rialto::with_config(&config).await?;
    let visitor = client(&rialto, "evil", MARKUP).await?;
    let mut script = Script::start("hostile", rialto.address(), &json!({ "name": "evil" }))?;
    assert_eq!(script.next().await?, json!({ "open": true }));
    // A call of a client that attacks too.
    visitor.call(1, "shapes", json!({ "text": MARKUP })).await?;
    let mut seen = script.end().await?;
    let texts = seen["texts"].take();
    assert_eq!(
        seen,
        json!({ "texts": null, "found": [], "polluted": false, "faults": [] })
    );
    // What does not appear as text could not have been looked at.
    for screen in [
        "destination",
        "legacy markup result",
        "legacy asks",
        "modern fails result",
        "#/sessions",
    ] {
        assert!(
            text(&texts[screen]).contains(MARKUP),
            "{screen}: {}",
            texts[screen]
        );
    }
    assert!(
        text(&texts["legacy leads"]).contains("javascript:alert(4)"),
        "{texts}"
    );
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[tokio::test]
async fn nothing_is_shown_without_the_admin_right() -> Result<()> {
    let (reader, boss) = (token("reader"), token("boss"));
    let config = format!(
        "auth:
  tokens:
    - {{ name: reader, hash: '{}' }}
    - {{ name: boss, hash: '{}', admin: true }}
{}",
        reader.hash,
        boss.hash,
        configuration()
    );
    let rialto = Rialto::with_config(&config).await?;
    let options = json!({ "plain": reader.token, "admin": boss.token });
    let seen = play("sign_in", rialto.address(), &options).await?;
    assert_eq!(seen["first"], 401, "{seen}");
    assert_eq!(seen["api"], json!([401, 401, 401, 401, 401]));
    assert_eq!((&seen["wrong"], &seen["plain"]), (&json!(401), &json!(403)));
    for name in ["files", "notes", "guarded", "BRAVE_API_KEY", "demo-server"] {
        assert!(
            !text(&seen["bodies"]).contains(name),
            "{name} in {}",
            seen["bodies"]
        );
    }
    assert_eq!(seen["admin"], 303);
    assert!(text(&seen["inside"]).contains("files"), "{}", seen["inside"]);
    assert_eq!(
        seen["cookies"],
        json!([{ "httpOnly": true, "sameSite": "Strict" }])
    );
    assert_eq!(seen["out"], 401);
    Ok(())
}
