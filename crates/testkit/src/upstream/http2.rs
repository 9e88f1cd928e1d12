//! HTTP/2 in front of an upstream: each request of the one or many connections is passed on over
//! HTTP/1.1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri, client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::tls::{CertificateAuthority, Flaw};
use super::{Upstream, spawn};
use crate::Result;

/// A listener that speaks HTTP/2 and nothing else.
#[derive(Debug)]
pub struct Http2Front {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    front: AbortHandle,
}

impl Http2Front {
    pub async fn open(authority: &CertificateAuthority, to: &Upstream) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tls = Arc::unwrap_or_clone(authority.configuration(Flaw::Nothing));
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let front = spawn(keep(
            listener,
            TlsAcceptor::from(Arc::new(tls)),
            count,
            to.address(),
        ));
        Ok(Self {
            address,
            connections,
            front,
        })
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}/mcp", self.address.port())
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Http2Front {
    fn drop(&mut self) {
        self.front.abort();
    }
}

async fn keep(listener: TcpListener, tls: TlsAcceptor, count: Arc<AtomicUsize>, to: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, count) = (tls.clone(), Arc::clone(&count));
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            count.fetch_add(1, Ordering::Relaxed);
            let service =
                service_fn(move |request| async move { Ok::<_, Infallible>(pass_on(request, to).await) });
            let _ = server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// # Panics
/// When the upstream cannot be reached, which is the test's own affair.
async fn pass_on(request: Request<Incoming>, to: SocketAddr) -> Response<Incoming> {
    let (mut head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole request").to_bytes();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse::<Uri>().expect("the path of an address is one");
    head.version = hyper::Version::HTTP_11;
    let stream = TcpStream::connect(to).await.expect("the upstream listens");
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .expect("a new connection");
    spawn(async move {
        let _ = connection.await;
    });
    let request = Request::from_parts(head, Full::<Bytes>::new(body));
    sender.send_request(request).await.expect("an answer")
}
