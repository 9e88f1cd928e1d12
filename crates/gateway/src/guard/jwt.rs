//! Access tokens that are JWTs: their signature, their subject, and their audience.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use parking_lot::Mutex;
use protocol::exchange::Principal;
use protocol::time::Moment;
use rustc_hash::FxHashMap;
use serde_json::Value;

use super::issuer::{Issuer, NoKey};
use super::scopes::Granted;
use super::{Caller, bearer, tokens};
use crate::clock::Clock;
use crate::reply::ChallengeError;
use crate::settings::{JwtSettings, SignatureAlgorithm};

/// How far the clocks of an issuer and of this machine may be apart.
const LEEWAY: Duration = Duration::from_secs(60);
/// Tokens whose signature was found good and need not be checked again: how many, and how many
/// bytes they take.
const MAX_REMEMBERED: usize = 4096;
const MAX_REMEMBERED_BYTES: usize = 4 << 20;

/// What is wrong with a token. The text is for the bearer and reveals nothing that the bearer does
/// not know.
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
    /// It is another kind of token: an ID token, a logout token.
    Type,
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
            Self::NoSubject => "the token has no subject (sub)",
            Self::Type => "the token is no access token",
            Self::Unavailable => "the keys of the issuer cannot be fetched",
        }
    }

    /// The same as a complaint. What was found wrong after the signature was found right is a
    /// genuine token.
    pub(crate) fn challenge_error(self) -> ChallengeError {
        match self {
            Self::Malformed | Self::Algorithm | Self::UnknownKey | Self::Signature => {
                ChallengeError::UnknownToken(self.text())
            }
            Self::Issuer
            | Self::Audience
            | Self::Expired
            | Self::NotYet
            | Self::NoSubject
            | Self::Type
            | Self::Unavailable => ChallengeError::InvalidToken(self.text()),
        }
    }
}

/// The claims of a verified token that decide anything.
#[derive(Debug, Clone, PartialEq)]
struct Claims {
    /// The caller and its destinations, with the expiry including leeway; for ever, if that is
    /// beyond all counting.
    caller: Arc<Caller>,
    /// From when they hold, with the leeway.
    from: Option<SystemTime>,
}

impl Claims {
    /// Reads the claims that count. What must be there and is not makes the token unusable (RFC
    /// 9068, 2.2).
    fn read(claims: &Value, issuer: &str, accepted: &AcceptedClaims) -> Result<Self, Fault> {
        if claims.get("iss").and_then(Value::as_str) != Some(issuer) {
            return Err(Fault::Issuer);
        }
        let subject = claims.get("sub").and_then(Value::as_str);
        let subject = subject
            .filter(|subject| !subject.is_empty())
            .ok_or(Fault::NoSubject)?;
        let words = |name: &str| -> Vec<&str> {
            match claims.get(name) {
                Some(Value::String(text)) => vec![text],
                Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            }
        };
        // `scope` is one text of several words; `scp` is what others have in its place, as a list
        // or like it.
        let scopes = words("scope")
            .iter()
            .chain(&words("scp"))
            .flat_map(|text| text.split(' '))
            .filter(|scope| accepted.scopes.contains(*scope))
            .map(str::to_owned)
            .collect();
        let scopes: BTreeSet<String> = scopes;
        let is_admin = accepted
            .admin_scope
            .as_ref()
            .is_some_and(|needed| scopes.contains(needed));
        let audiences = words("aud");
        let is_named = |names: &Vec<String>| names.iter().any(|name| audiences.contains(&name.as_str()));
        let destinations = accepted.audiences.iter().filter(|(_, names)| is_named(names));
        let from = match claims.get("nbf") {
            None | Some(Value::Null) => None,
            Some(time) => {
                let not_before = time.as_f64().ok_or(Fault::Malformed)?;
                time_of_day(not_before).ok_or(Fault::NotYet)?.checked_sub(LEEWAY)
            }
        };
        let expires = claims.get("exp").and_then(Value::as_f64);
        let expires = time_of_day(expires.ok_or(Fault::Malformed)?);
        let caller = Caller {
            principal: Principal::named(&format!("{issuer}#{subject}")),
            granted: Granted::Scopes(scopes),
            destinations: Some(destinations.map(|(name, _)| name.clone()).collect()),
            until: expires.and_then(|expires| expires.checked_add(LEEWAY)),
            is_admin,
        };
        Ok(Self {
            caller: Arc::new(caller),
            from,
        })
    }

