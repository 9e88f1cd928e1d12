//! Access tokens that are JWTs: whose signature they carry, whom they are about, and where they are good for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use protocol::exchange::Principal;
use serde_json::Value;

use super::bearer;
use super::issuer::{Issuer, NoKey};
use super::resource::Complaint;
use crate::clock::Clock;
use crate::settings::{JwtSettings, SignatureAlgorithm, TokenHash};

/// How far the clocks of an issuer and of this machine may be apart.
const LEEWAY: Duration = Duration::from_secs(60);
/// Tokens whose signature was found good and need not be checked again.
const MAX_REMEMBERED: usize = 4096;

/// What is wrong with a token. The words are for its bearer and say nothing that the bearer does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Malformed,
    Algorithm,
    UnknownKey,
    Signature,
    Issuer,
    Audience,
    Expired,
    NotYet,
    NoSubject,
    /// The issuer cannot be asked for its keys; nothing is known about the token.
    Unavailable,
}

impl Fault {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Malformed => "the token is not valid",
            Self::Algorithm => "the token is signed in a way that is not accepted",
            Self::UnknownKey => "the token is signed with an unknown key",
            Self::Signature => "the signature of the token is wrong",
            Self::Issuer => "the token is from another issuer",
            Self::Audience => "the token is for another resource",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet",
            Self::NoSubject => "the token does not say whom it is about",
            Self::Unavailable => "the keys of the issuer cannot be fetched",
        }
    }

    /// The same as a complaint. What was found wrong after the signature was found right is a genuine token.
    pub(crate) fn complaint(self) -> Complaint {
        match self {
            Self::Malformed | Self::Algorithm | Self::UnknownKey | Self::Signature => {
                Complaint::UnknownToken(self.text())
            }
            Self::Issuer
            | Self::Audience
            | Self::Expired
            | Self::NotYet
            | Self::NoSubject
            | Self::Unavailable => Complaint::InvalidToken(self.text()),
        }
    }
}

/// What a token says that was found to be its issuer's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Claims {
    pub(crate) principal: Principal,
    pub(crate) scopes: Arc<BTreeSet<String>>,
    audiences: Vec<String>,
    expires: f64,
    not_before: Option<f64>,
}

impl Claims {
    /// Reads the claims that count. What must be there and is not makes the token unusable (RFC 9068, 2.2).
    fn read(claims: &Value, issuer: &str) -> Result<Self, Fault> {
        if claims.get("iss").and_then(Value::as_str) != Some(issuer) {
            return Err(Fault::Issuer);
        }
        let subject = claims.get("sub").and_then(Value::as_str);
        let subject = subject
            .filter(|subject| !subject.is_empty())
            .ok_or(Fault::NoSubject)?;
        let words = |name: &str| -> Vec<String> {
            match claims.get(name) {
                Some(Value::String(text)) => vec![text.clone()],
                Some(Value::Array(items)) => items
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
                _ => Vec::new(),
            }
        };
        // `scope` is one text of several words; `scp` is what others have in its place, as a list or like it.
        let scopes = words("scope")
            .iter()
            .chain(&words("scp"))
            .flat_map(|text| text.split(' '))
            .filter(|scope| !scope.is_empty())
            .map(str::to_owned)
            .collect();
        let not_before = match claims.get("nbf") {
            None | Some(Value::Null) => None,
            Some(time) => Some(time.as_f64().ok_or(Fault::Malformed)?),
        };
        Ok(Self {
            principal: Principal::named(&format!("{issuer}#{subject}")),
            scopes: Arc::new(scopes),
            audiences: words("aud"),
            expires: claims
                .get("exp")
                .and_then(Value::as_f64)
                .ok_or(Fault::Malformed)?,
            not_before,
        })
    }

    /// When they will no longer hold; `None` if that is beyond all counting.
    pub(crate) fn until(&self) -> Option<SystemTime> {
        let expires = Duration::try_from_secs_f64(self.expires).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(expires.checked_add(LEEWAY)?)
    }

