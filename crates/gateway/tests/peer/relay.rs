//! A TCP relay between two replicas, which can fall silent or cut its connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gateway::tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Passing,
    /// Connections stay open, and no byte passes: a machine that lost its network.
    Silent,
    /// Connections of this number and before are closed.
    Cut(usize),
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
    passed: Arc<AtomicUsize>,
}

impl Relay {
    pub(crate) async fn to(owner: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, watched) = watch::channel(Mode::Passing);
        let accepted = Arc::new(AtomicUsize::new(0));
        let passed = Arc::new(AtomicUsize::new(0));
        let (count, pieces) = (Arc::clone(&accepted), Arc::clone(&passed));
        tasks::spawn("relay", async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::Relaxed) + 1;
                let (mode, pieces) = (watched.clone(), Arc::clone(&pieces));
                tasks::spawn("relay connection", async move {
                    let far = TcpStream::connect(owner).await.unwrap();
                    let (near_read, near_write) = near.into_split();
                    let (far_read, far_write) = far.into_split();
                    let passing = async {
                        tokio::join!(
                            pass(near_read, far_write, mode.clone(), &pieces),
                            pass(far_read, near_write, mode.clone(), &pieces)
                        );
                    };
                    let mut cut = mode.clone();
                    tokio::select! {
                        () = passing => {}
                        _ = cut.wait_for(|mode| matches!(mode, Mode::Cut(last) if number <= *last)) => {}
                    }
                });
            }
        });
        Self {
            address,
            mode,
            accepted,
            passed,
        }
    }

    pub(crate) fn fall_silent(&self) {
        self.mode.send_replace(Mode::Silent);
    }

    /// Closes the connections that there are. New ones pass.
    pub(crate) fn cut(&self) {
        self.mode.send_replace(Mode::Cut(self.connections()));
    }

    /// Returns how many pieces of data have passed, in both directions.
    pub(crate) fn passed(&self) -> usize {
        self.passed.load(Ordering::Relaxed)
    }

    /// Returns how many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    pieces: &AtomicUsize,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            let _ = to.shutdown().await;
            return;
        }
        if mode.wait_for(|mode| *mode != Mode::Silent).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        pieces.fetch_add(1, Ordering::Relaxed);
    }
}
