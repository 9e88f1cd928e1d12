//! The key with which a client signs who it is (`private_key_jwt`, RFC 7523).
//!
//! rmcp signs, but wants to be told the algorithm; the key itself knows it, so nobody else has to say.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rmcp::transport::auth::JwtSigningAlgorithm;
use serde_json::json;

use crate::secret::Secret;

/// A private key in PEM form that can sign: RSA, or a curve that the extension names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKey(Secret);

impl SigningKey {
    /// `None` if the text is no private key, or one of another kind.
    pub fn from_pem(pem: &str) -> Option<Self> {
        algorithm(pem).map(|_| Self(Secret::new(pem)))
    }

    pub(crate) fn pem(&self) -> &Secret {
        &self.0
    }
}

/// Each kind of key is tried by signing with it: there is no other way to ask which curve it is on.
pub(crate) fn algorithm(pem: &str) -> Option<JwtSigningAlgorithm> {
    let signs =
        |key: &EncodingKey, algorithm| jsonwebtoken::encode(&Header::new(algorithm), &json!({}), key).is_ok();
    if let Ok(key) = EncodingKey::from_rsa_pem(pem.as_bytes()) {
        return signs(&key, Algorithm::RS256).then_some(JwtSigningAlgorithm::RS256);
    }
    let key = EncodingKey::from_ec_pem(pem.as_bytes()).ok()?;
    let curves = [
        (Algorithm::ES256, JwtSigningAlgorithm::ES256),
        (Algorithm::ES384, JwtSigningAlgorithm::ES384),
    ];
    curves
        .into_iter()
        .find_map(|(algorithm, name)| signs(&key, algorithm).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_knows_its_algorithm() {
        let made = |kind| rcgen::KeyPair::generate_for(kind).unwrap().serialize_pem();
        for (pem, name) in [
            (made(&rcgen::PKCS_ECDSA_P256_SHA256), "ES256"),
            (made(&rcgen::PKCS_ECDSA_P384_SHA384), "ES384"),
            (made(&rcgen::PKCS_RSA_SHA256), "RS256"),
        ] {
            assert_eq!(format!("{:?}", algorithm(&pem).unwrap()), name);
        }
    }

    #[test]
    fn what_cannot_sign_is_no_key() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let edwards = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        for text in ["", "hush", &pair.public_key_pem(), &edwards.serialize_pem()] {
            assert!(SigningKey::from_pem(text).is_none(), "{text}");
        }
    }
}
