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
    assert_eq!(names, ["everything", "my-files"], "the order of the file");
    let [everything, files] = loaded.settings.destinations.as_slice() else {
        panic!("two destinations")
    };
    assert_eq!(
        process(everything).argv,
        ["npx", "-y", "@modelcontextprotocol/server-everything"]
    );
    assert_eq!(process(everything).env["KEY"].expose(), "pa$$w");
    assert_eq!(process(files).argv, ["/opt/my program/run"]);
    assert_eq!(files.instances.sharing, Sharing::PerSession);
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
fn a_server_that_cannot_be_used_is_left_out_with_a_note() {
    let text = r#"{ "mcpServers": {
        "A B": { "command": "cat" }, "a-b": { "command": "cat" },
        "!!!": { "command": "cat" },
        "key": { "command": "cat", "env": { "K": "${input:key}" } },
        "unset": { "command": "cat", "args": ["${API_KEY}"] },
        "folder": { "command": "cat", "args": ["${workspaceFolder}/x"] },
        "socket": { "type": "ws", "url": "wss://mcp.example.com" },
        "slow": { "command": "cat", "request_timeout": 5 },
        "none": {}
    } }"#;
    let loaded = load(text).expect("the others are served");
    assert_eq!(only(&loaded).name, "a-b");
    let notes = loaded.notes.join("\n");
    for part in [
        "left out: destinations.yml:2: destination `a-b`: would be served as `a-b`, and so would `A B`",
        "left out: destinations.yml:3: destination `!!!`: a name is part of the URL",
        "left out: destinations.yml:4: destination `key`, field `env.K`: `${input:…}` is not known here",
        "left out: destinations.yml:5: destination `unset`, field `args[0]`: the variable API_KEY is not set",
        "left out: destinations.yml:6: destination `folder`, field `args[0]`: the variable workspaceFolder",
        "left out: destinations.yml:7: destination `socket`, field `type`: `ws` is wrong",
        "left out: destinations.yml:8: destination `slow`, field `request_timeout`: `5` is wrong",
        "left out: destinations.yml:9: destination `none`: has nothing to run",
    ] {
        assert!(notes.contains(part), "{part}\n{notes}");
    }
    assert_eq!(notes.lines().count(), 9, "{notes}");
}

#[test]
fn a_host_file_without_a_usable_server_is_refused_with_every_problem() {
    let text = "{ \"mcpServers\": {\n \"a\": {},\n \"b\": { \"type\": \"ws\", \"url\": \"wss://x\" } } }";
    let all = problems(text).join("\n");
    assert!(
        all.contains("destinations.yml:2: destination `a`: has nothing to run"),
        "{all}"
    );
    assert!(
        all.contains("destinations.yml:3: destination `b`, field `type`"),
        "{all}"
    );
    assert_eq!(all.lines().count(), 2, "{all}");
}

#[test]
fn a_server_with_a_reserved_name_is_renamed_with_a_note() {
    for name in ["sse", "metrics", "mcp", "health", "message", "ready", "MCP"] {
        let loaded = load(&format!(
            r#"{{"mcpServers": {{"{name}": {{"command": "cat"}}}}}}"#
        ))
        .expect("loads");
        let served = format!("{}-server", name.to_lowercase());
        assert_eq!(only(&loaded).name, served);
        assert!(
            loaded.notes[0].contains(&format!("`{name}` is served as `{served}`")),
            "{:?}",
            loaded.notes
        );
    }
}

#[test]
fn addresses_of_windsurf_and_gemini_are_read() {
    for key in ["serverUrl", "httpUrl", "url"] {
        let text = format!(r#"{{"mcpServers": {{"far": {{"{key}": "https://mcp.example.com/mcp"}}}}}}"#);
        let loaded = load(&text).expect("loads");
        assert_eq!(remote(only(&loaded)).url.as_str(), "https://mcp.example.com/mcp");
        assert_eq!(loaded.notes, [""; 0]);
    }
}

#[test]
fn a_file_with_comments_and_trailing_commas_is_read() {
    let text = "\u{feff}// Cursor allows comments\r\n{\r\n  /* servers */\r\n  \"mcpServers\": {\r\n    \
                // \"old\": {},\r\n    \"a\": { \"command\": \"cat\", \"args\": [\"//x\",], },\r\n  },\r\n}\r\n";
    assert_eq!(process(only(&load(text).expect("loads"))).argv, ["cat", "//x"]);
}

#[test]
fn problem_of_json_is_reported_with_its_line() {
    let all = problems("{\n  // comment\n  \"mcpServers\": {\n    \"a\" { \"command\": \"cat\" }\n  }\n}\n")
        .join("\n");
    assert_eq!(
        all,
        "destinations.yml:4: not valid JSON: expected a colon after the key"
    );
}