    /// Whether they hold here and now.
    fn judge(&self, audiences: &Audiences<'_>, now: SystemTime) -> Result<(), Fault> {
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let leeway = LEEWAY.as_secs_f64();
        if now >= self.expires + leeway {
            return Err(Fault::Expired);
        }
        if self
            .not_before
            .is_some_and(|not_before| now + leeway < not_before)
        {
            return Err(Fault::NotYet);
        }
        if audiences.match_any(&self.audiences) {
            Ok(())
        } else {
            Err(Fault::Audience)
        }
    }
}

/// The names by which a token may mean the place where it is shown.
#[derive(Debug)]
enum Audiences<'a> {
    Of(&'a [String]),
    /// Those of any destination, for the gateway itself.
    Any(&'a BTreeMap<String, Vec<String>>),
}

impl Audiences<'_> {
    fn match_any(&self, said: &[String]) -> bool {
        match self {
            Self::Of(names) => said.iter().any(|name| names.contains(name)),
            Self::Any(all) => all.values().any(|names| Audiences::Of(names).match_any(said)),
        }
    }
}

/// Judges the tokens of one issuer.
#[derive(Debug)]
pub(crate) struct JwtJudge {
    issuer: Arc<Issuer>,
    algorithms: BTreeSet<SignatureAlgorithm>,
    /// For each destination.
    audiences: BTreeMap<String, Vec<String>>,
    remembered: Mutex<HashMap<[u8; 32], Remembered>>,
}

#[derive(Debug)]
struct Remembered {
    claims: Arc<Claims>,
    /// The set of keys that the signature was checked with: a key that is withdrawn must not live on here.
    edition: u64,
}

impl JwtJudge {
    pub(crate) fn new(
        settings: &JwtSettings,
        audiences: BTreeMap<String, Vec<String>>,
        clock: Clock,
    ) -> Self {
        Self {
            issuer: Arc::new(Issuer::new(
                settings.issuer.clone(),
                settings.jwks_uri.clone(),
                clock,
            )),
            algorithms: settings.algorithms.clone(),
            audiences,
            remembered: Mutex::default(),
        }
    }

    pub(crate) fn issuer(&self) -> &Arc<Issuer> {
        &self.issuer
    }

    /// Judges a token for a destination, or for the gateway itself.
    pub(crate) async fn judge(
        &self,
        token: &[u8],
        hash: &TokenHash,
        destination: Option<&str>,
        now: SystemTime,
    ) -> Result<Arc<Claims>, Fault> {
        let audiences = match destination {
            Some(name) => Audiences::Of(self.audiences.get(name).map(Vec::as_slice).unwrap_or_default()),
            None => Audiences::Any(&self.audiences),
        };
        let hash = *hash.as_bytes();
        let claims = match self.recall(&hash) {
            Some(claims) => claims,
            None => {
                // Boxed, since it is rare and large: every connection would carry the room for it.
                let (claims, edition) = Box::pin(self.verify(token)).await?;
                let claims = Arc::new(claims);
                // Before it is remembered, so that nobody can fill the memory with tokens that are of no use here.
                claims.judge(&audiences, now)?;
                self.remember(hash, &claims, edition);
                return Ok(claims);
            }
        };
        claims.judge(&audiences, now)?;
        Ok(claims)
    }

    /// What was found out about a token, as long as the keys hold that it was checked with.
    fn recall(&self, hash: &[u8; 32]) -> Option<Arc<Claims>> {
        let edition = self.issuer.standing()?;
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let found = remembered.get(hash)?;
        (found.edition == edition).then(|| Arc::clone(&found.claims))
    }

