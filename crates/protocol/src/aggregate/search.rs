//! Search in large catalogues: an index of tools, ranked by BM25, and the tools that clients use it
//! by.
//!
//! One index serves all callers of an aggregate. It has names, titles, descriptions and names of
//! arguments; it refuses to look at anything else.

use std::collections::BTreeMap;

use serde_json::Value;

use super::rules::Effect;

/// The names of the tools that a search shows. No member may show one of its tools under them.
pub const RESERVED_NAMES: [&str; 4] = ["find_tools", "call_read", "call_write", "call_destructive"];
/// How many tools one search returns at most.
pub(crate) const MAX_FOUND: usize = 20;
const DEFAULT_FOUND: usize = 10;
/// Words of a query that count.
const MAX_WORDS: usize = 64;
/// How much a repeated word counts, and how much the length of a text (BM25's usual values).
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
/// How often a word in a name counts, compared with one in a description.
const NAME_WEIGHT: u32 = 3;

/// A tool that Rialto itself shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchTool {
    Find,
    /// Calls a tool whose effect is no more than this.
    Call(Effect),
}

impl SearchTool {
    /// Returns the tool of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "find_tools" => Self::Find,
            "call_read" => Self::Call(Effect::Read),
            "call_write" => Self::Call(Effect::Write),
            "call_destructive" => Self::Call(Effect::Destructive),
            _ => return None,
        })
    }
}

/// The definitions of these tools, with commas between them.
pub(crate) const DEFINITIONS: &str = concat!(
    r#"{"name":"find_tools","title":"Find tools","description":"Finds tools by what they do. Returns their full definitions. Call a tool that was found with call_read, call_write or call_destructive, as its annotations allow.","#,
    r#""inputSchema":{"type":"object","properties":{"query":{"type":"string","description":"Words for what the tool shall do"},"limit":{"type":"integer","minimum":1,"maximum":20},"member":{"type":"string","description":"Search the tools of this server alone"}},"required":["query"]},"#,
    r#""annotations":{"readOnlyHint":true,"openWorldHint":false}},"#,
    r#"{"name":"call_read","title":"Call a tool that only reads","description":"Calls a tool found by find_tools that changes nothing (readOnlyHint).","#,
    r#""inputSchema":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name"]},"annotations":{"readOnlyHint":true}},"#,
    r#"{"name":"call_write","title":"Call a tool that adds","description":"Calls a tool found by find_tools that destroys nothing (destructiveHint is false).","#,
    r#""inputSchema":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name"]},"annotations":{"readOnlyHint":false,"destructiveHint":false}},"#,
    r#"{"name":"call_destructive","title":"Call any tool","description":"Calls any tool found by find_tools, even one that may change or remove what is there.","#,
    r#""inputSchema":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name"]},"annotations":{"readOnlyHint":false,"destructiveHint":true}}"#,
);

/// What a client searches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) text: String,
    pub(crate) limit: usize,
    pub(crate) member: Option<String>,
}

impl Query {
    /// Reads the arguments of `find_tools`. Returns the reason if they are not fit.
    pub(crate) fn read(arguments: Option<&[u8]>) -> Result<Self, &'static str> {
        let arguments: Value = arguments
            .and_then(|raw| serde_json::from_slice(raw).ok())
            .unwrap_or_default();
        let text = arguments.get("query").and_then(Value::as_str);
        let limit = match arguments.get("limit") {
            None | Some(Value::Null) => DEFAULT_FOUND,
            Some(limit) => limit.as_u64().ok_or("`limit` must be a number from 1 to 20")? as usize,
        };
        Ok(Self {
            text: text.ok_or("`query` must be a text")?.to_owned(),
            limit: limit.clamp(1, MAX_FOUND),
            member: arguments.get("member").and_then(Value::as_str).map(str::to_owned),
        })
    }
}

/// An index of tools.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// For each word the tools that have it, and how often.
    words: BTreeMap<String, Vec<(usize, u32)>>,
    lengths: Vec<u32>,
    total: u64,
}

impl Index {
    /// Returns the index of these raw tools.
    pub(crate) fn of<'a>(tools: impl Iterator<Item = &'a str>) -> Self {
        let mut index = Self::default();
        for (at, raw) in tools.enumerate() {
            let tool: Value = serde_json::from_str(raw).unwrap_or_default();
            let counted = counted_words(&tool);
            let length = counted.values().sum();
            for (word, count) in counted {
                index.words.entry(word).or_default().push((at, count));
            }
            index.lengths.push(length);
            index.total += u64::from(length);
        }
        index
    }

    /// Returns the tools that fit best, the best first. `keep` is whether a tool may be shown.
    pub(crate) fn find(&self, query: &str, limit: usize, keep: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut scores: BTreeMap<usize, f64> = BTreeMap::new();
        let count = self.lengths.len() as f64;
        let average = (self.total as f64 / count.max(1.0)).max(1.0);
        let mut wanted = words(query);
        wanted.truncate(MAX_WORDS);
        wanted.sort_unstable();
        wanted.dedup();
        for word in wanted {
            let Some(having) = self.words.get(&word) else {
                continue;
            };
            let rarity = (1.0 + (count - having.len() as f64 + 0.5) / (having.len() as f64 + 0.5)).ln();
            for (at, times) in having {
                let length = self.lengths.get(*at).copied().unwrap_or(0);
                let times = f64::from(*times);
                let damped = SATURATION * (1.0 - LENGTH + LENGTH * f64::from(length) / average);
                *scores.entry(*at).or_default() += rarity * times * (SATURATION + 1.0) / (times + damped);
            }
        }
        let mut found: Vec<(usize, f64)> = scores.into_iter().filter(|(at, _)| keep(*at)).collect();
        // Equals stay in the order of the list.
        found.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        found.into_iter().take(limit).map(|(at, _)| at).collect()
    }
}

