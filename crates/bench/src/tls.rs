//! TLS between the load and the gateway: a certificate for one measurement, and a client that
//! trusts it alone.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

pub type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

/// The client's side of TLS.
#[derive(Debug, Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Writes a certificate and its key as `cert.pem` and `key.pem`. Returns a client that trusts
    /// it.
    pub fn write_certificate(directory: &Path) -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).context("no certificate")?;
        std::fs::write(directory.join("cert.pem"), made.cert.pem()).context("cannot write a certificate")?;
        std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem())
            .context("cannot write a key")?;
        let mut roots = RootCertStore::empty();
        let certificate: CertificateDer<'static> = made.cert.into();
        roots.add(certificate).context("the certificate is no root")?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no version of TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> anyhow::Result<TlsStream> {
        let name = ServerName::try_from("localhost").context("a name")?;
        let connector = TlsConnector::from(Arc::clone(&self.0));
        connector.connect(name, stream).await.context("no TLS")
    }
}
