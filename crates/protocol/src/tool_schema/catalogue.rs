//! What is known of a server's tools: the headers that each of them asks for.
//!
//! It is filled from `tools/list` results, page by page, and emptied when the server reports
//! changed tools. It is bounded; a tool that finds no room is unknown, and its headers pass
//! unchecked.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

use super::{ANNOTATION, SchemaError, ToolHeaders};

/// How much a catalogue may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogueLimits {
    /// Tools.
    pub tools: usize,
    /// Bytes of their names and annotations.
    pub bytes: usize,
}

impl Default for CatalogueLimits {
    fn default() -> Self {
        Self {
            tools: 10_000,
            bytes: 4 << 20,
        }
    }
}

/// One tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownTool {
    /// Its valid annotations.
    pub headers: ToolHeaders,
    /// What is wrong with the first invalid one. A client that speaks to the server itself must
    /// drop the tool then; one that is shown the tool by [`super::strip_invalid`] need not.
    pub problem: Option<SchemaError>,
    /// Whether it can be worked on as a task (2025-11-25, `execution.taskSupport`).
    pub tasks: TaskSupport,
    /// Its annotations declare it read-only or idempotent.
    pub repeatable: bool,
}

/// Whether a tool of a legacy server runs as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskSupport {
    /// It cannot be called as a task.
    #[default]
    Forbidden,
    /// It can be called either way.
    Optional,
    /// It can only be called as a task.
    Required,
}

/// What came of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Added {
    /// Tools that were added.
    pub tools: usize,
    /// Tools for which there was no room.
    pub left_out: usize,
    /// Entries that have no name and so are no tools.
    pub malformed: usize,
}

/// Why a page taught nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the result of tools/list has no list of tools")]
pub struct CatalogueError;

/// The tools of one server, by name.
#[derive(Debug, Clone)]
pub struct ToolCatalogue {
    limits: CatalogueLimits,
    tools: BTreeMap<String, KnownTool>,
    bytes: usize,
    left_out: u64,
}

impl ToolCatalogue {
    /// Returns an empty catalogue.
    pub const fn new(limits: CatalogueLimits) -> Self {
        Self {
            limits,
            tools: BTreeMap::new(),
            bytes: 0,
            left_out: 0,
        }
    }

    /// Learns from the raw result of a `tools/list`. A tool that was known is learnt anew.
    pub fn add_page(&mut self, result: &[u8]) -> Result<Added, CatalogueError> {
        #[derive(Deserialize)]
        struct Page<'a> {
            #[serde(borrow)]
            tools: Vec<&'a RawValue>,
        }
        if !result.trim_ascii_start().starts_with(b"{") {
            return Err(CatalogueError);
        }
        let page: Page<'_> = serde_json::from_slice(result).map_err(|_| CatalogueError)?;
        let mut added = Added::default();
        for raw in page.tools {
            let Some((name, tool)) = read_tool(raw.get()) else {
                added.malformed += 1;
                continue;
            };
            if self.insert(name, tool) {
                added.tools += 1;
            } else {
                added.left_out += 1;
            }
        }
        self.left_out = self.left_out.saturating_add(added.left_out as u64);
        Ok(added)
    }

    /// Forgets every tool, on `notifications/tools/list_changed` or with a new server process.
    pub fn clear(&mut self) {
        self.tools.clear();
        self.bytes = 0;
    }

    /// Returns the tool of this name.
    pub fn find(&self, name: &str) -> Option<&KnownTool> {
        self.tools.get(name)
    }

    /// Returns how many tools are known.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Returns whether no tool is known.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Returns how many tools have found no room since the start.
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn insert(&mut self, name: Cow<'_, str>, tool: KnownTool) -> bool {
        // What was known of the tool is no longer true, whether or not there is room for what is.
        if let Some(old) = self.tools.remove(name.as_ref()) {
            self.bytes -= cost(&name, &old);
        }
        let bytes = self.bytes.saturating_add(cost(&name, &tool));
        if self.tools.len() >= self.limits.tools || bytes > self.limits.bytes {
            return false;
        }
        self.bytes = bytes;
        self.tools.insert(name.into_owned(), tool);
        true
    }
}

/// About the memory that a tool takes.
fn cost(name: &str, tool: &KnownTool) -> usize {
    const PIECE: usize = 64;
    let headers: usize = tool
        .headers
        .entries()
        .iter()
        .map(|entry| {
            let path: usize = entry.path.iter().map(|step| PIECE + step.len()).sum();
            PIECE + entry.name.len() + path
        })
        .sum();
    let problem = tool.problem.as_ref().map_or(0, |problem| problem.at.len());
    2 * PIECE + name.len() + headers + problem
}

