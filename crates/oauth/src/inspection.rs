//! What a remote server offers to clients that want to sign in, found as a sign-in finds it, without
//! signing in.

use url::Url;

use crate::discovery::discover;
use crate::error::SignInError;
use crate::http::{HttpSettings, Network};
use crate::www_authenticate;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    pub challenge: Challenge,
    /// Whether the resource publishes metadata (RFC 9728).
    pub is_described: bool,
    /// Whether an authorization server publishes metadata (RFC 8414, OpenID).
    pub is_published: bool,
    /// What the metadata call the resource; the address itself where there are none.
    pub resource: String,
    pub issuer: String,
    /// Whether the authorization server names itself in its answers (RFC 9207).
    pub names_itself: bool,
    /// Programs can register themselves (RFC 7591).
    pub registers: bool,
    /// Programs can be known by the address of a document about them.
    pub takes_documents: bool,
    /// Why people must not be sent there.
    pub obstacle: Option<String>,
}

/// How a server answers a request without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Challenge {
    /// It needs none.
    Open,
    /// HTTP 401, with the address of the metadata.
    WithMetadata,
    /// HTTP 401 without it.
    Bare,
}

/// Finds out what a server offers. `None`: it is open and describes no sign-in.
pub async fn inspect(resource: &Url, settings: &HttpSettings) -> Result<Option<Inspection>, SignInError> {
    let network = Network::new(resource, settings)?;
    let answered = network.challenge(resource).await?;
    let challenge = match &answered {
        None => Challenge::Open,
        Some(headers) => {
            let named = |header: &String| !www_authenticate::values(header, "resource_metadata").is_empty();
            match headers.iter().any(named) {
                true => Challenge::WithMetadata,
                false => Challenge::Bare,
            }
        }
    };
    let found = discover(&network, resource, answered.as_deref().unwrap_or_default()).await?;
    if challenge == Challenge::Open && !found.described {
        return Ok(None);
    }
    let offer = found.terms.offer();
    let obstacle = match (&found.terms.authorization_endpoint, &found.terms.split) {
        (Err(error), _) | (Ok(_), Some(error)) => Some(error.to_string()),
        (Ok(_), None) => None,
    };
    Ok(Some(Inspection {
        challenge,
        is_described: found.described,
        is_published: found.published,
        registers: offer.registration.is_some() && found.published,
        takes_documents: offer.metadata_documents,
        names_itself: found.terms.names_itself,
        issuer: found.terms.issuer.clone(),
        resource: found.resource,
        obstacle,
    }))
}
