//! The tools by name. Their descriptions for clients are data, in `catalogue.json`.
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::DemoState;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::demo) enum Tool {
    Echo,
    Add,
    Count,
    Ask,
    AskTwice,
    Sample,
    Roots,
    Log,
    Sleep,
    Image,
    Link,
    Fail,
    #[serde(rename = "toggle_tool")]
    Toggle,
    Touch,
    Whoami,
    Extra,
}

static DEFINITIONS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("catalogue.json"))
        .expect("the catalogue is part of the program, and tested")
});

/// Returns the result of `tools/list`, always in the same order.
pub(in crate::demo) fn list(state: &DemoState) -> Value {
    let offered = DEFINITIONS
        .iter()
        .filter(|tool| state.extra_tool || tool["name"] != "extra");
    json!({"tools": offered.collect::<Vec<_>>()})
}

impl Tool {
    pub(in crate::demo) fn named(name: &str, state: &DemoState) -> Option<Tool> {
        let tool = serde_json::from_value(json!(name)).ok();
        tool.filter(|tool| state.extra_tool || *tool != Tool::Extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_names_a_tool_of_its_own() {
        let state = DemoState {
            extra_tool: true,
            ..DemoState::default()
        };
        let named = |definition: &Value| Tool::named(definition["name"].as_str()?, &state);
        let tools: Vec<Tool> = DEFINITIONS
            .iter()
            .map(|definition| named(definition).expect("a tool"))
            .collect();
        assert_eq!(tools.len(), Tool::Extra as usize + 1);
        assert!(
            tools
                .iter()
                .enumerate()
                .all(|(place, tool)| *tool as usize == place)
        );
    }
}