pub(super) fn read_tool(raw: &str) -> Option<(Cow<'_, str>, KnownTool)> {
    #[derive(Deserialize)]
    struct Tool<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(borrow, default, rename = "inputSchema")]
        schema: Option<&'a RawValue>,
        #[serde(borrow, default)]
        execution: Option<&'a RawValue>,
        #[serde(borrow, default)]
        annotations: Option<&'a RawValue>,
    }
    if !raw.starts_with('{') {
        return None;
    }
    let tool: Tool<'_> = serde_json::from_str(raw).ok()?;
    let repeatable = tool.annotations.is_some_and(|raw| is_repeatable(raw.get()));
    let tasks = tool
        .execution
        .map_or(TaskSupport::Forbidden, |raw| task_support(raw.get()));
    let known = tool.schema.map_or_else(KnownTool::default, |schema| {
        let text = schema.get();
        // Nearly no schema is annotated: look before reading it all. A key may be spelt with
        // escapes.
        if memmem::find(text.as_bytes(), ANNOTATION.as_bytes()).is_none() && !text.contains("\\u") {
            return KnownTool::default();
        }
        let schema: Value = serde_json::from_str(text).unwrap_or_default();
        let (headers, problem) = ToolHeaders::read_valid(&schema);
        KnownTool {
            headers,
            problem,
            ..KnownTool::default()
        }
    });
    Some((
        tool.name,
        KnownTool {
            repeatable,
            tasks,
            ..known
        },
    ))
}

fn task_support(execution: &str) -> TaskSupport {
    let execution: Value = serde_json::from_str(execution).unwrap_or_default();
    match execution.get("taskSupport").and_then(Value::as_str) {
        Some("optional") => TaskSupport::Optional,
        Some("required") => TaskSupport::Required,
        Some(_) | None => TaskSupport::Forbidden,
    }
}

