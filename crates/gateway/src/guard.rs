//! Authentication, authorisation and limits. Every request is authenticated before anything else is
//! done for it.
//!
//! There are three ways to authenticate: a static token, a token of an authorization server, and
//! the header of a trusted proxy. Each has a verifier of its own, which returns a [`Caller`].
//! Without any of them configured every caller is `anonymous`. No token is ever kept, logged or
//! passed on: only its hash is remembered.

pub(crate) mod bearer;
pub(crate) mod connections;
mod fleet_limits;
mod issuer;
mod jwks;
mod jwt;
pub(crate) mod limits;
pub(crate) mod origin;
pub(crate) mod page;
mod proxy;
pub(crate) mod rate;
pub(crate) mod resource;
mod scopes;
pub mod tokens;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use protocol::exchange::Principal;
use protocol::message::{Member, Message};
use protocol::method::Method;
use protocol::time::Moment;
use protocol::tool_policy;

use crate::clock::Clock;
use crate::reply::{Challenge, ChallengeError, Refusal};
use crate::settings::{AuthSettings, JwtSettings, OpenPath, PublicUrl};
use bearer::Credential;
use jwt::{Fault, JwtVerifier};
use proxy::TrustedProxies;
use resource::{EndpointPath, Resources};
use scopes::{Granted, ScopeRules};
use tokens::{StaticTokens, TokenCheck};

/// The principal of the user that runs a gateway with `auth`, on its admin socket. No token and no
/// issuer has such a name.
const LOCAL_PRINCIPAL: &str = "rialto (admin socket)";

/// An authenticated caller: the same value for all requests with the same token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    granted: Granted,
    /// The destinations that what it showed is good for; `None`: all.
    destinations: Option<BTreeSet<String>>,
    /// When what it showed will no longer be good.
    until: Option<SystemTime>,
    /// It may see the page, and act there.
    is_admin: bool,
}

impl Caller {
    /// Returns the caller of a refused request, for its audit record.
    pub(crate) fn unauthenticated() -> Self {
        Self {
            principal: Principal::anonymous(),
            granted: Granted::Scopes(BTreeSet::new()),
            destinations: Some(BTreeSet::new()),
            until: None,
            is_admin: false,
        }
    }

    fn unlimited(principal: Principal) -> Self {
        Self {
            principal,
            granted: Granted::Everything,
            destinations: None,
            until: None,
            is_admin: false,
        }
    }

    /// Returns whether a destination may be shown to this caller.
    pub(crate) fn sees(&self, destination: &str) -> bool {
        let destinations = self.destinations.as_ref();
        destinations.is_none_or(|names| names.contains(destination))
    }

    /// Returns whether it may see the page, and act there.
    pub(crate) fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// Returns whether what concerns the whole gateway may be shown to this caller.
    pub(crate) fn sees_everything(&self) -> bool {
        self.destinations.is_none()
    }

    /// Returns how long a stream without a request may stay open. Its client may come back with a
    /// newer token.
    pub(crate) fn time_left(&self, now: SystemTime) -> Option<Duration> {
        let until = self.until?;
        Some(until.duration_since(now).unwrap_or_default())
    }
}

/// The parts of a request that authentication reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AuthRequest<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) query: Option<&'a str>,
    pub(crate) peer: IpAddr,
    /// When it came: by the clock that keys grow old by, and by the time of day that tokens are
    /// judged by.
    pub(crate) moment: Moment,
    pub(crate) now: SystemTime,
}

/// What a request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AuthTarget<'a> {
    Destination(&'a str, EndpointPath),
    /// A path of the gateway itself.
    Gateway(OpenPath),
    /// The page, which only admins see.
    Page,
}

impl<'a> AuthTarget<'a> {
    fn destination(self) -> Option<&'a str> {
        match self {
            Self::Destination(name, _) => Some(name),
            Self::Gateway(_) | Self::Page => None,
        }
    }
}

/// The result of authentication without the network.
#[derive(Debug)]
pub(crate) enum Admission<'a> {
    Known(Arc<Caller>),
    /// A token that may be the issuer's. It is still to be [checked](Guard::check), which may take
    /// a while.
    Unchecked(Unchecked<'a>),
}

/// A token that is not in the cache.
#[derive(Debug)]
pub(crate) struct Unchecked<'a> {
    verifier: &'a JwtVerifier,
    token: &'a [u8],
}

/// All verifiers together.
#[derive(Debug)]
pub(crate) struct Guard {
    is_on: bool,
    /// The caller where no authentication is needed.
    anonymous: Arc<Caller>,
    /// The user that runs this gateway, on the admin socket.
    local: Arc<Caller>,
    tokens: StaticTokens,
    jwt: Option<JwtVerifier>,
    proxies: Option<TrustedProxies>,
    public: BTreeSet<OpenPath>,
    resources: Resources,
    rules: ScopeRules,
}

