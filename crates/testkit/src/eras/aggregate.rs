//! What clients must have seen of an aggregate of four servers, in each scenario of
//! `tests/interop/node/aggregate.mjs` and `tests/interop/python/aggregate.py`.

use serde_json::{Value, json};

use super::Client;
use crate::revision::LEGACY;

/// The members in their order.
pub const MEMBERS: [&str; 4] = ["everything", "modern", "python", "tasks"];

pub fn listing(_: Client, seen: &Value) {
    let tools = texts(&seen["tools"]);
    for name in [
        "everything__echo",
        "modern__ask_twice",
        "python__ask_twice",
        "tasks__slow",
    ] {
        assert!(tools.iter().any(|tool| tool == name), "no {name}: {tools:?}");
    }
    let member_of = |tool: &String| {
        let of = MEMBERS.iter().position(|member| {
            tool.strip_prefix(member)
                .is_some_and(|rest| rest.starts_with("__"))
        });
        of.unwrap_or_else(|| panic!("{tool} is of no member"))
    };
    assert!(tools.is_sorted_by_key(member_of), "{tools:?}");
    assert_eq!(
        seen["prompts"],
        json!([
            "everything__simple-prompt",
            "everything__args-prompt",
            "everything__completable-prompt",
            "everything__resource-prompt"
        ])
    );
    let resources = texts(&seen["resources"]);
    for uri in [
        "everything+demo://resource/static/document/architecture.md",
        "modern+memo://watched",
        "python+memo://watched",
    ] {
        assert!(resources.iter().any(|one| one == uri), "no {uri}: {resources:?}");
    }
    assert_eq!(
        seen["templates"],
        json!([
            "everything+demo://resource/dynamic/text/{resourceId}",
            "everything+demo://resource/dynamic/blob/{resourceId}"
        ])
    );
}

pub fn calls(client: Client, seen: &Value) {
    assert_eq!(
        seen["texts"],
        json!(["Echo: everything", "Echo: modern", "Echo: python"])
    );
    assert_eq!(seen["eras"], json!(["modern", "legacy"]));
    assert_eq!(seen["version"], client.version());
}

pub fn prompts_and_completion(_: Client, seen: &Value) {
    assert_eq!(seen["prompt"], "What's weather in Venice, Veneto?");
    assert_eq!(seen["departments"], json!(["Sales", "Support"]));
    assert_eq!(seen["template"], json!(["7"]));
}

pub fn resources(_: Client, seen: &Value) {
    assert_eq!(
        seen["links"],
        json!([
            "everything+demo://resource/dynamic/blob/1",
            "everything+demo://resource/dynamic/text/2"
        ])
    );
    let texts = texts(&seen["texts"]);
    let begins = [
        "Version ",
        "Version ",
        "Resource 17: ",
        "Resource 3: ",
        "Resource 2: ",
    ];
    assert_eq!(texts.len(), begins.len(), "{texts:?}");
    for (text, begin) in texts.iter().zip(begins) {
        assert!(text.starts_with(begin), "{text} does not begin with {begin}");
    }
    // A URI without its member is answered as that of its only owner.
    assert_eq!(seen["uri"], "everything+demo://resource/dynamic/text/3");
    let ambiguous = seen["ambiguous"].as_str().expect("a text");
    for part in ["failed: ", "modern+memo://watched", "python+memo://watched"] {
        assert!(ambiguous.contains(part), "{ambiguous} lacks {part}");
    }
}

pub fn progress(_: Client, seen: &Value) {
    assert_eq!(seen["texts"], json!(["Counted to 5.", "Counted to 5."]));
    let steps: Vec<Vec<f64>> = serde_json::from_value(seen["steps"].clone()).expect("numbers");
    assert_eq!(steps, [[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]]);
}

pub fn elicitation(_: Client, seen: &Value) {
    assert_eq!(
        seen["texts"],
        json!(["From San Polo to San Marco.", "From Rialto to Accademia."])
    );
    // The user sees which member asks.
    assert_eq!(
        seen["asked"],
        json!([
            "[modern: interop-typescript-2] First question: where does the bridge begin?",
            "[modern: interop-typescript-2] Second question: where does it end?",
            "[python: interop-python-1] First question: where does the bridge begin?",
            "[python: interop-python-1] Second question: where does it end?"
        ])
    );
}

pub fn sampling(_: Client, seen: &Value) {
    assert_eq!(
        seen["asked"],
        json!([
            "A sample for modern",
            "A sample for python",
            "Resource trigger-sampling-request context: A sample for everything"
        ])
    );
    let texts = texts(&seen["texts"]);
    assert_eq!(
        texts.get(..2),
        Some(&["Sampled: A friend.".to_owned(), "Sampled: A friend.".to_owned()][..])
    );
    assert!(
        texts.last().is_some_and(|text| text.contains("A friend.")),
        "{texts:?}"
    );
}

pub fn roots(_: Client, seen: &Value) {
    assert_eq!(seen["texts"], json!(["file:///srv/one", "file:///srv/one"]));
}

pub fn subscriptions(_: Client, seen: &Value) {
    let expected = json!(["modern+memo://watched", "python+memo://watched"]);
    assert_eq!(seen["uris"], expected);
    assert_eq!(seen["all"], expected, "each update comes once");
}

pub fn logging(_: Client, seen: &Value) {
    assert_eq!(
        seen["logs"],
        json!([["warning", "a remark"], ["warning", "a remark"]])
    );
}

pub fn list_changed(_: Client, seen: &Value) {
    assert_eq!(seen["added"], json!(["modern__extra", "python__extra"]));
}

pub fn tasks(client: Client, seen: &Value) {
    let text = seen["text"].as_str().expect("a text");
    match client {
        Client::TypeScript1 => {
            assert_eq!(text, "The answer was: San Polo", "{seen}");
            assert_eq!(
                seen["asked"],
                json!(["[tasks: interop-typescript-1-tasks] Which bridge?"])
            );
            let id = seen["id"].as_str().expect("the task has an id");
            assert!(id.starts_with("tasks:"), "{id} names its member");
            assert_eq!(seen["tasks"], json!([id]));
        }
        // They know no tasks.
        Client::TypeScript2Legacy
        | Client::TypeScript2Modern
        | Client::Python1
        | Client::Python2Legacy
        | Client::Python2Modern => match client.version() {
            LEGACY => assert_eq!(text, "Slowly done."),
            _ => assert_eq!(text, "Done as a task."),
        },
    }
}

pub fn cancellation(_: Client, seen: &Value) {
    for outcome in ["ended", "other"] {
        let ended = seen[outcome].as_str().expect("a text");
        assert!(!ended.starts_with("answered"), "{outcome}: {ended}");
    }
    assert_eq!(seen["cancelled"], 1);
    assert_eq!(seen["others"], 0, "no other member was asked to cancel");
}

fn texts(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).expect("a list of texts")
}
