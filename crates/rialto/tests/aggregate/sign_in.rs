//! A member that wants a sign-in: its user is sent to a page, and the next call goes on.

use serde_json::{Value, json};
use testkit::authorization_server::browser::visit;
use testkit::authorization_server::{AuthorizationServer, Conduct};
use testkit::rialto::Launcher;
use testkit::{Host, PATIENCE, Result, Rialto, poll_until, wait_until};

use crate::fixture::{Modern, OLD, legacy_with, tools, wait_for_tools};

/// An aggregate of a local server and one that was signed in at.
struct Running {
    authorization_server: AuthorizationServer,
    rialto: Rialto,
    environment: Vec<(&'static str, String)>,
    home: tempfile::TempDir,
}

impl Running {
    async fn start(further: &str) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let authorization_server = AuthorizationServer::start(Conduct::default());
        let endpoint = authorization_server.endpoint();
        let browser = format!("'{}'", testkit::rialto::binary("testkit-browser").display());
        let environment = vec![
            ("RIALTO_BROWSER", browser),
            ("RIALTO_STATE_DIR", home.path().to_string_lossy().into_owned()),
            ("RIALTO_KEYRING", "off".to_owned()),
        ];
        let text = format!(
            "{further}destinations:\n{OLD}  far: {{ url: '{endpoint}', auth: oauth }}\naggregates:\n  all: {{ members: [old, far] }}\n"
        );
        run(&["login", &endpoint], &environment).await?;
        let gateway = with(Rialto::launcher().config(&text), &environment);
        Ok(Self {
            authorization_server,
            rialto: gateway.start().await?,
            environment,
            home,
        })
    }
}

fn with(launcher: Launcher, environment: &[(&str, String)]) -> Launcher {
    let set = |launcher: Launcher, (name, value): &(&str, String)| launcher.env(name, value);
    environment.iter().fold(launcher, set)
}

async fn run(verb: &[&str], environment: &[(&str, String)]) -> Result<()> {
    let ended = with(Rialto::launcher().verb(verb), environment)
        .run(PATIENCE)
        .await?;
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr_text());
    Ok(())
}

/// Returns the page that a client is to show.
async fn page(url: &Value) -> Result<testkit::authorization_server::browser::Page> {
    let url = url.as_str().expect("an address").to_owned();
    assert!(url.contains("/sign-in/"), "{url}");
    let visited = tokio::task::spawn_blocking(move || visit(&url)).await;
    Ok(visited.expect("the browser does not panic")?)
}

#[tokio::test]
async fn legacy_client_sends_its_user_to_the_page_and_calls_again() -> Result<()> {
    let running = Running::start("").await?;
    let client = legacy_with(&running.rialto, json!({"elicitation": {"url": {}}})).await?;
    let shown = wait_for_tools(&client, |tools| {
        let has_tool_of = |member: &str| tools.iter().any(|tool| tool.starts_with(member));
        has_tool_of("old__") && has_tool_of("far__")
    })
    .await;
    running.authorization_server.revoke(true);
    let asked = client.call(1, "far__whoami", json!({})).await?.answer();
    assert_eq!(asked["error"]["code"], -32042, "{asked}");
    let elicitation = &asked["error"]["data"]["elicitations"][0];
    assert_eq!(elicitation["mode"], "url", "{asked}");
    assert!(
        elicitation["message"]
            .as_str()
            .is_some_and(|text| text.contains("far")),
        "{asked}"
    );
    assert_eq!(tools(&client).await?, shown, "its tools stay listed");
    let page = page(&elicitation["url"]).await?;
    assert_eq!(page.status, 200, "{page:?}");
    let answered = poll_until("the call goes on", PATIENCE, async || {
        let answer = client.call(2, "far__whoami", json!({})).await?.answer();
        Result::Ok(answer.get("result").is_some().then_some(answer))
    })
    .await?;
    assert!(answered["result"]["isError"].is_null(), "{answered}");
    Ok(())
}

