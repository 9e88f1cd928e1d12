//! The keys of an issuer: which one a token wants, and when they may be fetched again.
//!
//! Pure: time is an argument, fetching is the caller's task. It never takes a symmetric key, so
//! that a public key can never be mistaken for a shared secret.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use protocol::time::Moment;

/// Keys of this age are fetched anew while they are still used: issuers publish a key before they
/// sign with it.
const REFRESH: Duration = Duration::from_secs(5 * 60);
/// Keys of an issuer that cannot be reached for this long are not used: one may be withdrawn.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);
/// Tokens with unknown key ids cause a fetch at most this often.
const UNKNOWN_KEY: Duration = Duration::from_secs(60);
/// The pause before the next fetch from an issuer that has never answered.
const FIRST_KEYS: Duration = Duration::from_secs(5);
/// Keys that are kept of one set.
const MAX_KEYS: usize = 64;

/// One public key.
pub(crate) struct Key {
    id: Option<String>,
    /// The one algorithm it is for, where the issuer names it.
    algorithm: Option<KeyAlgorithm>,
    family: AlgorithmFamily,
    pub(crate) key: DecodingKey,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Key {
    fn new(jwk: &Jwk) -> Option<Self> {
        let family = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa,
            AlgorithmParameters::EllipticCurve(_) => AlgorithmFamily::Ec,
            AlgorithmParameters::OctetKeyPair(_) => AlgorithmFamily::Ed,
            // Secrets, and unknown kinds of keys; the set is open.
            _ => return None,
        };
        match &jwk.common.public_key_use {
            Some(PublicKeyUse::Signature) | None => {}
            Some(PublicKeyUse::Encryption | PublicKeyUse::Other(_)) => return None,
        }
        Some(Self {
            id: jwk.common.key_id.clone(),
            algorithm: jwk.common.key_algorithm,
            family,
            key: DecodingKey::from_jwk(jwk).ok()?,
        })
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        self.family == algorithm.family()
            && self
                .algorithm
                .is_none_or(|meant| meant == KeyAlgorithm::from(algorithm))
    }
}

/// Reads a set of keys; those that cannot be used here are left out. `None`: this is no set of
/// keys.
pub(crate) fn read(document: &[u8]) -> Option<Vec<Arc<Key>>> {
    let document: serde_json::Value = serde_json::from_slice(document).ok()?;
    let keys = document.get("keys")?.as_array()?;
    let usable = keys
        .iter()
        .filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok())
        .filter_map(|jwk| Key::new(&jwk))
        .map(Arc::new);
    Some(usable.take(MAX_KEYS).collect())
}

/// Why keys are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchReason {
    /// The cache is empty.
    First,
    /// The cache does not have the key that a token names.
    Unknown,
    /// The keys are old.
    Fresher,
}

/// The keys of an issuer, and when they were fetched.
#[derive(Debug, Default)]
pub(crate) struct JwksCache {
    keys: Vec<Arc<Key>>,
    /// Counts the sets that were fetched. A token that was checked with another set is checked
    /// again.
    edition: u64,
    came: Option<Moment>,
    tried: Option<Moment>,
    tried_for_unknown: Option<Moment>,
}

impl JwksCache {
    pub(crate) fn edition(&self) -> u64 {
        self.edition
    }

    /// Returns the key that a token names. A token without a key id needs a set with one such key.
    pub(crate) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Arc<Key>> {
        let mut fitting = self
            .keys
            .iter()
            .filter(|key| key.fits(algorithm) && (id.is_none() || key.id.as_deref() == id));
        let first = fitting.next()?;
        match (id, fitting.next()) {
            (Some(_), _) | (None, None) => Some(Arc::clone(first)),
            (None, Some(_)) => None,
        }
    }

    /// Returns why keys should be fetched, if they should. `found`: the cache has the token's key.
    pub(crate) fn want(&self, found: bool, now: Moment) -> Option<FetchReason> {
        match (found, self.came) {
            (_, None) => Some(FetchReason::First),
            (false, Some(_)) => Some(FetchReason::Unknown),
            (true, Some(came)) => (now.since(came) >= REFRESH).then_some(FetchReason::Fresher),
        }
    }