    fn remember(&self, hash: [u8; 32], claims: &Arc<Claims>, edition: u64) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MAX_REMEMBERED {
            // Rare, and a signature is soon checked again: not worth keeping an order of use for every call.
            remembered.clear();
        }
        let claims = Arc::clone(claims);
        remembered.insert(hash, Remembered { claims, edition });
    }

    /// Checks the signature, and reads what was signed.
    async fn verify(&self, token: &[u8]) -> Result<(Claims, u64), Fault> {
        let token = bearer::text_of(token).ok_or(Fault::Malformed)?;
        let header = decode_header(token).map_err(|_| Fault::Malformed)?;
        // An extension that must be understood is not (RFC 7515, 4.1.11).
        if header.crit.is_some() {
            return Err(Fault::Malformed);
        }
        let is_accepted = signature_algorithm(header.alg).is_some_and(|alg| self.algorithms.contains(&alg));
        if !is_accepted {
            return Err(Fault::Algorithm);
        }
        let (key, edition) = self
            .issuer
            .key(header.kid.as_deref(), header.alg)
            .await
            .map_err(|no_key| match no_key {
                NoKey::Unknown => Fault::UnknownKey,
                NoKey::Unavailable => Fault::Unavailable,
            })?;
        let token =
            decode::<Value>(token, &key.key, &signature_only(header.alg)).map_err(|_| Fault::Signature)?;
        Ok((Claims::read(&token.claims, self.issuer.name())?, edition))
    }
}

