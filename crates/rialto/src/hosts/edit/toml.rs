//! Changes of a text of TOML.

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{Change, Step};
use crate::hosts::plain::Plain;

/// Returns the text with the changes.
pub(super) fn apply(text: &str, changes: &[Change]) -> Option<String> {
    let mut document: DocumentMut = text.parse().ok()?;
    for change in changes {
        let (last, above) = change.place.split_last()?;
        let root: &mut dyn TableLike = document.as_table_mut();
        match last {
            Step::Key(key) => set_key(table_at(root, above)?, key, change.after.as_ref())?,
            Step::Named(name) => set_named(root, above, name, change.after.as_ref())?,
        }
    }
    Some(document.to_string())
}

/// Returns the table at a place; tables that are not there are made.
fn table_at<'a>(root: &'a mut dyn TableLike, place: &[Step]) -> Option<&'a mut dyn TableLike> {
    let Some((step, rest)) = place.split_first() else {
        return Some(root);
    };
    let Step::Key(key) = step else {
        return None;
    };
    let item = match root.contains_key(key) {
        true => root.get_mut(key)?,
        false => {
            let mut table = Table::new();
            // Its header is written only if there are values beside inner tables.
            table.set_implicit(true);
            root.entry(key).or_insert(Item::Table(table))
        }
    };
    match (rest.split_first(), item) {
        (Some((Step::Named(name), rest)), Item::ArrayOfTables(tables)) => {
            table_at(tables.iter_mut().find(|table| is_named(table, name))?, rest)
        }
        (Some((Step::Named(_), _)), _) => None,
        (_, item) => table_at(item.as_table_like_mut()?, rest),
    }
}

fn set_key(table: &mut dyn TableLike, key: &str, value: Option<&Plain>) -> Option<()> {
    let Some(value) = value else {
        table.remove(key);
        return Some(());
    };
    match table.get_mut(key) {
        Some(Item::Value(known)) => {
            // What stands before and after the value, such as a comment, stays.
            let decor = known.decor().clone();
            *known = to_value(value)?;
            *known.decor_mut() = decor;
        }
        Some(_) => return None,
        None => match value {
            Plain::Map(entries) => {
                table.insert(key, Item::Table(new_table(entries)?));
            }
            other => {
                table.insert(key, Item::Value(to_value(other)?));
            }
        },
    }
    Some(())
}

fn set_named(root: &mut dyn TableLike, above: &[Step], name: &str, value: Option<&Plain>) -> Option<()> {
    let (last, above) = above.split_last()?;
    let Step::Key(key) = last else {
        return None;
    };
    let table = table_at(root, above)?;
    let tables = table
        .entry(key)
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()))
        .as_array_of_tables_mut()?;
    let found = tables.iter().position(|table| is_named(table, name));
    match (found, value) {
        (Some(index), None) => {
            tables.remove(index);
        }
        (None, Some(Plain::Map(entries))) => tables.push(new_table(entries)?),
        (None, None) => {}
        (Some(_), Some(_)) | (None, Some(_)) => return None,
    }
    if table
        .get(key)
        .and_then(Item::as_array_of_tables)
        .is_some_and(ArrayOfTables::is_empty)
    {
        table.remove(key);
    }
    Some(())
}

fn is_named(table: &Table, name: &str) -> bool {
    table.get("name").and_then(Item::as_str) == Some(name)
}

/// Returns a table with its own header, after an empty line.
fn new_table(entries: &[(String, Plain)]) -> Option<Table> {
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    for (key, value) in entries {
        table.insert(key, Item::Value(to_value(value)?));
    }
    Some(table)
}

fn to_value(value: &Plain) -> Option<Value> {
    Some(match value {
        Plain::Null => return None,
        Plain::Bool(flag) => Value::from(*flag),
        Plain::Number(number) => number.parse().ok()?,
        Plain::Text(text) => Value::from(text.as_str()),
        Plain::List(items) => {
            let mut array = Array::new();
            for item in items {
                array.push(to_value(item)?);
            }
            Value::Array(array)
        }
        Plain::Map(entries) => {
            let mut table = InlineTable::new();
            for (key, value) in entries {
                table.insert(key, to_value(value)?);
            }
            Value::InlineTable(table)
        }
    })
}
