//! `state_dir`: made for one user, refused with the fix where it cannot be used, fixed until the
//! next start.

use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};

use rustix::process::Signal;
use testkit::rialto::{Ended, Launcher};
use testkit::{PATIENCE, Result, Rialto};

const ONE: &str = "state_dir: state\ndestinations: { one: { command: '{stub}' } }\n";

fn launchers() -> [Launcher; 2] {
    [Rialto::launcher(), Rialto::launcher().verb(&["check"])].map(|launcher| launcher.config(ONE))
}

/// Runs a command that must refuse the directory.
async fn refused(launcher: Launcher) -> Result<Ended> {
    let ended = launcher.run(PATIENCE).await?;
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr_text());
    Ok(ended)
}

#[tokio::test]
async fn absent_directory_is_made_beside_the_file_by_serve_and_not_by_check() -> Result<()> {
    let base = tempfile::tempdir()?;
    let beside = base.path().join("state").display().to_string();
    let check = Rialto::launcher().verb(&["check"]);
    let checked = check
        .env("RIALTO_STATE_DIR", &beside)
        .stub(&[])
        .run(PATIENCE)
        .await?;
    assert_eq!(checked.code(), Some(0), "{}", checked.stderr_text());
    assert!(!base.path().join("state").exists(), "a check makes nothing");
    let rialto = Rialto::with_config(ONE).await?;
    let made = std::fs::metadata(rialto.dir().join("state"))?;
    assert!(made.is_dir());
    assert_eq!(made.permissions().mode() & 0o777, 0o700);
    Ok(())
}

#[tokio::test]
async fn directory_that_others_can_write_is_refused_with_the_fix() -> Result<()> {
    for launcher in launchers() {
        let state = launcher.dir().join("state");
        std::fs::create_dir(&state)?;
        std::fs::set_permissions(&state, Permissions::from_mode(0o775))?;
        let said = refused(launcher).await?.stderr_text();
        let fix = format!("chmod go-w {}", state.display());
        assert!(said.contains(&fix), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn directory_that_cannot_be_written_is_refused_with_the_fix() -> Result<()> {
    for launcher in launchers() {
        let launcher = launcher.as_limited_user();
        let state = launcher.dir().join("state");
        std::fs::create_dir(&state)?;
        std::fs::set_permissions(&state, Permissions::from_mode(0o555))?;
        let said = refused(launcher).await?.stderr_text();
        assert!(said.contains("chown") && said.contains("state"), "{said}");
        assert!(said.contains("Permission denied"), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn key_that_others_can_read_is_refused_with_the_fix() -> Result<()> {
    for launcher in launchers() {
        let state = launcher.dir().join("state");
        std::fs::DirBuilder::new().mode(0o700).create(&state)?;
        let key = state.join("key");
        std::fs::write(&key, [7; 32])?;
        std::fs::set_permissions(&key, Permissions::from_mode(0o644))?;
        let said = refused(launcher).await?.stderr_text();
        assert!(said.contains(&format!("chmod 600 {}", key.display())), "{said}");
    }
    Ok(())
}

#[tokio::test]
async fn directory_changed_by_a_reload_is_named_for_the_next_start() -> Result<()> {
    let rialto = Rialto::with_config(ONE).await?;
    let file = rialto.dir().join("destinations.yml");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("state_dir: state", "state_dir: other"))?;
    rialto.signal(Signal::HUP);
    let named = |line: &serde_json::Value| line["setting"] == "state_dir";
    rialto.wait_for_log("the setting is named", PATIENCE, named).await;
    assert!(!rialto.dir().join("other").exists());
    Ok(())
}
