//! How a connection comes about: names, addresses, a proxy if one is set, TLS, and which HTTP is
//! spoken then.
//!
//! Certificates are checked against the system's trust store and `ca_file`, which are read when the
//! first secure connection is made; there is no way to switch that off. Proxies are those of the
//! environment or the system, and never for addresses of this machine.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service as _;
use url::Url;

use super::{SendError, causes, explanation};
use crate::{joined_write, local_client};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that has vanished is noticed although no bytes pass on a stream.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 3;
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// The longest answer of a proxy to `CONNECT`.
const MAX_PROXY_ANSWER: usize = 8 << 10;

/// The way to one origin.
#[derive(Debug)]
pub(super) struct Connector {
    origin: Url,
    ca_file: Option<PathBuf>,
    /// The admin socket of a gateway of this machine, instead of an address.
    socket: Option<PathBuf>,
    names: HttpConnector,
    proxy: OnceLock<Option<Intercept>>,
    tls: Mutex<Option<Arc<ClientConfig>>>,
}

impl Connector {
    pub(super) fn new(origin: &Url, ca_file: Option<&Path>, socket: Option<&Path>) -> Self {
        let mut names = HttpConnector::new();
        names.enforce_http(false);
        names.set_nodelay(true);
        names.set_keepalive(Some(KEEPALIVE));
        names.set_keepalive_interval(Some(KEEPALIVE));
        names.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        #[cfg(target_os = "linux")]
        names.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        names.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self {
            origin: origin.clone(),
            ca_file: ca_file.map(Path::to_owned),
            socket: socket.map(Path::to_owned),
            names,
            proxy: OnceLock::new(),
            tls: Mutex::default(),
        }
    }

    /// Connects through this proxy instead of the environment's.
    #[cfg(test)]
    pub(super) fn behind(self, proxy: Intercept) -> Self {
        Self {
            proxy: OnceLock::from(Some(proxy)),
            ..self
        }
    }

    pub(super) fn is_secure(&self) -> bool {
        self.origin.scheme() == "https"
    }

    /// Returns whether one connection may turn out to be enough for all requests.
    pub(super) fn may_be_shared(&self) -> bool {
        self.is_secure()
    }

    fn proxy(&self) -> Option<&Intercept> {
        let find = || {
            if self.socket.is_some() || is_loopback(&self.origin) {
                return None;
            }
            Matcher::from_system().intercept(&self.origin.as_str().parse().ok()?)
        };
        self.proxy.get_or_init(find).as_ref()
    }

    /// Returns whether requests go to a proxy, which wants absolute targets, and with which
    /// credentials.
    pub(super) fn through_proxy(&self) -> Option<Option<&HeaderValue>> {
        let proxy = self.proxy().filter(|_| !self.is_secure())?;
        Some(proxy.basic_auth())
    }

