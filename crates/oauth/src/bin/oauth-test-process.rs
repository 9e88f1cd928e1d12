//! Development only: one of the processes that `crates/oauth/tests/processes.rs` starts.
//!
//! `oauth-test-process ENDPOINT HOME [BROWSER]` makes one call that needs signing in. It keeps the
//! sign-in below HOME, and adds a line to the file `windows` there for each page it opens: with the
//! program BROWSER, or, without one, with nothing, so that the sign-in stays open.

use std::io::{Error, Result, Write as _};
use std::path::PathBuf;
use std::process::Command;

use oauth::{Authorization, Browser, Settings, SignIn, StoreSettings};

fn main() -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().ok_or_else(|| Error::other("no endpoint"))?;
    let home = PathBuf::from(arguments.next().ok_or_else(|| Error::other("no home"))?);
    let browser = arguments.next();
    let windows = home.join("windows");
    let browser = Browser::opened_by(move |url| {
        let mut windows = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&windows)?;
        writeln!(windows, "{}", std::process::id())?;
        match &browser {
            None => Ok(()),
            Some(browser) => match Command::new(browser).arg(url.as_str()).status()?.success() {
                true => Ok(()),
                false => Err(Error::other("the browser failed")),
            },
        }
    });
    let store = StoreSettings {
        keyring: false,
        ..StoreSettings::at(home.join("sign-in"))
    };
    let settings = Settings {
        browser: Some(browser),
        ..Settings::new(endpoint.parse().map_err(Error::other)?, store)
    };
    match call(&SignIn::new(settings), &endpoint).await? {
        200 => Ok(()),
        status => Err(Error::other(format!("status {status}"))),
    }
}

/// Sends one request, and a second time if signing in makes that worthwhile.
async fn call(sign_in: &SignIn, endpoint: &str) -> Result<u16> {
    let authorization = sign_in.authorization().await.map_err(Error::other)?;
    let (status, challenges) = post(endpoint, authorization.as_ref()).await?;
    if !matches!(status, 401 | 403) {
        return Ok(status);
    }
    sign_in
        .refused_using(authorization.as_ref(), status, &challenges)
        .await
        .map_err(Error::other)?;
    let authorization = sign_in.authorization().await.map_err(Error::other)?;
    Ok(post(endpoint, authorization.as_ref()).await?.0)
}

async fn post(endpoint: &str, authorization: Option<&Authorization>) -> Result<(u16, Vec<String>)> {
    let mut request = reqwest::Client::new()
        .post(endpoint)
        .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization.expose());
    }
    let response = request.send().await.map_err(Error::other)?;
    let challenges = response.headers().get_all("www-authenticate").iter();
    let challenges = challenges
        .filter_map(|value| value.to_str().ok())
        .map(str::to_owned);
    Ok((response.status().as_u16(), challenges.collect()))
}
