//! Connections against a server of the test's own, which sends the answers it is given.

use super::*;
use futures_util::future::join_all;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const FINE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that has connections one after the other. On each it answers one request after the
/// other with these words, and then closes it. Returns the requests of each connection.
async fn serve(listener: TcpListener, connections: &[&[&str]]) -> Vec<Vec<String>> {
    let mut received = Vec::new();
    for answers in connections {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut requests = Vec::new();
        for answer in *answers {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            requests.push(String::from_utf8(request[..read].to_vec()).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        received.push(requests);
    }
    received
}

async fn listener() -> (TcpListener, Url) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    (listener, Url::parse(&url).unwrap())
}

async fn post(http_client: &HttpClient, at: &Address) -> Result<Bytes, SendError> {
    let request = || {
        let mut request = Request::new(Full::new(Bytes::from_static(b"{}")));
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert(HOST, at.host().clone());
        request
    };
    let mut response = http_client.send(request, at).await?;
    let mut whole = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(SendError::BrokenOff)? {
        whole.extend_from_slice(&chunk);
    }
    // The client sees what has happened on its connections meanwhile.
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    Ok(whole.into())
}

#[test]
fn an_address_has_the_forms_that_requests_need() {
    let url = Url::parse("https://mcp.example.com:8443/a/mcp?key=1#x").unwrap();
    let address = Address::new(url).unwrap();
    assert_eq!(address.whole, "https://mcp.example.com:8443/a/mcp?key=1");
    assert_eq!(address.path, "/a/mcp?key=1");
    assert_eq!(address.host, "mcp.example.com:8443");
    let usual = Address::new(Url::parse("http://[::1]:80").unwrap()).unwrap();
    assert_eq!(
        (usual.path, usual.host.to_str().unwrap()),
        ("/".parse().unwrap(), "[::1]")
    );
}

#[tokio::test]
async fn a_connection_is_used_again_until_its_server_closes_it() {
    let (listener, url) = listener().await;
    let (http_client, at) = (HttpClient::new(&url, None, None), Address::new(url).unwrap());
    let calls = async {
        for _ in 0..3 {
            assert_eq!(post(&http_client, &at).await.unwrap(), "ok");
        }
    };
    let (received, ()) = tokio::join!(serve(listener, &[&[FINE, FINE], &[FINE]]), calls);
    let start = format!("POST /mcp HTTP/1.1\r\nhost: {}\r\n", at.host.to_str().unwrap());
    assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert!(
        received
            .iter()
            .flatten()
            .all(|request| request.starts_with(&start)),
        "{received:?}"
    );
}

#[tokio::test]
async fn a_request_passes_by_however_many_connections_have_ended_meanwhile() {
    const READY: usize = 8;
    let (listener, url) = listener().await;
    let (http_client, at) = (HttpClient::new(&url, None, None), Address::new(url).unwrap());
    let server = async {
        let mut streams = Vec::new();
        for _ in 0..READY {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            streams.push(stream);
        }
        for stream in &mut streams {
            stream.write_all(FINE.as_bytes()).await.unwrap();
        }
        drop(streams);
        serve(listener, &[&[FINE]]).await
    };
    let calls = async {
        let first = join_all((0..READY).map(|_| post(&http_client, &at))).await;
        assert!(first.iter().all(Result::is_ok), "{first:?}");
        post(&http_client, &at).await.unwrap()
    };
    let (received, answer) = tokio::join!(server, calls);
    assert_eq!((received[0].len(), &answer[..]), (1, b"ok".as_slice()));
}

#[tokio::test]
async fn a_request_whose_connection_breaks_off_is_not_sent_again() {
    for half in [
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nha",
        "HTTP/1.1 200 OK\r\ncont",
    ] {
        let (listener, url) = listener().await;
        let (http_client, at) = (HttpClient::new(&url, None, None), Address::new(url).unwrap());
        let answers: &[&[&str]] = &[&[half]];
        let (received, lost) = tokio::join!(serve(listener, answers), post(&http_client, &at));
        assert!(matches!(lost, Err(SendError::BrokenOff(_))), "{half:?}: {lost:?}");
        assert_eq!(received.len(), 1);
        assert_eq!(http_client.pool().generation(), 1, "the others are doubted");
    }
}

#[tokio::test]
async fn refused_connection_means_that_no_byte_was_sent() {
    let (listener, url) = listener().await;
    drop(listener);
    let (http_client, at) = (HttpClient::new(&url, None, None), Address::new(url).unwrap());
    let lost = post(&http_client, &at).await;
    assert!(matches!(lost, Err(SendError::Unreachable(_))), "{lost:?}");
}

#[tokio::test]
async fn proxy_receives_whole_addresses_and_its_credentials() {
    let (listener, proxy) = listener().await;
    let target = Url::parse("http://mcp.example.com/mcp").unwrap();
    let matcher = Matcher::builder()
        .http(format!("http://u:p@{}", proxy.authority()))
        .build();
    let intercept = matcher.intercept(&target.as_str().parse().unwrap()).unwrap();
    let http_client = HttpClient {
        connector: Connector::new(&target, None, None).behind(intercept),
        ..HttpClient::new(&target, None, None)
    };
    let at = Address::new(target).unwrap();
    let (received, answer) = tokio::join!(serve(listener, &[&[FINE]]), post(&http_client, &at));
    assert_eq!(answer.unwrap(), "ok");
    let request = &received[0][0];
    assert!(
        request.starts_with("POST http://mcp.example.com/mcp HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains("\r\nproxy-authorization: Basic dTpw\r\n"),
        "{request}"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_one_connection_fail_with_it() {
    // The kernel takes connections, and no server ever answers on them.
    let (_listener, mut url) = listener().await;
    url.set_scheme("https").unwrap();
    let (http_client, at) = (HttpClient::new(&url, None, None), Address::new(url).unwrap());
    let began = Instant::now();
    let lost = join_all((0..3).map(|_| post(&http_client, &at))).await;
    assert!(
        lost.iter()
            .all(|lost| matches!(lost, Err(SendError::Unreachable(_)))),
        "{lost:?}"
    );
    assert_eq!(began.elapsed().as_secs(), connector::CONNECT_TIMEOUT.as_secs());
    // A later request tries anew.
    assert!(post(&http_client, &at).await.is_err());
    assert_eq!(
        began.elapsed().as_secs(),
        2 * connector::CONNECT_TIMEOUT.as_secs()
    );
}
