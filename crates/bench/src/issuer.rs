//! The issuer of the tokens of a measurement: the testkit's stand-in for an authorization server,
//! on a thread of its own.
//!
//! The load waits for a start without letting anything else run on its thread, and a gateway that
//! starts wants keys.

use std::sync::mpsc;
use std::thread;

use anyhow::Context as _;

/// An issuer of tokens, for as long as the process runs.
#[derive(Debug)]
pub struct Issuer(testkit::issuer::Issuer);

impl Issuer {
    pub fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (sender, receiver) = mpsc::sync_channel(1);
        thread::spawn(move || {
            runtime.block_on(async {
                // If no task takes it, the caller has gone.
                let _ = sender.send(testkit::issuer::Issuer::start().await);
                std::future::pending::<()>().await;
            });
        });
        let started = receiver.recv().context("the issuer's thread has ended")?;
        let issuer = started.map_err(|failure| anyhow::anyhow!("no issuer: {failure}"))?;
        Ok(Self(issuer))
    }

    /// Its name, which is where it is.
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// A token for an hour that is good at one place.
    pub fn token(&self, audience: &str) -> String {
        self.0.token("bench", audience, serde_json::Value::Null)
    }

    /// The same, but for its number: another token for the same caller.
    pub fn numbered_token(&self, audience: &str, number: usize) -> String {
        let further = serde_json::json!({"jti": number.to_string()});
        self.0.token("bench", audience, further)
    }
}
