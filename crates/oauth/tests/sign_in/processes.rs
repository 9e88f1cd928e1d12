//! Several processes, one person: MCP hosts start copies at once, and kill them at any moment.
//!
//! Each process is an `oauth-test-process`, whose browser is `testkit-browser`.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fixture::{Fixture, post};
use oauth::SignIn;
use testkit::authorization_server::Conduct;
use testkit::wait_until;

/// Starts a process whose browser `signs-in`, or leaves the page open.
fn start(fixture: &Fixture, browser: &str) -> Child {
    let mut process = Command::new(env!("CARGO_BIN_EXE_oauth-test-process"));
    process.arg(fixture.authority.endpoint()).arg(fixture.home.path());
    if browser == "signs-in" {
        process.arg(testkit::rialto::binary("testkit-browser"));
    }
    process
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn windows(fixture: &Fixture) -> usize {
    let windows = std::fs::read_to_string(fixture.home.path().join("windows"));
    windows.map(|text| text.lines().count()).unwrap_or(0)
}

#[test]
fn ten_processes_at_once_open_one_window_and_all_are_signed_in() {
    let fixture = Fixture::new(Conduct::default());
    let children: Vec<_> = (0..10).map(|_| start(&fixture, "signs-in")).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(windows(&fixture), 1);
    assert_eq!(fixture.authority.seen("/token").len(), 1);
    assert_eq!(fixture.authority.seen("/register").len(), 1);
}

#[test]
fn ten_processes_with_a_token_at_its_end_renew_it_once() {
    let fixture = Fixture::new(Conduct {
        expires_in: Some(0),
        ..Conduct::default()
    });
    assert!(start(&fixture, "signs-in").wait().unwrap().success());
    fixture
        .authority
        .change(|conduct| conduct.expires_in = Some(3600));
    let before = fixture.authority.seen("/token").len();
    let children: Vec<_> = (0..10).map(|_| start(&fixture, "signs-in")).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fixture.authority.seen("/token").len(), before + 1);
    assert_eq!(windows(&fixture), 1);
}

#[tokio::test]
async fn killed_process_frees_the_lock_for_the_next_one() {
    let fixture = Fixture::new(Conduct::default());
    let mut killed = start(&fixture, "sleeps");
    let opened = || (windows(&fixture) == 1).then_some(());
    wait_until(
        "the first process has opened its window",
        Duration::from_secs(60),
        opened,
    )
    .await;
    let waiting = start(&fixture, "signs-in");
    killed.kill().unwrap();
    killed.wait().unwrap();
    for mut child in [waiting, start(&fixture, "signs-in")] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(windows(&fixture), 2);
}

#[tokio::test]
async fn refused_sign_in_also_fails_the_processes_that_waited() {
    let fixture = Fixture::new(Conduct {
        denies: Some("access_denied".into()),
        ..Conduct::default()
    });
    // Separate sign-ins of one process share nothing but the store, as processes do.
    let together: Vec<_> = (0..5).map(|_| SignIn::new(fixture.attended())).collect();
    let (status, challenges) = post(&fixture.authority.endpoint(), None).await;
    let ended = together
        .iter()
        .map(|sign_in| sign_in.refused(status, &challenges));
    let ended = futures_util::future::join_all(ended).await;
    assert!(ended.iter().all(Result::is_err));
    assert_eq!(fixture.windows(), 1);
}
