//! The cluster key: the one secret that all replicas of a fleet share.
//!
//! It holds the private key of a certificate authority and a sealing key. At start each replica
//! issues itself a certificate, whose private key exists in memory alone. Replicas accept only
//! certificates of that authority, so there is no other PKI to run and one file to mount.
//!
//! The file is text: a line with the version, then one `name: base64` line per part. `check` is a
//! hash over the parts, so that a damaged file is noticed at start and not at the first take-over.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::record::NodeId;

/// The first words of the file.
const TITLE: &str = "rialto-cluster-key";
/// The version of the format.
const VERSION: &str = "1";
/// The bytes of the sealing key: that of AES-256.
pub const SEALING_KEY_BYTES: usize = 32;
/// The bytes of the hash that are written: enough to notice damage. It is no protection.
const CHECK_BYTES: usize = 8;
/// A file of this size is no cluster key.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// The domain in certificates. It is resolved nowhere (RFC 9476 keeps `internal` private).
const DOMAIN: &str = "rialto.internal";

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long before its issue a certificate is valid: the clocks of two replicas may differ.
const VALID_BEFORE: Duration = YEAR.saturating_mul(5);
/// How long after its issue a certificate is valid: longer than any process runs.
const VALID_AFTER: Duration = YEAR.saturating_mul(20);

/// Why there is no cluster key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file does not exist.
    #[error(
        "there is no cluster key at `{file}`: make one with `rialto cluster key > {file}` and copy it to every replica"
    )]
    Missing {
        /// The path of the file.
        file: String,
    },
    /// The file cannot be read.
    #[error("the cluster key `{file}` cannot be read: give the user that runs Rialto access to it")]
    Unreadable {
        /// The path of the file.
        file: String,
        /// What the system reports.
        source: io::Error,
    },
    /// Other users of the machine can read or change the file.
    #[error(
        "other users can read or change the cluster key `{file}` (mode {mode:04o}): run `chmod 600 {file}`"
    )]
    Exposed {
        /// The path of the file.
        file: String,
        /// The permissions that it has.
        mode: u32,
    },
    /// The text of the file is no key.
    #[error("the cluster key `{file}`: {source}")]
    File {
        /// The path of the file.
        file: String,
        /// What is wrong with the text.
        source: ParseError,
    },
    /// The system has no randomness to give.
    #[error("the system has no randomness for a new key")]
    NoRandomness,
    /// No certificate can be made from the key.
    #[error("no certificate can be issued with the cluster key: make a new one with `rialto cluster key`")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why a text is no cluster key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The first line is another one.
    #[error("this is no cluster key: make one with `rialto cluster key`")]
    NoKey,
    /// The key was made by a Rialto with another format.
    #[error(
        "its version is {0}, and this Rialto reads version {VERSION}: use the same Rialto on all replicas, or make a new key with `rialto cluster key`"
    )]
    Version(String),
    /// A part is missing or incomplete.
    #[error("it is cut off (`{0}` is missing or incomplete): copy the whole file again")]
    CutOff(&'static str),
    /// A part occurs twice with different values.
    #[error("it holds two different keys (`{0}` occurs twice): keep one of them, the same on all replicas")]
    Two(&'static str),
    /// A line is none that the format has.
    #[error("line {0} is none of a cluster key: copy the file again")]
    Line(usize),
    /// The parts do not fit the hash over them.
    #[error("it is damaged: copy the file again")]
    Damaged,
}

/// The secret that all replicas share.
pub struct ClusterKey {
    authority: KeyPair,
    sealing: [u8; SEALING_KEY_BYTES],
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClusterKey([redacted])")
    }
}

impl ClusterKey {
    /// Returns a new key.
    pub fn generate() -> Result<Self, KeyError> {
        let authority = KeyPair::generate().map_err(|_| KeyError::NoRandomness)?;
        let mut sealing = [0; SEALING_KEY_BYTES];
        rand::fill(&mut sealing).map_err(|_| KeyError::NoRandomness)?;
        Ok(Self { authority, sealing })
    }

