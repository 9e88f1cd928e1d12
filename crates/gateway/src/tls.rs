//! TLS on our own listener: the certificate, how it is exchanged while we run, and the connections
//! over it.
//!
//! Files are looked at once a second and read again when they have changed and stayed as they are
//! for a second, so that a pair of which only one half was written is not taken. A pair that cannot
//! be used changes nothing: the old certificate serves on. Nothing is ever sent in the clear on a
//! TLS port, and there is no way to ask for less than TLS 1.2.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::file_stamp::FileStamp;
use crate::settings::TlsSettings;

/// How long a client may take for the handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("tls.cert: `{file}` cannot be read as certificates in PEM: {why}")]
    Certificate { file: String, why: String },
    #[error("tls.key: `{file}` cannot be read as a private key in PEM: {why}")]
    Key { file: String, why: String },
    #[error("tls.cert and tls.key do not go together")]
    Pair(#[source] rustls::Error),
}

/// The certificate in use and the files it came from.
#[derive(Debug)]
pub(crate) struct Tls {
    state: Mutex<TlsState>,
    failures: AtomicU64,
}

#[derive(Debug)]
struct TlsState {
    settings: TlsSettings,
    config: Arc<ServerConfig>,
    /// The files as they were when they were last read, with or without success.
    read: [Option<FileStamp>; 2],
    /// The files as they were when they were last looked at.
    seen: [Option<FileStamp>; 2],
}

/// A certificate and its key, as their files are.
#[derive(Debug)]
pub(crate) struct Pair {
    settings: TlsSettings,
    config: Result<Arc<ServerConfig>, TlsError>,
    stamps: [Option<FileStamp>; 2],
}

impl Pair {
    /// Reads the files that these settings name.
    pub(crate) fn read(settings: TlsSettings) -> Self {
        let stamps = stamps(&settings);
        Self {
            config: load(&settings),
            settings,
            stamps,
        }
    }
}

impl Tls {
    pub(crate) fn open(settings: &TlsSettings) -> Result<Self, TlsError> {
        let stamps = stamps(settings);
        Ok(Self {
            state: Mutex::new(TlsState {
                settings: settings.clone(),
                config: load(settings)?,
                read: stamps,
                seen: stamps,
            }),
            failures: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TlsState> {
        self.state.lock()
    }

    /// Uses these files from now on. On error the old certificate stays.
    pub(crate) fn use_pair(&self, pair: Pair) -> Result<(), TlsError> {
        let mut state = self.lock();
        state.read = pair.stamps;
        state.seen = pair.stamps;
        state.config = pair.config?;
        state.settings = pair.settings;
        Ok(())
    }

    /// Looks whether the files have changed. Reads files, but never while a connection waits for
    /// it.
    pub(crate) fn tick(&self) {
        let settings = self.lock().settings.clone();
        let now = stamps(&settings);
        {
            let mut state = self.lock();
            let is_unchanged = std::mem::replace(&mut state.seen, now) == now;
            if now == state.read || !is_unchanged {
                return;
            }
        }
        match self.use_pair(Pair::read(settings)) {
            Ok(()) => tracing::info!("the certificate has changed and is used from now on"),
            Err(error) => tracing::error!(%error, "the new certificate cannot be used, the old one stays"),
        }
    }

    /// Accepts a TLS handshake. Returns `None` if it failed; that peer gets no answer.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.lock().config);
        let why = match tokio::time::timeout(HANDSHAKE_TIME, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it took too long".to_owned(),
        };
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        // A port scanner decides how often this happens, so the log grows slower than that.
        if failures.is_power_of_two() {
            tracing::info!(failures, why, "TLS handshake failed");
        }
        None
    }

    /// Handshakes that failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// Checks whether the files can be used, before a connection needs them.
pub fn check(settings: &TlsSettings) -> Result<(), TlsError> {
    load(settings).map(drop)
}

fn load(settings: &TlsSettings) -> Result<Arc<ServerConfig>, TlsError> {
    let name = |path: &Path| path.display().to_string();
    let certificate = |why: String| TlsError::Certificate {
        file: name(&settings.cert),
        why,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&settings.cert)
        .and_then(Iterator::collect)
        .map_err(|error| certificate(error.to_string()))?;
    if chain.is_empty() {
        return Err(certificate("there is none in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| TlsError::Key {
        file: name(&settings.key),
        why: error.to_string(),
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn stamps(settings: &TlsSettings) -> [Option<FileStamp>; 2] {
    [&settings.cert, &settings.key].map(|file| FileStamp::of(file))
}