impl Guard {
    /// `base` is what clients call the gateway, `root` the destination that answers at `/mcp` too.
    pub(crate) fn new<'n>(
        auth: &AuthSettings,
        base: PublicUrl,
        destinations: impl Iterator<Item = &'n str>,
        root: Option<&str>,
        clock: Clock,
    ) -> Self {
        let resources = Resources::new(base);
        let audiences_of = |jwt: &JwtSettings, name: &str| -> Vec<String> {
            if let Some(audience) = &jwt.audience {
                return vec![audience.replace("{destination}", name)];
            }
            let mut endpoint_paths = vec![EndpointPath::Named, EndpointPath::Alias];
            if root == Some(name) {
                endpoint_paths.push(EndpointPath::Root);
            }
            endpoint_paths
                .into_iter()
                .map(|endpoint_path| resources.name(name, endpoint_path))
                .collect()
        };
        let jwt = auth.jwt.as_ref().map(|jwt| {
            let audiences = destinations.map(|name| (name.to_owned(), audiences_of(jwt, name)));
            JwtVerifier::new(jwt, audiences.collect(), clock)
        });
        Self {
            is_on: auth.is_on(),
            anonymous: Arc::new(Caller::unlimited(Principal::anonymous())),
            local: Arc::new(Caller {
                is_admin: true,
                ..Caller::unlimited(match auth.is_on() {
                    true => Principal::named(LOCAL_PRINCIPAL),
                    false => Principal::anonymous(),
                })
            }),
            tokens: StaticTokens::new(&auth.tokens),
            jwt,
            proxies: auth.proxy.clone().map(TrustedProxies::new),
            public: auth.public.clone(),
            rules: auth.jwt.as_ref().map(ScopeRules::new).unwrap_or_default(),
            resources,
        }
    }

    /// Fetches what will be needed.
    pub(crate) async fn prepare(&self) {
        if let Some(jwt) = &self.jwt {
            jwt.issuer().prepare().await;
        }
    }

    /// Returns the caller of a target that needs no authentication.
    pub(crate) fn open_to(&self, target: AuthTarget<'_>) -> Option<Arc<Caller>> {
        let is_open = match target {
            AuthTarget::Gateway(path) => self.public.contains(&path),
            AuthTarget::Destination(..) | AuthTarget::Page => false,
        };
        (!self.is_on || is_open).then(|| Arc::clone(&self.anonymous))
    }

    /// Returns whether there is authentication.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the caller where no authentication is needed.
    pub(crate) fn anonymous(&self) -> Arc<Caller> {
        Arc::clone(&self.anonymous)
    }

    /// Returns the origin under which clients reach the gateway.
    pub(crate) fn public_origin(&self) -> &str {
        self.resources.origin()
    }

    /// Returns the caller on the admin socket, whose user the kernel has named.
    pub(crate) fn local(&self) -> Arc<Caller> {
        Arc::clone(&self.local)
    }

    /// Authenticates a request for a target that needs it.
    pub(crate) fn admit<'a>(
        &'a self,
        auth_request: &AuthRequest<'a>,
        target: AuthTarget<'_>,
    ) -> Result<Admission<'a>, Refusal> {
        let credential = bearer::credential(auth_request.headers)?;
        if bearer::is_in_query(auth_request.query) {
            let why = "a token in the address is not accepted: send it as `Authorization: Bearer TOKEN`";
            return Err(self.unauthorized(ChallengeError::InvalidRequest(why), target));
        }
        if let Some(proxies) = &self.proxies
            && let Some(principal) = proxies.user(auth_request.peer, auth_request.headers)?
        {
            return Ok(Admission::Known(Arc::new(Caller::unlimited(principal))));
        }
        match credential {
            Credential::Nothing => Err(self.unauthorized(ChallengeError::Nothing, target)),
            Credential::Else => Err(self.unauthorized(Fault::Malformed.challenge_error(), target)),
            Credential::Bearer(token) => self.check_token(token, auth_request, target),
        }
    }

    fn check_token<'a>(
        &'a self,
        token: &'a [u8],
        auth_request: &AuthRequest<'_>,
        target: AuthTarget<'_>,
    ) -> Result<Admission<'a>, Refusal> {
        // First, since it costs less: of a static token it only sees that it is no signed one.
        if let Some(verifier) = &self.jwt
            && let Some(verdict) =
                verifier.recall(token, target.destination(), auth_request.moment, auth_request.now)
        {
            return self.welcome(verdict, target).map(Admission::Known);
        }
        let known = match self.tokens.is_empty() {
            true => TokenCheck::Unknown,
            false => {
                let hash = tokens::hash_of(token);
                self.tokens.check(&hash, target.destination(), auth_request.now)
            }
        };
        match (known, &self.jwt) {
            (TokenCheck::Good(caller), _) => Ok(Admission::Known(Arc::clone(caller))),
            (TokenCheck::Elsewhere, _) => Err(Refusal::TokenForElsewhere),
            (TokenCheck::Expired, _) => Err(self.refuse(Fault::Expired, target)),
            (TokenCheck::Unknown, None) => Err(self.refuse(Fault::Malformed, target)),
            (TokenCheck::Unknown, Some(verifier)) => Ok(Admission::Unchecked(Unchecked { verifier, token })),
        }
    }

    /// Returns the caller of this token, if the issuer has signed it.
    pub(crate) async fn check(
        &self,
        unchecked: Unchecked<'_>,
        now: SystemTime,
        target: AuthTarget<'_>,
    ) -> Result<Arc<Caller>, Refusal> {
        let Unchecked { verifier, token } = unchecked;
        let verdict = verifier.check(token, target.destination(), now).await;
        self.welcome(verdict, target)
    }

    /// Admits the caller of a valid token of the issuer, if it has the scopes that every request
    /// needs.
    fn welcome(
        &self,
        verdict: Result<Arc<Caller>, Fault>,
        target: AuthTarget<'_>,
    ) -> Result<Arc<Caller>, Refusal> {
        let caller = verdict.map_err(|fault| self.refuse(fault, target))?;
        self.check_scopes(&caller, target, None, None)?;
        Ok(caller)
    }

    fn refuse(&self, fault: Fault, target: AuthTarget<'_>) -> Refusal {
        match fault {
            Fault::Unavailable => Refusal::IssuerUnavailable,
            Fault::Malformed
            | Fault::Algorithm
            | Fault::UnknownKey
            | Fault::Signature
            | Fault::Issuer
            | Fault::Audience
            | Fault::Expired
            | Fault::NotYet
            | Fault::Type
            | Fault::NoSubject => self.unauthorized(fault.challenge_error(), target),
        }
    }

    /// Returns whether the credential that admitted this principal to a destination is still
    /// configured. Its requests are checked anew each time; this is about its open sessions and
    /// streams.
    pub(crate) fn keeps(&self, earlier: &Self, principal: &str, destination: &str) -> bool {
        match principal.split_once('#') {
            None => self.tokens.keeps(&earlier.tokens, principal, destination),
            Some((proxy::VOUCHER, _)) => self.proxies == earlier.proxies,
            Some((issuer, _)) => self.jwt.as_ref().is_some_and(|jwt| jwt.issuer().name() == issuer),
        }
    }

    /// Returns whether rules about tools hold for this caller.
    pub(crate) fn judges_tools(&self, caller: &Caller) -> bool {
        caller.granted != Granted::Everything && self.rules.has_tools()
    }

    /// Checks the caller's scopes against the method and the tool of the message that will be sent
    /// on.
    pub(crate) fn permit(
        &self,
        caller: &Caller,
        target: AuthTarget<'_>,
        message: &Message,
    ) -> Result<(), Refusal> {
        if caller.granted == Granted::Everything || self.rules.is_empty() {
            return Ok(());
        }
        let method = message.method_name();
        let is_call = message.method() == Method::ToolsCall;
        let tool = is_call.then(|| message.text(Member::Name)).flatten();
        // A name that could be read in two ways could be that of a tool which needs more.
        if is_call && self.rules.has_tools() && !tool.as_deref().is_some_and(tool_policy::is_unambiguous) {
            return Err(Refusal::ToolDenied {
                tool: tool.map(|tool| tool.into_owned()).unwrap_or_default(),
            });
        }
        self.check_scopes(caller, target, method.as_deref(), tool.as_deref())
    }

    fn check_scopes(
        &self,
        caller: &Caller,
        target: AuthTarget<'_>,
        method: Option<&str>,
        tool: Option<&str>,
    ) -> Result<(), Refusal> {
        self.rules.check(&caller.granted, method, tool).map_err(|needed| {
            Refusal::Forbidden(self.challenge(ChallengeError::InsufficientScope, target, &needed))
        })
    }

    fn unauthorized(&self, challenge_error: ChallengeError, target: AuthTarget<'_>) -> Refusal {
        Refusal::Unauthorized(self.challenge(challenge_error, target, &self.rules.least()))
    }

    fn challenge(
        &self,
        challenge_error: ChallengeError,
        target: AuthTarget<'_>,
        scopes: &[&str],
    ) -> Box<Challenge> {
        let metadata = match (target, &self.jwt) {
            (AuthTarget::Destination(name, endpoint_path), Some(_)) => {
                Some(self.resources.metadata_url(name, endpoint_path))
            }
            (AuthTarget::Destination(..), None) | (AuthTarget::Gateway(_) | AuthTarget::Page, _) => None,
        };
        Box::new(Challenge {
            challenge_error,
            metadata,
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        })
    }

    /// Returns the path of the resource that a metadata path is about, if tokens of an issuer are
    /// configured.
    pub(crate) fn described<'p>(&self, path: &'p str) -> Option<&'p str> {
        self.jwt.as_ref().and_then(|_| self.resources.described(path))
    }

    /// Returns the metadata of a destination.
    pub(crate) fn metadata(&self, destination: &str, endpoint_path: EndpointPath) -> Option<String> {
        let issuer = self.jwt.as_ref()?.issuer().name();
        Some(
            self.resources
                .document(destination, endpoint_path, issuer, &self.rules.least()),
        )
    }
}

#[cfg(test)]
mod tests;
