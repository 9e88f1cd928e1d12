//! Texts before and after changes.

use super::*;

fn text(value: &str) -> Plain {
    Plain::Text(value.to_owned())
}

fn keys(path: &str) -> Vec<Step> {
    path.split('/').map(|key| Step::Key(key.to_owned())).collect()
}

/// The change of the value that is at a path of keys now.
fn change(before: &str, format: Format, path: &str, after: Option<Plain>) -> Change {
    let root = checked(before, format).expect(before);
    let place = keys(path);
    Change {
        before: value_at(&root, &place).cloned(),
        place,
        after,
    }
}

fn edited(before: &str, format: Format, path: &str, after: Option<Plain>) -> String {
    let change = change(before, format, path, after);
    let edited = apply(before, format, std::slice::from_ref(&change)).expect(before);
    let back = apply(&edited, format, &[change.reversed()]).expect(&edited);
    let meaning = |text| checked(text, format).expect("read");
    // A map that was made above a value stays, empty.
    if change.before.is_some() {
        let (back, before) = (meaning(&back).without_empty(), meaning(before).without_empty());
        assert!(back.same(&before), "{back:?}");
    }
    edited
}

#[test]
fn values_of_json_change_and_comments_order_and_unknown_keys_stay() {
    let before = "{\n\t// my servers\n\t\"theme\": \"dark\", /* x */\n\t\"mcpServers\": {\n\t\t\"a\": {\n\t\t\t\"command\": \"npx\", // runs it\n\t\t\t\"args\": [\n\t\t\t\t\"-y\",\n\t\t\t\t\"x\",\n\t\t\t],\n\t\t\t\"env\": { \"K\": \"v\" },\n\t\t},\n\t},\n}\n";
    let after = edited(before, Format::Json, "mcpServers/a/command", Some(text("rialto")));
    assert_eq!(after, before.replace("\"npx\"", "\"rialto\""));
    let after = edited(
        before,
        Format::Json,
        "mcpServers/a/args",
        Some(Plain::texts(["attach", "a"])),
    );
    let list = "[\n\t\t\t\t\"-y\",\n\t\t\t\t\"x\",\n\t\t\t]";
    assert_eq!(after, before.replace(list, "[\"attach\", \"a\"]"));
}

#[test]
fn arguments_are_added_after_the_command() {
    let before = "{\r\n  \"mcpServers\": {\r\n    \"a\": {\r\n      \"command\": \"x\",\r\n      \"env\": {}\r\n    }\r\n  }\r\n}";
    let after = edited(
        before,
        Format::Json,
        "mcpServers/a/args",
        Some(Plain::texts(["y"])),
    );
    assert_eq!(
        after,
        before.replace("\"x\",\r\n", "\"x\",\r\n      \"args\": [\"y\"],\r\n")
    );
}

#[test]
fn entries_of_json_are_added_and_removed() {
    let entry = Plain::Map(vec![
        ("command".into(), text("x")),
        ("args".into(), Plain::texts(["y"])),
    ]);
    for (before, expected) in [
        (
            "",
            "{\n  \"mcpServers\": {\n    \"b\": {\n      \"command\": \"x\",\n      \"args\": [\"y\"]\n    }\n  }\n}\n",
        ),
        (
            "{}",
            "{\n  \"mcpServers\": {\n    \"b\": {\n      \"command\": \"x\",\n      \"args\": [\"y\"]\n    }\n  }\n}",
        ),
        (
            "{\n    \"mcpServers\": {\n        \"a\": { \"command\": \"z\" } // last\n    }\n}\n",
            "{\n    \"mcpServers\": {\n        \"a\": { \"command\": \"z\" }, // last\n        \"b\": {\n            \"command\": \"x\",\n            \"args\": [\"y\"]\n        }\n    }\n}\n",
        ),
    ] {
        let after = edited(before, Format::Json, "mcpServers/b", Some(entry.clone()));
        assert_eq!(after, expected, "{before}");
    }
    let before = "\u{feff}{\n  \"mcpServers\": {\n    // the first\n    \"a\": { \"command\": \"x\" },\n    \"b\": { \"command\": \"y\" }\n  }\n}\n";
    let after = edited(before, Format::Json, "mcpServers/b", None);
    assert_eq!(
        after,
        "\u{feff}{\n  \"mcpServers\": {\n    // the first\n    \"a\": { \"command\": \"x\" }\n  }\n}\n"
    );
}

#[test]
fn values_of_toml_change_and_comments_order_and_line_ends_stay() {
    let before = "# mine\r\nmodel = \"x\"  # best\r\n\r\n[mcp_servers.a]\r\ncommand = \"npx\" # runs it\r\nargs = [\r\n  \"-y\", # yes\r\n  \"x\",\r\n]\r\n\r\n[mcp_servers.a.env]\r\nK = \"v\"\r\n\r\n[tui]\r\ntheme = 'dark'\r\n";
    let after = edited(
        before,
        Format::Toml,
        "mcp_servers/a/command",
        Some(text("rialto")),
    );
    assert_eq!(after, before.replace("\"npx\"", "\"rialto\""));
    let after = edited(
        before,
        Format::Toml,
        "mcp_servers/a/args",
        Some(Plain::texts(["attach", "a"])),
    );
    let list = "[\r\n  \"-y\", # yes\r\n  \"x\",\r\n]";
    assert_eq!(after, before.replace(list, "[\"attach\", \"a\"]"));
}

