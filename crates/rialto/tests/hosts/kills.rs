//! `kill -9` while an adoption, or its undo, is at work.

use std::time::{Duration, Instant};

use crate::home::Home;

const KILLS: u32 = 50;

/// Starts a command and kills it after a while. Returns whether it had ended by itself.
fn killed_after(home: &Home, args: &[&str], delay: Duration) -> bool {
    let started = Instant::now();
    let mut child = home
        .command(args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while started.elapsed() < delay {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap().success()
}

/// Returns how long a command takes here.
fn duration(args: &[&str]) -> Duration {
    let home = Home::with_all_hosts();
    if args.contains(&"--undo") {
        home.done(&["adopt", "--yes"]);
    }
    let started = Instant::now();
    home.done(args);
    started.elapsed()
}

#[test]
fn an_adoption_killed_at_any_moment_damages_no_file_and_can_be_taken_back() {
    let adopted = Home::with_all_hosts();
    adopted.done(&["adopt", "--yes"]);
    let after = adopted.host_files();
    let whole = duration(&["adopt", "--yes"]);
    let mut interrupted = 0;
    for number in 0..KILLS {
        let home = Home::with_all_hosts();
        let before = home.all_files();
        let hosts_before = home.host_files();
        // The moments are spread over the whole run, later ones closer together.
        let has_ended = killed_after(&home, &["adopt", "--yes"], whole * number / KILLS);
        let mut written = 0;
        for (path, bytes) in home.host_files() {
            let is_before = bytes == hosts_before[&path];
            assert!(
                is_before || bytes == after[&path],
                "kill {number}: {path} is damaged"
            );
            written += usize::from(!is_before);
        }
        interrupted += usize::from(!has_ended && written > 0);
        home.done(&["adopt", "--undo"]);
        assert_eq!(home.all_files(), before, "kill {number}: taken back");
        home.done(&["adopt", "--yes"]);
        assert_eq!(home.host_files(), after, "kill {number}: adopted after all");
    }
    assert!(
        interrupted > 0,
        "no kill came between the first and the last file"
    );
}

#[test]
fn an_undo_killed_at_any_moment_can_be_finished() {
    let whole = duration(&["adopt", "--undo"]);
    for number in 0..KILLS / 2 {
        let home = Home::with_all_hosts();
        let before = home.all_files();
        home.done(&["adopt", "--yes"]);
        let after = home.host_files();
        killed_after(&home, &["adopt", "--undo"], whole * number * 2 / KILLS);
        for (path, bytes) in home.host_files() {
            let original = &before[&home.path(&path)];
            assert!(
                bytes == *original || bytes == after[&path],
                "kill {number}: {path} is damaged"
            );
        }
        home.done(&["adopt", "--undo"]);
        assert_eq!(home.all_files(), before, "kill {number}");
    }
}