    /// Returns whether fresher keys are wanted, and may be fetched.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.want(true, now) == Some(FetchReason::Fresher) && self.may_fetch(FetchReason::Fresher, now)
    }

    /// Returns whether there were ever keys that may still be used.
    pub(crate) fn is_usable(&self, now: Moment) -> bool {
        self.came.is_some_and(|came| now.since(came) < STALE)
    }

    /// Notes the start of a fetch. Returns false if the last one is too recent.
    pub(crate) fn begin_fetch(&mut self, want: FetchReason, now: Moment) -> bool {
        let may = self.may_fetch(want, now);
        if may {
            self.tried = Some(now);
            if want == FetchReason::Unknown {
                self.tried_for_unknown = Some(now);
            }
        }
        may
    }

    fn may_fetch(&self, want: FetchReason, now: Moment) -> bool {
        let long_ago = |last: Option<Moment>, pause| last.is_none_or(|last| now.since(last) >= pause);
        match want {
            FetchReason::First => long_ago(self.tried, FIRST_KEYS),
            FetchReason::Unknown => long_ago(self.tried_for_unknown, UNKNOWN_KEY),
            FetchReason::Fresher => long_ago(self.tried, UNKNOWN_KEY),
        }
    }

    /// Takes fetched keys. A set without any usable key is more likely a mistake, and changes
    /// nothing.
    pub(crate) fn replace(&mut self, keys: Vec<Arc<Key>>, now: Moment) {
        if !keys.is_empty() {
            self.keys = keys;
            self.edition += 1;
            self.came = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two points and a modulus that are only ever looked at, never computed with.
    const SET: &str = r#"{"keys":[
        {"kty":"EC","kid":"a","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0","use":"sig"},
        {"kty":"EC","kid":"b","alg":"ES384","crv":"P-384","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},
        {"kty":"RSA","kid":"r","n":"sXch","e":"AQAB"},
        {"kty":"RSA","kid":"enc","n":"sXch","e":"AQAB","use":"enc"},
        {"kty":"oct","kid":"secret","k":"c2VjcmV0"},
        {"kty":"EC","kid":"odd","crv":"secp256k1","x":"AA","y":"AA"},
        {"kty":"new","kid":"n"},
        "nonsense"
    ]}"#;

    fn ring() -> JwksCache {
        let mut ring = JwksCache::default();
        ring.replace(read(SET.as_bytes()).unwrap(), Moment::START);
        ring
    }

    fn at(seconds: u64) -> Moment {
        Moment::START.after(Duration::from_secs(seconds))
    }

    #[test]
    fn only_public_keys_for_signatures_are_kept() {
        let ids: Vec<_> = ring().keys.iter().filter_map(|key| key.id.clone()).collect();
        assert_eq!(ids, ["a", "b", "r"]);
        for nonsense in ["", "[]", "{}", r#"{"keys":1}"#] {
            assert!(read(nonsense.as_bytes()).is_none(), "{nonsense}");
        }
    }

    #[test]
    fn a_key_is_found_by_its_id_and_only_for_its_algorithm() {
        let ring = ring();
        let found = |id, algorithm| ring.find(id, algorithm).is_some();
        assert!(found(Some("a"), Algorithm::ES256));
        assert!(!found(Some("a"), Algorithm::RS256), "another family");
        assert!(!found(Some("b"), Algorithm::ES256), "it is for ES384");
        assert!(found(Some("r"), Algorithm::RS256) && found(Some("r"), Algorithm::PS512));
        assert!(!found(Some("r"), Algorithm::HS256), "a public key is no secret");
        assert!(!found(Some("secret"), Algorithm::HS256));
        assert!(!found(Some("x"), Algorithm::ES256));
        assert!(found(None, Algorithm::RS256), "there is only one");
    }

    #[test]
    fn without_an_id_there_must_be_no_choice() {
        let mut ring = JwksCache::default();
        let two = SET.replace("\"alg\":\"ES384\",", "");
        ring.replace(read(two.as_bytes()).unwrap(), Moment::START);
        assert!(ring.find(None, Algorithm::ES256).is_none());
    }

    #[test]
    fn invented_key_ids_cause_one_fetch_a_minute() {
        let mut ring = ring();
        let fetches = (0..600).filter(|tenth| {
            let now = Moment::START.after(Duration::from_millis(tenth * 300));
            ring.begin_fetch(FetchReason::Unknown, now)
        });
        assert_eq!(fetches.count(), 3, "in three minutes");
    }

    #[test]
    fn the_first_fetch_does_not_use_up_the_one_for_a_new_key() {
        let mut ring = JwksCache::default();
        assert_eq!(ring.want(false, at(0)), Some(FetchReason::First));
        assert!(ring.begin_fetch(FetchReason::First, at(0)));
        assert!(!ring.begin_fetch(FetchReason::First, at(4)), "not at once again");
        ring.replace(read(SET.as_bytes()).unwrap(), at(1));
        assert_eq!(ring.want(false, at(2)), Some(FetchReason::Unknown));
        assert!(
            ring.begin_fetch(FetchReason::Unknown, at(2)),
            "the issuer may just have changed its key"
        );
        assert!(!ring.begin_fetch(FetchReason::Unknown, at(61)));
        assert!(ring.begin_fetch(FetchReason::Unknown, at(62)));
    }

    #[test]
    fn old_keys_are_fetched_anew_and_used_meanwhile_but_not_for_ever() {
        let mut ring = ring();
        assert_eq!(ring.want(true, at(299)), None);
        assert_eq!(ring.want(true, at(300)), Some(FetchReason::Fresher));
        assert!(ring.begin_fetch(FetchReason::Fresher, at(300)));
        assert!(
            !ring.begin_fetch(FetchReason::Fresher, at(301)),
            "it failed; not at once again"
        );
        assert!(ring.find(Some("a"), Algorithm::ES256).is_some());
        assert!(ring.is_usable(at(24 * 3600 - 1)) && !ring.is_usable(at(24 * 3600)));
    }

    #[test]
    fn old_keys_are_due_once_a_minute_even_if_every_token_is_remembered() {
        let mut ring = ring();
        assert!(!ring.is_due(at(299)) && ring.is_due(at(300)));
        assert!(ring.begin_fetch(FetchReason::Fresher, at(300)));
        assert!(!ring.is_due(at(359)), "the issuer was just asked");
        assert!(ring.is_due(at(360)), "and did not answer");
        ring.replace(read(SET.as_bytes()).unwrap(), at(361));
        assert!(!ring.is_due(at(362)));
    }

    #[test]
    fn an_empty_set_takes_nothing_away() {
        let mut ring = ring();
        ring.replace(Vec::new(), at(10));
        assert_eq!(ring.edition(), 1);
        assert!(ring.find(Some("a"), Algorithm::ES256).is_some());
    }
}