    /// Returns about how many bytes it takes to remember them.
    fn size(&self) -> usize {
        let texts = |texts: &BTreeSet<String>| -> usize {
            let of_one = |text: &String| text.len() + 2 * size_of::<String>();
            texts.iter().map(of_one).sum()
        };
        let scopes = match &self.caller.granted {
            Granted::Everything => 0,
            Granted::Scopes(scopes) => texts(scopes),
        };
        let destinations = self.caller.destinations.as_ref().map_or(0, texts);
        size_of::<Remembered>()
            + size_of::<Caller>()
            + self.caller.principal.as_str().len()
            + scopes
            + destinations
    }

    /// Returns the caller, if the claims are valid now, and for this destination or for any.
    fn validate(&self, destination: Option<&str>, now: SystemTime) -> Result<Arc<Caller>, Fault> {
        if self.caller.until.is_some_and(|until| until <= now) {
            return Err(Fault::Expired);
        }
        if self.from.is_some_and(|from| now < from) {
            return Err(Fault::NotYet);
        }
        let destinations = self.caller.destinations.as_ref();
        let is_meant = destinations.is_none_or(|names| match destination {
            Some(name) => names.contains(name),
            None => !names.is_empty(),
        });
        if !is_meant {
            return Err(Fault::Audience);
        }
        Ok(Arc::clone(&self.caller))
    }
}

