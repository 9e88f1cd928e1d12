//! The tools by name, with what a client is told about each.
use serde_json::{Value, json};

use super::World;
use crate::demo::effect::Level;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    ToggleTool,
    Touch,
    WhoAmI,
    Extra,
}

/// What calling the tool does to the world, in the words of tool annotations.
enum Conduct {
    ReadsOnly,
    Changes,
    AsksOutside,
}

/// The result of `tools/list`, always in the same order.
pub(in crate::demo) fn list(world: &World) -> Value {
    let tools: Vec<Value> = Tool::offered(world).map(Tool::definition).collect();
    json!({"tools": tools})
}

impl Tool {
    const ALL: [Tool; 16] = [
        Tool::Echo,
        Tool::Add,
        Tool::Count,
        Tool::Ask,
        Tool::AskTwice,
        Tool::Sample,
        Tool::Roots,
        Tool::Log,
        Tool::Sleep,
        Tool::Image,
        Tool::Link,
        Tool::Fail,
        Tool::ToggleTool,
        Tool::Touch,
        Tool::WhoAmI,
        Tool::Extra,
    ];

    pub(in crate::demo) fn named(name: &str, world: &World) -> Option<Tool> {
        Tool::offered(world).find(|tool| tool.name() == name)
    }

    fn offered(world: &World) -> impl Iterator<Item = Tool> {
        let extra = world.extra_tool;
        Tool::ALL
            .into_iter()
            .filter(move |tool| extra || *tool != Tool::Extra)
    }

    pub(in crate::demo) fn name(self) -> &'static str {
        match self {
            Tool::Echo => "echo",
            Tool::Add => "add",
            Tool::Count => "count",
            Tool::Ask => "ask",
            Tool::AskTwice => "ask_twice",
            Tool::Sample => "sample",
            Tool::Roots => "roots",
            Tool::Log => "log",
            Tool::Sleep => "sleep",
            Tool::Image => "image",
            Tool::Link => "link",
            Tool::Fail => "fail",
            Tool::ToggleTool => "toggle_tool",
            Tool::Touch => "touch",
            Tool::WhoAmI => "whoami",
            Tool::Extra => "extra",
        }
    }

    fn description(self) -> (&'static str, &'static str) {
        match self {
            Tool::Echo => ("Echo", "Says the text back"),
            Tool::Add => ("Add", "Adds two numbers"),
            Tool::Count => ("Count", "Counts slowly and reports progress; can be cancelled"),
            Tool::Ask => ("Ask", "Asks the user a question and reports the answer"),
            Tool::AskTwice => ("Ask twice", "Asks the user two questions, one after the other"),
            Tool::Sample => ("Sample", "Has the client's model answer a prompt"),
            Tool::Roots => ("Roots", "Lists the client's roots"),
            Tool::Log => ("Log", "Sends a log message to the client"),
            Tool::Sleep => ("Sleep", "Sleeps for a while; can be cancelled"),
            Tool::Image => ("Image", "Returns a small picture"),
            Tool::Link => ("Link", "Returns a link to a resource"),
            Tool::Fail => ("Fail", "Always fails"),
            Tool::ToggleTool => ("Toggle a tool", "Adds the tool extra, or removes it again"),
            Tool::Touch => ("Touch", "Changes the resource demo://counter"),
            Tool::WhoAmI => (
                "Who am I",
                "Tells the server's process id, the era, and the client as the server sees it",
            ),
            Tool::Extra => ("Extra", "Is there only after toggle_tool"),
        }
    }

    /// The properties of the arguments, and which of them are required.
    fn input(self) -> (Value, &'static [&'static str]) {
        match self {
            Tool::Echo => (
                json!({"text": {"type": "string", "description": "What to say back"}}),
                &["text"],
            ),
            Tool::Add => (
                json!({"a": {"type": "number"}, "b": {"type": "number"}}),
                &["a", "b"],
            ),
            Tool::Count => (
                json!({"steps": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 5},
                    "delay_ms": {"type": "integer", "minimum": 0, "maximum": 60_000, "default": 100}}),
                &[],
            ),
            Tool::Ask => (
                json!({"question": {"type": "string", "description": "What to ask the user"}}),
                &[],
            ),
            Tool::Sample => (
                json!({"prompt": {"type": "string", "description": "What to ask the model"}}),
                &["prompt"],
            ),
            Tool::Log => (
                json!({"level": {"type": "string", "enum": Level::ALL.map(Level::name), "default": "info"},
                    "message": {"type": "string"}}),
                &["message"],
            ),
            Tool::Sleep => (
                json!({"ms": {"type": "integer", "minimum": 0, "maximum": 600_000, "default": 1000}}),
                &[],
            ),
            Tool::AskTwice
            | Tool::Roots
            | Tool::Image
            | Tool::Link
            | Tool::Fail
            | Tool::ToggleTool
            | Tool::Touch
            | Tool::WhoAmI
            | Tool::Extra => (json!({}), &[]),
        }
    }

    fn output(self) -> Option<Value> {
        match self {
            Tool::Add => Some(
                json!({"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}),
            ),
            Tool::WhoAmI => Some(
                json!({"type": "object", "required": ["pid", "era"], "properties": {
                "pid": {"type": "integer"}, "era": {"type": "string", "enum": ["legacy", "modern"]},
                "version": {"type": "string"}, "clientCapabilities": {"type": "object"},
                "cancelledCalls": {"type": "integer"}}}),
            ),
            Tool::Echo
            | Tool::Count
            | Tool::Ask
            | Tool::AskTwice
            | Tool::Sample
            | Tool::Roots
            | Tool::Log
            | Tool::Sleep
            | Tool::Image
            | Tool::Link
            | Tool::Fail
            | Tool::ToggleTool
            | Tool::Touch
            | Tool::Extra => None,
        }
    }

    fn conduct(self) -> Conduct {
        match self {
            Tool::Echo
            | Tool::Add
            | Tool::Count
            | Tool::Log
            | Tool::Sleep
            | Tool::Image
            | Tool::Link
            | Tool::Fail
            | Tool::WhoAmI
            | Tool::Extra => Conduct::ReadsOnly,
            Tool::ToggleTool | Tool::Touch => Conduct::Changes,
            Tool::Ask | Tool::AskTwice | Tool::Sample | Tool::Roots => Conduct::AsksOutside,
        }
    }

    fn definition(self) -> Value {
        let (title, description) = self.description();
        let (properties, required) = self.input();
        let (read_only, idempotent, open_world) = match self.conduct() {
            Conduct::ReadsOnly => (true, true, false),
            Conduct::Changes => (false, false, false),
            Conduct::AsksOutside => (true, false, true),
        };
        let mut definition = json!({"name": self.name(), "title": title, "description": description,
            "inputSchema": {"type": "object", "properties": properties, "required": required},
            "annotations": {"title": title, "readOnlyHint": read_only, "destructiveHint": false,
                "idempotentHint": idempotent, "openWorldHint": open_world}});
        if let Some(schema) = self.output() {
            definition["outputSchema"] = schema;
        }
        definition
    }
}
