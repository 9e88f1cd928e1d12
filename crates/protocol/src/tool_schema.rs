//! The `x-mcp-header` annotations of a tool's `inputSchema` (2026-07-28, tools, "x-mcp-header").
//!
//! This module hides where in a schema an annotation may stand and how the argument it names is
//! found in a call. It refuses to judge anything else in a schema, follows no `$ref`, and stops at
//! the limits below: a schema is another's text, and may be written to hurt.

mod arguments;
mod catalogue;
mod offer;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::object::may_have;
use crate::wire::header::{PARAM_PREFIX, encode};

pub use arguments::{ArgumentsError, arguments_of};
pub(crate) use arguments::{Mirrored, same_number, task_id_of};
pub use catalogue::{Added, CatalogueError, CatalogueLimits, KnownTool, TaskSupport, ToolCatalogue};
pub use offer::{Withheld, without_invalid};

pub(crate) const ANNOTATION: &str = "x-mcp-header";

/// Returns whether a tool may have annotations: looked at before it is read.
pub(crate) fn annotates(raw: &str) -> bool {
    may_have(raw.as_bytes(), &[ANNOTATION])
}

/// Annotations that one tool may have. Servers let in about a hundred headers altogether.
pub const MAX_HEADERS: usize = 64;
/// Bytes of an annotated name.
pub const MAX_NAME: usize = 128;
/// Properties on the way to an annotated one.
pub const MAX_STEPS: usize = 16;
/// Bytes of all their names.
pub const MAX_PATH: usize = 1024;

/// The type of an annotated property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderKind {
    /// A string.
    Text,
    /// An integer.
    Integer,
    /// A boolean.
    Boolean,
    /// Forbidden by the specification, yet met in the wild and in conformance tests: mirrored, with
    /// a warning.
    Number,
}

/// One annotated property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolHeader {
    /// What follows `Mcp-Param-`, as the schema spells it.
    pub name: String,
    /// The names of the properties that lead to the argument.
    pub path: Vec<String>,
    /// The type of the property.
    pub kind: HeaderKind,
}

/// What an annotation does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SchemaProblem {
    /// It stands where `properties` alone do not lead.
    #[error("stands where `properties` alone do not lead")]
    Unreachable,
    /// Its value is no string.
    #[error("is no text")]
    NotText,
    /// Its value cannot be part of a header name.
    #[error("is no HTTP token of 1 to {MAX_NAME} characters")]
    NotToken,
    /// The property has a type that cannot be mirrored.
    #[error("stands on a property that is no string, integer or boolean")]
    WrongType,
    /// Two properties name the same header.
    #[error("names a header that another property names too")]
    NotUnique,
    /// It lies deeper than [`MAX_STEPS`].
    #[error("lies too deep in the schema")]
    TooDeep,
    /// There are more than [`MAX_HEADERS`].
    #[error("is one of more than {MAX_HEADERS}")]
    TooMany,
}

/// Why a tool's annotations are invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`x-mcp-header` at `{at}` {problem}")]
pub struct SchemaError {
    /// What is wrong.
    pub problem: SchemaProblem,
    /// Where in the schema, for people: shortened, and with control characters escaped.
    pub at: String,
}

/// The headers that a call of one tool must have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolHeaders {
    entries: Vec<ToolHeader>,
}

impl ToolHeaders {
    /// Reads the annotations of an `inputSchema`. One that is wrong makes all of them invalid.
    pub fn read(schema: &Value) -> Result<Self, SchemaError> {
        match Self::read_valid(schema) {
            (headers, None) => Ok(headers),
            (_, Some(error)) => Err(error),
        }
    }

    /// Reads the valid annotations, and what is wrong with the first of the others: what a client
    /// knows that is shown the tool after [`strip_invalid`].
    pub fn read_valid(schema: &Value) -> (Self, Option<SchemaError>) {
        let Findings { judged, first, .. } = find(schema);
        let entries = judged.into_iter().flatten().collect();
        (Self { entries }, first)
    }

    /// Returns the headers, in the order of the schema.
    pub fn entries(&self) -> &[ToolHeader] {
        &self.entries
    }

