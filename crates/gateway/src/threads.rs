//! The threads that serve, where there are several.
//!
//! Each has a runtime of its own. A connection is served by one thread from its first byte to its
//! last, and the tasks of an instance stay on one thread. Threads meet only where a call goes from
//! a connection to an instance and back: [`Driver`](crate::driver) keeps the order there, and a
//! waker of tokio wakes the other thread. So a call costs at most two wake-ups across threads, and
//! no thread looks for work that another has.
//!
//! Connections and instances are dealt out in turn. The first thread also accepts connections and
//! has all tasks that are neither a connection nor an instance.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

/// Where connections are served and instances run. The default is the one thread of the caller.
#[derive(Debug, Clone, Default)]
pub struct Threads(Option<Arc<Several>>);

#[derive(Debug)]
struct Several {
    runtimes: Vec<Handle>,
    connections: AtomicUsize,
    instances: AtomicUsize,
}

impl Threads {
    /// Starts the threads beside `first`, so that there are `count` with it. They run until
    /// [`OtherThreads::stop`].
    pub fn start(first: &Runtime, count: NonZeroUsize) -> io::Result<(Self, OtherThreads)> {
        let (stop, stopped) = watch::channel(());
        // No message is ever sent: the channel closes when the last thread has ended.
        let (running, ended) = mpsc::sync_channel::<()>(0);
        let mut runtimes = vec![first.handle().clone()];
        for number in 2..=count.get() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let (mut stopped, running) = (stopped.clone(), running.clone());
            thread::Builder::new()
                .name(format!("rialto-{number}"))
                .spawn(move || {
                    // An error is the end, too: the other side of the channel has gone.
                    let _ = runtime.block_on(stopped.changed());
                    // Its tasks end before the thread counts as ended.
                    runtime.shutdown_background();
                    drop(running);
                })?;
        }
        let several = (count.get() > 1).then(|| {
            Arc::new(Several {
                runtimes,
                connections: AtomicUsize::new(0),
                instances: AtomicUsize::new(0),
            })
        });
        Ok((Self(several), OtherThreads { stop, ended }))
    }

    /// Returns the thread for the next connection; `None`: the caller's.
    pub(crate) fn for_connection(&self) -> Option<&Handle> {
        let several = self.0.as_deref()?;
        several.next(&several.connections)
    }

    /// Returns the thread for the next instance; `None`: the caller's.
    pub(crate) fn for_instance(&self) -> Option<&Handle> {
        let several = self.0.as_deref()?;
        several.next(&several.instances)
    }
}

impl Several {
    fn next(&self, turn: &AtomicUsize) -> Option<&Handle> {
        self.runtimes
            .get(turn.fetch_add(1, Relaxed) % self.runtimes.len())
    }
}

/// The threads that were started. They end, with all their tasks, when this is stopped or dropped.
#[derive(Debug)]
pub struct OtherThreads {
    stop: watch::Sender<()>,
    ended: Receiver<()>,
}

impl OtherThreads {
    /// Ends the threads, and waits for them no longer than this.
    pub fn stop(self, patience: Duration) {
        drop(self.stop);
        let began = Instant::now();
        while let Some(left) = patience.checked_sub(began.elapsed()) {
            match self.ended.recv_timeout(left) {
                Ok(()) => {}
                Err(mpsc::RecvTimeoutError::Disconnected | mpsc::RecvTimeoutError::Timeout) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tasks;

    fn first() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn connections_and_instances_are_dealt_out_in_turn() {
        let first = first();
        let (threads, others) = Threads::start(&first, NonZeroUsize::new(3).unwrap()).unwrap();
        let name = || thread::current().name().unwrap_or_default().to_owned();
        let here = name();
        let (mut served, mut run) = (BTreeMap::new(), BTreeMap::new());
        first.block_on(async {
            for _ in 0..6 {
                let connection = tasks::spawn_on(threads.for_connection(), "test", async move { name() });
                *served.entry(connection.await.unwrap()).or_insert(0) += 1;
                let instance = tasks::spawn_on(threads.for_instance(), "test", async move { name() });
                *run.entry(instance.await.unwrap()).or_insert(0) += 1;
            }
        });
        let expected = [here, "rialto-2".to_owned(), "rialto-3".to_owned()].map(|name| (name, 2));
        assert_eq!(served, BTreeMap::from(expected.clone()));
        assert_eq!(run, BTreeMap::from(expected));
        others.stop(Duration::from_secs(60));
    }

    #[test]
    fn one_thread_is_the_caller_itself() {
        let (threads, others) = Threads::start(&first(), NonZeroUsize::MIN).unwrap();
        assert!(threads.for_connection().is_none() && threads.for_instance().is_none());
        others.stop(Duration::from_secs(60));
    }

    #[test]
    fn tasks_of_other_threads_have_ended_when_these_are_stopped() {
        let first = first();
        let (threads, others) = Threads::start(&first, NonZeroUsize::new(2).unwrap()).unwrap();
        let held = Arc::new(());
        for _ in 0..4 {
            let held = Arc::clone(&held);
            tasks::spawn_on(threads.for_instance(), "test", async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        }
        others.stop(Duration::from_secs(60));
        drop(first);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