/// Returns whether the annotations of a tool declare it read-only or idempotent.
fn is_repeatable(annotations: &str) -> bool {
    let annotations: Value = serde_json::from_str(annotations).unwrap_or_default();
    ["readOnlyHint", "idempotentHint"]
        .iter()
        .any(|hint| annotations.get(hint) == Some(&Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CatalogueLimits = CatalogueLimits {
        tools: 3,
        bytes: 2_000,
    };

    fn page(tools: &str) -> Vec<u8> {
        format!(r#"{{"resultType":"complete","tools":[{tools}],"nextCursor":"n"}}"#).into_bytes()
    }

    fn plain(name: &str) -> String {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#)
    }

    fn annotated(name: &str, header: &str) -> String {
        format!(
            r#"{{"name":"{name}","inputSchema":{{"properties":{{"r":{{"type":"string","x-mcp-header":"{header}"}}}}}}}}"#
        )
    }

    #[test]
    fn tools_are_learnt_page_by_page_and_forgotten_on_change() {
        let mut catalogue = ToolCatalogue::new(LIMITS);
        catalogue.add_page(&page(&plain("a"))).unwrap();
        catalogue.add_page(&page(&annotated("b", "Region"))).unwrap();
        assert_eq!(catalogue.find("a"), Some(&KnownTool::default()));
        assert_eq!(catalogue.find("b").unwrap().headers.entries()[0].name, "Region");
        assert_eq!(catalogue.find("c"), None);
        catalogue.add_page(&page(&annotated("b", "Zone"))).unwrap();
        assert_eq!(catalogue.find("b").unwrap().headers.entries()[0].name, "Zone");
        assert_eq!(catalogue.len(), 2);
        catalogue.clear();
        assert!(catalogue.is_empty());
        assert_eq!(catalogue.find("b"), None);
    }

    #[test]
    fn tools_beyond_the_limits_are_counted_and_left_out() {
        let mut catalogue = ToolCatalogue::new(LIMITS);
        let four = ["a", "b", "c", "d"].map(plain).join(",");
        let added = catalogue.add_page(&page(&four)).unwrap();
        assert_eq!((added.tools, added.left_out), (3, 1));
        assert_eq!(catalogue.find("d"), None);
        assert_eq!(catalogue.left_out(), 1);
        // One that is known needs no new room.
        assert_eq!(catalogue.add_page(&page(&annotated("c", "C"))).unwrap().tools, 1);

        let mut catalogue = ToolCatalogue::new(LIMITS);
        let added = catalogue.add_page(&page(&plain(&"long".repeat(1_000)))).unwrap();
        assert_eq!((added.tools, added.left_out), (0, 1));
    }

    #[test]
    fn room_is_given_back_when_a_tool_is_learnt_anew() {
        let mut catalogue = ToolCatalogue::new(LIMITS);
        for _ in 0..100 {
            let added = catalogue.add_page(&page(&annotated("a", "A"))).unwrap();
            assert_eq!(added.tools, 1);
        }
        catalogue.clear();
        assert_eq!(catalogue.bytes, 0);
    }

    #[test]
    fn invalid_annotations_are_reported_and_valid_ones_kept() {
        let tool = r#"{"name":"t","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"array","x-mcp-header":"B"}}}}"#;
        let mut catalogue = ToolCatalogue::new(LIMITS);
        catalogue.add_page(&page(tool)).unwrap();
        let known = catalogue.find("t").unwrap();
        assert_eq!(known.headers.entries().len(), 1);
        assert_eq!(known.problem.as_ref().unwrap().at, "b");
    }

    #[test]
    fn tools_declare_whether_they_can_be_tasks() {
        let tools = r#"{"name":"a","execution":{"taskSupport":"optional"}},{"name":"b","execution":{"taskSupport":"required"}},{"name":"c","execution":7}"#;
        let mut catalogue = ToolCatalogue::new(LIMITS);
        catalogue.add_page(&page(tools)).unwrap();
        let support = ["a", "b", "c"].map(|name| catalogue.find(name).unwrap().tasks);
        assert_eq!(
            support,
            [
                TaskSupport::Optional,
                TaskSupport::Required,
                TaskSupport::Forbidden
            ]
        );
    }

    #[test]
    fn annotation_spelt_with_escapes_is_seen() {
        let tool = r#"{"name":"t\u0074","inputSchema":{"properties":{"a":{"type":"string","x-mcp-heade\u0072":"A"}}}}"#;
        let mut catalogue = ToolCatalogue::new(LIMITS);
        catalogue.add_page(&page(tool)).unwrap();
        assert_eq!(catalogue.find("tt").unwrap().headers.entries().len(), 1);
    }

    #[test]
    fn invalid_pages_and_tools_are_skipped() {
        let mut catalogue = ToolCatalogue::new(LIMITS);
        for result in ["", "{}", "[]", "[[]]", "null", r#"{"tools":7}"#, r#"{"tools":[}"#] {
            assert_eq!(
                catalogue.add_page(result.as_bytes()),
                Err(CatalogueError),
                "{result}"
            );
        }
        let odd = r#"7,null,[],["n"],{},{"name":1},{"name":"n","name":"m"},{"name":"ok","inputSchema":"x-mcp-header"}"#;
        let added = catalogue.add_page(&page(odd)).unwrap();
        assert_eq!((added.tools, added.malformed), (1, 7));
        assert_eq!(catalogue.find("ok"), Some(&KnownTool::default()));
    }

    fn fitting(bytes: usize, tool: impl Fn(usize) -> String) -> usize {
        let limits = CatalogueLimits { tools: 1000, bytes };
        let mut catalogue = ToolCatalogue::new(limits);
        let tools: Vec<String> = (100..200).map(tool).collect();
        catalogue.add_page(&page(&tools.join(","))).unwrap().tools
    }

    #[test]
    fn tool_takes_room_for_itself_its_name_and_its_headers() {
        let small = fitting(10_000, |n| plain(&format!("t{n}")));
        // About 130 bytes for each of them.
        assert!((70..80).contains(&small), "{small}");
        let named = fitting(10_000, |n| plain(&format!("{n}{}", "x".repeat(868))));
        assert_eq!(named, 10);
        // About 300 bytes for each tool with one header.
        let mirrored = fitting(10_000, |n| annotated(&format!("t{n}"), &"H".repeat(40)));
        assert!((32..=34).contains(&mirrored), "{mirrored}");
    }

    #[test]
    fn tool_that_only_reads_or_can_be_called_again_is_repeatable() {
        for (annotations, expected) in [
            (r#"{"readOnlyHint":true}"#, true),
            (r#"{"idempotentHint":true}"#, true),
            (r#"{"readOnlyHint":false,"idempotentHint":false}"#, false),
            (r#"{"readOnlyHint":"true"}"#, false),
            ("{}", false),
            ("[]", false),
        ] {
            let mut catalogue = ToolCatalogue::new(LIMITS);
            let tool = format!(r#"{{"name":"a","annotations":{annotations}}}"#);
            catalogue.add_page(&page(&tool)).unwrap();
            assert_eq!(catalogue.find("a").unwrap().repeatable, expected, "{annotations}");
        }
    }
}