/// Returns a time of a claim, in seconds; `None` if it is beyond all counting. Earlier times count
/// as 1970.
fn time_of_day(seconds: f64) -> Option<SystemTime> {
    let since = Duration::try_from_secs_f64(seconds.max(0.0)).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// What tokens are read for: nothing else of them is kept.
#[derive(Debug, Default)]
struct AcceptedClaims {
    /// The names by which a token may mean a destination.
    audiences: BTreeMap<String, Vec<String>>,
    /// The scopes that any use needs.
    scopes: BTreeSet<String>,
    /// The scope of those that may see the page.
    admin_scope: Option<String>,
}

/// Verifies the tokens of one issuer.
#[derive(Debug)]
pub(crate) struct JwtVerifier {
    issuer: Arc<Issuer>,
    algorithms: BTreeSet<SignatureAlgorithm>,
    /// What `typ` must name; empty: any type that no other kind of token has.
    types: BTreeSet<String>,
    accepted: AcceptedClaims,
    remembered: Mutex<Memory>,
}

/// Tokens that were found good. What was used longest ago is forgotten first, one by one.
#[derive(Debug, Default)]
struct Memory {
    /// By the SHA-256 hashes of the whole tokens. Only tokens that the issuer has signed come in,
    /// and no caller can choose their hashes, so no caller can choose keys that collide.
    tokens: FxHashMap<[u8; 32], Remembered>,
    bytes: usize,
    /// Counts uses, to tell which was last.
    uses: u64,
}

impl Memory {
    fn insert(&mut self, hash: [u8; 32], mut remembered: Remembered) {
        let bytes = remembered.claims.size();
        self.uses += 1;
        remembered.used = self.uses;
        self.bytes += bytes;
        if let Some(before) = self.tokens.insert(hash, remembered) {
            self.bytes -= before.claims.size();
        }
        while self.tokens.len() > MAX_REMEMBERED || self.bytes > MAX_REMEMBERED_BYTES {
            // To look through all of them costs less than to check a signature, which goes before.
            let oldest = self.tokens.iter().min_by_key(|(_, remembered)| remembered.used);
            let Some(oldest) = oldest.map(|(hash, _)| *hash) else {
                return;
            };
            if let Some(gone) = self.tokens.remove(&oldest) {
                self.bytes -= gone.claims.size();
            }
        }
    }
}

#[derive(Debug)]
struct Remembered {
    claims: Claims,
    /// The use that was its last.
    used: u64,
    /// The set of keys that the signature was checked with: a key that is withdrawn must not live
    /// on here.
    edition: u64,
}

impl JwtVerifier {
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
            types: settings.types.clone(),
            accepted: AcceptedClaims {
                audiences,
                scopes: needed_scopes(settings),
                admin_scope: settings
                    .admin_scope
                    .as_ref()
                    .map(|scope| scope.as_str().to_owned()),
            },
            remembered: Mutex::default(),
        }
    }

    pub(crate) fn issuer(&self) -> &Arc<Issuer> {
        &self.issuer
    }

    /// Returns the scope of those that may see the page, if there is one.
    pub(crate) fn admin_scope(&self) -> Option<&str> {
        self.accepted.admin_scope.as_deref()
    }

    /// Judges a token by what was found out about it, as long as the keys hold that it was checked
    /// with. `None`: it is to be [checked](Self::check).
    pub(crate) fn recall(
        &self,
        token: &[u8],
        destination: Option<&str>,
        moment: Moment,
        now: SystemTime,
    ) -> Option<Result<Arc<Caller>, Fault>> {
        // Of a static token it is only seen that it is no signed one.
        memchr::memchr(b'.', token)?;
        let edition = self.issuer.standing(moment)?;
        let hash = tokens::hash_of(token);
        let mut memory = self.remembered.lock();
        let uses = memory.uses + 1;
        let found = memory.tokens.get_mut(hash.as_bytes())?;
        if found.edition != edition {
            return None;
        }
        found.used = uses;
        let verdict = found.claims.validate(destination, now);
        memory.uses = uses;
        Some(verdict)
    }

    /// Judges a token, and remembers it if it is good. It may have to wait for keys.
    pub(crate) async fn check(
        &self,
        token: &[u8],
        destination: Option<&str>,
        now: SystemTime,
    ) -> Result<Arc<Caller>, Fault> {
        let (claims, edition) = self.verify(token).await?;
        // Before it is remembered, so that no caller can fill the cache with tokens that are of no
        // use here.
        let caller = claims.validate(destination, now)?;
        self.remember(token, claims, edition);
        Ok(caller)
    }

    fn remember(&self, token: &[u8], claims: Claims, edition: u64) {
        let hash = tokens::hash_of(token);
        let found_good = Remembered {
            claims,
            used: 0,
            edition,
        };
        let mut memory = self.remembered.lock();
        memory.insert(*hash.as_bytes(), found_good);
    }

    /// Judges the kind of a token: by its header, and by claims that only other kinds have.
    fn check_type(&self, named: Option<&str>, claims: &Value) -> Result<(), Fault> {
        let named = named.map(str::to_ascii_lowercase);
        let named = named.as_deref();
        let named = named.map(|named| named.strip_prefix("application/").unwrap_or(named));
        let is_right = match named {
            Some(named) if !self.types.is_empty() => self.types.contains(named),
            None if !self.types.is_empty() => false,
            // Other kinds name themselves so: `logout+jwt`, `secevent+jwt`, `dpop+jwt` (RFC 8725,
            // 3.11).
            Some(named) => named == "at+jwt" || !named.ends_with("+jwt"),
            None => true,
        };
        if is_right && !is_of_another_kind(claims) {
            Ok(())
        } else {
            Err(Fault::Type)
        }
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
        self.check_type(header.typ.as_deref(), &token.claims)?;
        let claims = Claims::read(&token.claims, self.issuer.name(), &self.accepted)?;
        Ok((claims, edition))
    }
}

