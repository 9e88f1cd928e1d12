//! The states of a modern server that one caller after another carries through.

use serde_json::{Value, json};
use testkit::{Result, Rialto};

use super::fixture::{Fixture, modern, visible};

const MODERN_DEMO: &str = "{ command: ['{rialto}', demo-server, --era, modern] }";

async fn fixture() -> Result<Fixture> {
    Fixture::with(&MODERN_DEMO.replace("{rialto}", env!("CARGO_BIN_EXE_rialto"))).await
}

fn ask() -> Value {
    json!({"name": "ask", "arguments": {"question": "Which seat?"}})
}

fn retry(asked: &Value, state: &str) -> Value {
    let mut params = ask();
    let questions = asked["inputRequests"].as_object().expect("questions");
    let answers: serde_json::Map<String, Value> = questions
        .keys()
        .map(|key| {
            (
                key.clone(),
                json!({"action": "accept", "content": {"answer": "12A"}}),
            )
        })
        .collect();
    params["requestState"] = json!(state);
    params["inputResponses"] = Value::Object(answers);
    params
}

#[tokio::test]
async fn state_of_a_modern_server_is_valid_for_its_caller_only() -> Result<()> {
    let fixture = fixture().await?;
    let client = fixture.rialto.client_of("shared").await?;
    let asked = modern(&client, 1, "tools/call", ask(), Some(&fixture.alice.token)).await?;
    let asked = asked.expect_status(200)?.answer()["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let state = asked["requestState"].as_str().expect("a state").to_owned();
    assert!(state.starts_with("rialto2."), "sealed: {state}");

    let stolen = modern(
        &client,
        2,
        "tools/call",
        retry(&asked, &state),
        Some(&fixture.bob.token),
    )
    .await?;
    stolen.expect_error(400, -32602)?;
    for forged in [
        "",
        "plain",
        "rialto2.",
        "rialto2.AAAA",
        &state.replace("rialto2", "rialto1"),
    ] {
        let reply = modern(
            &client,
            2,
            "tools/call",
            retry(&asked, forged),
            Some(&fixture.bob.token),
        )
        .await?;
        assert_eq!(visible(&reply), visible(&stolen), "{forged}");
    }
    let answered = modern(
        &client,
        3,
        "tools/call",
        retry(&asked, &state),
        Some(&fixture.alice.token),
    )
    .await?;
    let answer = answered.expect_status(200)?.answer();
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert!(answer["result"].to_string().contains("12A"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn without_authentication_the_state_of_a_modern_server_passes_unchanged() -> Result<()> {
    let config = format!(
        "destinations: {{ shared: {} }}\n",
        MODERN_DEMO.replace("{rialto}", env!("CARGO_BIN_EXE_rialto"))
    );
    let rialto = Rialto::with_config(&config).await?;
    let client = rialto.client_of("shared").await?;
    let asked = modern(&client, 1, "tools/call", ask(), None).await?;
    let asked = asked.expect_status(200)?.answer()["result"].clone();
    let state = asked["requestState"].as_str().expect("a state").to_owned();
    assert!(!state.starts_with("rialto"), "{state}");
    let answered = modern(&client, 2, "tools/call", retry(&asked, &state), None).await?;
    assert_eq!(answered.answer()["result"]["resultType"], "complete");
    Ok(())
}
