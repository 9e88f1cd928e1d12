//! Looks at signing in: asks servers how, as a sign-in does, and reads the stored tokens.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oauth::{SignIn, SignInError, StoredToken};
use url::Url;

use crate::config::Environment;
use crate::doctor::judge::sign_in::{OfferSeen, ProtectedSeen, SignInSeen, TokenSeen};
use crate::sign_in;

/// A remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) url: Url,
    /// Whether its requests carry credentials already.
    pub(crate) has_header: bool,
    pub(crate) ca_file: Option<std::path::PathBuf>,
}

/// Looks at these servers, and at those with a stored token.
pub(crate) async fn look(remotes: &[Remote], all_tokens: bool, environment: &Environment) -> SignInSeen {
    let mut seen = SignInSeen::default();
    let Ok(anywhere) = Url::parse("https://localhost/") else {
        return seen;
    };
    let directory = match sign_in::settings(anywhere, environment) {
        Ok(settings) => settings.store.directory,
        Err(why) => {
            seen.store_failure = Some(why);
            return seen;
        }
    };
    if is_open(&directory) {
        seen.open_store = Some(directory.clone());
    }
    let tokens = match oauth::list(&directory) {
        Ok(tokens) => tokens,
        Err(error) => {
            // What is open is refused, and has a finding of its own.
            if seen.open_store.is_none() {
                seen.store_failure = Some(error.to_string());
            }
            Vec::new()
        }
    };
    let mut remotes = remotes.to_vec();
    if all_tokens {
        for token in &tokens {
            if let Ok(url) = token.endpoint.parse::<Url>()
                && !remotes.iter().any(|remote| remote.url == url)
            {
                remotes.push(Remote {
                    url,
                    has_header: false,
                    ca_file: None,
                });
            }
        }
    }
    for remote in remotes {
        let token = tokens.iter().find(|token| token.endpoint == remote.url.as_str());
        seen.servers.push(ProtectedSeen {
            url: remote.url.to_string(),
            offer: offer(&remote, environment).await,
            token: match token {
                Some(token) => self::token(token, &remote, environment).await,
                None => TokenSeen::Missing,
            },
            has_header: remote.has_header,
        });
    }
    seen
}

/// Returns whether other users can look into a directory.
fn is_open(directory: &Path) -> bool {
    std::fs::metadata(directory).is_ok_and(|metadata| metadata.mode() & 0o077 != 0)
}

async fn offer(remote: &Remote, environment: &Environment) -> OfferSeen {
    let mut settings = match sign_in::settings(remote.url.clone(), environment) {
        Ok(settings) => settings.http,
        Err(why) => return OfferSeen::Refused(why),
    };
    settings.ca_file.clone_from(&remote.ca_file);
    match oauth::inspect(&remote.url, &settings).await {
        Ok(None) => OfferSeen::Open,
        Ok(Some(found)) => OfferSeen::Found(Box::new(found)),
        Err(error @ SignInError::Network { .. }) => OfferSeen::Unreachable(error.to_string()),
        Err(error) => OfferSeen::Refused(error.to_string()),
    }
}

/// Looks at a token. One that has ended is renewed, as its next use would.
async fn token(token: &StoredToken, remote: &Remote, environment: &Environment) -> TokenSeen {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    match (token.signed_in, token.expires) {
        (false, _) => TokenSeen::Missing,
        (true, Some(expires)) if expires <= now && token.renewable => renewed(remote, environment).await,
        (true, Some(expires)) if expires <= now => TokenSeen::Expired {
            ago: Duration::from_secs(now - expires),
        },
        (true, expires) => TokenSeen::Good {
            left: expires.map(|expires| Duration::from_secs(expires - now)),
            is_renewable: token.renewable,
        },
    }
}

async fn renewed(remote: &Remote, environment: &Environment) -> TokenSeen {
    let refused = |why: String| TokenSeen::NotRenewed { why };
    let mut settings = match sign_in::settings(remote.url.clone(), environment) {
        Ok(settings) => settings,
        Err(why) => return refused(why),
    };
    settings.http.ca_file.clone_from(&remote.ca_file);
    match SignIn::new(settings).authorization().await {
        Ok(Some(_)) => TokenSeen::Renewed,
        Ok(None) => refused("there is no token any more".to_owned()),
        Err(error) => refused(error.to_string()),
    }
}
