//! Files that people have for their hosts already.

use super::*;

#[test]
fn the_file_of_a_desktop_host_is_read() {
    let text = r#"{
        "globalShortcut": "x",
        "mcpServers": {
            "everything": {
                "command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything"],
                "env": { "KEY": "pa$$${env:W}", "PORT": 1 }, "autoApprove": [], "timeout": 5
            },
            "My Files!": { "type": "stdio", "command": "/opt/my program/run", "process": "per_session" },
            "off": { "command": "x", "disabled": true }
        }
    }"#;
    let loaded = load_with(text, &ServeFlags::default(), &environment([("W", "w")])).expect("loads");
    let names: Vec<&str> = loaded
        .settings
        .destinations
        .iter()
        .map(|each| each.name.as_str())
        .collect();
    assert_eq!(names, ["my-files", "everything"]);
    let [files, everything] = loaded.settings.destinations.as_slice() else {
        panic!("two destinations")
    };
    assert_eq!(
        process(everything).argv,
        ["npx", "-y", "@modelcontextprotocol/server-everything"]
    );
    assert_eq!(process(everything).env["KEY"].expose(), "pa$$w");
    assert_eq!(process(files).argv, ["/opt/my program/run"]);
    assert_eq!(files.lanes.sharing, Sharing::PerSession);
    let notes = loaded.notes.join("\n");
    for part in [
        "`My Files!` is served as `my-files`",
        "autoApprove, timeout",
        "`off` is disabled",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn the_file_of_vs_code_is_read() {
    let text = r#"{ "inputs": [], "servers": { "a": { "type": "stdio", "command": "cat", "args": [] } } }"#;
    assert_eq!(process(only(&load(text).expect("loads"))).argv, ["cat"]);
}

#[test]
fn problems_in_the_file_of_a_host_are_named_like_any_other() {
    let text = r#"{ "mcpServers": {
        "A B": { "command": "cat" }, "a-b": { "command": "cat" },
        "!!!": { "command": "cat" },
        "key": { "command": "cat", "env": { "K": "${input:key}" } },
        "slow": { "command": "cat", "request_timeout": 5 },
        "none": {}
    } }"#;
    let all = problems(text).join("\n");
    for part in [
        "destination `a-b`: would be served as `a-b`, and so would `A B`",
        "destination `!!!`: a name is part of the URL",
        "destination `key`, field `env.K`: `${input:…}` is not known here",
        "destination `slow`, field `request_timeout`: `5` is wrong",
        "destination `none`: has nothing to run",
    ] {
        assert!(all.contains(part), "{part}\n{all}");
    }
    assert_eq!(all.lines().count(), 5, "{all}");
}
