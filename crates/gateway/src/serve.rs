//! Serves clients over HTTP, from the start of the servers to the end of the drain.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use crate::frontend::peers::PeerRequests;
use crate::frontend::{listener, local};
use crate::gateway::Gateway;
use crate::tasks;

/// How long connections may take to close once everything has been answered.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The socket that clients connect to.
#[derive(Debug)]
pub enum Listening {
    /// It goes with this process.
    Own(TcpListener),
    /// It outlives this process: connections that are not accepted here wait in it for the next
    /// one.
    Inherited(TcpListener),
}

impl Gateway {
    /// Serves on a socket for HTTP and on an admin socket, as far as they are given, until
    /// `shutdown` comes. Then it drains: calls in flight may finish, new ones are
    /// refused, and all children are ended. An own socket accepts connections until the end of the
    /// drain, to refuse their calls with the reason. An inherited one leaves them to the next process;
    /// those that are open have one more request answered.
    pub async fn serve(
        self: Arc<Self>,
        listening: Option<Listening>,
        admin: Option<UnixListener>,
        shutdown: impl Future<Output = ()>,
    ) {
        let (listener, is_inherited) = match listening {
            Some(Listening::Own(listener)) => (Some(listener), false),
            Some(Listening::Inherited(listener)) => (Some(listener), true),
            None => (None, false),
        };
        for destination in self.config().in_order_of_start() {
            destination.upstream.start();
        }
        let (closing, _) = watch::channel(false);
        let maintenance = tasks::spawn("maintenance", {
            let gateway = Arc::clone(&self);
            async move {
                tokio::join!(gateway.run_maintenance(), gateway.follow_certificate());
            }
        });
        let fleet = self.shared.fleet.clone().map(|fleet| {
            let running = Arc::clone(&fleet);
            let task = tasks::spawn("fleet", async move { running.run().await });
            (fleet, task)
        });
        if let Some((fleet, _)) = &fleet {
            // Until then it is not known which sessions there are.
            fleet.begun().await;
        }
        let (peers_closing, _) = watch::channel(false);
        let peers = self.peers.as_ref().and_then(|peers| peers.listener());
        let peers = peers.map(|listener| {
            let requests = Arc::new(PeerRequests(Arc::clone(&self)));
            let serving = listener.serve(requests, peers_closing.subscribe());
            tasks::spawn("peer listener", serving)
        });
        tasks::spawn("guard", {
            let gateway = Arc::clone(&self);
            async move { gateway.config().guard.prepare().await }
        });
        let accepting = tasks::spawn("accept", {
            let (gateway, closing) = (Arc::clone(&self), closing.clone());
            async move {
                match listener {
                    Some(listener) => listener::accept_loop(gateway, listener, closing).await,
                    None => std::future::pending().await,
                }
            }
        });
        let administrating = admin.map(|listener| {
            let accepting = local::accept_local(Arc::clone(&self), listener, closing.clone());
            tasks::spawn("accept local", accepting)
        });
        shutdown.await;
        // The socket has lost its name by now. Those that are connected may finish.
        if let Some(accepting) = administrating {
            accepting.abort();
        }
        if is_inherited {
            accepting.abort();
            self.leave_socket();
        }
        let deadline = self.drain().await;
        let is_replica = self.peers.is_some();
        if is_replica {
            accepting.abort();
        }
        if is_inherited || is_replica {
            // A connection that was just accepted has its first request on the way. Closed now, it would be
            // refused after all.
            self.connections_closed(CLOSE_TIME).await;
            // Idle connections close. What came last on the others may finish.
            let _ = closing.send(true);
            self.finish_calls(deadline).await;
        }
        accepting.abort();
        let _ = closing.send(true);
        self.stop_all().await;
        if let Some((fleet, task)) = fleet {
            fleet.close_all(CLOSE_TIME).await;
            task.abort();
        }
        if let Some(peers) = peers {
            // Sessions and calls have ended, so that every request of another replica has its
            // answer.
            let _ = peers_closing.send(true);
            let _ = tokio::time::timeout(CLOSE_TIME, peers).await;
        }
        if let Some(peers) = &self.peers {
            // What clients sent last was forwarded to another replica, and may take as long as any
            // call.
            let _ = tokio::time::timeout(self.config().drain, peers.proxied_ended()).await;
        }
        self.connections_closed(CLOSE_TIME).await;
        maintenance.abort();
        self.audit.flush(CLOSE_TIME);
    }
}
