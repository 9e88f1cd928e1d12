//! How the local service starts and ends, and what happens without one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use serde_json::json;
use testkit::processes::send_signal;
use testkit::{Host, PATIENCE, Result, wait_until};

use crate::fixture::{Home, call, process, stdout};

const ONE: &str =
    "destinations:\n  files: { command: [\"{stub}\", --journal, \"{dir}/journal\"], start: lazy }\n";

/// Waits until a host has written this on stderr.
async fn said(host: &Host, words: &str) {
    wait_until(words, PATIENCE, || {
        let lines = host.stderr();
        lines.iter().any(|line| line.contains(words)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn six_hosts_that_start_at_the_same_moment_start_one_service() -> Result<()> {
    let home = Home::new(ONE)?;
    let hosts: Vec<Host> = (0..6)
        .map(|_| home.attach("files", "one", &[]))
        .collect::<Result<_>>()?;
    let mut pids = Vec::new();
    for host in &hosts {
        host.shake_hands(json!({})).await?;
        pids.push(call(host, 1, "pid", json!({})).await?);
    }
    pids.dedup();
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_eq!(home.gateways()?.len(), 1);
    let log = fs::read_to_string(home.path("state/rialto/service.log"))?;
    let starts = log.matches("serving on the admin socket alone").count();
    assert_eq!(starts, 1, "{log}");
    Ok(())
}

#[tokio::test]
async fn service_does_not_belong_to_the_host_that_started_it() -> Result<()> {
    let home = Home::new(ONE)?;
    let first = home.attach("files", "one", &[("SECRET", "geheim")])?;
    first.shake_hands(json!({})).await?;
    let before = call(&first, 1, "pid", json!({})).await?;
    let second = home.attach("files", "one", &[])?;
    second.shake_hands(json!({})).await?;
    let service = process(&home.gateways()?[0]["pid"]);
    assert_ne!(service.parent, first.pid());
    assert_ne!(service.group, process(&first.pid().into()).group);
    first.signal(Signal::KILL);
    wait_until("the host has gone", PATIENCE, || first.exit_status()).await;
    assert_eq!(call(&second, 1, "pid", json!({})).await?, before);
    assert!(service.is_alive());
    Ok(())
}

#[tokio::test]
async fn service_that_is_killed_under_a_host_is_started_again_and_calls_go_on() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let before = call(&host, 1, "pid", json!({})).await?;
    let service = process(&home.gateways()?[0]["pid"]);
    send_signal(service.pid, Signal::KILL);
    said(&host, "attached to the local service again").await;
    let after = call(&host, 2, "pid", json!({})).await?;
    assert_ne!(after, before, "another server");
    let gateways = home.gateways()?;
    assert_eq!(gateways.len(), 1, "{gateways:?}");
    assert_ne!(gateways[0]["pid"], service.pid);
    Ok(())
}

#[tokio::test]
async fn call_that_the_service_took_down_with_it_fails_and_is_not_repeated() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    host.ask(
        1,
        "tools/call",
        json!({ "name": "never", "arguments": { "marker": "lost" } }),
    )?;
    wait_until("it runs", PATIENCE, || {
        (home.journal("journal").executions("lost") == 1).then_some(())
    })
    .await;
    let service = process(&home.gateways()?[0]["pid"]);
    send_signal(service.pid, Signal::KILL);
    let answer = host.answer(1).await;
    assert!(answer["error"].is_object(), "{answer}");
    said(&host, "attached to the local service again").await;
    call(&host, 2, "echo", json!({ "marker": "next" })).await?;
    assert_eq!(home.journal("journal").executions("lost"), 1);
    Ok(())
}

#[tokio::test]
async fn host_without_a_service_runs_the_server_itself() -> Result<()> {
    let home = Home::new(ONE)?;
    // Others could look into the directory of the sockets, so none is opened there.
    fs::create_dir(home.sockets())?;
    fs::set_permissions(home.sockets(), fs::Permissions::from_mode(0o755))?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let pid = call(&host, 1, "pid", json!({})).await?;
    let server = process(&pid.parse::<u64>().expect("a number").into());
    assert_eq!(server.parent, host.pid(), "it is the host's own");
    said(&host, "no local service: this process runs the server itself").await;
    said(&host, "chmod 700").await;
    Ok(())
}

#[tokio::test]
async fn socket_that_others_can_open_is_not_used() -> Result<()> {
    let home = Home::new(ONE)?;
    let first = home.attach("files", "one", &[])?;
    first.shake_hands(json!({})).await?;
    let socket = only_socket(&home);
    assert_eq!(fs::metadata(&socket)?.permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
    let second = home.attach("files", "one", &[])?;
    second.shake_hands(json!({})).await?;
    said(&second, "has mode 0666").await;
    let output = home.run(&["ps"])?;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("has mode 0666"), "{said}");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

#[tokio::test]
async fn socket_of_another_user_is_not_used() -> Result<()> {
    let home = Home::new(ONE)?;
    let first = home.attach("files", "one", &[])?;
    first.shake_hands(json!({})).await?;
    let socket = only_socket(&home);
    let own = rustix::process::getuid().as_raw();
    if std::os::unix::fs::chown(&socket, Some(own + 1), None).is_err() {
        // Only root can make such a socket.
        assert_ne!(own, 0);
        return Ok(());
    }
    let second = home.attach("files", "one", &[])?;
    second.shake_hands(json!({})).await?;
    said(
        &second,
        &format!("belongs to user {}, and this is user {own}", own + 1),
    )
    .await;
    said(&second, "this process runs the server itself").await;
    std::os::unix::fs::chown(&socket, Some(own), None)?;
    Ok(())
}

fn only_socket(home: &Home) -> std::path::PathBuf {
    let entries = fs::read_dir(home.sockets()).expect("there is the directory");
    let mut sockets = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
    let socket = sockets.next().expect("there is a socket");
    assert_eq!(sockets.next(), None);
    socket
}

#[tokio::test]
async fn service_that_ends_under_the_first_look_is_started_again() -> Result<()> {
    let home = Home::new(ONE)?;
    let first = home.attach("files", "one", &[])?;
    first.shake_hands(json!({})).await?;
    let socket = only_socket(&home);
    let service = process(&home.gateways()?[0]["pid"]);
    first.close_stdin();
    first.wait(PATIENCE).await;
    send_signal(service.pid, Signal::TERM);
    wait_until("it has gone", PATIENCE, || (!service.is_alive()).then_some(())).await;
    // A service whose time is over takes its socket away, and closes what was not answered.
    let ending = UnixListener::bind(&socket)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    let ended = std::thread::spawn({
        let socket = socket.clone();
        move || {
            let connection = ending.accept();
            fs::remove_file(socket).and(connection.map(drop))
        }
    });
    let second = home.attach("files", "one", &[])?;
    second.shake_hands(json!({})).await?;
    ended.join().expect("no panic")?;
    said(&second, "attached to the local service").await;
    assert_eq!(home.gateways()?.len(), 1, "its server is shared again");
    Ok(())
}

#[tokio::test]
async fn socket_that_a_killed_service_left_is_taken_over() -> Result<()> {
    let home = Home::new(ONE)?;
    let first = home.attach("files", "one", &[])?;
    first.shake_hands(json!({})).await?;
    let socket = only_socket(&home);
    let service = process(&home.gateways()?[0]["pid"]);
    first.close_stdin();
    first.wait(PATIENCE).await;
    send_signal(service.pid, Signal::KILL);
    wait_until("it has gone", PATIENCE, || (!service.is_alive()).then_some(())).await;
    assert!(socket.exists(), "it had no time to remove it");
    let second = home.attach("files", "one", &[])?;
    second.shake_hands(json!({})).await?;
    assert_eq!(only_socket(&home), socket);
    assert_eq!(home.gateways()?.len(), 1);
    // And one that no gateway has goes when a user looks.
    let stale = home.sockets().join("7.sock");
    drop(UnixListener::bind(&stale)?);
    fs::set_permissions(&stale, fs::Permissions::from_mode(0o600))?;
    assert!(stdout(&home.run(&["ps"])?).contains("files"));
    assert!(!stale.exists());
    Ok(())
}

#[tokio::test]
async fn service_ends_when_no_host_is_connected_any_more() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[("RIALTO_IDLE_EXIT", "300ms")])?;
    host.shake_hands(json!({})).await?;
    call(&host, 1, "echo", json!({ "marker": "e" })).await?;
    let service = process(&home.gateways()?[0]["pid"]);
    host.close_stdin();
    host.wait(PATIENCE).await;
    wait_until("the service has ended", PATIENCE, || {
        (!service.is_alive()).then_some(())
    })
    .await;
    assert!(fs::read_dir(home.sockets())?.flatten().all(|entry| {
        let path = entry.path();
        path.extension().is_none_or(|extension| extension != "sock")
    }));
    Ok(())
}

#[tokio::test]
async fn destination_that_is_added_later_is_attached_to() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("files", "one", &[])?;
    host.shake_hands(json!({})).await?;
    let service = home.gateways()?[0]["pid"].clone();
    home.configure(&format!(
        "{ONE}  other: {{ command: [\"{{stub}}\"], start: lazy }}\n"
    ))?;
    let other = home.attach("other", "one", &[])?;
    other.shake_hands(json!({})).await?;
    call(&other, 1, "echo", json!({ "marker": "e" })).await?;
    let gateways = home.gateways()?;
    assert_eq!(gateways.len(), 1);
    assert_eq!(gateways[0]["pid"], service);
    Ok(())
}

#[tokio::test]
async fn name_that_the_file_does_not_have_is_answered_with_those_it_has() -> Result<()> {
    let home = Home::new(ONE)?;
    let host = home.attach("fils", "one", &[])?;
    let status = host.wait(PATIENCE).await;
    assert_eq!(status.code(), Some(2));
    let said = host.stderr().join("\n");
    assert!(said.contains("`fils`") && said.contains("files"), "{said}");
    Ok(())
}
