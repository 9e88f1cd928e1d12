//! Waiting for a fact of the outside world that no event announces: poll it, up to a deadline.
//!
//! It is the only place of the testkit that sleeps, and never for a fixed time.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(5);
/// A deadline for what takes much less: reaching it is a failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Polls `look` until it sees something and returns that.
///
/// # Panics
/// When the deadline passes first; the message names `what`.
pub async fn wait_until<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(
            start.elapsed() < deadline,
            "waited {deadline:?} in vain until {what}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// Polls a `look` that itself waits, such as a request. An error of the look ends the wait.
///
/// # Panics
/// When the deadline passes first; the message names `what`.
pub async fn poll_until<T, E>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        assert!(
            start.elapsed() < deadline,
            "waited {deadline:?} in vain until {what}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// The same without a runtime, and without the panic: `None` when the deadline passed.
pub fn look_until<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let seen = look();
        if seen.is_some() || start.elapsed() >= deadline {
            return seen;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wait_until_returns_the_value_it_waited_for() {
        let mut looks = 0;
        let seen = wait_until("the third look", Duration::from_secs(5), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(seen.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "in vain until pigs fly")]
    async fn the_panic_names_what_was_awaited() {
        wait_until("pigs fly", Duration::ZERO, || None::<()>).await;
    }

    #[tokio::test]
    async fn look_that_waits_is_repeated_until_it_sees_something() {
        let mut looks = 0;
        let seen = poll_until("the third look", Duration::from_secs(5), async || {
            looks += 1;
            Ok::<_, ()>((looks == 3).then_some(looks))
        });
        assert_eq!(seen.await, Ok(3));
    }

    #[tokio::test]
    async fn error_of_a_look_ends_the_wait() {
        let seen = poll_until("anything", Duration::from_secs(5), async || {
            Err::<Option<()>, _>("broken")
        });
        assert_eq!(seen.await, Err("broken"));
    }

    #[tokio::test]
    #[should_panic(expected = "in vain until pigs fly")]
    async fn panic_of_a_look_that_waits_names_what_was_awaited() {
        let seen = poll_until("pigs fly", Duration::ZERO, async || Ok::<_, ()>(None::<()>));
        seen.await.unwrap();
    }
}
