//! Changes of a text of JSON with comments, through its concrete syntax tree.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode, ObjectPropName};

use super::{Change, Step};
use crate::hosts::plain::Plain;

/// Returns the text with the changes. The text is known to be well-formed, without equal keys.
pub(super) fn apply(text: &str, changes: &[Change]) -> Option<String> {
    // The tree ends when its root is dropped, so the root outlives the changes.
    let root = CstRootNode::parse(text, &ParseOptions::default()).ok()?;
    for change in changes {
        change_tree(&root, change)?;
    }
    Some(root.to_string())
}

/// Returns the text with a key at its top renamed, unless it is missing or the new one is there.
pub(super) fn with_key_renamed(text: &str, from: &str, to: &str) -> Option<String> {
    let root = CstRootNode::parse(text, &ParseOptions::default()).ok()?;
    let object = root.object_value()?;
    if object.get(to).is_some() {
        return None;
    }
    match object.get(from)?.name()? {
        ObjectPropName::String(name) => name.set_raw_value(format!("\"{to}\"")),
        ObjectPropName::Word(_) => return None,
    }
    Some(root.to_string())
}

fn change_tree(root: &CstRootNode, change: &Change) -> Option<()> {
    let (last, above) = change.place.split_last()?;
    let mut object = root.object_value_or_create()?;
    for step in above {
        object = object.object_value_or_create(key(step)?)?;
    }
    let name = key(last)?;
    match (object.get(name), &change.after) {
        (Some(found), Some(value)) => found.set_value(input(value)),
        (Some(found), None) => found.remove(),
        (None, Some(value)) => {
            insert(&object, name, value);
        }
        (None, None) => {}
    }
    Some(())
}

/// Adds a key; arguments stand after their command.
fn insert(object: &CstObject, name: &str, value: &Plain) {
    let command = ["command", "cmd", "path"].iter().find_map(|key| object.get(key));
    match command.filter(|_| name == "args") {
        Some(command) => object.insert(command.property_index() + 1, name, input(value)),
        None => object.append(name, input(value)),
    };
}

fn key(step: &Step) -> Option<&str> {
    match step {
        Step::Key(key) => Some(key),
        // No host has lists of servers in JSON.
        Step::Named(_) => None,
    }
}

fn input(value: &Plain) -> CstInputValue {
    match value {
        Plain::Null => CstInputValue::Null,
        Plain::Bool(flag) => CstInputValue::Bool(*flag),
        Plain::Number(number) => CstInputValue::Number(number.clone()),
        Plain::Text(text) => CstInputValue::String(text.clone()),
        Plain::List(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Plain::Map(entries) => CstInputValue::Object(
            entries
                .iter()
                .map(|(key, value)| (key.clone(), input(value)))
                .collect(),
        ),
    }
}
