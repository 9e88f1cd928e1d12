//! A peer that breaks in chosen ways: real TLS, and frames of HTTP/2 written by hand.

use std::net::SocketAddr;

use cluster::NodeId;
use cluster::key::ClusterKey;
use gateway::tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::replica::{issue, node};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const PREFACE: usize = 24;

/// What it does when a request has arrived, on stream 1.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Break {
    /// GOAWAY with this stream as the last that is processed, and the end of the connection.
    GoAway {
        last: u32,
        reason: u32,
    },
    Reset {
        reason: u32,
    },
    Close,
}

pub(crate) struct FakePeer {
    pub(crate) node: NodeId,
    pub(crate) address: SocketAddr,
}

impl FakePeer {
    pub(crate) async fn start(key: &ClusterKey, how: Break) -> Self {
        let node = node("fake");
        let tls = TlsAcceptor::from(issue(key, &node).server());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks::spawn("fake peer", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stream = tls.accept(stream).await.unwrap();
                tasks::spawn("fake connection", serve(stream, how));
            }
        });
        Self { node, address }
    }
}

async fn serve(mut stream: TlsStream<TcpStream>, how: Break) {
    let mut preface = [0; PREFACE];
    stream.read_exact(&mut preface).await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        match head[3] {
            SETTINGS if head[4] & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap();
            }
            PING if head[4] & ACK == 0 => stream.write_all(&frame(PING, ACK, 0, &payload)).await.unwrap(),
            HEADERS | DATA => break,
            _ => {}
        }
    }
    let last = match how {
        Break::GoAway { last, reason } => {
            frame(GOAWAY, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat())
        }
        Break::Reset { reason } => frame(RST_STREAM, 0, 1, &reason.to_be_bytes()),
        Break::Close => Vec::new(),
    };
    stream.write_all(&last).await.unwrap();
    stream.flush().await.unwrap();
    match how {
        Break::GoAway { .. } | Break::Close => {
            let _ = stream.shutdown().await;
        }
        // The connection stays open, until its client closes it.
        Break::Reset { .. } => {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}
