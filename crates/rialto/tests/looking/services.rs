//! `rialto service`, with a service manager that notes its words.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use testkit::Result;

use crate::fixture::{Home, stderr, stdout};

const ONE: &str = "destinations:\n  files: { command: [\"{stub}\"], start: lazy }\n";

/// Puts a manager in front on the `PATH` of the home. It notes its words in the file `words`.
fn manager(home: &Home, exit: u8, says: &str) -> Result<String> {
    let program = home.path("bin/systemctl");
    fs::create_dir_all(home.path("bin"))?;
    let words = home.path("words").to_string_lossy().into_owned();
    fs::write(
        &program,
        format!("#!/bin/sh\necho \"$*\" >> '{words}'\necho '{says}' >&2\nexit {exit}\n"),
    )?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let usual = usual.to_string_lossy();
    Ok(format!("{}:{usual}", home.path("bin").display()))
}

#[test]
fn unit_is_printed_and_nothing_changes() -> Result<()> {
    let home = Home::new(ONE)?;
    let output = home.run(&["service", "install", "--print", "--manager", "systemd"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let unit = stdout(&output);
    let config = home.config().to_string_lossy().into_owned();
    for part in [
        "ExecStart=\"",
        "\"serve\" \"--config\"",
        &config,
        "WantedBy=default.target",
    ] {
        assert!(unit.contains(part), "{part} in {unit}");
    }
    let output = home.run(&["service", "install", "--print", "--manager", "launchd"])?;
    assert!(
        stdout(&output).contains("<key>ProgramArguments</key>"),
        "{}",
        stdout(&output)
    );
    assert!(!home.path("config/systemd").exists());
    Ok(())
}

#[test]
fn service_is_installed_and_removed_by_its_manager() -> Result<()> {
    let home = Home::new(ONE)?;
    let path = manager(&home, 0, "")?;
    let run = |arguments: &[&str]| home.command(arguments).env("PATH", &path).output();
    let output = run(&["service", "install", "--manager", "systemd"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let unit = home.path("config/systemd/user/rialto.service");
    assert!(fs::read_to_string(&unit)?.contains("Type=notify"));
    let words = fs::read_to_string(home.path("words"))?;
    let words: Vec<&str> = words.lines().collect();
    assert_eq!(
        words,
        [
            "--user show-environment",
            "--user daemon-reload",
            "--user enable rialto.service",
            "--user restart rialto.service"
        ]
    );
    let output = run(&["service", "status", "--manager", "systemd"])?;
    assert_eq!(output.status.code(), Some(1), "no gateway answers");
    let shown = stdout(&output);
    assert!(
        shown.contains("rialto.service") && shown.contains("no gateway answers"),
        "{shown}"
    );
    let output = run(&["service", "uninstall", "--manager", "systemd"])?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!unit.exists());
    let output = run(&["service", "uninstall", "--manager", "systemd"])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no service is installed"),
        "{}",
        stderr(&output)
    );
    Ok(())
}

#[test]
fn manager_that_does_not_run_is_named_with_the_ways_out() -> Result<()> {
    let home = Home::new(ONE)?;
    let path = manager(&home, 1, "Failed to connect to bus")?;
    let output = home
        .command(&["service", "install", "--manager", "systemd"])
        .env("PATH", &path)
        .output()?;
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for part in [
        "systemd --user does not run for this user",
        "Failed to connect to bus",
        "rialto attach",
        "--print",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!home.path("config/systemd").exists(), "nothing is written");
    Ok(())
}

#[test]
fn service_of_a_file_that_does_not_exist_is_refused() -> Result<()> {
    let home = Home::new(ONE)?;
    let output = home.run(&[
        "service",
        "install",
        "--config",
        "none.yml",
        "--manager",
        "systemd",
    ])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("none.yml does not exist"),
        "{}",
        stderr(&output)
    );
    let output = home.run(&["service", "logs", "--manager", "launchd"])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no service has run yet"),
        "{}",
        stderr(&output)
    );
    Ok(())
}
