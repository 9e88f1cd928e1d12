//! The balancer and the links of a fleet, with servers that are nothing but sockets.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::fleet::{Balancer, LOST, Link, NONE_READY};
use testkit::{McpClient, PATIENCE, Result, poll_until, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What a server does with a request that is not about its health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Answers with its own address.
    Answers,
    /// Reads the request, and closes the connection.
    BreaksOff,
    /// Begins a stream, and ends it when the test closes its side.
    Streams,
}

/// Starts a server, which ends with the set.
async fn server(manner: Manner, tasks: &mut JoinSet<()>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(answer(stream, address, manner));
        }
    });
    Ok(address)
}

async fn answer(mut stream: TcpStream, address: SocketAddr, manner: Manner) {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            return;
        }
    }
    let is_health = request.starts_with(b"GET /ready ");
    let text = match manner {
        Manner::BreaksOff if !is_health => return,
        Manner::Streams if !is_health => {
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
             a\r\ndata: {}\n\n\n\r\n"
                .to_owned()
        }
        Manner::Answers | Manner::BreaksOff | Manner::Streams => {
            let body = address.to_string();
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }
    };
    if stream.write_all(text.as_bytes()).await.is_ok() && manner == Manner::Streams && !is_health {
        // The stream stays open until the other side has gone.
        while matches!(stream.read_buf(&mut request).await, Ok(1..)) {}
    }
}

async fn in_use(balancer: &Balancer, replica: SocketAddr) {
    balancer.add(replica);
    wait_until("the balancer uses the replica", PATIENCE, || {
        balancer.uses(replica).then_some(())
    })
    .await;
}

async fn ask(balancer: &Balancer) -> Result<(u16, String)> {
    let client = McpClient::connect(&format!("http://{}/", balancer.address())).await?;
    let reply = client.send("POST", "/", &[], "{}").await?.reply().await?;
    Ok((reply.status, reply.body_text()))
}

#[tokio::test]
async fn balancer_gives_each_request_to_the_next_replica_and_passes_dead_ones_over() -> Result<()> {
    let (balancer, mut tasks, mut other) = (Balancer::start()?, JoinSet::new(), JoinSet::new());
    assert_eq!(ask(&balancer).await?, (503, NONE_READY.to_owned()));
    let one = server(Manner::Answers, &mut tasks).await?;
    let two = server(Manner::Answers, &mut other).await?;
    in_use(&balancer, one).await;
    in_use(&balancer, two).await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(ask(&balancer).await?.1);
    }
    assert_eq!(answers[0], answers[2]);
    assert_eq!(answers[1], answers[3]);
    assert_ne!(answers[0], answers[1]);
    other.shutdown().await;
    for _ in 0..4 {
        assert_eq!(ask(&balancer).await?, (200, one.to_string()));
    }
    wait_until("the dead replica is out of use", PATIENCE, || {
        (!balancer.uses(two)).then_some(())
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn balancer_sends_nothing_twice() -> Result<()> {
    let (balancer, mut tasks) = (Balancer::start()?, JoinSet::new());
    let (healthy, breaking) = (
        server(Manner::Answers, &mut tasks).await?,
        server(Manner::BreaksOff, &mut tasks).await?,
    );
    in_use(&balancer, healthy).await;
    in_use(&balancer, breaking).await;
    let answers = [ask(&balancer).await?, ask(&balancer).await?];
    assert!(answers.contains(&(200, healthy.to_string())), "{answers:?}");
    assert!(answers.contains(&(502, LOST.to_owned())), "{answers:?}");
    Ok(())
}

#[tokio::test]
async fn balancer_passes_events_before_the_stream_ends() -> Result<()> {
    let (balancer, mut tasks) = (Balancer::start()?, JoinSet::new());
    let replica = server(Manner::Streams, &mut tasks).await?;
    in_use(&balancer, replica).await;
    let client = McpClient::connect(&format!("http://{}/", balancer.address())).await?;
    let mut stream = client.get_stream(None).await?;
    assert_eq!(stream.message().await?, serde_json::json!({}));
    Ok(())
}

/// Sends a byte to a server that returns it.
async fn echo(link: &Link) -> std::io::Result<u8> {
    let mut stream = TcpStream::connect(link.address()).await?;
    stream.write_u8(7).await?;
    stream.read_u8().await
}

#[tokio::test]
async fn link_is_cut_and_mended() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let target = listener.local_addr()?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    if stream.write_u8(byte).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let link = Link::to(target)?;
    assert_eq!(echo(&link).await?, 7);
    let mut open = TcpStream::connect(link.address()).await?;
    open.write_u8(1).await?;
    assert_eq!(open.read_u8().await?, 1);
    link.cut();
    let broken = tokio::time::timeout(PATIENCE, open.read_u8()).await;
    assert!(broken.is_ok_and(|read| read.is_err()), "open connections break");
    assert!(echo(&link).await.is_err(), "new ones are closed");
    link.mend();
    assert_eq!(echo(&link).await?, 7);
    link.delay(Duration::from_millis(1));
    assert_eq!(echo(&link).await?, 7);
    // Nothing passes a silent link until it is mended.
    link.silence();
    let mut open = TcpStream::connect(link.address()).await?;
    open.write_u8(3).await?;
    poll_until("nothing passes", PATIENCE, async || {
        let mut byte = [0];
        let read = open.try_read(&mut byte);
        Result::Ok(read.is_err().then_some(()))
    })
    .await?;
    link.mend();
    assert_eq!(open.read_u8().await?, 3);
    Ok(())
}
