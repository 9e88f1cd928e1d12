//! A resource with its authorization server, a browser, and a client that does what a backend does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oauth::{Authorization, Browser, Settings, SignIn, SignInError, StoreSettings};
use serde_json::Value;
use testkit::authorization_server::browser::{Page, visit};
use testkit::authorization_server::{AuthorizationServer, Conduct};

pub(crate) struct Fixture {
    pub(crate) authority: AuthorizationServer,
    pub(crate) home: tempfile::TempDir,
    /// Every page that was opened, and where that led.
    pub(crate) opened: Arc<Mutex<Vec<(String, Page)>>>,
    pub(crate) announced: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    pub(crate) fn new(conduct: Conduct) -> Self {
        Self {
            authority: AuthorizationServer::start(conduct),
            home: tempfile::tempdir().unwrap(),
            opened: Arc::default(),
            announced: Arc::default(),
        }
    }

    /// Settings of a process without a browser.
    pub(crate) fn alone(&self) -> Settings {
        let store = StoreSettings {
            keyring: false,
            ..StoreSettings::at(self.home.path().join("sign-in"))
        };
        Settings::new(self.authority.endpoint().parse().unwrap(), store)
    }

    /// Settings of a process with a browser in which a person signs in at once.
    pub(crate) fn attended(&self) -> Settings {
        let (opened, announced) = (self.opened.clone(), self.announced.clone());
        let mut browser = Browser::opened_by(move |url| {
            let page = visit(url.as_str())?;
            opened.lock().unwrap().push((url.to_string(), page));
            Ok(())
        })
        .announcing(move |text| announced.lock().unwrap().push(text.to_owned()));
        browser.timeout = Duration::from_secs(60);
        Settings {
            browser: Some(browser),
            ..self.alone()
        }
    }

    /// What a new process with these settings gets for one call.
    pub(crate) async fn call_as(&self, settings: Settings) -> Result<u16, SignInError> {
        call(&SignIn::new(settings), &self.authority.endpoint()).await
    }

    pub(crate) fn windows(&self) -> usize {
        self.opened.lock().unwrap().len()
    }

    pub(crate) fn last_page(&self) -> Page {
        self.opened
            .lock()
            .unwrap()
            .last()
            .expect("a window was opened")
            .1
            .clone()
    }
}

/// One request to the endpoint: its status and its challenges.
pub(crate) async fn post(endpoint: &str, authorization: Option<&Authorization>) -> (u16, Vec<String>) {
    let mut request = reqwest::Client::new()
        .post(endpoint)
        .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization.expose());
    }
    let response = request.send().await.unwrap();
    let challenges = response.headers().get_all("www-authenticate").iter();
    let challenges = challenges
        .map(|value| value.to_str().unwrap().to_owned())
        .collect();
    (response.status().as_u16(), challenges)
}

/// Sends a request as a backend does: once, and once more if signing in makes that worthwhile.
pub(crate) async fn call(sign_in: &SignIn, endpoint: &str) -> Result<u16, SignInError> {
    let authorization = sign_in.authorization().await?;
    let (status, challenges) = post(endpoint, authorization.as_ref()).await;
    if !matches!(status, 401 | 403) {
        return Ok(status);
    }
    sign_in
        .refused_using(authorization.as_ref(), status, &challenges)
        .await?;
    let authorization = sign_in.authorization().await?;
    Ok(post(endpoint, authorization.as_ref()).await.0)
}

/// Returns an authorization server whose metadata has this member.
pub(crate) fn server_metadata(member: &str, value: Value) -> Conduct {
    Conduct {
        server_overrides: BTreeMap::from([(member.to_owned(), value)]),
        ..Conduct::default()
    }
}

/// Returns a resource whose metadata has this member.
pub(crate) fn resource_metadata(member: &str, value: Value) -> Conduct {
    Conduct {
        resource_overrides: BTreeMap::from([(member.to_owned(), value)]),
        ..Conduct::default()
    }
}
