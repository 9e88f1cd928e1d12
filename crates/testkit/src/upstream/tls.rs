//! Certificates made for one test: an authority that no system trusts, and what it signs.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    Nothing,
    Expired,
    WrongName,
    SelfSigned,
}

/// A certificate authority of this test alone.
#[derive(Debug)]
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::new()
    }
}

impl CertificateAuthority {
    /// # Panics
    /// When no key can be made.
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "an authority for one test");
        let certificate = params
            .self_signed(&key)
            .expect("an authority can vouch for itself");
        Self {
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns the authority's own certificate, for peers that shall trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns a certificate for a name and its key, both in PEM.
    ///
    /// # Panics
    /// When no key can be made.
    pub fn certificate(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key can be made");
        let params = CertificateParams::new([name.to_owned()]).expect("a name can be certified");
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a certificate can be made");
        (certificate.pem(), key.serialize_pem())
    }

    pub(super) fn configuration(&self, flaw: Flaw) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key can be made");
        let name = match flaw {
            Flaw::WrongName => "elsewhere.example",
            Flaw::Nothing | Flaw::Expired | Flaw::SelfSigned => "localhost",
        };
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name can be certified");
        if flaw == Flaw::Expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let certificate = match flaw {
            Flaw::SelfSigned => params.self_signed(&key),
            Flaw::Nothing | Flaw::Expired | Flaw::WrongName => params.signed_by(&key, &self.issuer),
        };
        let certificate: CertificateDer<'static> = certificate.expect("a certificate can be made").into();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider knows the usual versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("the key fits the certificate");
        Arc::new(config)
    }
}
