//! Hosts that start `rialto connect` several times, and kill it at any moment: one person signs in, once.
//!
//! The browser is this very test program, started again to run one test: [`browser`]. It writes down that it was opened,
//! and either signs in or leaves the page as it is.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use testkit::authority::{Authority, Conduct};
use testkit::{Host, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
/// Where the browser writes down that it was opened.
const WINDOWS: &str = "RIALTO_TEST_WINDOWS";
/// What the person does then: `signs-in`, or `leaves`.
const PERSON: &str = "RIALTO_TEST_PERSON";

/// Not a test by itself: what the browser does.
#[test]
fn browser() {
    let Some(windows) = std::env::var_os(WINDOWS) else {
        return;
    };
    let mut windows = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(windows)
        .unwrap();
    writeln!(windows, "opened").unwrap();
    if std::env::var_os(PERSON).is_some_and(|person| person == "signs-in") {
        let url = std::env::args().next_back().unwrap();
        testkit::authority::browser::visit(&url).unwrap();
    }
}

fn connect(home: &Path, authority: &Authority, person: &str) -> Host {
    let this = std::env::current_exe().unwrap();
    let browser = format!("'{}' --exact browser --nocapture", this.display());
    let windows = home.join("windows");
    let env = [
        ("RIALTO_BROWSER", browser.as_str()),
        ("RIALTO_STATE_DIR", home.to_str().unwrap()),
        ("RIALTO_KEYRING", "off"),
        (WINDOWS, windows.to_str().unwrap()),
        (PERSON, person),
    ];
    let host = Host::start(&["connect", &authority.endpoint()], &env).unwrap();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    host.ask(1, "initialize", params).unwrap();
    host
}

fn windows(home: &Path) -> usize {
    let opened = std::fs::read_to_string(home.join("windows"));
    opened.map_or(0, |text| text.lines().count())
}

async fn assert_signed_in(host: &Host) {
    let answer = host.answer(1).await;
    assert_eq!(
        answer["result"]["protocolVersion"],
        "2025-11-25",
        "{answer} {:?}",
        host.stderr()
    );
}

#[tokio::test]
async fn ten_at_once_open_one_window_and_all_are_signed_in() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::start(Conduct::default());
    let hosts: Vec<Host> = (0..10)
        .map(|_| connect(home.path(), &authority, "signs-in"))
        .collect();
    for host in &hosts {
        assert_signed_in(host).await;
    }
    assert_eq!(windows(home.path()), 1);
    assert_eq!(authority.seen("/token").len(), 1);
    assert_eq!(authority.seen("/register").len(), 1);
    for host in &hosts {
        host.close_stdin();
        assert_eq!(host.wait(PATIENCE).await.code(), Some(0));
    }
}

#[tokio::test]
async fn one_killed_in_the_middle_frees_those_who_wait_and_the_next_start_recovers() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::start(Conduct::default());
    let killed = connect(home.path(), &authority, "leaves");
    let opened = || (windows(home.path()) == 1).then_some(());
    wait_until("a window is open", PATIENCE, opened).await;
    let waiting: Vec<Host> = (0..9)
        .map(|_| connect(home.path(), &authority, "signs-in"))
        .collect();
    killed.signal(Signal::KILL);
    killed.wait(PATIENCE).await;
    for host in &waiting {
        assert_signed_in(host).await;
    }
    assert_eq!(windows(home.path()), 2, "one of those who waited opened another");
    let next = connect(home.path(), &authority, "leaves");
    assert_signed_in(&next).await;
    assert_eq!(windows(home.path()), 2, "what they have is there for the next");
}
