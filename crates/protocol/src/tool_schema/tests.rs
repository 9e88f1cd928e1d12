use proptest::prelude::*;
use serde_json::json;

use super::*;

fn properties(properties: Value) -> Value {
    json!({ "type": "object", "properties": properties })
}

fn text(header: &str) -> Value {
    json!({ "type": "string", "x-mcp-header": header })
}

#[test]
fn annotations_are_found_along_properties() {
    let headers = ToolHeaders::read(&properties(json!({
        "region": text("Region"),
        "plain": { "type": "string" },
        "deep": { "type": "object", "properties": {
            "n": { "type": "integer", "x-mcp-header": "X-N" },
            "more": { "properties": { "b": { "type": "boolean", "x-mcp-header": "b!#$%&'*+-.^_`|~9" } } },
        } },
    })))
    .unwrap();
    let found: Vec<_> = headers
        .entries()
        .iter()
        .map(|entry| (entry.name.as_str(), entry.path.join("."), entry.kind))
        .collect();
    assert_eq!(found.len(), 3);
    for entry in [
        ("Region", "region".to_owned(), HeaderKind::Text),
        ("X-N", "deep.n".to_owned(), HeaderKind::Integer),
        ("b!#$%&'*+-.^_`|~9", "deep.more.b".to_owned(), HeaderKind::Boolean),
    ] {
        assert!(found.contains(&entry), "{entry:?}");
    }
    assert!(!headers.has_number());
}

#[test]
fn schema_without_annotations_asks_for_no_header() {
    for schema in [
        json!({}),
        json!(true),
        json!(null),
        json!([]),
        json!("x-mcp-header"),
        properties(json!({})),
        json!({ "type": "object", "required": ["x-mcp-header"] }),
        json!({ "properties": 7 }),
    ] {
        assert!(ToolHeaders::read(&schema).unwrap().is_empty(), "{schema}");
    }
}

#[test]
fn property_or_datum_called_like_the_annotation_is_none() {
    let schema = properties(json!({
        "x-mcp-header": { "type": "array" },
        "a": { "type": "object", "default": { "x-mcp-header": "" }, "const": { "x-mcp-header": 1 },
               "enum": [{ "x-mcp-header": "é" }], "examples": [{ "x-mcp-header": null }] },
        "properties": text("Called-Properties"),
    }));
    let headers = ToolHeaders::read(&schema).unwrap();
    assert_eq!(headers.entries().len(), 1);
    assert_eq!(headers.entries()[0].path, ["properties"]);
}

#[test]
fn number_is_tolerated_and_reported() {
    let headers = ToolHeaders::read(&properties(json!({
        "f": { "type": "number", "x-mcp-header": "F" },
    })))
    .unwrap();
    assert!(headers.has_number());
}

#[test]
fn every_violation_makes_the_annotations_invalid() {
    use SchemaProblem::*;
    let long = "x".repeat(MAX_NAME + 1);
    let odd_type = |kind: Value| properties(json!({ "p": { "type": kind, "x-mcp-header": "P" } }));
    let named = |header: Value| properties(json!({ "p": { "type": "string", "x-mcp-header": header } }));
    let off = |keyword: &str, value: Value| {
        let mut schema = properties(json!({ "ok": text("Ok") }));
        schema[keyword] = value;
        schema
    };
    for (schema, problem) in [
        (named(json!("")), NotToken),
        (named(json!("a b")), NotToken),
        (named(json!("a:b")), NotToken),
        (named(json!("a\r\nb")), NotToken),
        (named(json!("a/b")), NotToken),
        (named(json!("é")), NotToken),
        (named(json!("a\u{7f}")), NotToken),
        (named(json!(long)), NotToken),
        (named(json!(7)), NotText),
        (named(json!(null)), NotText),
        (named(json!({ "x-mcp-header": "a" })), NotText),
        (odd_type(json!("object")), WrongType),
        (odd_type(json!("array")), WrongType),
        (odd_type(json!("null")), WrongType),
        (odd_type(json!(["string", "null"])), WrongType),
        (
            properties(json!({ "p": { "$ref": "#/$defs/p", "x-mcp-header": "P" } })),
            WrongType,
        ),
        (
            properties(json!({ "p": { "anyOf": [{ "type": "string" }], "x-mcp-header": "P" } })),
            WrongType,
        ),
        (
            properties(json!({ "a": text("Region"), "b": text("Region") })),
            NotUnique,
        ),
        (
            properties(json!({ "a": text("Region"), "b": { "properties": { "c": text("rEGION") } } })),
            NotUnique,
        ),
        (json!({ "type": "string", "x-mcp-header": "Root" }), Unreachable),
        (off("items", text("A")), Unreachable),
        (off("items", json!([text("A")])), Unreachable),
        (off("prefixItems", json!([text("A")])), Unreachable),
        (off("contains", text("A")), Unreachable),
        (
            off("oneOf", json!([properties(json!({ "a": text("A") }))])),
            Unreachable,
        ),
        (off("anyOf", json!([text("A")])), Unreachable),
        (
            off("allOf", json!([properties(json!({ "a": text("A") }))])),
            Unreachable,
        ),
        (off("not", properties(json!({ "a": text("A") }))), Unreachable),
        (off("if", properties(json!({ "a": text("A") }))), Unreachable),
        (off("then", properties(json!({ "a": text("A") }))), Unreachable),
        (off("else", properties(json!({ "a": text("A") }))), Unreachable),
        (off("additionalProperties", text("A")), Unreachable),
        (off("unevaluatedProperties", text("A")), Unreachable),
        (off("propertyNames", text("A")), Unreachable),
        (off("patternProperties", json!({ "^x": text("A") })), Unreachable),
        (off("dependentSchemas", json!({ "x": text("A") })), Unreachable),
        (off("$defs", json!({ "x": text("A") })), Unreachable),
        (off("definitions", json!({ "default": text("A") })), Unreachable),
        (off("x-unknown", json!({ "y": { "z": text("A") } })), Unreachable),
        (
            properties(json!({ "a": { "type": "array", "items": properties(json!({ "b": text("A") })) } })),
            Unreachable,
        ),
    ] {
        let error = ToolHeaders::read(&schema).expect_err(&schema.to_string());
        assert_eq!(error.problem, problem, "{schema}");
    }
}