    /// Connects. Also returns whether all requests share the connection (HTTP/2).
    pub(super) async fn connect(&self) -> Result<(ServerStream, bool), SendError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, self.reach()).await {
            Ok(reached) => reached,
            Err(_) => {
                let late = unreachable(format!("no connection within {CONNECT_TIMEOUT:?}"));
                Err(match self.proxy() {
                    Some(proxy) => late.of_proxy(proxy.uri()),
                    None => late,
                })
            }
        }
    }

    async fn reach(&self) -> Result<(ServerStream, bool), SendError> {
        if let Some(socket) = &self.socket {
            let stream = local_client::connect(socket).await.map_err(unreachable)?;
            return Ok((ServerStream::Layered(Box::new(stream)), false));
        }
        let target: Uri = self.origin.as_str().parse().map_err(unreachable)?;
        let stream = match self.proxy() {
            None => ServerStream::Plain(self.dial(target).await?),
            Some(proxy) => {
                let named = |error: SendError| error.of_proxy(proxy.uri());
                let dialled = self.dial(proxy.uri().clone()).await.map_err(named)?;
                let stream = ServerStream::Plain(dialled);
                let stream = match proxy.uri().scheme() {
                    Some(scheme) if *scheme == Scheme::HTTPS => {
                        let name = proxy.uri().host().unwrap_or_default();
                        self.secure(stream, name, &[]).await.map_err(named)?.0
                    }
                    Some(scheme) if *scheme == Scheme::HTTP => stream,
                    other => {
                        return Err(named(unreachable(format!(
                            "a proxy of the kind {other:?} is not supported"
                        ))));
                    }
                };
                match self.is_secure() {
                    true => self.tunnel(stream, proxy.basic_auth()).await.map_err(named)?,
                    false => stream,
                }
            }
        };
        match self.is_secure() {
            true => {
                let name = self.origin.host_str().unwrap_or_default();
                self.secure(stream, name, &[b"h2", b"http/1.1"]).await
            }
            false => Ok((stream, false)),
        }
    }

    async fn dial(&self, to: Uri) -> Result<TcpStream, SendError> {
        let mut names = self.names.clone();
        let stream = names
            .call(to)
            .await
            .map_err(|error| unreachable(causes(&error)))?;
        Ok(stream.into_inner())
    }

    async fn secure(
        &self,
        stream: ServerStream,
        name: &str,
        protocols: &[&[u8]],
    ) -> Result<(ServerStream, bool), SendError> {
        let mut config = self.tls().map_err(SendError::Unsafe)?;
        if protocols.len() != config.alpn_protocols.len() {
            Arc::make_mut(&mut config).alpn_protocols.clear();
        }
        let bare = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|error| SendError::Unsafe(error.to_string()))?;
        let secure = TlsConnector::from(config)
            .connect(name, Box::new(stream) as Box<dyn Layer>)
            .await
            .map_err(|error| match about_tls(&error) {
                Some(error) => SendError::Unsafe(explanation::of_tls(error)),
                None => unreachable(causes(&error)),
            })?;
        let shared = secure.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((ServerStream::Layered(Box::new(secure)), shared))
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        let mut tls = self.tls.lock();
        if let Some(config) = &*tls {
            return Ok(Arc::clone(config));
        }
        let extra = match &self.ca_file {
            Some(file) => certificates(file)?,
            None => Vec::new(),
        };
        let config = tls_config(extra, |verifier| Arc::new(verifier))?;
        Ok(Arc::clone(tls.insert(Arc::new(config))))
    }

    /// Asks a proxy to pass everything on to the origin.
    async fn tunnel(
        &self,
        mut stream: ServerStream,
        authorization: Option<&HeaderValue>,
    ) -> Result<ServerStream, SendError> {
        let host = self.origin.host_str().unwrap_or_default();
        let port = self.origin.port_or_known_default().unwrap_or(443);
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n").into_bytes();
        if let Some(value) = authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(value.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let broken = |error: io::Error| unreachable(error);
        stream.write_all(&request).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        // Byte by byte: what follows the answer belongs to the tunnel.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= MAX_PROXY_ANSWER {
                return Err(unreachable("its response is too long"));
            }
            answer.push(stream.read_u8().await.map_err(broken)?);
        }
        match connect_status(&answer) {
            Some(200) => Ok(stream),
            Some(status) => Err(unreachable(format!("it answered with HTTP status {status}"))),
            None => Err(unreachable("it does not speak HTTP")),
        }
    }
}

impl SendError {
    /// Returns the same failure as one of a proxy.
    fn of_proxy(self, proxy: &Uri) -> Self {
        let named = |what: String| explanation::of_proxy(proxy, &what);
        match self {
            Self::Unreachable(what) => Self::Unreachable(named(what)),
            Self::Unsafe(what) => Self::Unsafe(named(what)),
            Self::BrokenOff(what) => Self::BrokenOff(named(what)),
        }
    }
}

fn unreachable(what: impl ToString) -> SendError {
    SendError::Unreachable(what.to_string())
}

