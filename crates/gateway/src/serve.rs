//! Serves clients over HTTP, from the start of the servers to the end of the drain.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::frontend::listener;
use crate::gateway::Gateway;
use crate::tasks;

/// How long connections may take to close once everything has been answered.
const CLOSE_TIME: Duration = Duration::from_secs(1);

impl Gateway {
    /// Serves until `shutdown` comes, then drains: calls in flight may finish, new ones are
    /// refused, and all children are ended.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        for destination in self.config().destinations.values() {
            destination.upstream.start();
        }
        let (closing, _) = watch::channel(false);
        let maintenance = tasks::spawn("maintenance", {
            let gateway = Arc::clone(&self);
            async move {
                tokio::join!(gateway.run_maintenance(), gateway.follow_certificate());
            }
        });
        let recording = self.shared.session_store.clone().map(|store| {
            let running = Arc::clone(&store);
            let task = tasks::spawn("session records", async move { running.run().await });
            (store, task)
        });
        tasks::spawn("guard", {
            let gateway = Arc::clone(&self);
            async move { gateway.config().guard.prepare().await }
        });
        let accepting = tasks::spawn(
            "accept",
            listener::accept_loop(Arc::clone(&self), listener, closing.clone()),
        );
        shutdown.await;

        self.drain().await;
        accepting.abort();
        let _ = closing.send(true);
        self.stop_all().await;
        if let Some((store, task)) = recording {
            store.close(CLOSE_TIME).await;
            task.abort();
        }
        self.connections_closed(CLOSE_TIME).await;
        maintenance.abort();
        self.audit.flush(CLOSE_TIME);
    }
}