    /// Reads a key file. Other users of the machine must have no access to it.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let file = path.display().to_string();
        let unreadable = |source: io::Error| {
            let file = file.clone();
            if source.kind() == io::ErrorKind::NotFound {
                KeyError::Missing { file }
            } else {
                KeyError::Unreadable { file, source }
            }
        };
        let opened = std::fs::File::open(path).map_err(unreadable)?;
        let metadata = opened.metadata().map_err(unreadable)?;
        if let Some(mode) = exposed_mode(&metadata) {
            return Err(KeyError::Exposed { file, mode });
        }
        let mut text = String::new();
        let mut limited = io::Read::take(opened, MAX_FILE_BYTES);
        match io::Read::read_to_string(&mut limited, &mut text) {
            Ok(_) => {}
            // Bytes that are no text are no key.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => text.clear(),
            Err(error) => return Err(unreadable(error)),
        }
        Self::parse(&text).map_err(|source| KeyError::File { file, source })
    }

    /// Reads the text of a key file.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or(ParseError::NoKey)?;
        let version = first.trim_end().strip_prefix(TITLE).ok_or(ParseError::NoKey)?;
        match version.strip_prefix(' ') {
            Some(VERSION) => {}
            Some(other) => return Err(ParseError::Version(other.chars().take(20).collect())),
            None => return Err(ParseError::NoKey),
        }
        let mut parts = Parts::default();
        for (number, line) in lines {
            let line = line.trim();
            // A second title begins a second key, which the names of its parts report.
            if line.is_empty() || line.starts_with('#') || line.starts_with(TITLE) {
                continue;
            }
            parts.take(line).ok_or(ParseError::Line(number + 1))??;
        }
        let authority = decoded(parts.authority, AUTHORITY)?;
        let sealing = decoded(parts.sealing, SEALING)?;
        let check = decoded(parts.check, CHECK)?;
        let sealing = sealing.try_into().map_err(|_| ParseError::CutOff(SEALING))?;
        if check.len() != CHECK_BYTES {
            return Err(ParseError::CutOff(CHECK));
        }
        if check != check_of(&authority, &sealing) {
            return Err(ParseError::Damaged);
        }
        let authority = KeyPair::try_from(authority).map_err(|_| ParseError::Damaged)?;
        Ok(Self { authority, sealing })
    }

    /// Returns the text of the key file. It is secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        let authority = self.authority.serialized_der();
        let base64 = |bytes: &[u8]| STANDARD.encode(bytes);
        format!(
            "{TITLE} {VERSION}
# The shared secret of a fleet of Rialto replicas (cluster.key_file): the same file on every replica.
# A reader of this file can read sealed states and act as a replica. Keep it in mode 0600.
{AUTHORITY}: {}
{SEALING}: {}
{CHECK}: {}
",
            base64(authority),
            base64(&self.sealing),
            base64(&check_of(authority, &self.sealing)),
        )
    }

    /// Returns the key that seals what clients hold for the fleet.
    #[must_use]
    pub fn sealing_key(&self) -> &[u8; SEALING_KEY_BYTES] {
        &self.sealing
    }

    /// Issues a certificate for this run of a replica. `now` is the time by its own clock.
    pub fn issue(&self, node: &NodeId, now: SystemTime) -> Result<PeerIdentity, KeyError> {
        let failed = |error: rcgen::Error| KeyError::Certificate(error.into());
        // Subject and public key make a trust anchor, so each replica can make the same one anew.
        let mut anchor = CertificateParams::default();
        anchor.distinguished_name = named("Rialto cluster");
        anchor.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        anchor.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = anchor.self_signed(&self.authority).map_err(failed)?;
        let issuer = Issuer::from_params(&anchor, &self.authority);

        let key = KeyPair::generate().map_err(|_| KeyError::NoRandomness)?;
        let mut params = CertificateParams::new([dns_name(node)]).map_err(failed)?;
        params.distinguished_name = named(node.as_str());
        params.not_before = (now - VALID_BEFORE).into();
        params.not_after = (now + VALID_AFTER).into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        PeerIdentity::new(
            authority.der(),
            certificate.der(),
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .map_err(|error| KeyError::Certificate(error.into()))
    }
}

