//! The harness around the real binary, tried on shell scripts in its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::process::Signal;
use testkit::rialto::Launcher;
use testkit::{PATIENCE, Rialto};

/// A launcher of this script instead of Rialto; it may call `announce`.
fn scripted(script: &str) -> Launcher {
    Rialto::launcher()
        .survivor_patience(Duration::from_millis(200))
        .program(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake-rialto"))
        .env("SCRIPT", script)
}

#[tokio::test]
async fn the_address_is_learnt_and_the_arguments_arrive() {
    let launcher = scripted("echo \"$@\"\necho $SECRET $RIALTO_LISTEN\nannounce\nexec sleep 60");
    let rialto = launcher
        .env("SECRET", "known")
        .stub(&["--strict"])
        .start()
        .await
        .unwrap();
    assert_eq!(rialto.address(), "127.0.0.1:9");
    assert_eq!(rialto.url_of("d"), "http://127.0.0.1:9/d/mcp");
    let lines = testkit::wait_until("two lines", PATIENCE, || {
        let lines = rialto.stdout();
        (lines.len() == 2).then_some(lines)
    });
    let lines = lines.await;
    assert!(
        lines[0].starts_with("serve --listen 127.0.0.1:0 --log-format json -- /"),
        "{lines:?}"
    );
    let journal = rialto.dir().join("journal");
    assert!(
        lines[0].ends_with(&format!(
            "testkit-server --journal {} --strict",
            journal.display()
        )),
        "{lines:?}"
    );
    assert_eq!(lines[1], "known");
    assert!(rialto.memory().resident > 0);
}

#[tokio::test]
async fn the_configuration_file_has_its_stand_ins_filled_in() {
    let launcher = scripted("announce\ncat \"$7\"\nexec sleep 60");
    let rialto = launcher
        .config("command: {stub} --journal {dir}/journal\nenv: { A: b }")
        .start()
        .await
        .unwrap();
    let first = testkit::wait_until("the file is shown", PATIENCE, || {
        rialto.stdout().into_iter().next()
    })
    .await;
    assert!(first.starts_with("command: /") && !first.contains('{'), "{first}");
}

#[tokio::test]
async fn a_program_that_ends_instead_of_listening_is_a_failure_that_shows_its_words() {
    let failure = scripted("echo 'bad configuration' >&2\nexit 2")
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        failure.contains("bad configuration") && failure.contains("exit status: 2"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_run_to_the_end_gives_status_and_output() {
    let ended = scripted("echo out\necho err >&2\nexit 4")
        .verb(&["check"])
        .run(PATIENCE)
        .await
        .unwrap();
    assert_eq!(
        (ended.code(), ended.stdout, ended.stderr.join("")),
        (Some(4), vec!["out".into()], "err".into())
    );
}

#[tokio::test]
async fn children_and_orphans_are_found_until_they_are_gone() {
    // The inner shell ends at once, so that its `sleep` is an orphan from the start.
    let rialto = scripted("sleep 61 &\nsh -c 'sleep 62 &'\nannounce\nwait")
        .start()
        .await
        .unwrap();
    let names = testkit::wait_until("two sleepers", PATIENCE, || {
        let children = rialto.children();
        let sleepers = children.iter().filter(|child| child.name == "sleep").count();
        (sleepers == 2 && children.len() == 2).then_some(children)
    });
    let sleepers = names.await;
    rialto.sigkill();
    assert_eq!(rialto.wait(PATIENCE).await.code(), None);
    assert_eq!(rialto.children().len(), 2);
    sleepers.iter().for_each(|sleeper| sleeper.signal(Signal::KILL));
    rialto.wait_for_no_children(PATIENCE).await;
}

#[tokio::test]
async fn a_child_left_behind_fails_the_test_and_is_killed() {
    let rialto = scripted("sleep 63 &\nannounce\nexec sleep 64")
        .start()
        .await
        .unwrap();
    let children = testkit::wait_until("a sleeper", PATIENCE, || {
        let children = rialto.children();
        children
            .iter()
            .any(|child| child.name == "sleep")
            .then_some(children)
    });
    let children = children.await;
    let panic = catch_unwind(AssertUnwindSafe(|| drop(rialto))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("rialto left sleep"), "{message}");
    let child = &children[0];
    testkit::wait_until("the survivor is killed", PATIENCE, || {
        (!child.is_alive()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_limit_on_open_files_is_passed_on() {
    let ended = scripted("ulimit -n").max_files(64).run(PATIENCE).await.unwrap();
    assert_eq!(ended.stdout, ["64"]);
}
