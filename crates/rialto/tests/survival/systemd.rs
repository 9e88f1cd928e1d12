//! Rialto under systemd: the test binds the socket, passes it on, and receives the notifications.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use testkit::rialto::Launcher;
use testkit::{Journal, PATIENCE, Result, Rialto, marked, wait_until};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixDatagram};
use tokio::task::JoinSet;

/// The variables that are for Rialto alone.
const OF_SYSTEMD: [&str; 6] = [
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

fn bind() -> Result<(TcpListener, SocketAddr)> {
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// What systemd keeps of a service that notifies it.
struct NotifySocket {
    dir: TempDir,
    socket: UnixDatagram,
}

impl NotifySocket {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = UnixDatagram::bind(dir.path().join("notify"))?;
        Ok(Self { dir, socket })
    }

    fn path(&self) -> String {
        self.dir.path().join("notify").display().to_string()
    }

    /// Returns the lines of the next notification.
    async fn any(&self) -> Result<Vec<String>> {
        let mut bytes = [0; 4096];
        let received = tokio::time::timeout(PATIENCE, self.socket.recv(&mut bytes)).await;
        let length = received.expect("systemd is notified in time")?;
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns the next notification that is not about the watchdog.
    async fn next(&self) -> Result<Vec<String>> {
        loop {
            let lines = self.any().await?;
            if lines != ["WATCHDOG=1"] {
                return Ok(lines);
            }
        }
    }
}

/// Requests `/health` on a connection of its own. Returns whether it was answered.
async fn is_answered(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let answered = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_end(&mut answer).await
    };
    // Connecting is what must not fail; a killed process may well lose what it has accepted.
    Ok(answered.await.is_ok() && answer.starts_with(b"HTTP/1.1 200 "))
}

/// A client that connects without pause.
#[derive(Default)]
struct Attempts {
    is_over: AtomicBool,
    answered: AtomicUsize,
    lost: AtomicUsize,
}

impl Attempts {
    async fn run(self: Arc<Self>, address: SocketAddr) -> std::io::Result<()> {
        while !self.is_over.load(Ordering::Acquire) {
            let count = match is_answered(address).await? {
                true => &self.answered,
                false => &self.lost,
            };
            count.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    async fn more(&self) {
        let before = self.answered.load(Ordering::Acquire);
        wait_until("further connections are answered", PATIENCE, || {
            (self.answered.load(Ordering::Acquire) >= before + 20).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn no_connection_is_refused_while_rialto_is_restarted() -> Result<()> {
    let (socket, address) = bind()?;
    let start = || -> Result<Launcher> { Ok(Rialto::launcher().socket(socket.try_clone()?).stub(&[])) };
    let mut rialto = start()?.start().await?;
    assert_eq!(rialto.address(), address.to_string(), "not the one of --listen");
    let attempts = Arc::new(Attempts::default());
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        clients.spawn(Arc::clone(&attempts).run(address));
    }
    for signal in [Signal::TERM, Signal::TERM, Signal::KILL] {
        attempts.more().await;
        let lost = attempts.lost.load(Ordering::Acquire);
        rialto.signal(signal);
        rialto.wait(PATIENCE).await;
        rialto = start()?.start().await?;
        attempts.more().await;
        if signal == Signal::TERM {
            assert_eq!(attempts.lost.load(Ordering::Acquire), lost, "each was answered");
        }
    }
    attempts.is_over.store(true, Ordering::Release);
    for connected in clients.join_all().await {
        connected.expect("no connection is refused");
    }
    Ok(())
}

#[tokio::test]
async fn connections_during_a_drain_are_left_to_the_next_process() -> Result<()> {
    let (socket, _) = bind()?;
    let start = || -> Result<Launcher> {
        let config =
            "drain_timeout: 600s\ndestinations: { d: { command: '{stub} --journal {dir}/journal' } }\n";
        Ok(Rialto::launcher().socket(socket.try_clone()?).config(config))
    };
    let first = start()?.start().await?;
    let client = first.session_of("d").await?;
    let call = client.call(1, "never", marked("pending"));
    let during = async {
        first.wait_for_execution("pending").await;
        first.sigterm();
        let is_draining = |line: &serde_json::Value| line["message"] == "draining";
        first.wait_for_log("the drain", PATIENCE, is_draining).await;
        let second = start()?.start().await?;
        for _ in 0..10 {
            second.session_of("d").await?.expect_echo("served").await?;
        }
        assert!(first.exit_status().is_none(), "it still drains");
        first.sigterm();
        Result::Ok(second)
    };
    let second = tokio::select! {
        second = during => second?,
        answered = call => panic!("{answered:?}"),
    };
    first.wait(PATIENCE).await;
    drop(second);
    Ok(())
}

#[tokio::test]
async fn open_connection_has_one_more_request_answered_during_a_drain() -> Result<()> {
    let (socket, _) = bind()?;
    let base = tempfile::tempdir()?;
    let start = || -> Result<Launcher> {
        let base = base.path().display();
        let config = format!(
            "drain_timeout: 600s\nstate_dir: {base}/state\ndestinations: {{ d: {{ command: '{{stub}} --journal {base}/journal' }} }}\n"
        );
        Ok(Rialto::launcher().socket(socket.try_clone()?).config(&config))
    };
    let journal = Journal::at(base.path().join("journal"));
    let first = start()?.start().await?;
    // Each client keeps a connection.
    let (busy, idle) = (first.session_of("d").await?, first.session_of("d").await?);
    let releasing = first.session_of("d").await?;
    let during = async {
        wait_until("the call runs", PATIENCE, || {
            (journal.executions("pending") == 1).then_some(())
        })
        .await;
        first.sigterm();
        let is_draining = |line: &serde_json::Value| line["message"] == "draining";
        first.wait_for_log("the drain", PATIENCE, is_draining).await;
        let reply = idle.call(2, "echo", marked("during")).await?;
        assert_eq!(reply.text(), "during", "{reply:?}");
        assert_eq!(reply.header("connection"), Some("close"), "{reply:?}");
        releasing.call(3, "release", marked("release")).await
    };
    let (answered, released) = tokio::join!(busy.call(1, "hold", marked("pending")), during);
    released?.expect_status(200)?;
    assert_eq!(answered?.text(), "pending");
    assert!(first.wait(PATIENCE).await.success());
    // The next request waits in the socket for the next process, which has the session.
    let waiting = idle.call(4, "echo", marked("after"));
    let (second, answer) = tokio::join!(async { start()?.start().await }, waiting);
    assert_eq!(answer?.text(), "after");
    drop(second?);
    Ok(())
}

#[tokio::test]
async fn socket_of_systemd_beats_listen_and_is_closed_to_the_unauthenticated() -> Result<()> {
    let (socket, address) = bind()?;
    let config = "listen: 127.0.0.1:1\ndestinations: { d: { command: '{stub}' } }\n";
    let rialto = Rialto::launcher().socket(socket).config(config).start().await?;
    assert_eq!(rialto.address(), address.to_string());
    let note = format!("systemd passed a socket for {address}");
    let is_noted =
        |line: &serde_json::Value| line["message"].as_str().is_some_and(|text| text.contains(&note));
    rialto
        .wait_for_log("that listen is ignored", PATIENCE, is_noted)
        .await;
    assert!(is_answered(address).await?);

    let open = TcpListener::bind("0.0.0.0:0")?;
    let refused = Rialto::launcher().socket(open).stub(&[]).run(PATIENCE).await?;
    let said = refused.stderr_text();
    assert_eq!(refused.code(), Some(2), "{said}");
    assert!(
        said.contains("socket of systemd") && said.contains("no authentication"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn descriptor_that_is_no_listening_tcp_socket_is_refused_with_the_fix() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let unix = std::os::unix::net::UnixListener::bind(dir.path().join("socket"))?;
    let (listener, address) = bind()?;
    let connection = std::net::TcpStream::connect(address)?;
    let launchers = [
        (
            Rialto::launcher().socket(UdpSocket::bind("127.0.0.1:0")?),
            "ListenStream=",
        ),
        (Rialto::launcher().socket(unix), "ListenStream="),
        (
            Rialto::launcher().socket(std::fs::File::open("/dev/null")?),
            "ListenStream=",
        ),
        (Rialto::launcher().socket(connection), "Accept=yes"),
        (
            Rialto::launcher().socket(listener).env("LISTEN_FDS", "2"),
            "keep one ListenStream=",
        ),
    ];
    for (launcher, fix) in launchers {
        let ended = launcher.stub(&[]).run(PATIENCE).await?;
        let said = ended.stderr_text();
        assert_eq!(ended.code(), Some(3), "{said}");
        assert!(said.contains(fix), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn systemd_is_notified_of_each_state_in_order() -> Result<()> {
    let systemd = NotifySocket::new()?;
    let config = "drain_timeout: 0s\ndestinations: { one: { command: '{stub}' } }\n";
    let rialto = Rialto::launcher()
        .config(config)
        .env("NOTIFY_SOCKET", &systemd.path())
        .start()
        .await?;
    assert_eq!(systemd.next().await?, ["READY=1", "STATUS=serving 1 destination"]);

    let file = rialto.dir().join("destinations.yml");
    let good = std::fs::read_to_string(&file)?;
    for (text, status) in [
        (
            good.replace("} }", "}, two: { url: 'http://127.0.0.1:9/mcp' } }"),
            "serving 2 destinations",
        ),
        (
            "destinations: 7".to_owned(),
            "serving; the last reload failed, and the log has the reason",
        ),
        (good, "serving 1 destination"),
    ] {
        std::fs::write(&file, text)?;
        rialto.signal(Signal::HUP);
        let reloading = systemd.next().await?;
        assert_eq!(reloading[0], "RELOADING=1");
        let time = reloading[1].strip_prefix("MONOTONIC_USEC=").expect("the time");
        let uptime = std::fs::read_to_string("/proc/uptime")?;
        let seconds: f64 = uptime
            .split(' ')
            .next()
            .unwrap_or_default()
            .parse()
            .expect("a number");
        // The two clocks differ by the time that the machine slept.
        let time: f64 = time.parse().expect("a number");
        assert!(
            time > 0.0 && time <= (seconds + 1.0) * 1e6,
            "{time} at {seconds} s"
        );
        assert_eq!(
            systemd.next().await?,
            ["READY=1".to_owned(), format!("STATUS={status}")]
        );
    }
    rialto.sigterm();
    assert_eq!(systemd.next().await?[0], "STOPPING=1");
    rialto.wait(PATIENCE).await;
    Ok(())
}

#[tokio::test]
async fn watchdog_is_notified_again_and_again() -> Result<()> {
    let systemd = NotifySocket::new()?;
    let rialto = Rialto::launcher()
        .env("NOTIFY_SOCKET", &systemd.path())
        .env("WATCHDOG_USEC", "20000")
        .stub(&[])
        .start()
        .await?;
    let mut notifications = Vec::new();
    while notifications.len() < 6 {
        notifications.push(systemd.any().await?);
    }
    let kept_quiet = notifications.iter().filter(|lines| **lines == ["WATCHDOG=1"]);
    assert_eq!(kept_quiet.count(), 5, "{notifications:?}");
    drop(rialto);
    Ok(())
}

#[tokio::test]
async fn variables_and_socket_of_systemd_reach_no_child() -> Result<()> {
    let systemd = NotifySocket::new()?;
    let (socket, _) = bind()?;
    let rialto = Rialto::launcher()
        .socket(socket)
        .env("NOTIFY_SOCKET", &systemd.path())
        .env("WATCHDOG_USEC", "1000000")
        .env("WATCHDOG_PID", "1")
        .env("LISTEN_FDNAMES", "rialto.socket")
        .env("PASSED_ON", "yes")
        .stub(&[])
        .start()
        .await?;
    let client = rialto.session().await?;
    let value = async |name: &str| -> Result<String> {
        Ok(client.call(1, "env", json!({"name": name})).await?.text())
    };
    assert_eq!(value("PASSED_ON").await?, "yes");
    for name in OF_SYSTEMD {
        assert_eq!(value(name).await?, "null", "{name}");
    }
    client.call(2, "echo", marked("m")).await?.expect_status(200)?;
    for child in rialto.children() {
        let files = std::fs::read_dir(format!("/proc/{}/fd", child.pid))?;
        for file in files {
            let target = std::fs::read_link(file?.path()).unwrap_or_default();
            assert!(!target.starts_with("socket:"), "{} has {target:?}", child.name);
        }
    }
    Ok(())
}
