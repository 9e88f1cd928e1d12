//! The one place that starts tasks: every task has a name, and its panic is logged under that name.
//!
//! It does not restart anything and does not keep a list: the caller that starts a task owns its
//! handle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Span;

/// Starts a task on the current runtime.
///
/// The name is a span around the task's events when debug logs are on; at the usual level it costs
/// nothing.
#[expect(clippy::disallowed_methods, reason = "this is the one place that may")]
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(Named::new(name, future))
}

/// Starts a task on the runtime of another thread; on the current one, if none is given.
pub(crate) fn spawn_on<F>(thread: Option<&Handle>, name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match thread {
        Some(runtime) => runtime.spawn(Named::new(name, future)),
        None => spawn(name, future),
    }
}

/// Does work that may block (files, `fork`) beside the threads that serve, and returns what came of
/// it. A panic goes on in the caller. If the caller is dropped, the work is done all the same and
/// its result is dropped.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// A task that ends when this handle is dropped.
#[derive(Debug)]
pub(crate) struct Owned<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The future is boxed because an `async` block around it would make every task twice as large.
struct Named<F> {
    name: &'static str,
    span: Span,
    future: Pin<Box<F>>,
}

impl<F> Named<F> {
    fn new(name: &'static str, future: F) -> Self {
        Self {
            name,
            span: tracing::debug_span!("task", name),
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for Named<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _inside = this.span.enter();
        let _watch = PanicWatch { task: this.name };
        this.future.as_mut().poll(context)
    }
}

/// Is dropped after every step of the task; when that happens because of a panic, it logs it.
struct PanicWatch {
    task: &'static str,
}

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!(task = self.task, "task panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    /// Keeps the fields of every error that is logged.
    #[derive(Clone, Default)]
    struct Errors(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Errors {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::ERROR
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    impl Visit for Errors {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.lock().unwrap().push(format!("{field}={value:?}"));
        }
    }

    #[tokio::test]
    async fn a_panic_is_logged_with_the_name_of_its_task() {
        let errors = Errors::default();
        let _scope = tracing::subscriber::set_default(errors.clone());
        let handle = spawn("doomed", async {
            tokio::task::yield_now().await;
            std::panic::resume_unwind(Box::new("quietly"));
        });
        assert!(handle.await.is_err_and(|error| error.is_panic()));
        assert_eq!(
            *errors.0.lock().unwrap(),
            ["message=task panicked", "task=\"doomed\""]
        );
    }

    #[tokio::test]
    async fn a_task_that_ends_or_is_aborted_logs_nothing_and_its_value_comes_back() {
        let errors = Errors::default();
        let _scope = tracing::subscriber::set_default(errors.clone());
        assert_eq!(spawn("fine", async { 7 }).await.ok(), Some(7));
        let handle = spawn("endless", std::future::pending::<()>());
        handle.abort();
        assert!(handle.await.is_err_and(|error| error.is_cancelled()));
        assert!(errors.0.lock().unwrap().is_empty());
    }
}
