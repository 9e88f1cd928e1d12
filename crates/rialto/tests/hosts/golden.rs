//! The file of every host before and after `adopt` and `install`.
//!
//! `UPDATE_GOLDEN=1` writes what was found; then read the difference.

use std::fs;

use crate::home::{FILES, Home, PLACEHOLDER, PROGRAM, golden, golden_path, text};

const YAML: [&str; 2] = ["goose", "continue"];

fn assert_golden(host: &str, name: &str, path: &str, found: &str) {
    let found = found.replace(PROGRAM, PLACEHOLDER);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden_path(host, name, path), &found).unwrap();
    }
    assert_eq!(found, text(&golden(host, name, path)), "{host}: {name}");
}

#[test]
fn every_host_is_adopted_as_its_golden_file_has_it() {
    for (host, path) in FILES {
        let home = Home::empty();
        home.put(path, &golden(host, "before", path));
        let printed = home.done(&["adopt", host, "--yes"]);
        let found = match YAML.contains(&host) {
            true => {
                assert_eq!(
                    home.text(path),
                    text(&golden(host, "before", path)),
                    "YAML is not edited"
                );
                let (_, lines) = printed.split_once("by hand:\n").expect("lines to paste");
                lines.split("\n\n").next().unwrap_or_default().to_owned() + "\n"
            }
            false => home.text(path),
        };
        assert_golden(host, "adopted", path, &found);
        home.done(&["adopt", "--undo"]);
        assert_eq!(
            home.text(path),
            text(&golden(host, "before", path)),
            "{host}: undone"
        );
    }
}

#[test]
fn every_host_gets_entries_as_its_golden_file_has_them() {
    for (host, path) in FILES {
        let home = Home::empty();
        home.put(path, &golden(host, "before", path));
        let destinations = "destinations:\n  files: { command: files-server }\n";
        home.put(".config/rialto/destinations.yml", destinations.as_bytes());
        let stdio = home.done(&["install", host, "files"]);
        let remote = home.done(&[
            "install",
            host,
            "https://mcp.example.com/mcp",
            "--header",
            "X-Team: blue",
        ]);
        let found = match YAML.contains(&host) {
            true => stdio + &remote,
            false => home.text(path),
        };
        assert_golden(host, "installed", path, &found);
        if !YAML.contains(&host) {
            home.done(&["uninstall", host, "files"]);
            home.done(&["uninstall", host, "example"]);
            assert_eq!(
                home.text(path),
                text(&golden(host, "before", path)),
                "{host}: removed"
            );
        }
    }
}