#[tokio::test]
async fn modern_client_is_asked_to_show_the_page_and_its_retry_goes_on() -> Result<()> {
    let running = Running::start("").await?;
    let client = legacy_with(&running.rialto, json!({})).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "far__whoami")).await;
    running.authorization_server.revoke(true);
    let request = Modern {
        path: "/all/mcp",
        capabilities: json!({"elicitation": {"url": {}}}),
        headers: &[],
    };
    let call = async |params: Value| -> Result<Value> {
        let opened = request.open(&running.rialto, "tools/call", params).await?;
        Ok(opened.reply().await?.answer())
    };
    let params = json!({"name": "far__whoami", "arguments": {}});
    let asked = call(params.clone()).await?;
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let requests = result["inputRequests"].as_object().expect("questions");
    let (key, question) = requests.iter().next().expect("a question");
    assert_eq!(question["params"]["mode"], "url", "{asked}");
    page(&question["params"]["url"]).await?;
    let mut retry = params;
    retry["requestState"] = result["requestState"].clone();
    retry["inputResponses"] = json!({ key: {"action": "accept"} });
    let answered = call(retry).await?;
    assert_eq!(answered["result"]["resultType"], "complete", "{answered}");
    Ok(())
}

#[tokio::test]
async fn client_that_shows_no_page_is_told_the_command() -> Result<()> {
    let running = Running::start("").await?;
    let client = legacy_with(&running.rialto, json!({})).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "far__whoami")).await;
    running.authorization_server.revoke(true);
    let answer = client.call(1, "far__whoami", json!({})).await?.answer();
    let text = answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default();
    let command = format!("rialto login {}", running.authorization_server.endpoint());
    assert!(text.contains(&command) && text.contains("`far`"), "{answer}");
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    Ok(())
}

/// The answer of the authorization server comes to this machine. Where others may call, another
/// account could come to be used.
#[tokio::test]
async fn gateway_for_other_machines_has_no_pages() -> Result<()> {
    let running = Running::start("public_url: https://mcp.example.com\n").await?;
    let client = legacy_with(&running.rialto, json!({"elicitation": {"url": {}}})).await?;
    wait_for_tools(&client, |tools| tools.iter().any(|tool| tool == "far__whoami")).await;
    running.authorization_server.revoke(true);
    let answer = client.call(1, "far__whoami", json!({})).await?.answer();
    assert!(answer["result"].to_string().contains("rialto login"), "{answer}");
    let guessed = client.send("GET", "/sign-in/0", &[], "").await?;
    assert_eq!(guessed.status, 404);
    Ok(())
}

/// The user of a host is in front of this machine, so that the call waits for the browser.
#[tokio::test]
async fn connect_opens_the_browser_when_a_call_needs_a_sign_in() -> Result<()> {
    let running = Running::start("").await?;
    let offer = running.home.path().join("offers/far.json");
    wait_until("the offer is stored", PATIENCE, || offer.exists().then_some(())).await;
    let endpoint = running.authorization_server.endpoint();
    run(&["logout", &endpoint], &running.environment).await?;
    let config = running.rialto.dir().join("destinations.yml");
    let environment: Vec<(&str, &str)> = running
        .environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let host = Host::start(&["connect", "--config", &config.to_string_lossy()], &environment)?;
    host.shake_hands(json!({})).await?;
    host.ask(1, "tools/list", json!({}))?;
    let listed = host.answer(1).await;
    let shown = crate::fixture::keys(&listed["result"], "tools", "name");
    assert!(shown.contains(&"far__whoami".to_owned()), "{listed}");
    host.ask(2, "tools/call", json!({"name": "far__whoami", "arguments": {}}))?;
    let answered = host.answer(2).await;
    assert!(answered["result"]["content"].is_array(), "{answered}");
    assert!(answered["result"]["isError"].is_null(), "{answered}");
    Ok(())
}