#[test]
fn error_names_the_position_in_printable_text() {
    let schema = properties(json!({
        "a\n": { "type": "array", "items": properties(json!({ "b": text("A") })) },
    }));
    let error = ToolHeaders::read(&schema).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`x-mcp-header` at `a\\n.items.b` stands where `properties` alone do not lead"
    );
    let schema = properties(json!({ "y".repeat(5_000): text("") }));
    assert!(ToolHeaders::read(&schema).unwrap_err().at.len() <= 128);
}

#[test]
fn annotations_beyond_the_limits_are_invalid() {
    let many = |count: usize| {
        let all: Map<String, Value> = (0..count)
            .map(|index| (format!("p{index}"), text(&format!("H{index}"))))
            .collect();
        properties(Value::Object(all))
    };
    assert_eq!(
        ToolHeaders::read(&many(MAX_HEADERS)).unwrap().entries().len(),
        MAX_HEADERS
    );
    let error = ToolHeaders::read(&many(MAX_HEADERS + 1)).unwrap_err();
    assert_eq!(error.problem, SchemaProblem::TooMany);
    let (kept, _) = ToolHeaders::read_valid(&many(MAX_HEADERS + 9));
    assert_eq!(kept.entries().len(), MAX_HEADERS);

    let nested = |steps: usize| (0..steps).fold(text("Deep"), |inner, _| properties(json!({ "p": inner })));
    assert!(ToolHeaders::read(&nested(MAX_STEPS)).is_ok());
    let error = ToolHeaders::read(&nested(MAX_STEPS + 1)).unwrap_err();
    assert_eq!(error.problem, SchemaProblem::TooDeep);
    assert!(ToolHeaders::read(&properties(json!({ "p".repeat(MAX_PATH): text("P") }))).is_ok());
    let error = ToolHeaders::read(&properties(json!({ "p".repeat(MAX_PATH + 1): text("P") }))).unwrap_err();
    assert_eq!(error.problem, SchemaProblem::TooDeep);
}

