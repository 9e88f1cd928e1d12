//! The key with which a client signs its identity (`private_key_jwt`, RFC 7523).

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

use crate::secret::Secret;

/// How long a signed assertion is good, in seconds.
const ASSERTION_LIFETIME: u64 = 300;

/// A private key in PEM form that can sign: RSA, or a curve that the extension names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKey(Secret);

impl SigningKey {
    /// Returns nothing if the text is no private key, or one of another kind.
    pub fn from_pem(pem: &str) -> Option<Self> {
        key(pem).map(|_| Self(Secret::new(pem)))
    }

    pub(crate) fn pem(&self) -> &Secret {
        &self.0
    }
}

/// Returns the assertion by which a client authenticates at the authorization server `issuer` (RFC
/// 7523, section 3).
pub(crate) fn assertion(pem: &str, client_id: &str, issuer: &str, now: u64) -> Option<Secret> {
    let (key, algorithm) = key(pem)?;
    let mut header = Header::new(algorithm);
    header.typ = Some("client-authentication+jwt".to_owned());
    let claims = json!({
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "iat": now,
        "exp": now.saturating_add(ASSERTION_LIFETIME),
        "jti": uuid::Uuid::new_v4().to_string(),
    });
    let signed = jsonwebtoken::encode(&header, &claims, &key).ok()?;
    Some(Secret::new(signed))
}

/// Returns a key and its algorithm.
///
/// Each kind of key is tried by signing with it, because the library does not tell which curve a
/// key is on.
fn key(pem: &str) -> Option<(EncodingKey, Algorithm)> {
    let signs =
        |key: &EncodingKey, algorithm| jsonwebtoken::encode(&Header::new(algorithm), &json!({}), key).is_ok();
    let rsa = EncodingKey::from_rsa_pem(pem.as_bytes());
    let (key, algorithms): (_, &[Algorithm]) = match rsa {
        Ok(key) => (key, &[Algorithm::RS256]),
        Err(_) => {
            let key = EncodingKey::from_ec_pem(pem.as_bytes()).ok()?;
            (key, &[Algorithm::ES256, Algorithm::ES384])
        }
    };
    let algorithm = *algorithms.iter().find(|algorithm| signs(&key, **algorithm))?;
    Some((key, algorithm))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::Value;

    use super::*;

    #[test]
    fn key_determines_its_algorithm() {
        let made = |kind| rcgen::KeyPair::generate_for(kind).unwrap().serialize_pem();
        for (pem, name) in [
            (made(&rcgen::PKCS_ECDSA_P256_SHA256), "ES256"),
            (made(&rcgen::PKCS_ECDSA_P384_SHA384), "ES384"),
            (made(&rcgen::PKCS_RSA_SHA256), "RS256"),
        ] {
            assert_eq!(format!("{:?}", key(&pem).unwrap().1), name);
        }
    }

    #[test]
    fn text_that_cannot_sign_is_no_key() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let edwards = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        for text in ["", "hush", &pair.public_key_pem(), &edwards.serialize_pem()] {
            assert!(SigningKey::from_pem(text).is_none(), "{text}");
        }
    }

    #[test]
    fn assertion_names_client_and_issuer_and_ends_soon() {
        let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let part = |assertion: &Secret, index| {
            let part = assertion.expose().split('.').nth(index).unwrap();
            serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
        };
        let one = assertion(&pem, "robot", "https://auth.example.com", 1000).unwrap();
        let other = assertion(&pem, "robot", "https://auth.example.com", 1000).unwrap();
        assert_eq!(part(&one, 0)["typ"], "client-authentication+jwt");
        let claims = part(&one, 1);
        for (name, value) in [
            ("iss", json!("robot")),
            ("sub", json!("robot")),
            ("aud", json!("https://auth.example.com")),
            ("iat", json!(1000)),
            ("exp", json!(1300)),
        ] {
            assert_eq!(claims[name], value, "{name}");
        }
        assert_ne!(claims["jti"], part(&other, 1)["jti"]);
        assert!(assertion("hush", "robot", "https://auth.example.com", 1000).is_none());
    }
}