#[test]
fn entries_of_toml_are_added_and_removed() {
    let entry = Plain::Map(vec![
        ("command".into(), text("x")),
        ("args".into(), Plain::texts(["y"])),
        ("env".into(), Plain::Map(vec![("K".into(), text("v"))])),
    ]);
    let table = "[mcp_servers.b]\ncommand = \"x\"\nargs = [\"y\"]\nenv = { K = \"v\" }\n";
    for (before, expected) in [
        ("", table.to_owned()),
        ("model = \"x\"\n", format!("model = \"x\"\n\n{table}")),
        (
            "[mcp_servers.a]\ncommand = \"z\"\n\n[tui]\nx = 1\n",
            format!("[mcp_servers.a]\ncommand = \"z\"\n\n{table}\n[tui]\nx = 1\n"),
        ),
    ] {
        let after = edited(before, Format::Toml, "mcp_servers/b", Some(entry.clone()));
        assert_eq!(after.trim_start(), expected, "{before}");
    }
    let before = "a = 1\n\n[mcp_servers.b]\ncommand = \"x\"\n\n[tui]\nx = 1\n";
    let after = edited(before, Format::Toml, "mcp_servers/b", None);
    assert_eq!(after, "a = 1\n\n[tui]\nx = 1\n");
}

#[test]
fn entries_of_a_list_of_tables_are_added_changed_and_removed() {
    let before = "[[mcp_servers]]\nname = \"a\"\ncommand = \"x\"\n\n[[mcp_servers]]\nname = \"b\"\ncommand = \"y\" # b's\n";
    let place = vec![
        Step::Key("mcp_servers".into()),
        Step::Named("b".into()),
        Step::Key("command".into()),
    ];
    let change = Change {
        place,
        before: Some(text("y")),
        after: Some(text("rialto")),
    };
    let after = apply(before, Format::Toml, &[change]).expect("edited");
    assert_eq!(after, before.replace("\"y\"", "\"rialto\""));
    let entry = Plain::Map(vec![("name".into(), text("c")), ("command".into(), text("z"))]);
    let add = Change {
        place: vec![Step::Key("mcp_servers".into()), Step::Named("c".into())],
        before: None,
        after: Some(entry),
    };
    let added = apply(before, Format::Toml, std::slice::from_ref(&add)).expect("edited");
    assert_eq!(
        added,
        format!("{before}\n[[mcp_servers]]\nname = \"c\"\ncommand = \"z\"\n")
    );
    assert_eq!(
        apply(&added, Format::Toml, &[add.reversed()]).expect("edited"),
        before
    );
    let first = apply("", Format::Toml, &[add]).expect("edited");
    assert_eq!(
        first.trim_start(),
        "[[mcp_servers]]\nname = \"c\"\ncommand = \"z\"\n"
    );
}

#[test]
fn several_changes_leave_what_is_between_them_byte_for_byte() {
    for between in ["// c\n", "// c\r\n", "// c\n// d\r\n"] {
        let before =
            format!("{{ \"a\": {{ \"command\": \"x\" }},\n{between}\"b\": {{ \"command\": \"x\" }} }}\r\n");
        let changes =
            ["a/command", "b/command"].map(|path| change(&before, Format::Json, path, Some(text("y"))));
        let after = apply(&before, Format::Json, &changes).expect(&before);
        assert_eq!(after, before.replace("\"x\"", "\"y\""));
    }
}

#[test]
fn files_that_are_in_doubt_are_not_changed() {
    let set = |before: Option<Plain>| Change {
        place: keys("a/command"),
        before,
        after: Some(text("rialto")),
    };
    let known = || set(Some(text("x")));
    for (before, change, part) in [
        ("{ \"a\": ", known(), "line 1"),
        (
            "{ \"a\": { \"command\": \"x\", \"command\": \"x\" } }",
            known(),
            "`command` stands twice",
        ),
        (
            "{ \"a\": { \"command\": \"other\" } }",
            known(),
            "no longer what it was",
        ),
        ("{ \"a\": 5 }", set(None), "cannot be written"),
        ("[]", set(None), "cannot be written"),
    ] {
        let error = apply(before, Format::Json, &[change])
            .expect_err(before)
            .to_string();
        assert!(error.contains(part), "{before}: {error}");
    }
    let error = apply("a: {}\n", Format::Yaml, &[set(None)]).expect_err("YAML is not edited");
    assert!(matches!(error, EditError::NoPlace(_)), "{error}");
}

proptest::proptest! {
    #[test]
    fn any_file_of_json_is_changed_only_where_it_shall_be(
        keys in proptest::collection::btree_map("[a-z]{1,3}", "\\PC*", 0..5), indent in "( {1,8}|\t)", is_crlf in proptest::bool::ANY
    ) {
        let mut body = String::new();
        for (key, value) in &keys {
            body.push_str(&format!("{indent}// about {key}\n{indent}\"{key}\": {},\n", crate::hosts::plain::quoted(value)));
        }
        let mut before = format!("{{\n{body}{indent}\"LAST\": {{ \"command\": \"x\" }}\n}}\n");
        if is_crlf {
            before = before.replace('\n', "\r\n");
        }
        let after = edited(&before, Format::Json, "LAST/command", Some(text("rialto")));
        proptest::prop_assert_eq!(after, before.replace("\"x\" }", "\"rialto\" }"));
    }
}
