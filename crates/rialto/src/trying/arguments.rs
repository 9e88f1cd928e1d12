//! Arguments of a tool, from words: `path=/tmp`, `depth=2`, `tags=a tags=b`, `filter:={"x":1}`.
//!
//! The schema of the tool decides what a word is. A word that fits no type of its property is an
//! error with the types that it may have.

use serde_json::{Map, Number, Value};

/// Reads the words.
pub(super) fn read(schema: &Value, words: &[String]) -> Result<Value, String> {
    let mut arguments = Map::new();
    for word in words {
        let (name, value) = match split(word) {
            Some((name, Written::Json(text))) => {
                let value = serde_json::from_str(text)
                    .map_err(|error| format!("`{name}`: `{text}` is no JSON: {error}"))?;
                (name, value)
            }
            Some((name, Written::Text(text))) => (name, typed(schema, &arguments, name, text)?),
            None => {
                return Err(format!(
                    "`{word}` is no argument: write NAME=VALUE, or NAME:=JSON"
                ));
            }
        };
        arguments.insert(name.to_owned(), value);
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        if let Some(name) = required.as_str().filter(|name| !arguments.contains_key(*name)) {
            return Err(format!("`{name}` is missing"));
        }
    }
    Ok(arguments.into())
}

enum Written<'a> {
    Text(&'a str),
    Json(&'a str),
}

fn split(word: &str) -> Option<(&str, Written<'_>)> {
    let (name, value) = word.split_once('=')?;
    let split = match name.strip_suffix(':') {
        Some(name) => (name, Written::Json(value)),
        None => (name, Written::Text(value)),
    };
    (!split.0.is_empty()).then_some(split)
}

/// Returns the value of an argument. A list takes a further word as its next item.
fn typed(schema: &Value, earlier: &Map<String, Value>, name: &str, text: &str) -> Result<Value, String> {
    let properties = schema["properties"].as_object();
    let Some(property) = properties.and_then(|properties| properties.get(name)) else {
        if schema["additionalProperties"] == false {
            let known = properties.into_iter().flat_map(Map::keys);
            let known: Vec<&str> = known.map(String::as_str).collect();
            return Err(format!("there is no `{name}`; there is {}", known.join(", ")));
        }
        return Ok(text.into());
    };
    let kinds = kinds(property);
    let is_list = kinds.contains(&"array") && !text.trim_start().starts_with('[');
    if is_list {
        let item = scalar(&property["items"], name, text)?;
        let mut items = match earlier.get(name) {
            Some(Value::Array(items)) => items.clone(),
            Some(_) | None => Vec::new(),
        };
        items.push(item);
        return Ok(items.into());
    }
    if earlier.contains_key(name) {
        return Err(format!("`{name}` is there twice"));
    }
    scalar(property, name, text)
}

/// Returns the types that a schema allows; none, if it allows any.
fn kinds(schema: &Value) -> Vec<&str> {
    let mut kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    };
    for key in ["anyOf", "oneOf"] {
        for choice in schema[key].as_array().into_iter().flatten() {
            kinds.extend(self::kinds(choice));
        }
    }
    kinds
}

fn scalar(schema: &Value, name: &str, text: &str) -> Result<Value, String> {
    if let Some(allowed) = schema["enum"].as_array() {
        let is_meant = |value: &&Value| match value {
            Value::String(allowed) => allowed == text,
            other => serde_json::from_str::<Value>(text).is_ok_and(|read| read == **other),
        };
        return allowed.iter().find(is_meant).cloned().ok_or_else(|| {
            let words: Vec<String> = allowed
                .iter()
                .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                .collect();
            format!("`{name}`: `{text}` is none of {}", words.join(", "))
        });
    }
    let kinds = kinds(schema);
    if kinds.is_empty() {
        return Ok(text.into());
    }
    // A text is what everything else could be taken for, so it comes last.
    const ORDER: [&str; 7] = [
        "null", "boolean", "integer", "number", "object", "array", "string",
    ];
    let fits = ORDER
        .into_iter()
        .filter(|kind| kinds.contains(kind))
        .find_map(|kind| of_kind(kind, text));
    fits.ok_or_else(|| format!("`{name}`: `{text}` is no {}", kinds.join(" or ")))
}

/// Returns the value that a text is of this type.
fn of_kind(kind: &str, text: &str) -> Option<Value> {
    let json = || serde_json::from_str::<Value>(text).ok();
    match kind {
        "null" => (text == "null").then_some(Value::Null),
        "boolean" => match text {
            "true" | "yes" | "on" | "1" => Some(true.into()),
            "false" | "no" | "off" | "0" => Some(false.into()),
            _ => None,
        },
        "integer" => {
            let signed = text.parse::<i64>().map(Number::from);
            let number = signed.or_else(|_| text.parse::<u64>().map(Number::from));
            number.ok().map(Value::Number)
        }
        "number" => of_kind("integer", text).or_else(|| {
            let number: f64 = text.parse().ok()?;
            Number::from_f64(number).map(Value::Number)
        }),
        "object" => json().filter(Value::is_object),
        "array" => json().filter(Value::is_array),
        _ => Some(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["path"],
            "additionalProperties": false,
            "properties": {
                "path": { "type": "string" },
                "depth": { "type": "integer" },
                "ratio": { "type": "number" },
                "deep": { "type": "boolean" },
                "tags": { "type": "array", "items": { "type": "string" } },
                "numbers": { "type": "array", "items": { "type": "integer" } },
                "filter": { "type": "object" },
                "limit": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
                "either": { "type": ["string", "number"] },
                "mode": { "enum": ["fast", "slow", 3] },
                "any": {}
            }
        })
    }

    #[test]
    fn schema_decides_what_a_word_is() {
        let read = read(
            &schema(),
            &words(&[
                "path=/tmp/a=b",
                "depth=-2",
                "ratio=1.5",
                "deep=yes",
                "tags=a",
                "tags=b",
                "numbers=[1,2]",
                "filter:={\"x\":[1]}",
                "limit=null",
                "either=7",
                "mode=3",
                "any=12",
            ]),
        );
        let expected = json!({
            "path": "/tmp/a=b", "depth": -2, "ratio": 1.5, "deep": true, "tags": ["a", "b"],
            "numbers": [1, 2], "filter": { "x": [1] }, "limit": null, "either": 7, "mode": 3, "any": "12"
        });
        assert_eq!(read, Ok(expected));
    }

    #[test]
    fn word_that_does_not_fit_is_named_with_what_would() {
        for (word, message) in [
            ("depth=2.5", "`depth`: `2.5` is no integer"),
            ("deep=maybe", "`deep`: `maybe` is no boolean"),
            ("limit=x", "`limit`: `x` is no integer or null"),
            ("mode=warp", "`mode`: `warp` is none of fast, slow, 3"),
            ("numbers=x", "`numbers`: `x` is no integer"),
            ("filter:={x}", "`filter`: `{x}` is no JSON"),
            ("path=b", "`path` is there twice"),
            ("depht=1", "there is no `depht`; there is any, deep, depth"),
            ("verbose", "`verbose` is no argument: write NAME=VALUE"),
            ("=x", "`=x` is no argument"),
        ] {
            let error = read(&schema(), &words(&["path=a", word])).expect_err(word);
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn argument_that_is_required_is_missed() {
        assert_eq!(read(&schema(), &[]), Err("`path` is missing".to_owned()));
        assert_eq!(read(&json!({}), &[]), Ok(json!({})));
        assert_eq!(read(&json!({}), &words(&["a=1"])), Ok(json!({ "a": "1" })));
    }
}
