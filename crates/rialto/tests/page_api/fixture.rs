//! Requests as a browser sends them, and a gateway with an admin.

use serde_json::Value;
use testkit::client::EventStream;
use testkit::client::raw_http::{RawResponse, request};
use testkit::token::{Token, token};
use testkit::{McpClient, Result, Rialto};

/// What the browser adds to a request of a script of the page.
pub(crate) const OWN: [(&str, &str); 2] = [("Sec-Fetch-Site", "same-origin"), ("X-Rialto-Page", "1")];

pub(crate) const STUB: &str = "destinations:\n  files: { command: ['{stub}', --journal, '{dir}/journal'] }\n";

/// Sends one request on a connection of its own.
pub(crate) async fn send(
    rialto: &Rialto,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<RawResponse> {
    let mut raw = rialto.raw().await?;
    raw.exchange(request(method, path, headers, body)).await
}

pub(crate) async fn get(rialto: &Rialto, path: &str) -> Result<RawResponse> {
    send(rialto, "GET", path, &[], "").await
}

pub(crate) fn json(response: &RawResponse) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|_| panic!("no JSON: {}", response.body_text()))
}

/// Returns the state, as the page of a local browser gets it.
pub(crate) async fn state(rialto: &Rialto) -> Result<Value> {
    let response = get(rialto, "/ui/api/state").await?;
    assert_eq!(response.status, 200, "{}", response.body_text());
    Ok(json(&response))
}

/// Sends what a script of the page sends.
pub(crate) async fn act(rialto: &Rialto, path: &str, body: &str) -> Result<RawResponse> {
    send(rialto, "POST", path, &OWN, body).await
}

/// Opens the events of the page.
pub(crate) async fn events(rialto: &Rialto) -> Result<EventStream> {
    let url = format!("http://{}/ui/api/events", rialto.address());
    McpClient::connect(&url).await?.get_stream(None).await
}

/// A gateway with an admin, and a caller without the right.
pub(crate) struct House {
    pub(crate) rialto: Rialto,
    pub(crate) admin: Token,
    pub(crate) caller: Token,
}

impl House {
    pub(crate) async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// Starts with more settings.
    pub(crate) async fn start_with(settings: &str) -> Result<Self> {
        let (admin, caller) = (token("root"), token("alice"));
        let config = format!(
            "{settings}audit: {{dir}}/audit.jsonl\nauth:\n  tokens:\n    - {{ name: root, hash: \"{}\", admin: true }}\n    \
             - {{ name: alice, hash: \"{}\" }}\n{STUB}",
            admin.hash, caller.hash
        );
        let rialto = Rialto::with_config(&config).await?;
        Ok(Self {
            rialto,
            admin,
            caller,
        })
    }

    /// Writes the configuration without the right of the admin, for the next reload.
    pub(crate) fn withdraw_the_right(&self) -> Result<()> {
        let files = std::fs::read_dir(self.rialto.dir())?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_configuration = |path: &std::path::PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            matches!(ending, Some("yml" | "yaml"))
        };
        let mut files = files.filter(is_configuration);
        let file = files.next().expect("the launcher has written a configuration");
        let text = std::fs::read_to_string(&file)?;
        std::fs::write(&file, text.replace(", admin: true", ""))?;
        Ok(())
    }

    /// Sends the form of the sign-in, as a browser does.
    pub(crate) async fn send_form(&self, token: &str) -> Result<RawResponse> {
        let headers = [
            ("Origin", "http://127.0.0.1"),
            ("Sec-Fetch-Site", "same-origin"),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ];
        send(
            &self.rialto,
            "POST",
            "/ui/sign-in",
            &headers,
            &format!("token={token}"),
        )
        .await
    }

    /// Returns the cookie of the admin, as the browser sends it back.
    pub(crate) async fn cookie(&self) -> Result<String> {
        let response = self.send_form(&self.admin.token).await?;
        assert_eq!(response.status, 303, "{}", response.body_text());
        let cookie = response.header("set-cookie").expect("a cookie");
        Ok(cookie.split(';').next().expect("a value").to_owned())
    }
}

/// Returns the lines of the audit log.
pub(crate) fn audited(rialto: &Rialto) -> Vec<Value> {
    let text = std::fs::read_to_string(rialto.dir().join("audit.jsonl")).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str);
    lines.filter_map(std::result::Result::ok).collect()
}
