//! Which replicas can connect: those with a valid certificate of the same cluster key, and no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use cluster::key::{ClusterKey, server_name};
use gateway::peer::{NotSent, Outcome, PeerClient};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::replica::{Owner, Proxy, issue, limits, node, ok, post, text};

/// Returns an owner that counts the requests that reach its handler.
async fn counting(key: &ClusterKey) -> (Owner, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let owner = Owner::start(key, limits(), move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        async { ok("reached") }
    })
    .await;
    (owner, calls)
}

#[track_caller]
fn assert_untrusted(outcome: &Outcome) {
    let Outcome::NotSent(lost @ NotSent::Untrusted(_)) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(lost.to_string().contains("cluster.key_file"), "{lost}");
}

#[tokio::test]
async fn replica_of_another_key_is_not_sent_anything() {
    let (key, other) = (ClusterKey::generate().unwrap(), ClusterKey::generate().unwrap());
    let (owner, calls) = counting(&other).await;
    let proxy = Proxy::new(&key, limits());
    assert_untrusted(&proxy.send(&owner, post("/", "{}")).await);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn another_run_at_the_same_address_is_not_sent_anything() {
    let key = ClusterKey::generate().unwrap();
    let (owner, calls) = counting(&key).await;
    let proxy = Proxy::new(&key, limits());
    let (earlier, address) = (node("owner"), owner.address.to_string());
    assert_untrusted(&proxy.send_to(&earlier, &address).await);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn expired_certificate_is_refused_by_the_listener() {
    let key = ClusterKey::generate().unwrap();
    let (owner, calls) = counting(&key).await;
    let mut proxy = Proxy::new(&key, limits());
    let long_ago = SystemTime::now() - Duration::from_secs(40 * 365 * 24 * 3600);
    let expired = key.issue(&proxy.node, long_ago).unwrap();
    proxy.client = PeerClient::new(&proxy.node, &expired, limits());
    assert_untrusted(&proxy.send(&owner, post("/", "{}")).await);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn client_without_a_certificate_reaches_no_handler() {
    let key = ClusterKey::generate().unwrap();
    let (owner, calls) = counting(&key).await;
    let silent = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let mut config = (*issue(&key, &node("nameless")).client()).clone();
    config.client_auth_cert_resolver = silent.client_auth_cert_resolver;
    let stream = TcpStream::connect(owner.address).await.unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect(server_name(&owner.node), stream);
    let ended = async {
        let mut stream = connecting.await?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        stream.read_u8().await
    };
    assert!(ended.await.is_err(), "the connection ends without a byte");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // The listener goes on.
    let proxy = Proxy::new(&key, limits());
    assert_eq!(text(proxy.send(&owner, post("/", "{}")).await).await, "reached");
}

#[tokio::test]
async fn plain_http_reaches_no_handler() {
    let key = ClusterKey::generate().unwrap();
    let (owner, calls) = counting(&key).await;
    let mut stream = TcpStream::connect(owner.address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/"));
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}
