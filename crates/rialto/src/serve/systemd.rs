//! systemd: the socket that it passes, and the states that it is notified of.
//!
//! A socket of systemd outlives Rialto: connections that come during a restart wait in it, and none
//! is refused (sd_listen_fds(3)). Notifications are single datagrams (sd_notify(3)). They are written
//! here rather than by a library, so that a full queue of the receiver never blocks a thread that
//! serves, and that the environment is read in one place.

use std::io;
use std::net::TcpListener;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use gateway::{platform, tasks};
use listenfd::ListenFd;
use rustix::time::ClockId;

use crate::config::Environment;

/// Why the socket that systemd passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error(
        "systemd passed {0} sockets (LISTEN_FDS) and Rialto takes one: keep one ListenStream= in the \
         .socket unit"
    )]
    Count(String),
    #[error(
        "systemd passed something else than a TCP socket ({0}): write ListenStream= with an address \
         and a port, such as 127.0.0.1:3000, in the .socket unit"
    )]
    NotTcp(io::Error),
    #[error(
        "systemd passed a connection instead of a socket that listens: remove Accept=yes from the .socket unit"
    )]
    Connection,
    #[error("the socket that systemd passed cannot be used: {0}")]
    Unusable(#[from] io::Error),
}

/// Returns the socket that systemd passed to this process, if it passed one. It must be called before
/// a thread is started, since it removes the variables that announce the socket.
pub(super) fn passed_socket(environment: &Environment) -> Result<Option<TcpListener>, SocketError> {
    let is_ours = environment.filled("LISTEN_PID") == Some(&std::process::id().to_string());
    match environment.filled("LISTEN_FDS") {
        // A process in between did not take its sockets: they are not for this one.
        Some(_) if !is_ours => return Ok(None),
        None | Some("0") => return Ok(None),
        Some("1") => {}
        Some(count) => return Err(SocketError::Count(count.to_owned())),
    }
    let taken = ListenFd::from_env().take_tcp_listener(0);
    let Some(socket) = taken.map_err(SocketError::NotTcp)? else {
        return Ok(None);
    };
    if !platform::listens(&socket)? {
        return Err(SocketError::Connection);
    }
    socket.set_nonblocking(true)?;
    Ok(Some(socket))
}

/// Notifies systemd of what Rialto does, where systemd wants to know.
#[derive(Debug, Clone, Default)]
pub(super) struct Notifier {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// How often the service manager wants to know that Rialto answers.
    watchdog: Option<Duration>,
}

impl Notifier {
    pub(super) fn of(environment: &Environment) -> Self {
        let Some(name) = environment.filled("NOTIFY_SOCKET") else {
            return Self::default();
        };
        match open(name) {
            Ok(socket) => Self {
                socket: Some(Arc::new(socket)),
                watchdog: watchdog(environment),
            },
            Err(error) => {
                tracing::warn!(%error, "systemd cannot be notified (NOTIFY_SOCKET)");
                Self::default()
            }
        }
    }

    /// Reports that Rialto serves, from the start or from the end of a reload on.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    pub(super) fn reloading(&self) {
        // By the time systemd knows which of its requests this answers.
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={microseconds}\nSTATUS=reading the configuration again"
        ));
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining: calls in flight may finish");
    }

    /// Starts the task that keeps the watchdog quiet. It is a task like those that serve: where they
    /// get no turn, it gets none, and systemd restarts Rialto.
    pub(super) fn watch(&self) {
        let Some(interval) = self.watchdog else { return };
        let notifier = self.clone();
        tasks::spawn("watchdog", async move {
            let mut tick = tokio::time::interval(interval / 2);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tick.tick().await;
                notifier.send("WATCHDOG=1");
            }
        });
    }

    fn send(&self, state: &str) {
        let Some((socket, address)) = self.socket.as_deref() else {
            return;
        };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            let state = state.lines().next().unwrap_or_default();
            tracing::warn!(%error, state, "systemd was not notified");
        }
    }
}

/// Returns a socket that never blocks, and the address that it sends to.
fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => platform::abstract_address(name),
        None if name.starts_with('/') => SocketAddr::from_pathname(name),
        None => Err(io::Error::other("neither a path nor an abstract name")),
    }?;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// Returns how long the watchdog waits, if it watches this process.
fn watchdog(environment: &Environment) -> Option<Duration> {
    let watched = environment.filled("WATCHDOG_PID");
    if watched.is_some_and(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    let microseconds = environment.filled("WATCHDOG_USEC")?.parse().ok()?;
    // A timer that is due at once would never let another task run.
    (microseconds >= 1000).then(|| Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<const N: usize>(variables: [(&str, &str); N]) -> Environment {
        variables.into_iter().collect()
    }

    #[test]
    fn socket_for_another_process_is_left_alone() {
        for variables in [
            [("LISTEN_FDS", "1"), ("LISTEN_PID", "1")],
            [("LISTEN_FDS", "2"), ("LISTEN_PID", "")],
        ] {
            let passed = passed_socket(&environment(variables)).expect("no error");
            assert!(passed.is_none(), "{variables:?}");
        }
    }

    #[test]
    fn several_sockets_are_refused_with_the_fix() {
        let pid = std::process::id().to_string();
        for count in ["2", "-1", "x"] {
            let refused = passed_socket(&environment([("LISTEN_FDS", count), ("LISTEN_PID", &pid)]));
            let text = refused.expect_err("refused").to_string();
            assert!(text.contains(count) && text.contains("ListenStream="), "{text}");
        }
    }

    #[test]
    fn watchdog_is_for_the_process_that_it_names() {
        let pid = std::process::id().to_string();
        let second = Some(Duration::from_secs(1));
        for (variables, expected) in [
            (vec![("WATCHDOG_USEC", "1000000")], second),
            (
                vec![("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", pid.as_str())],
                second,
            ),
            (vec![("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")], None),
            (vec![("WATCHDOG_USEC", "0")], None),
            (vec![("WATCHDOG_USEC", "soon")], None),
            (vec![], None),
        ] {
            let environment = variables.iter().copied().collect();
            assert_eq!(watchdog(&environment), expected, "{variables:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn abstract_socket_is_notified() {
        let name = format!("rialto-test-{}", std::process::id());
        let address = platform::abstract_address(&name).expect("an address");
        let receiver = UnixDatagram::bind_addr(&address).expect("bound");
        let socket = format!("@{name}");
        let notifier = Notifier::of(&environment([("NOTIFY_SOCKET", &socket)]));
        notifier.ready("serving");
        let mut received = [0; 64];
        let length = receiver.recv(&mut received).expect("a datagram");
        assert_eq!(&received[..length], b"READY=1\nSTATUS=serving");
    }

    #[test]
    fn unknown_kind_of_socket_is_no_reason_to_fail() {
        for name in ["vsock:2:1234", "relative"] {
            Notifier::of(&environment([("NOTIFY_SOCKET", name)])).ready("serving");
        }
        Notifier::of(&environment([("NOTIFY_SOCKET", "/nowhere/at/all")])).ready("serving");
    }
}