/// What one run of a replica shows to the others, and how it checks them: TLS 1.3, and a
/// certificate of the cluster's authority on both sides.
#[derive(Clone)]
pub struct PeerIdentity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PeerIdentity").finish_non_exhaustive()
    }
}

impl PeerIdentity {
    fn new(
        authority: &CertificateDer<'static>,
        certificate: &CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let provider: Arc<CryptoProvider> = Arc::new(provider::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let chain = vec![certificate.clone()];
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A connection lasts for hours. A resumed one would only skip the check of certificates.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        client.alpn_protocols = vec![b"h2".to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// Returns the settings of TLS for the listener that other replicas reach.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Returns the settings of TLS for connections to other replicas.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }
}

/// Returns the name that the certificate of this run of a replica must have.
///
/// A client that connects checks it: the address of a replica may meanwhile be another's.
#[must_use]
pub fn server_name(node: &NodeId) -> ServerName<'static> {
    ServerName::try_from(dns_name(node)).expect("letters, digits and dots are a DNS name")
}

/// Returns whether this certificate, which was verified, is the one of this run of a replica.
#[must_use]
pub fn certifies(certificate: &CertificateDer<'_>, node: &NodeId) -> bool {
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &server_name(node)).is_ok())
}

/// The incarnation is random and new at each start, so it alone names the run of a replica. The
/// name of a node may have characters that DNS names cannot have.
fn dns_name(node: &NodeId) -> String {
    let (_, incarnation) = node.as_str().rsplit_once('/').unwrap_or(("", node.as_str()));
    format!("{incarnation}.{DOMAIN}")
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

const AUTHORITY: &str = "authority";
const SEALING: &str = "sealing";
const CHECK: &str = "check";

/// The parts of a file as they are written.
#[derive(Default)]
struct Parts<'a> {
    authority: Option<&'a str>,
    sealing: Option<&'a str>,
    check: Option<&'a str>,
}

impl<'a> Parts<'a> {
    /// Takes one line. `None`: the format has no such line.
    fn take(&mut self, line: &'a str) -> Option<Result<(), ParseError>> {
        let (name, value) = line.split_once(':')?;
        let (name, part) = match name {
            AUTHORITY => (AUTHORITY, &mut self.authority),
            SEALING => (SEALING, &mut self.sealing),
            CHECK => (CHECK, &mut self.check),
            _ => return None,
        };
        let value = value.trim();
        match part.replace(value) {
            Some(other) if other != value => Some(Err(ParseError::Two(name))),
            Some(_) | None => Some(Ok(())),
        }
    }
}

fn decoded(part: Option<&str>, name: &'static str) -> Result<Vec<u8>, ParseError> {
    let text = part.filter(|text| !text.is_empty());
    text.and_then(|text| STANDARD.decode(text).ok())
        .ok_or(ParseError::CutOff(name))
}

fn check_of(authority: &[u8], sealing: &[u8; SEALING_KEY_BYTES]) -> Vec<u8> {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(authority);
    context.update(sealing);
    let hash = context.finish();
    hash.as_ref().iter().copied().take(CHECK_BYTES).collect()
}

/// Returns the permissions of a file that other users can read, or that its group can change. The
/// group may read: that is how Kubernetes mounts a secret for a user that is not root (`fsGroup`).
#[cfg(unix)]
fn exposed_mode(metadata: &std::fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o027 != 0).then_some(mode)
}

#[cfg(not(unix))]
fn exposed_mode(_: &std::fs::Metadata) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests;
