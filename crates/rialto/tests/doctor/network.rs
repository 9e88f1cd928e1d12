//! The way in through proxies that do harm, the addresses of others, and an engine that is away.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use testkit::Rialto;

use crate::home::Home;
use crate::proxy::{Harm, Proxy};

/// Returns the address of a server that answers every request with 200 and these headers.
pub(crate) fn answering(headers: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let headers = headers.to_owned();
    // It ends with the process of the test.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &headers);
        }
    });
    format!("http://{address}/")
}

fn answer(mut stream: TcpStream, headers: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())
}

/// A gateway, a proxy in front of it, and a home whose `public_url` is the proxy.
async fn behind(harm: Harm, more: &str) -> (Home, Rialto, Proxy) {
    let gateway = Rialto::serve(&["--demo"]).await.unwrap();
    let proxy = Proxy::before(gateway.address(), harm);
    let home = Home::new();
    home.configure(&format!(
        "public_url: http://{}\n{more}destinations:\n  demo: {{ command: demo }}\n",
        proxy.address()
    ));
    home.program("bin/demo", "exit 1");
    (home, gateway, proxy)
}

/// Runs the doctor on a thread that may wait.
async fn doctor(home: Home, args: &'static [&'static str]) -> crate::home::Diagnosis {
    tokio::task::spawn_blocking(move || home.doctor(args))
        .await
        .unwrap()
}

#[tokio::test]
async fn way_in_without_harm_has_facts_only() {
    let (home, _gateway, _proxy) = behind(Harm::None, "").await;
    doctor(home, &["--no-start", "--hold", "300ms"])
        .await
        .assert_ids(&[])
        .assert_code(0)
        .assert_fact("rialto-demo")
        .assert_fact("the first event came after")
        .assert_fact("a stream was held for 300 ms")
        .assert_fact("takes requests of 17 MB");
}

#[tokio::test]
async fn proxy_that_collects_streams_is_named_with_the_line_for_it() {
    let (home, _gateway, _proxy) = behind(Harm::CollectStreams, "").await;
    doctor(home, &["--no-start"])
        .await
        .assert_ids(&["stream_buffered"])
        .assert_code(11)
        .assert_found("stream_buffered", "no event within 1.0 s", "proxy_buffering off;");
}

#[tokio::test]
async fn proxy_that_cuts_streams_is_named_with_the_time() {
    let (home, _gateway, _proxy) = behind(Harm::CutStreams, "").await;
    doctor(home, &["--no-start", "--hold", "60s"])
        .await
        .assert_ids(&["stream_cut"])
        .assert_code(11)
        .assert_found("stream_cut", "60 s were wanted", "proxy_read_timeout 1h;");
}

#[tokio::test]
async fn proxy_that_refuses_large_requests_is_named_with_the_limit_to_set() {
    let (home, _gateway, _proxy) = behind(Harm::RefuseMegabytes, "").await;
    doctor(home, &["--no-start"])
        .await
        .assert_ids(&["body_limit"])
        .assert_code(11)
        .assert_found("body_limit", "1.2 MB with 413", "client_max_body_size 16m;");
}

#[tokio::test]
async fn name_that_the_gateway_does_not_know_is_named_with_the_key_to_set() {
    let (home, _gateway, _proxy) = behind(Harm::OtherHost, "").await;
    doctor(home, &["--no-start"])
        .await
        .assert_ids(&["host_refused"])
        .assert_code(11)
        .assert_found(
            "host_refused",
            "refuses the name 127.0.0.1",
            "allowed_hosts: [127.0.0.1]",
        );
}

#[tokio::test]
async fn proxy_that_removes_the_challenge_is_named() {
    let hash = token_hash();
    let gateway = Rialto::serve(&["--demo", "--token-hash", &hash]).await.unwrap();
    for (harm, expected) in [(Harm::None, &[][..]), (Harm::RemoveChallenge, &["no_challenge"])] {
        let proxy = Proxy::before(gateway.address(), harm);
        let home = Home::new();
        home.configure(&format!(
            "public_url: http://{}\nauth:\n  tokens: [{{ name: me, hash: \"{hash}\" }}]\ndestinations:\n  demo: {{ command: demo }}\n",
            proxy.address()
        ));
        home.program("bin/demo", "exit 1");
        let diagnosis = doctor(home, &["--no-start"]).await;
        diagnosis.assert_ids(expected);
    }
}

/// Returns the hash of a new token.
fn token_hash() -> String {
    let output = Home::new().command(&["token"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != ':' && c != '-');
    let hash = words
        .filter(|word| word.starts_with("sha256:"))
        .max_by_key(|word| word.len());
    hash.unwrap_or_else(|| panic!("no hash in {text}")).to_owned()
}

#[tokio::test]
async fn public_address_where_nothing_listens_is_to_be_tried_later() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = Home::new();
    home.configure(&format!(
        "public_url: http://{closed}\ndestinations:\n  demo: {{ command: demo }}\n"
    ));
    home.program("bin/demo", "exit 1");
    doctor(home, &["--no-start"])
        .await
        .assert_ids(&["way_in_closed"])
        .assert_code(10)
        .assert_found("way_in_closed", "Connection refused", "rialto serve");
}

#[tokio::test]
async fn address_of_a_server_is_looked_at_without_a_configuration() {
    let gateway = Rialto::serve(&["--demo"]).await.unwrap();
    let url = gateway.url_of("demo");
    let home = Home::new();
    let output = tokio::task::spawn_blocking(move || home.doctor(&[&url]))
        .await
        .unwrap();
    output
        .assert_ids(&[])
        .assert_code(0)
        .assert_fact("needs no sign-in")
        .assert_fact("takes requests of 1.2 MB");
}

#[test]
fn engine_that_is_away_is_to_be_tried_later() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = Home::new();
    let output = home.command(&["cluster", "key"]).output().unwrap();
    home.put("cluster.key", &String::from_utf8(output.stdout).unwrap());
    home.configure(&format!(
        "cluster: {{ url: \"redis://{closed}\", key_file: \"{{home}}/cluster.key\", listen: \"127.0.0.1:0\" }}\n\
         destinations:\n  demo: {{ command: demo }}\n"
    ));
    home.program("bin/demo", "exit 1");
    home.doctor(&["--no-start"])
        .assert_ids(&["engine_unreachable"])
        .assert_code(10)
        .assert_found("engine_unreachable", &closed.to_string(), "systemctl status");
    std::fs::remove_file(home.path("cluster.key")).unwrap();
    home.doctor(&["--no-start"])
        .assert_ids(&["cluster_key", "engine_unreachable"])
        .assert_code(11)
        .assert_found("cluster_key", "key_file", "rialto cluster key");
}