    /// Returns whether no header is needed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a `number` is annotated, which is worth a warning.
    pub fn has_number(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == HeaderKind::Number)
    }

    /// Returns the headers that a client must send with these arguments: names and encoded values.
    pub fn values(&self, arguments: &Value) -> Vec<(String, String)> {
        self.values_of_raw(Some(arguments.to_string().as_bytes()))
            .unwrap_or_default()
    }

    /// The same from the arguments as the sender wrote them, so that no number loses a digit.
    pub fn values_of_raw(&self, arguments: Option<&[u8]>) -> Result<Vec<(String, String)>, ArgumentsError> {
        let values = self.mirrored(arguments)?;
        let headers = self.entries.iter().zip(values).filter_map(|(entry, value)| {
            let text = value.into_text()?;
            Some((
                format!("{PARAM_PREFIX}{}", entry.name),
                encode(&text).into_owned(),
            ))
        });
        Ok(headers.collect())
    }
}

/// Deletes the invalid annotations from a tool, and nothing else, so that HTTP clients need not
/// drop it. `None` if there are none: the tool then passes as its server wrote it.
///
/// Of several properties that name one header, all lose it.
pub fn strip_invalid(tool: &Value) -> Option<Value> {
    let judged = find(tool.get("inputSchema")?).judged;
    let invalid: BTreeSet<usize> = (0..)
        .zip(&judged)
        .filter(|(_, finding)| finding.is_err())
        .map(|(index, _)| index)
        .collect();
    if invalid.is_empty() {
        return None;
    }
    let mut tool = tool.clone();
    prune(tool.get_mut("inputSchema")?, &mut 0, &invalid);
    Some(tool)
}

/// What a keyword of JSON Schema holds.
enum Holds {
    Annotation,
    /// Schemas by the names of the properties they describe.
    Properties,
    /// Schemas by name, which describe no property.
    NamedSchemas,
    /// Plain data: text in it that looks like an annotation is none.
    Data,
    /// A schema or a list of them. Unknown keywords count as such, since a `$ref` may point into
    /// them.
    Schemas,
}

impl Holds {
    fn of(keyword: &str) -> Self {
        match keyword {
            ANNOTATION => Self::Annotation,
            "properties" => Self::Properties,
            "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => {
                Self::NamedSchemas
            }
            "default" | "const" | "enum" | "examples" | "example" => Self::Data,
            _ => Self::Schemas,
        }
    }
}

/// The way from the root of a schema to a place in it; it lives on the stack of the walk.
#[derive(Clone, Copy)]
struct SchemaPath<'a> {
    parent: Option<&'a Self>,
    name: &'a str,
    /// Whether `properties` alone have led here.
    reachable: bool,
}

impl SchemaPath<'_> {
    const ROOT: SchemaPath<'static> = SchemaPath {
        parent: None,
        name: "",
        reachable: true,
    };

    /// Returns the names on the way, without the root.
    fn steps(&self) -> Vec<&str> {
        let mut steps: Vec<&str> = std::iter::successors(Some(self), |path| path.parent)
            .take_while(|path| path.parent.is_some())
            .map(|path| path.name)
            .collect();
        steps.reverse();
        steps
    }

    fn shown(&self) -> String {
        shown(self.steps().into_iter())
    }
}

/// Returns a place in a schema, for people.
fn shown<'a>(steps: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 128;
    let characters = steps.enumerate().flat_map(|(index, step)| {
        let dot = (index > 0).then_some('.');
        dot.into_iter().chain(step.chars().flat_map(char::escape_debug))
    });
    characters.take(SHOWN).collect()
}

/// Every annotation of a schema, judged, in the order in which [`prune`] meets them.
#[derive(Default)]
struct Findings {
    judged: Vec<Result<ToolHeader, SchemaProblem>>,
    valid: usize,
    /// The first that is wrong. The others are not described: a schema may hold very many.
    first: Option<SchemaError>,
}

impl Findings {
    fn add(&mut self, judged: Result<ToolHeader, SchemaProblem>, path: &SchemaPath<'_>) {
        let judged = match judged {
            Ok(_) if self.valid == MAX_HEADERS => Err(SchemaProblem::TooMany),
            Ok(entry) => {
                self.valid += 1;
                Ok(entry)
            }
            Err(problem) => Err(problem),
        };
        if let Err(problem) = judged {
            self.first.get_or_insert_with(|| SchemaError {
                problem,
                at: path.shown(),
            });
        }
        self.judged.push(judged);
    }
}