/// Returns the status of a proxy's answer.
fn connect_status(answer: &[u8]) -> Option<u16> {
    let line = answer
        .strip_prefix(b"HTTP/1.1 ")
        .or(answer.strip_prefix(b"HTTP/1.0 "))?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn about_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns what checks certificates against the system's trust store and these, and offers HTTP/2.
/// `checked` is given the verifier, and returns the one that is used.
pub(crate) fn tls_config(
    extra: Vec<CertificateDer<'static>>,
    checked: impl FnOnce(Verifier) -> Arc<dyn ServerCertVerifier>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let cannot = |error: rustls::Error| format!("cannot check certificates: {error}");
    let verifier = Verifier::new_with_extra_roots(extra, Arc::clone(&provider)).map_err(cannot)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(cannot)?
        .dangerous()
        .with_custom_certificate_verifier(checked(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns the certificates of a file in PEM form.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| format!("cannot read `ca_file` {shown}: {error}"))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("`ca_file` {shown} holds no certificates: {error}"))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in &found {
        roots
            .add(certificate.clone())
            .map_err(|error| format!("`ca_file` {shown} holds no certificates: {error}"))?;
    }
    if found.is_empty() {
        return Err(format!("`ca_file` {shown} holds no certificates"));
    }
    Ok(found)
}

/// What a secure connection can be made on.
pub(super) trait Layer: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Layer for T {}

/// Bytes to the server and back.
pub(super) enum ServerStream {
    Plain(TcpStream),
    Layered(Box<dyn Layer>),
}

impl std::fmt::Debug for ServerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Layered(_) => "Layered",
        })
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Layered(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Layered(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => joined_write::poll_write(stream, cx, bufs),
            Self::Layered(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Layered(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Layered(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Layered(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_proxy_is_asked_for_a_tunnel_and_nothing_of_what_follows_is_lost() {
        let connector = Connector::new(
            &Url::parse("https://mcp.example.com/mcp?key=1").unwrap(),
            None,
            None,
        );
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let authorization = HeaderValue::from_static("Basic dTpw");
        let proxy = async {
            let mut request = vec![0; 4096];
            let read = theirs.read(&mut request).await.unwrap();
            theirs
                .write_all(b"HTTP/1.1 200 Go on\r\nX: y\r\n\r\nand so on")
                .await
                .unwrap();
            String::from_utf8(request[..read].to_vec()).unwrap()
        };
        let stream = ServerStream::Layered(Box::new(ours));
        let (tunnel, request) = tokio::join!(connector.tunnel(stream, Some(&authorization)), proxy);
        assert_eq!(
            request,
            "CONNECT mcp.example.com:443 HTTP/1.1\r\nHost: mcp.example.com:443\r\nProxy-Authorization: Basic dTpw\r\n\r\n"
        );
        let mut rest = [0; 9];
        tunnel.unwrap().read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"and so on");
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_a_tunnel_makes_the_server_unreachable() {
        let connector = Connector::new(&Url::parse("https://mcp.example.com/mcp").unwrap(), None, None);
        for answer in ["HTTP/1.1 407 No\r\n\r\n", "220 mail\r\n\r\n", "HTTP/1.1 200 half"] {
            let (ours, mut theirs) = tokio::io::duplex(4096);
            theirs.write_all(answer.as_bytes()).await.unwrap();
            drop(theirs);
            let tunnel = connector
                .tunnel(ServerStream::Layered(Box::new(ours)), None)
                .await;
            assert!(matches!(tunnel, Err(SendError::Unreachable(_))), "{answer}");
        }
    }

    #[test]
    fn loopback_addresses_are_known_in_every_form() {
        for (text, loopback) in [
            ("http://localhost:1/mcp", true),
            ("http://127.0.0.1/mcp", true),
            ("http://[::1]:8/mcp", true),
            ("https://mcp.example.com/mcp", false),
            ("http://10.0.0.1/mcp", false),
        ] {
            assert_eq!(is_loopback(&Url::parse(text).unwrap()), loopback, "{text}");
        }
    }

    #[test]
    fn tunnel_stands_only_after_an_http_success_of_the_proxy() {
        for (answer, status) in [
            ("HTTP/1.1 200 Connection established\r\n\r\n", Some(200)),
            ("HTTP/1.0 407 Proxy Authentication Required\r\n\r\n", Some(407)),
            ("SSH-2.0-x\r\n\r\n", None),
            ("HTTP/1.1 2", None),
        ] {
            assert_eq!(connect_status(answer.as_bytes()), status, "{answer}");
        }
    }
}
