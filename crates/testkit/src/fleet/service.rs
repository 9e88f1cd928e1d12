//! A small server on a thread of its own, so that it serves tests with any runtime and with none.

use std::future::Future;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::failure::{Failure, Result};

/// A running server. It ends with this value.
#[derive(Debug)]
pub(super) struct Service {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Service {
    /// Listens on a free port, and runs the server there.
    pub(super) fn start<F>(serve: impl FnOnce(TcpListener) -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = ()>,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("testkit-service".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let Ok(listener) = TcpListener::from_std(listener) else {
                        return;
                    };
                    tokio::select! {
                        () = serve(listener) => {}
                        // A sender that is dropped means the same.
                        _ = stopped => {}
                    }
                });
                // Tasks that still wait for a peer end here.
                runtime.shutdown_background();
            })
            .map_err(Failure::from)?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the server has been printed by its thread.
            let _ = thread.join();
        }
    }
}