fn counted_words(tool: &Value) -> BTreeMap<String, u32> {
    let mut counted = BTreeMap::new();
    let mut count = |text: &str, weight: u32| {
        for word in words(text) {
            *counted.entry(word).or_insert(0) += weight;
        }
    };
    let text = |pointer: &str| tool.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    count(text("/name"), NAME_WEIGHT);
    count(text("/title"), NAME_WEIGHT);
    count(text("/annotations/title"), 1);
    count(text("/description"), 1);
    let arguments = tool.pointer("/inputSchema/properties").and_then(Value::as_object);
    for name in arguments.into_iter().flatten().map(|(name, _)| name) {
        count(name, 1);
    }
    counted
}

/// Returns the words of a text in lower case, split at everything that is no letter or digit, and
/// where a capital follows a small letter.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_small = false;
    for char in text.chars() {
        let ends = !char.is_alphanumeric() || (was_small && char.is_uppercase());
        if ends && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if char.is_alphanumeric() {
            word.extend(char.to_lowercase());
        }
        was_small = char.is_lowercase() || char.is_numeric();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::elements;

    const TOOLS: [&str; 4] = [
        r#"{"name":"gh__createIssue","description":"Opens an issue in a repository","inputSchema":{"properties":{"title":{}}}}"#,
        r#"{"name":"gh__list_issues","description":"Lists all issues"}"#,
        r#"{"name":"files__read_file","description":"Reads a file and returns its text. A file has lines.","inputSchema":{"properties":{"path":{}}}}"#,
        r#"{"name":"mail__send","title":"Send mail","description":"Sends a message with an issue number"}"#,
    ];

    fn found(query: &str) -> Vec<usize> {
        Index::of(TOOLS.into_iter()).find(query, 20, |_| true)
    }

    #[test]
    fn words_of_a_name_are_found_and_count_most() {
        assert_eq!(
            words("createIssue_in-repo2Go"),
            ["create", "issue", "in", "repo2", "go"]
        );
        assert_eq!(found("issue"), [0, 3], "a name counts more than a description");
        assert_eq!(found("CREATE an issue").first(), Some(&0));
        assert_eq!(found("path"), [2], "names of arguments are searched");
        assert_eq!(found("mail"), [3]);
        assert!(found("nothing like it").is_empty());
        assert!(found("").is_empty());
    }

    #[test]
    fn result_is_limited_and_filtered() {
        let index = Index::of(TOOLS.into_iter());
        assert_eq!(index.find("issue", 1, |_| true), [0]);
        assert_eq!(index.find("issue", 20, |at| at != 0), [3]);
    }

    #[test]
    fn query_is_read_and_its_limit_kept() {
        let query = |raw: &str| Query::read(Some(raw.as_bytes()));
        assert_eq!(query(r#"{"query":"x"}"#).unwrap().limit, 10);
        assert_eq!(query(r#"{"query":"x","limit":500}"#).unwrap().limit, 20);
        assert_eq!(
            query(r#"{"query":"x","member":"gh"}"#).unwrap().member.as_deref(),
            Some("gh")
        );
        for bad in ["{}", "[]", r#"{"query":7}"#, r#"{"query":"x","limit":"many"}"#] {
            assert!(query(bad).is_err(), "{bad}");
        }
        assert!(Query::read(None).is_err());
    }

    #[test]
    fn own_tools_have_their_names_and_effects() {
        let definitions = format!("[{DEFINITIONS}]");
        let tools = elements(&definitions).unwrap();
        assert_eq!(tools.len(), RESERVED_NAMES.len());
        for (raw, name) in tools.iter().zip(RESERVED_NAMES) {
            let tool: Value = serde_json::from_str(raw).unwrap();
            assert_eq!(tool["name"], name);
            match SearchTool::named(name).unwrap() {
                SearchTool::Find => assert_eq!(Effect::of(raw), Effect::Read),
                SearchTool::Call(effect) => assert_eq!(Effect::of(raw), effect),
            }
        }
        assert_eq!(SearchTool::named("other"), None);
    }
}