/// The claims are judged here, by a clock that tests can set.
fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// The algorithm, unless it works with a shared secret.
fn signature_algorithm(algorithm: Algorithm) -> Option<SignatureAlgorithm> {
    match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => None,
        Algorithm::RS256 => Some(SignatureAlgorithm::Rs256),
        Algorithm::RS384 => Some(SignatureAlgorithm::Rs384),
        Algorithm::RS512 => Some(SignatureAlgorithm::Rs512),
        Algorithm::PS256 => Some(SignatureAlgorithm::Ps256),
        Algorithm::PS384 => Some(SignatureAlgorithm::Ps384),
        Algorithm::PS512 => Some(SignatureAlgorithm::Ps512),
        Algorithm::ES256 => Some(SignatureAlgorithm::Es256),
        Algorithm::ES384 => Some(SignatureAlgorithm::Es384),
        Algorithm::EdDSA => Some(SignatureAlgorithm::EdDsa),
        // The library may learn others; here they must be asked for.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tokens::hash_of;
    use serde_json::json;

    const ISSUER: &str = "https://login.example.com";

    fn claims() -> Value {
        json!({
            "iss": ISSUER, "sub": "alice", "aud": ["https://x/demo/mcp", "other"],
            "exp": 1000, "nbf": 500, "scope": "mcp mcp:call",
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    fn judge_at(claims: &Value, seconds: f64) -> Result<(), Fault> {
        let names = ["https://x/demo/mcp".to_owned(), "https://x/mcp/demo".to_owned()];
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        Claims::read(claims, ISSUER)?.judge(&Audiences::Of(&names), now)
    }

    fn judge(claims: &Value) -> Result<(), Fault> {
        judge_at(claims, 700.0)
    }

    #[test]
    fn good_claims_name_a_principal_and_its_scopes() {
        let read = Claims::read(&claims(), ISSUER).unwrap();
        assert_eq!(read.principal.as_str(), "https://login.example.com#alice");
        assert_eq!(*read.scopes, ["mcp".to_owned(), "mcp:call".to_owned()].into());
        assert_eq!(judge(&claims()), Ok(()));
        let scp = Claims::read(&with("scp", json!(["a", "b c"])), ISSUER).unwrap();
        assert_eq!(scp.scopes.len(), 5);
    }

    #[test]
    fn a_token_for_another_place_is_refused() {
        assert_eq!(
            judge(&with("aud", json!("https://x/other/mcp"))),
            Err(Fault::Audience)
        );
        assert_eq!(
            judge(&with("aud", json!("https://x/demo/mcp/"))),
            Err(Fault::Audience)
        );
        assert_eq!(judge(&with("aud", json!([]))), Err(Fault::Audience));
        assert_eq!(judge(&with("aud", Value::Null)), Err(Fault::Audience));
        assert_eq!(
            judge(&with("aud", json!({"https://x/demo/mcp": 1}))),
            Err(Fault::Audience)
        );
        assert_eq!(judge(&with("aud", json!("https://x/mcp/demo"))), Ok(()));
    }

    #[test]
    fn a_token_of_another_issuer_or_about_nobody_is_refused() {
        assert_eq!(
            judge(&with("iss", json!("https://login.example.com/"))),
            Err(Fault::Issuer)
        );
        assert_eq!(judge(&with("iss", json!([ISSUER]))), Err(Fault::Issuer));
        assert_eq!(judge(&with("sub", json!(""))), Err(Fault::NoSubject));
        assert_eq!(judge(&with("sub", json!(7))), Err(Fault::NoSubject));
    }

    #[test]
    fn times_are_judged_with_a_minute_to_spare() {
        let claims = claims();
        assert_eq!(judge_at(&claims, 1059.9), Ok(()));
        assert_eq!(judge_at(&claims, 1060.0), Err(Fault::Expired));
        assert_eq!(judge_at(&claims, 440.0), Ok(()));
        assert_eq!(judge_at(&claims, 439.9), Err(Fault::NotYet));
        assert_eq!(judge(&with("exp", Value::Null)), Err(Fault::Malformed));
        assert_eq!(judge(&with("exp", json!("1000"))), Err(Fault::Malformed));
        assert_eq!(judge(&with("nbf", json!("soon"))), Err(Fault::Malformed));
        assert_eq!(judge(&with("nbf", Value::Null)), Ok(()));
        assert_eq!(judge(&with("exp", json!(-1))), Err(Fault::Expired));
        let until = |claims: &Value| Claims::read(claims, ISSUER).unwrap().until();
        assert_eq!(
            until(&claims),
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1060))
        );
        assert_eq!(until(&with("exp", json!(1e300))), None);
    }

    #[test]
    fn the_gateway_itself_takes_a_token_for_any_destination() {
        let all = BTreeMap::from([("demo".to_owned(), vec!["a".to_owned()])]);
        assert!(Audiences::Any(&all).match_any(&["a".to_owned()]));
        assert!(!Audiences::Any(&all).match_any(&["b".to_owned()]));
    }

    #[tokio::test]
    async fn tokens_without_a_signature_by_a_public_key_are_refused_before_any_key_is_looked_for() {
        let settings = JwtSettings {
            issuer: crate::settings::IssuerUrl::parse("https://127.0.0.1:1").unwrap(),
            audience: None,
            jwks_uri: None,
            algorithms: [SignatureAlgorithm::Es256].into(),
            scopes: Vec::new(),
            scopes_for: BTreeMap::new(),
        };
        let judge = JwtJudge::new(&settings, BTreeMap::new(), Clock::new());
        let token = |header: Value| {
            use base64::Engine as _;
            let encode =
                |value: &Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
            format!("{}.{}.{}", encode(&header), encode(&claims()), "AAAA")
        };
        for (header, fault) in [
            (json!({"alg": "none"}), Fault::Malformed),
            (json!({"alg": "HS256", "kid": "a"}), Fault::Algorithm),
            (json!({"alg": "RS256", "kid": "a"}), Fault::Algorithm),
            (json!({"alg": "ES256", "crit": ["b64"]}), Fault::Malformed),
            (json!({"kid": "a"}), Fault::Malformed),
        ] {
            let verdict = judge
                .judge(
                    token(header.clone()).as_bytes(),
                    &hash_of(b""),
                    None,
                    SystemTime::UNIX_EPOCH,
                )
                .await;
            assert_eq!(verdict.err(), Some(fault), "{header}");
        }
        for junk in ["", ".", "..", "a.b.c", "a.b", ".....", "a b", "\u{e9}"] {
            let verdict = judge
                .judge(
                    junk.as_bytes(),
                    &hash_of(junk.as_bytes()),
                    None,
                    SystemTime::UNIX_EPOCH,
                )
                .await;
            assert_eq!(verdict.err(), Some(Fault::Malformed), "{junk}");
        }
    }
}
