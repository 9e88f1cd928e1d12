//! Files that must not be written: each is left as it is, with a word that tells why.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::home::{Home, text};

const ENTRY: &[u8] = br#"{"mcpServers": {"a": {"command": "x"}}}"#;
const CURSOR: &str = ".cursor/mcp.json";

/// Adopts, and returns what is printed. The file of Cursor must stay, and that of Kiro be adopted.
fn left_alone(home: &Home) -> String {
    home.put(".kiro/settings/mcp.json", ENTRY);
    let before = fs::read(home.path(CURSOR)).unwrap();
    let said = home.refused(&["adopt", "--yes"]);
    assert_eq!(fs::read(home.path(CURSOR)).unwrap(), before, "{said}");
    assert!(home.text(".kiro/settings/mcp.json").contains("attach"), "{said}");
    home.done(&["adopt", "--undo"]);
    assert_eq!(fs::read(home.path(".kiro/settings/mcp.json")).unwrap(), ENTRY);
    assert_eq!(fs::read(home.path(CURSOR)).unwrap(), before);
    said
}

#[test]
fn a_file_that_does_not_parse_is_named_with_the_line() {
    let home = Home::empty();
    home.put(CURSOR, b"{\n  \"mcpServers\": {\n    \"a\": geheim\n  }\n}\n");
    let said = left_alone(&home);
    assert!(
        said.contains("left alone: ~/.cursor/mcp.json: line 3: not valid JSON"),
        "{said}"
    );
    assert!(!said.contains("geheim"), "{said}");
}

#[test]
fn a_link_is_named_with_its_target() {
    let home = Home::empty();
    home.put("dotfiles/mcp.json", ENTRY);
    fs::create_dir_all(home.path(".cursor")).unwrap();
    symlink("../dotfiles/mcp.json", home.path(CURSOR)).unwrap();
    let said = left_alone(&home);
    assert!(
        said.contains("~/.cursor/mcp.json is a link to ../dotfiles/mcp.json"),
        "{said}"
    );
    assert!(fs::symlink_metadata(home.path(CURSOR)).unwrap().is_symlink());
}

#[test]
fn a_read_only_file_is_named() {
    let home = Home::empty();
    let path = home.put(CURSOR, ENTRY);
    fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    let said = left_alone(&home);
    assert!(said.contains("is read-only: allow it with chmod u+w"), "{said}");
}

#[test]
fn a_file_of_another_user_is_named() {
    let home = Home::empty();
    let path = home.put(CURSOR, ENTRY);
    // Only the superuser can make such a file.
    if std::os::unix::fs::chown(path, Some(12_345), None).is_err() {
        return;
    }
    let said = left_alone(&home);
    assert!(said.contains("belongs to another user (number 12345)"), "{said}");
}

#[test]
fn a_file_with_two_names_is_named() {
    let home = Home::empty();
    let path = home.put(CURSOR, ENTRY);
    fs::hard_link(path, home.path("other")).unwrap();
    let said = left_alone(&home);
    assert!(said.contains("has 2 names (hard links)"), "{said}");
}

#[test]
fn equal_keys_are_named_with_their_line() {
    let home = Home::empty();
    home.put(
        CURSOR,
        b"{\"mcpServers\": {\n\"a\": {\"command\": \"x\"},\n\"a\": {\"command\": \"y\"}}}",
    );
    let said = left_alone(&home);
    assert!(said.contains("line 3: the key `a` stands twice"), "{said}");
}

#[test]
fn secrets_of_an_entry_stay_in_the_hosts_file_and_are_never_shown() {
    let home = Home::empty();
    home.put(
        CURSOR,
        br#"{"mcpServers": {"a": {"command": "x", "args": ["--api-key", "geheim1"], "env": {"TOKEN": "geheim2"}}}}"#,
    );
    let shown = home.done(&["adopt", "--dry-run"]);
    assert!(!shown.contains("geheim"), "{shown}");
    assert!(
        shown.contains("1 secret from arguments, readable by you alone"),
        "{shown}"
    );
    let printed = home.done(&["adopt", "--yes"]);
    assert!(!printed.contains("geheim"), "{printed}");
    assert!(home.text(CURSOR).contains("\"TOKEN\": \"geheim2\""));
    let destinations = home.text(".config/rialto/destinations.yml");
    assert!(!destinations.contains("geheim"), "{destinations}");
    let secrets = home.path(".config/rialto/secrets.yml");
    assert_eq!(
        fs::metadata(&secrets).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(!fs::read_to_string(&secrets).unwrap().contains("geheim2"));
    home.done(&["adopt", "--undo"]);
    assert!(!secrets.exists());
}

#[test]
fn a_secrets_file_that_others_can_read_is_refused() {
    let home = Home::empty();
    home.put(CURSOR, ENTRY);
    let path = home.put(".config/rialto/secrets.yml", b"a: b\n");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    let said = home.refused(&["adopt", "--yes"]);
    assert!(said.contains("can be read by other users: chmod 600"), "{said}");
    assert_eq!(fs::read(home.path(CURSOR)).unwrap(), ENTRY);
}

#[test]
fn destinations_that_cannot_be_extended_stop_everything() {
    for destinations in ["destinations: { mine: { command: x } }\n", "destinations: [\n"] {
        let home = Home::empty();
        home.put(CURSOR, ENTRY);
        home.put(".config/rialto/destinations.yml", destinations.as_bytes());
        let before = home.all_files();
        let said = home.refused(&["adopt", "--yes"]);
        assert!(said.contains("nothing was changed"), "{said}");
        assert_eq!(home.all_files(), before);
    }
}

#[test]
fn two_adoptions_at_once_are_refused() {
    let home = Home::empty();
    home.put(CURSOR, ENTRY);
    home.put(".local/state/rialto/adopt/lock", b"");
    let lock = fs::File::options()
        .write(true)
        .open(home.path(".local/state/rialto/adopt/lock"))
        .unwrap();
    lock.lock().unwrap();
    for command in [["adopt", "--yes"], ["adopt", "--undo"]] {
        let said = home.refused(&command);
        assert!(said.contains("another `rialto adopt` is at work"), "{said}");
    }
    assert_eq!(fs::read(home.path(CURSOR)).unwrap(), ENTRY);
    drop(lock);
    home.done(&["adopt", "--yes"]);
}

#[test]
fn a_home_that_is_not_set_is_named() {
    let home = Home::empty();
    let output = home
        .command(&["adopt", "--yes"])
        .env_remove("HOME")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("set HOME"),
        "{}",
        text(&output.stderr)
    );
}