fn find(schema: &Value) -> Findings {
    let mut findings = Findings::default();
    walk(schema, SchemaPath::ROOT, &mut findings);
    // Whether a name is unique is known only when all have been met.
    let mut names = BTreeMap::<String, usize>::new();
    for entry in findings.judged.iter().flatten() {
        *names.entry(entry.name.to_ascii_lowercase()).or_default() += 1;
    }
    for judged in &mut findings.judged {
        let Ok(entry) = judged else { continue };
        if names.get(&entry.name.to_ascii_lowercase()) > Some(&1) {
            findings.first.get_or_insert_with(|| SchemaError {
                problem: SchemaProblem::NotUnique,
                at: shown(entry.path.iter().map(String::as_str)),
            });
            *judged = Err(SchemaProblem::NotUnique);
        }
    }
    findings
}

/// Meets every schema below one. The depth is that of the JSON, which its reader has bounded.
fn walk(schema: &Value, path: SchemaPath<'_>, findings: &mut Findings) {
    let off = |name| SchemaPath {
        parent: Some(&path),
        name,
        reachable: false,
    };
    match schema {
        Value::Object(keywords) => {
            if let Some(annotation) = keywords.get(ANNOTATION) {
                findings.add(check_annotation(annotation, keywords, &path), &path);
            }
            for (keyword, value) in keywords {
                match (Holds::of(keyword), value) {
                    (Holds::Annotation | Holds::Data, _) => {}
                    (Holds::Properties, Value::Object(properties)) => {
                        for (name, property) in properties {
                            let below = SchemaPath {
                                parent: Some(&path),
                                name,
                                reachable: path.reachable,
                            };
                            walk(property, below, findings);
                        }
                    }
                    (Holds::NamedSchemas, Value::Object(schemas)) => {
                        let named = off(keyword);
                        for (name, schema) in schemas {
                            let below = SchemaPath {
                                parent: Some(&named),
                                name,
                                reachable: false,
                            };
                            walk(schema, below, findings);
                        }
                    }
                    (Holds::Properties | Holds::NamedSchemas | Holds::Schemas, value) => {
                        walk(value, off(keyword), findings);
                    }
                }
            }
        }
        Value::Array(schemas) => {
            for schema in schemas {
                walk(schema, off("[]"), findings);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_annotation(
    annotation: &Value,
    keywords: &Map<String, Value>,
    path: &SchemaPath<'_>,
) -> Result<ToolHeader, SchemaProblem> {
    // The root is no property: nothing leads to it, and nothing can be mirrored from it.
    if !path.reachable || path.parent.is_none() {
        return Err(SchemaProblem::Unreachable);
    }
    let name = annotation.as_str().ok_or(SchemaProblem::NotText)?;
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_token) {
        return Err(SchemaProblem::NotToken);
    }
    // A list of types is refused even if it only adds `null`: strict clients would drop the tool.
    let kind = match keywords.get("type").and_then(Value::as_str) {
        Some("string") => HeaderKind::Text,
        Some("integer") => HeaderKind::Integer,
        Some("boolean") => HeaderKind::Boolean,
        Some("number") => HeaderKind::Number,
        Some(_) | None => return Err(SchemaProblem::WrongType),
    };
    let steps = path.steps();
    if steps.len() > MAX_STEPS || steps.iter().map(|step| step.len()).sum::<usize>() > MAX_PATH {
        return Err(SchemaProblem::TooDeep);
    }
    Ok(ToolHeader {
        name: name.to_owned(),
        path: steps.into_iter().map(str::to_owned).collect(),
        kind,
    })
}

/// `tchar` of RFC 9110, section 5.6.2.
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Deletes annotations by the order in which [`walk`] meets them.
fn prune(schema: &mut Value, next: &mut usize, invalid: &BTreeSet<usize>) {
    match schema {
        Value::Object(keywords) => {
            let mut delete = false;
            if keywords.contains_key(ANNOTATION) {
                delete = invalid.contains(next);
                *next += 1;
            }
            for (keyword, value) in keywords.iter_mut() {
                match (Holds::of(keyword), value) {
                    (Holds::Annotation | Holds::Data, _) => {}
                    (Holds::Properties | Holds::NamedSchemas, Value::Object(schemas)) => {
                        for schema in schemas.values_mut() {
                            prune(schema, next, invalid);
                        }
                    }
                    (Holds::Properties | Holds::NamedSchemas | Holds::Schemas, value) => {
                        prune(value, next, invalid);
                    }
                }
            }
            if delete {
                keywords.remove(ANNOTATION);
            }
        }
        Value::Array(schemas) => {
            for schema in schemas {
                prune(schema, next, invalid);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests;
