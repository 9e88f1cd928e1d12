//! Several processes, one person: hosts start copies at once, and kill them at any moment.
//!
//! Each process is an `oauth-test-process`, whose browser is `testkit-browser`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "stage/play.rs"]
mod play;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oauth::SignIn;
use play::{Play, post};
use testkit::authorization_server::Conduct;
use testkit::wait_until;

/// Starts a process whose person `signs-in`, or leaves the page open.
fn start(play: &Play, person: &str) -> Child {
    let mut process = Command::new(env!("CARGO_BIN_EXE_oauth-test-process"));
    process
        .arg(play.authorization_server.endpoint())
        .arg(play.home.path());
    if person == "signs-in" {
        process.arg(testkit::rialto::binary("testkit-browser"));
    }
    process
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn windows(play: &Play) -> usize {
    let windows = std::fs::read_to_string(play.home.path().join("windows"));
    windows.map(|text| text.lines().count()).unwrap_or(0)
}

#[test]
fn ten_processes_at_once_open_one_window_and_all_are_signed_in() {
    let play = Play::new(Conduct::default());
    let children: Vec<_> = (0..10).map(|_| start(&play, "signs-in")).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(windows(&play), 1);
    assert_eq!(play.authorization_server.seen("/token").len(), 1);
    assert_eq!(play.authorization_server.seen("/register").len(), 1);
}

#[test]
fn ten_processes_with_a_token_at_its_end_renew_it_once() {
    let play = Play::new(Conduct {
        expires_in: Some(0),
        ..Conduct::default()
    });
    assert!(start(&play, "signs-in").wait().unwrap().success());
    play.authorization_server
        .change(|conduct| conduct.expires_in = Some(3600));
    let before = play.authorization_server.seen("/token").len();
    let children: Vec<_> = (0..10).map(|_| start(&play, "signs-in")).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(play.authorization_server.seen("/token").len(), before + 1);
    assert_eq!(windows(&play), 1);
}

#[tokio::test]
async fn a_process_killed_in_the_middle_leaves_the_next_one_free() {
    let play = Play::new(Conduct::default());
    let mut killed = start(&play, "sleeps");
    let opened = || (windows(&play) == 1).then_some(());
    wait_until(
        "the first process has opened its window",
        Duration::from_secs(60),
        opened,
    )
    .await;
    let waiting = start(&play, "signs-in");
    killed.kill().unwrap();
    killed.wait().unwrap();
    for mut child in [waiting, start(&play, "signs-in")] {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(windows(&play), 2);
}

#[tokio::test]
async fn a_person_who_says_no_is_not_asked_again_by_those_who_waited() {
    let play = Play::new(Conduct {
        denies: Some("access_denied".into()),
        ..Conduct::default()
    });
    // Separate sign-ins of one process share nothing but the store, as processes do.
    let together: Vec<_> = (0..5).map(|_| SignIn::new(play.attended())).collect();
    let (status, challenges) = post(&play.authorization_server.endpoint(), None).await;
    let ended = together
        .iter()
        .map(|sign_in| sign_in.refused(status, &challenges));
    let ended = futures_util::future::join_all(ended).await;
    assert!(ended.iter().all(Result::is_err));
    assert_eq!(play.windows(), 1);
}
