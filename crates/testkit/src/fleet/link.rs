//! A TCP proxy between two processes, which a test can delay, silence and cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::service::Service;
use crate::failure::Result;

const CHUNK: usize = 64 << 10;
/// How many chunks may be under way on a delayed link.
const UNDER_WAY: usize = 256;

/// What a link does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    /// Each chunk of an answer arrives this much later.
    Open(Duration),
    /// Connections stay, and nothing passes until the link is open again.
    Silent,
    /// Connections break, and no new one is made.
    Cut,
}

/// A TCP proxy with one target.
#[derive(Debug)]
pub struct Link {
    service: Service,
    passage: watch::Sender<Passage>,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl Link {
    /// Returns a link without a target: until it has one, connections are closed at once.
    pub fn start() -> Result<Self> {
        let target: Arc<Mutex<Option<SocketAddr>>> = Arc::default();
        let (passage, watched) = watch::channel(Passage::Open(Duration::ZERO));
        let mine = Arc::clone(&target);
        let service = Service::start(move |listener| accept_loop(listener, mine, watched))?;
        Ok(Self {
            service,
            passage,
            target,
        })
    }

    /// Returns a link to this address.
    pub fn to(target: SocketAddr) -> Result<Self> {
        let link = Self::start()?;
        link.set_target(target);
        Ok(link)
    }

    /// Leads new connections to this address.
    pub fn set_target(&self, target: SocketAddr) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
    }

    pub fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// Returns `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Breaks all connections, and closes new ones at once.
    pub fn cut(&self) {
        self.passage.send_replace(Passage::Cut);
    }

    /// Lets connections stand without passing a byte.
    pub fn silence(&self) {
        self.passage.send_replace(Passage::Silent);
    }

    /// Lets each part of an answer arrive this much later.
    pub fn delay(&self, delay: Duration) {
        self.passage.send_replace(Passage::Open(delay));
    }

    /// Passes everything at once again.
    pub fn mend(&self) {
        self.delay(Duration::ZERO);
    }
}

async fn accept_loop(
    listener: TcpListener,
    target: Arc<Mutex<Option<SocketAddr>>>,
    passage: watch::Receiver<Passage>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let target = *target.lock().unwrap_or_else(PoisonError::into_inner);
                let is_cut = *passage.borrow() == Passage::Cut;
                if let Some(target) = target.filter(|_| !is_cut) {
                    connections.spawn(connect(client, target, passage.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(client: TcpStream, target: SocketAddr, mut passage: watch::Receiver<Passage>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = pass(from_client, to_server, passage.clone(), Direction::Request);
    let answers = pass(from_server, to_client, passage.clone(), Direction::Answer);
    tokio::select! {
        () = requests => {}
        () = answers => {}
        _ = passage.wait_for(|passage| *passage == Passage::Cut) => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

/// Passes bytes until one side ends. Reading goes on while earlier bytes are delayed.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    passage: watch::Receiver<Passage>,
    direction: Direction,
) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let seen = passage.clone();
    let read = async move {
        loop {
            let mut bytes = Vec::with_capacity(CHUNK);
            match from.read_buf(&mut bytes).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
            let delay = match (*seen.borrow(), direction) {
                (Passage::Open(delay), Direction::Answer) => delay,
                (Passage::Open(_) | Passage::Silent | Passage::Cut, _) => Duration::ZERO,
            };
            if sender.send((Instant::now() + delay, bytes)).await.is_err() {
                return;
            }
        }
    };
    let mut open = passage;
    let write = async move {
        while let Some((due, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(due).await;
            let is_open = |passage: &Passage| matches!(passage, Passage::Open(_));
            let is_gone = open.wait_for(is_open).await.is_err();
            if is_gone || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