#[test]
fn client_sends_arguments_that_have_a_value() {
    let headers = ToolHeaders::read(&properties(json!({
        "a": text("A"),
        "b": { "type": "boolean", "x-mcp-header": "B" },
        "n": { "type": "integer", "x-mcp-header": "N" },
        "o": { "properties": { "a": text("Inner") } },
    })))
    .unwrap();
    let values = |arguments: Value| {
        let mut values = headers.values(&arguments);
        values.sort();
        values
    };
    let pair = |name: &str, value: &str| (format!("Mcp-Param-{name}"), value.to_owned());
    assert_eq!(
        values(json!({ "a": "us-west1", "b": true, "n": 42.0, "o": { "a": "ü" }, "x": 1 })),
        [
            pair("A", "us-west1"),
            pair("B", "true"),
            pair("Inner", "=?base64?w7w=?="),
            pair("N", "42"),
        ]
    );
    assert_eq!(
        values(json!({ "a": "", "n": -7 })),
        [pair("A", ""), pair("N", "-7")]
    );
    for nothing in [
        json!({}),
        json!(null),
        json!([1]),
        json!({ "a": null, "o": "a" }),
        json!({ "a": ["x"], "n": {} }),
    ] {
        assert_eq!(values(nothing), []);
    }
    // A number that no `f64` can hold keeps its digits.
    assert_eq!(
        headers
            .values_of_raw(Some(br#"{"n":123456789012345678901234567890}"#))
            .unwrap(),
        [pair("N", "123456789012345678901234567890")]
    );
    assert_eq!(headers.values_of_raw(None), Ok(Vec::new()));
    assert_eq!(
        headers.values_of_raw(Some(br#"{"o":{"a":"x"},"o":{}}"#)),
        Err(ArgumentsError::Repeated {
            header: "Inner".to_owned()
        })
    );
}

#[test]
fn property_may_be_annotated_above_another_one() {
    let schema = properties(json!({
        "a": { "type": "string", "x-mcp-header": "Outer", "properties": { "b": text("Inner") } },
    }));
    let headers = ToolHeaders::read(&schema).unwrap();
    assert_eq!(headers.values(&json!({ "a": "x" })).len(), 1);
    assert_eq!(
        headers.values(&json!({ "a": { "b": "y" } })),
        [("Mcp-Param-Inner".to_owned(), "y".to_owned())]
    );
}

#[test]
fn only_invalid_annotations_are_stripped() {
    let tool = json!({
        "name": "t",
        "x-mcp-header": "not in the schema",
        "inputSchema": properties(json!({
            "good": text("Good"),
            "bad": { "type": "array", "x-mcp-header": "Bad", "items": { "type": "string", "x-mcp-header": "Items", "title": "kept" } },
            "one": text("Twice"),
            "two": text("TWICE"),
            "x-mcp-header": { "type": "string", "default": { "x-mcp-header": "" } },
        })),
        "outputSchema": { "x-mcp-header": "untouched" },
    });
    let stripped = strip_invalid(&tool).unwrap();
    assert_eq!(
        stripped,
        json!({
            "name": "t",
            "x-mcp-header": "not in the schema",
            "inputSchema": properties(json!({
                "good": text("Good"),
                "bad": { "type": "array", "items": { "type": "string", "title": "kept" } },
                "one": { "type": "string" },
                "two": { "type": "string" },
                "x-mcp-header": { "type": "string", "default": { "x-mcp-header": "" } },
            })),
            "outputSchema": { "x-mcp-header": "untouched" },
        })
    );
    assert_eq!(strip_invalid(&stripped), None);
}

#[test]
fn tool_without_invalid_annotations_is_left_alone() {
    for tool in [
        json!(null),
        json!({}),
        json!({ "name": "t", "inputSchema": null }),
        json!({ "inputSchema": properties(json!({ "a": text("A") })) }),
    ] {
        assert_eq!(strip_invalid(&tool), None, "{tool}");
    }
}

/// Schemas with annotations in every kind of place.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(true)),
        (
            "[abAB é]{0,2}",
            prop::sample::select(vec!["string", "integer", "number", "object"])
        )
            .prop_map(|(header, kind)| json!({ "type": kind, "x-mcp-header": header })),
        Just(json!({ "x-mcp-header": 1 })),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let keyword = prop::sample::select(vec![
            "properties",
            "properties",
            "$defs",
            "items",
            "anyOf",
            "default",
            "x-mcp-header",
        ]);
        let named = prop::collection::btree_map("[ab]|properties|x-mcp-header", inner.clone(), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()));
        let listed = prop::collection::vec(inner, 0..3).prop_map(Value::Array);
        prop::collection::btree_map(keyword, prop_oneof![3 => named, 1 => listed], 0..3).prop_map(|map| {
            Value::Object(
                map.into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect(),
            )
        })
    })
}

proptest! {
    #[test]
    fn stripped_tool_is_valid_and_keeps_what_was(schema in any_schema()) {
        let tool = json!({ "name": "t", "inputSchema": schema });
        let (valid, problem) = ToolHeaders::read_valid(&tool["inputSchema"]);
        let stripped = strip_invalid(&tool);
        prop_assert_eq!(stripped.is_some(), problem.is_some());
        let tool = stripped.unwrap_or(tool);
        prop_assert_eq!(ToolHeaders::read(&tool["inputSchema"]), Ok(valid));
    }
}
