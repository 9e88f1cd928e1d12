//! What a client sees of an address from outside: the certificate, the version of HTTP, the head of
//! a response, and when the parts of its body arrive.
//!
//! It judges nothing, follows no redirect and repeats nothing. A certificate that is not trusted
//! ends the connection, and its issuer is still reported. Proxies are those of the environment,
//! and never for addresses of this machine.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version};
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use rustls_platform_verifier::Verifier;
use url::Url;

use crate::backend::remote::{certificates, is_loopback, tls_config};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A certificate that a server has presented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// What its issuer is called.
    pub issuer: String,
    /// Why this machine does not trust it.
    pub doubt: Option<String>,
}

/// Which version of HTTP is offered to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// The server chooses.
    Http1And2,
    /// The `Host` header can be another than the address then.
    Http1,
}

/// A client for the addresses of one origin.
#[derive(Debug)]
pub struct Outside {
    client: reqwest::Client,
    certificate: Arc<Mutex<Option<Certificate>>>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Query {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NoResponse {
    pub why: String,
    /// No connection came about, so nothing was sent.
    pub is_unreachable: bool,
}

/// The head of a response; its body is read piece by piece.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub is_http2: bool,
    /// How long the head took.
    pub took: Duration,
    inner: reqwest::Response,
}

impl Outside {
    /// Returns a client that trusts what this machine trusts, and the certificates of a file.
    pub fn of(origin: &Url, offer: Offer, ca_file: Option<&Path>) -> Result<Self, String> {
        let certificate = Arc::new(Mutex::new(None));
        let extra = match ca_file {
            Some(file) => certificates(file)?,
            None => Vec::new(),
        };
        let seen = Arc::clone(&certificate);
        let mut config = tls_config(extra, |inner| Arc::new(Recorder { inner, seen }))?;
        if offer == Offer::Http1 {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
        }
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("rialto/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(config);
        if is_loopback(origin) {
            builder = builder.no_proxy();
        }
        if offer == Offer::Http1 {
            builder = builder.http1_only();
        }
        let client = builder.build().map_err(|error| innermost(&error))?;
        Ok(Self { client, certificate })
    }

    /// Sends a request and returns the head of the response.
    pub async fn send(&self, query: Query) -> Result<Response, NoResponse> {
        let began = Instant::now();
        let request = self
            .client
            .request(query.method, query.url)
            .headers(query.headers)
            .body(query.body);
        let inner = request.send().await.map_err(|error| NoResponse {
            why: innermost(&error),
            is_unreachable: error.is_connect(),
        })?;
        Ok(Response {
            status: inner.status(),
            headers: inner.headers().clone(),
            is_http2: inner.version() == Version::HTTP_2,
            took: began.elapsed(),
            inner,
        })
    }

    /// Returns the certificate that was presented last.
    pub fn certificate(&self) -> Option<Certificate> {
        self.certificate.lock().clone()
    }
}

impl Response {
    /// Returns the next part of the body as it arrives; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, String> {
        self.inner.chunk().await.map_err(|error| innermost(&error))
    }

    /// Returns the body, up to a limit. What follows is not read.
    pub async fn text(&mut self, limit: usize) -> Result<String, String> {
        let mut read = Vec::new();
        while read.len() < limit
            && let Some(piece) = self.piece().await?
        {
            read.extend_from_slice(&piece);
        }
        read.truncate(limit);
        Ok(String::from_utf8_lossy(&read).into_owned())
    }
}

/// Returns the cause that is the most precise.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Checks certificates as the inner verifier does, and notes what was presented.
#[derive(Debug)]
struct Recorder {
    inner: Verifier,
    seen: Arc<Mutex<Option<Certificate>>>,
}

impl ServerCertVerifier for Recorder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict =
            self.inner
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        *self.seen.lock() = Some(Certificate {
            issuer: issuer_of(end_entity).unwrap_or_else(|| "an unnamed issuer".to_owned()),
            doubt: verdict.as_ref().err().map(ToString::to_string),
        });
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// One value of DER: its tag and content, and what follows it.
fn der(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0, |length, digit| length << 8 | usize::from(*digit));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Returns the name of the issuer of a certificate: its common name, or else its organisation. A
/// parser of certificates would add ten crates for this text, which is only shown.
fn issuer_of(certificate: &[u8]) -> Option<String> {
    const VERSION: u8 = 0xa0;
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];
    let (_, certificate, _) = der(certificate)?;
    let (_, mut rest, _) = der(certificate)?;
    if let Some((VERSION, _, after)) = der(rest) {
        rest = after;
    }
    let (_, _serial, rest) = der(rest)?;
    let (_, _algorithm, rest) = der(rest)?;
    let (_, mut names, _) = der(rest)?;
    let mut found: [Option<String>; 2] = [None, None];
    while let Some((_, set, after)) = der(names) {
        names = after;
        let (_, pair, _) = der(set)?;
        let (_, kind, value) = der(pair)?;
        let (_, value, _) = der(value)?;
        let text = || Some(String::from_utf8_lossy(value).into_owned());
        match kind {
            COMMON_NAME => found[0] = text(),
            ORGANISATION => found[1] = text(),
            _ => {}
        }
    }
    found.into_iter().flatten().next()
}

#[cfg(test)]
mod tests {
    use testkit::upstream::{CertificateAuthority, Flaw};

    use super::*;

    fn query(url: &Url) -> Query {
        Query {
            method: Method::GET,
            url: url.clone(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    #[tokio::test]
    async fn issuer_of_a_certificate_is_known_whether_it_is_trusted_or_not() {
        let authority = CertificateAuthority::new();
        let server = testkit::Upstream::legacy()
            .with_tls(&authority, Flaw::Nothing)
            .start()
            .await
            .expect("started");
        let url: Url = server.url().parse().expect("a URL");
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, authority.pem()).expect("written");
        let trusting = Outside::of(&url, Offer::Http1And2, Some(&file)).expect("a client");
        let response = trusting.send(query(&url)).await.expect("a response");
        assert!(!response.is_http2);
        let trusted = trusting.certificate().expect("presented");
        assert_eq!(trusted.doubt, None);
        assert_eq!(trusted.issuer, "an authority for one test");
        let doubting = Outside::of(&url, Offer::Http1And2, None).expect("a client");
        let error = doubting.send(query(&url)).await.expect_err("not trusted");
        assert!(error.is_unreachable, "{error:?}");
        let doubted = doubting.certificate().expect("presented");
        assert_eq!(doubted.issuer, trusted.issuer);
        assert!(doubted.doubt.is_some());
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_issuer() {
        for bytes in [
            &b""[..],
            b"\x30",
            b"\x30\x82\xff\xff",
            b"\x30\x03\x30\x01\x02",
            &[0xff; 40],
        ] {
            assert_eq!(issuer_of(bytes), None);
        }
    }
}