/// Returns whether claims are those of an ID token (OpenID Connect Core, 2 and 3.3.2.11), a logout
/// token (Back-Channel Logout, 2.4), or of what some issuers call so themselves.
fn is_of_another_kind(claims: &Value) -> bool {
    let has = |name: &str| claims.get(name).is_some();
    let has_value = |name: &str, values: &[&str]| {
        let claim = claims.get(name).and_then(Value::as_str);
        claim.is_some_and(|claim| values.iter().any(|value| claim.eq_ignore_ascii_case(value)))
    };
    ["at_hash", "c_hash", "s_hash", "events"].into_iter().any(has)
        || has_value("typ", &["ID", "Refresh", "Offline", "Logout"])
        || has_value("token_use", &["id"])
}

/// Returns every scope that a rule names.
fn needed_scopes(settings: &JwtSettings) -> BTreeSet<String> {
    let of_uses = settings.scopes_for.values().flatten();
    let scopes = settings.scopes.iter().chain(of_uses).chain(&settings.admin_scope);
    scopes.map(|scope| scope.as_str().to_owned()).collect()
}

/// Verifies the signature alone. The claims are checked in this file, with a time that tests set.
fn signature_only(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation.validate_aud = false;
    validation
}

/// Returns the algorithm, unless it works with a shared secret.
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
    use crate::guard::jwks;
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

    fn accepted() -> AcceptedClaims {
        let names = ["https://x/demo/mcp".to_owned(), "https://x/mcp/demo".to_owned()];
        AcceptedClaims {
            audiences: [
                ("demo".to_owned(), names.into()),
                ("far".to_owned(), vec!["far".to_owned()]),
            ]
            .into(),
            scopes: ["mcp", "mcp:call", "a", "b", "c"].map(str::to_owned).into(),
            admin_scope: None,
        }
    }

    fn read(claims: &Value) -> Result<Claims, Fault> {
        Claims::read(claims, ISSUER, &accepted())
    }

    fn validate_at(claims: &Value, seconds: f64) -> Result<(), Fault> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        let caller = read(claims)?.validate(Some("demo"), now)?;
        assert_eq!(caller.principal.as_str(), "https://login.example.com#alice");
        Ok(())
    }

    fn validate(claims: &Value) -> Result<(), Fault> {
        validate_at(claims, 700.0)
    }

    #[test]
    fn good_claims_name_a_principal_and_its_scopes() {
        let good = read(&claims()).unwrap();
        assert_eq!(good.caller.principal.as_str(), "https://login.example.com#alice");
        let scopes = ["mcp".to_owned(), "mcp:call".to_owned()];
        assert_eq!(good.caller.granted, Granted::Scopes(scopes.into()));
        assert_eq!(validate(&claims()), Ok(()));
        let scp = read(&with("scp", json!(["a", "b c d"]))).unwrap();
        let scopes = ["mcp", "mcp:call", "a", "b", "c"].map(str::to_owned);
        assert_eq!(scp.caller.granted, Granted::Scopes(scopes.into()));
    }

    #[test]
    fn a_token_for_another_place_is_refused() {
        assert_eq!(
            validate(&with("aud", json!("https://x/other/mcp"))),
            Err(Fault::Audience)
        );
        assert_eq!(
            validate(&with("aud", json!("https://x/demo/mcp/"))),
            Err(Fault::Audience)
        );
        assert_eq!(validate(&with("aud", json!([]))), Err(Fault::Audience));
        assert_eq!(validate(&with("aud", Value::Null)), Err(Fault::Audience));
        assert_eq!(
            validate(&with("aud", json!({"https://x/demo/mcp": 1}))),
            Err(Fault::Audience)
        );
        assert_eq!(validate(&with("aud", json!("https://x/mcp/demo"))), Ok(()));
    }

    #[test]
    fn token_of_another_issuer_or_without_a_subject_is_refused() {
        assert_eq!(
            validate(&with("iss", json!("https://login.example.com/"))),
            Err(Fault::Issuer)
        );
        assert_eq!(validate(&with("iss", json!([ISSUER]))), Err(Fault::Issuer));
        assert_eq!(validate(&with("sub", json!(""))), Err(Fault::NoSubject));
        assert_eq!(validate(&with("sub", json!(7))), Err(Fault::NoSubject));
    }

    #[test]
    fn times_are_validated_with_a_minute_to_spare() {
        let claims = claims();
        assert_eq!(validate_at(&claims, 1059.9), Ok(()));
        assert_eq!(validate_at(&claims, 1060.0), Err(Fault::Expired));
        assert_eq!(validate_at(&claims, 440.0), Ok(()));
        assert_eq!(validate_at(&claims, 439.9), Err(Fault::NotYet));
        assert_eq!(validate(&with("exp", Value::Null)), Err(Fault::Malformed));
        assert_eq!(validate(&with("exp", json!("1000"))), Err(Fault::Malformed));
        assert_eq!(validate(&with("nbf", json!("soon"))), Err(Fault::Malformed));
        assert_eq!(validate(&with("nbf", Value::Null)), Ok(()));
        assert_eq!(validate(&with("exp", json!(-1))), Err(Fault::Expired));
        assert_eq!(validate(&with("nbf", json!(-1))), Ok(()));
        assert_eq!(validate(&with("nbf", json!(1e300))), Err(Fault::NotYet));
        assert_eq!(validate(&with("exp", json!(1e300))), Ok(()));
        let until = |claims: &Value| read(claims).unwrap().caller.until;
        assert_eq!(
            until(&claims),
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1060))
        );
        assert_eq!(until(&with("exp", json!(1e300))), None);
    }

    #[test]
    fn the_gateway_itself_takes_a_token_for_any_destination_and_shows_it_that_one() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(700);
        let caller = read(&claims()).unwrap().validate(None, now).unwrap();
        assert!(caller.sees("demo") && !caller.sees("far") && !caller.sees_everything());
        let elsewhere = read(&with("aud", json!("b"))).unwrap();
        assert_eq!(elsewhere.validate(None, now), Err(Fault::Audience));
    }

    #[test]
    fn memory_of_tokens_is_bounded_by_bytes_and_forgets_the_least_used_one_by_one() {
        let verifier = new_verifier();
        verifier.issuer.take(jwks::read(KEYS).unwrap(), Moment::START);
        let edition = verifier.issuer.standing(Moment::START).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(700);
        let of = |subject: &str| read(&with("sub", json!(subject))).unwrap();
        let recalls = |token: &str| {
            verifier
                .recall(token.as_bytes(), None, Moment::START, now)
                .is_some()
        };
        verifier.remember(b"a.first", of("alice"), edition);
        // Each has a thousand claims that Rialto does not need, and a name of 64 KiB.
        let mut large = with("sub", json!("x".repeat(64 << 10)));
        large["scope"] = json!("s ".repeat(1000));
        large["aud"] = json!(["https://x/demo/mcp", "y".repeat(64 << 10)]);
        let large = read(&large).unwrap();
        for number in 0..100 {
            verifier.remember(format!("a.{number}").as_bytes(), large.clone(), edition);
            assert!(recalls("a.first"), "it is used all the time");
        }
        let memory = verifier.remembered.lock();
        assert!(memory.bytes <= MAX_REMEMBERED_BYTES, "{}", memory.bytes);
        assert!((50..70).contains(&memory.tokens.len()), "{}", memory.tokens.len());
        drop(memory);
        assert!(recalls("a.99") && !recalls("a.0"));
    }

    /// One that is only ever looked at.
    const KEYS: &[u8] = br#"{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"a",
        "x":"byNHyrfddoWP4FVaw7yZBIxKrK_ftry-BepsQsSTRWk","y":"HRoYoKSzdKe9M_YyuAeXabd0dareTKWDjL2m4zjXIqk"}]}"#;

    fn new_verifier() -> JwtVerifier {
        let settings = JwtSettings {
            issuer: crate::settings::IssuerUrl::parse("https://127.0.0.1:1").unwrap(),
            audience: None,
            jwks_uri: None,
            algorithms: [SignatureAlgorithm::Es256].into(),
            types: BTreeSet::new(),
            scopes: Vec::new(),
            scopes_for: BTreeMap::new(),
            admin_scope: None,
        };
        let audiences = [("demo".to_owned(), vec!["https://x/demo/mcp".to_owned()])];
        JwtVerifier::new(&settings, audiences.into(), Clock::new())
    }

    #[test]
    fn only_the_very_token_is_recalled_that_was_found_good_and_only_while_its_keys_hold() {
        let verifier = new_verifier();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(700);
        let recall = |token: &[u8], destination, now| {
            let verdict = verifier.recall(token, Some(destination), Moment::START, now)?;
            Some(verdict.map(|caller| caller.principal.as_str().to_owned()))
        };
        let fetch = || verifier.issuer.take(jwks::read(KEYS).unwrap(), Moment::START);
        fetch();
        let edition = verifier.issuer.standing(Moment::START).unwrap();
        verifier.remember(b"head.claims.signature", read(&claims()).unwrap(), edition);
        let alice = || Some(Ok("https://login.example.com#alice".to_owned()));
        assert_eq!(recall(b"head.claims.signature", "demo", now), alice());
        for other in [
            &b"head.claimz.signature"[..],
            b"Head.claims.signature",
            b"head.claims.signaturE",
            b"head.claims.",
            b"claims.signature",
            b"signature",
            b".signature",
            b"head.claims.x.signature",
            b"head.claims.signature.",
            b"",
        ] {
            assert_eq!(recall(other, "demo", now), None, "{other:?}");
        }
        // It is judged anew each time.
        assert_eq!(
            recall(b"head.claims.signature", "other", now),
            Some(Err(Fault::Audience))
        );
        let late = now + Duration::from_secs(1000);
        assert_eq!(
            recall(b"head.claims.signature", "demo", late),
            Some(Err(Fault::Expired))
        );
        fetch();
        assert_eq!(recall(b"head.claims.signature", "demo", now), None, "other keys");
    }

    #[test]
    fn other_kinds_of_tokens_are_refused() {
        let mut verifier = new_verifier();
        let access = claims();
        for typ in [None, Some("JWT"), Some("at+jwt"), Some("application/AT+JWT")] {
            assert_eq!(verifier.check_type(typ, &access), Ok(()), "{typ:?}");
        }
        for typ in ["logout+jwt", "dpop+jwt", "application/secevent+jwt"] {
            assert_eq!(verifier.check_type(Some(typ), &access), Err(Fault::Type), "{typ}");
        }
        for (name, value) in [
            ("at_hash", json!("x")),
            ("events", json!({})),
            ("typ", json!("ID")),
            ("token_use", json!("id")),
        ] {
            assert_eq!(
                verifier.check_type(Some("JWT"), &with(name, value)),
                Err(Fault::Type),
                "{name}"
            );
        }
        assert_eq!(
            verifier.check_type(Some("JWT"), &with("typ", json!("Bearer"))),
            Ok(())
        );
        verifier.types = ["at+jwt".to_owned()].into();
        assert_eq!(verifier.check_type(Some("at+jwt"), &access), Ok(()));
        for typ in [None, Some("JWT"), Some("logout+jwt")] {
            assert_eq!(verifier.check_type(typ, &access), Err(Fault::Type), "{typ:?}");
        }
    }

    #[tokio::test]
    async fn tokens_without_a_signature_by_a_public_key_are_refused_before_any_key_is_looked_for() {
        let verifier = new_verifier();
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
            let verdict = verifier
                .check(token(header.clone()).as_bytes(), None, SystemTime::UNIX_EPOCH)
                .await;
            assert_eq!(verdict.err(), Some(fault), "{header}");
        }
        for junk in ["", ".", "..", "a.b.c", "a.b", ".....", "a b", "\u{e9}"] {
            let verdict = verifier
                .check(junk.as_bytes(), None, SystemTime::UNIX_EPOCH)
                .await;
            assert_eq!(verdict.err(), Some(Fault::Malformed), "{junk}");
        }
    }
}
