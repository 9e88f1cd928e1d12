//! Which tools of a server may be seen and called.
//!
//! A policy is judged by the name exactly as the server will read it: the JSON string decoded, not
//! folded, not normalised, not trimmed. What could be read in two ways (control characters, white
//! space at an end) is denied wherever there is a policy, since a server that stops at a NUL must
//! not be led past it. It refuses to look at anything but names: what a tool does with its
//! arguments is the server's business.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::message::{Kind, Member, Message};
use crate::method::Method;
use crate::object::Object;

/// A pattern of names: `*` stands for any text, `?` for one character, everything else for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// What stands before the first `*` or `?`; with most names that do not match, this is already
    /// different.
    literal: String,
    rest: Vec<char>,
}

impl std::fmt::Display for Glob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.literal)?;
        self.rest.iter().try_for_each(|part| write!(f, "{part}"))
    }
}

impl Glob {
    /// `None` for a pattern that no name could match: an empty one.
    pub fn parse(pattern: &str) -> Option<Self> {
        let (literal, rest) = pattern.split_at(pattern.find(['*', '?']).unwrap_or(pattern.len()));
        (!pattern.is_empty()).then(|| Self {
            literal: literal.to_owned(),
            rest: rest.chars().collect(),
        })
    }

    /// Returns whether the whole name matches. It takes at most `pattern × name` steps and no
    /// stack: a star is taken back to the last one only, which is enough because an earlier star
    /// can give nothing that a later cannot.
    pub fn matches(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(self.literal.as_str()) else {
            return false;
        };
        let pattern = self.rest.as_slice();
        let mut rest = name.chars();
        let mut at = 0;
        // Behind the last star: where the pattern goes on, and what of the name was left then.
        let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let before = rest.clone();
            match (pattern.get(at), rest.next()) {
                (Some('*'), _) => {
                    at += 1;
                    if at == pattern.len() {
                        return true;
                    }
                    rest = before.clone();
                    retry = Some((at, before));
                }
                (Some('?'), Some(_)) => at += 1,
                (Some(expected), Some(found)) if *expected == found => at += 1,
                (None, None) => return true,
                (Some(_), None) => return false,
                (Some(_) | None, Some(_)) => {
                    let Some((behind, left)) = &mut retry else {
                        return false;
                    };
                    left.next();
                    at = *behind;
                    rest = left.clone();
                }
            }
        }
    }
}

/// The tools of one destination that its clients may use. `deny` wins over `allow`; with an `allow`
/// list every other tool is denied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolPolicy {
    /// Where this is not empty, a tool must match one of these.
    pub allow: Vec<Glob>,
    /// A tool that matches one of these is denied.
    pub deny: Vec<Glob>,
}

/// A call that the policy does not let through; the name as far as there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The name of the tool.
    pub name: String,
}

impl ToolPolicy {
    /// Returns whether everything passes.
    pub fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Returns whether a tool of this name may be used.
    pub fn permits(&self, name: &str) -> bool {
        if self.is_open() {
            return true;
        }
        is_unambiguous(name)
            && !self.deny.iter().any(|glob| glob.matches(name))
            && (self.allow.is_empty() || self.allow.iter().any(|glob| glob.matches(name)))
    }

    /// Checks a client's message: everything but a call of a tool passes.
    pub fn check(&self, message: &Message) -> Result<(), Denied> {
        if self.is_open() || message.method() != Method::ToolsCall {
            return Ok(());
        }
        match message.text(Member::Name) {
            Some(name) if self.permits(&name) => Ok(()),
            Some(name) => Err(Denied {
                name: name.into_owned(),
            }),
            // A name that we cannot read is one that the server might.
            None => Err(Denied { name: String::new() }),
        }
    }

    /// Returns an answer to `tools/list` without the tools that may not be called; `None` if it is
    /// to stay as it is. Each tool that remains keeps its bytes.
    pub fn without_denied(&self, answer: &Message) -> Option<Message> {
        if self.is_open() {
            return None;
        }
        retain_tools(answer, |tool| {
            name_of(tool).is_some_and(|name| self.permits(&name))
        })
    }
}

/// Returns an answer to `tools/list` with the tools for which `keep` is true of their JSON, or
/// `None` if these are all. Each of them keeps its bytes.
pub(crate) fn retain_tools(answer: &Message, keep: impl Fn(&str) -> bool) -> Option<Message> {
    if answer.kind() != Kind::Result {
        return None;
    }
    let mut result = Object::parse(answer.raw(Member::Result)?)?;
    let tools: Vec<&RawValue> = serde_json::from_str(result.get("tools")?).ok()?;
    let kept: Vec<&str> = tools
        .iter()
        .map(|tool| tool.get())
        .filter(|tool| keep(tool))
        .collect();
    if kept.len() == tools.len() {
        return None;
    }
    let kept = format!("[{}]", kept.join(","));
    result.remove("tools");
    result.set("tools", Cow::Owned(kept));
    let edited = answer.spliced(&[(Member::Result, result.to_string().as_bytes())]);
    Message::scan(edited).ok()
}

fn name_of(tool: &str) -> Option<String> {
    Object::parse(tool.as_bytes())?.text("name")
}

/// Returns whether every reader takes a name for the same: it has nothing that one would drop and
/// another keep.
pub fn is_unambiguous(name: &str) -> bool {
    // Nearly all names are made of letters, digits and marks.
    if name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return !name.is_empty();
    }
    !name.is_empty() && name.trim() == name && !name.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn glob(pattern: &str) -> Glob {
        Glob::parse(pattern).unwrap()
    }

    fn policy(allow: &[&str], deny: &[&str]) -> ToolPolicy {
        ToolPolicy {
            allow: allow.iter().map(|pattern| glob(pattern)).collect(),
            deny: deny.iter().map(|pattern| glob(pattern)).collect(),
        }
    }

    fn message(text: &str) -> Message {
        Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn call(raw_name: &str) -> Message {
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":{raw_name}}}}}"#
        ))
    }

    #[test]
    fn stars_and_question_marks_stand_for_others() {
        for (pattern, name) in [
            ("echo", "echo"),
            ("*", ""),
            ("*", "anything"),
            ("read_*", "read_"),
            ("read_*", "read_file"),
            ("*_file", "read_file"),
            ("*a*b*", "xxaxxbxx"),
            ("r?ad", "read"),
            ("?", "ü"),
            ("a**b", "ab"),
            ("*aab", "aaab"),
            ("über*", "über"),
            ("ü?", "üb"),
        ] {
            assert!(glob(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("echo", "Echo"),
            ("echo", "echo2"),
            ("echo", "ech"),
            ("read_*", "write_file"),
            ("?", ""),
            ("?", "ab"),
            ("*a*b", "xxaxxbxx"),
            ("read?*", "read"),
            ("über*", "ü"),
            ("é", "e\u{301}"),
        ] {
            assert!(!glob(pattern).matches(name), "{pattern} {name}");
        }
        assert_eq!(Glob::parse(""), None);
    }

    #[test]
    fn denial_wins_and_an_allowance_denies_the_rest() {
        let both = policy(&["read_*"], &["*_secret"]);
        assert!(both.permits("read_file"));
        assert!(!both.permits("read_secret"));
        assert!(!both.permits("write_file"));
        assert!(policy(&[], &["drop_*"]).permits("read_file"));
        assert!(policy(&[], &[]).permits("anything \0 at all"));
    }

    #[test]
    fn g15_the_name_is_judged_as_the_server_reads_it() {
        let denying = policy(&[], &["delete"]);
        // The escape decodes to the denied name itself.
        assert!(denying.check(&call(r#""\u0064elete""#)).is_err());
        for ambiguous in [
            r#""delete\u0000""#,
            r#""delete ""#,
            r#"" delete""#,
            r#""delete\n""#,
            r#""""#,
            "7",
            "null",
            r#""\ud800""#,
        ] {
            assert!(denying.check(&call(ambiguous)).is_err(), "{ambiguous}");
        }
        // Other bytes are another name, for the server too.
        for other in [r#""Delete""#, r#""deletе""#, r#""delete2""#] {
            assert!(denying.check(&call(other)).is_ok(), "{other}");
        }
        let allowing = policy(&["echo"], &[]);
        for other in [r#""Echo""#, r#""еcho""#, r#""echo\u200b""#, r#""ECHO""#] {
            assert!(allowing.check(&call(other)).is_err(), "{other}");
        }
        assert!(allowing.check(&call(r#""\u0065cho""#)).is_ok());
    }

    #[test]
    fn only_calls_of_tools_are_judged() {
        let list = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"name":"x"}}"#);
        assert!(policy(&["echo"], &[]).check(&list).is_ok());
    }

    #[test]
    fn a_list_loses_what_is_denied_and_keeps_the_bytes_of_the_rest() {
        let kept = r#"{ "name" : "echo", "n":1.50e3,"description":"\u0041" }"#;
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":3,"result":{{"tools":[{{"name":"drop"}}, {kept} ,{{"nameless":1}},7],"nextCursor":"c"}}}}"#
        );
        let filtered = policy(&["echo"], &[]).without_denied(&message(&text)).unwrap();
        assert_eq!(
            std::str::from_utf8(filtered.bytes()).unwrap(),
            format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"nextCursor":"c","tools":[{kept}]}}}}"#)
        );
    }

    #[test]
    fn a_list_without_denied_tools_stays_as_it_is() {
        let policy = policy(&["*"], &["drop"]);
        for text in [
            r#"{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"echo"}]}}"#,
            r#"{"jsonrpc":"2.0","id":3,"result":{"tools":[]}}"#,
            r#"{"jsonrpc":"2.0","id":3,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":3,"result":{"tools":"none"}}"#,
            r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"no"}}"#,
        ] {
            assert!(policy.without_denied(&message(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn a_tool_list_that_stands_twice_is_filtered_too() {
        let text =
            r#"{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"drop"}],"tools":[{"name":"drop"}]}}"#;
        let filtered = policy(&["echo"], &[]).without_denied(&message(text)).unwrap();
        assert!(!String::from_utf8_lossy(filtered.bytes()).contains("drop"));
    }

    /// The definition, by recursion over what a star takes; only for short texts.
    fn defined(pattern: &[char], name: &[char]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => (0..=name.len()).any(|taken| defined(rest, &name[taken..])),
            (Some(('?', rest)), Some((_, left))) => defined(rest, left),
            (Some((expected, rest)), Some((found, left))) => expected == found && defined(rest, left),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn matching_is_what_its_definition_says(pattern in "[ab*?]{1,8}", name in "[abc]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(glob(&pattern).matches(&name), defined(&chars(&pattern), &chars(&name)));
        }

        #[test]
        fn every_listed_tool_may_be_called(names in proptest::collection::vec("\\PC{0,6}", 0..6), pattern in "[a-c*?]{1,3}") {
            let policy = policy(&[&pattern], &["*b"]);
            let tools: Vec<String> = names.iter().map(|name| serde_json::json!({"name": name}).to_string()).collect();
            let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{}]}}}}"#, tools.join(",")));
            let shown = policy.without_denied(&answer).unwrap_or(answer);
            let shown: serde_json::Value = serde_json::from_slice(shown.bytes()).unwrap();
            let shown: Vec<&str> = shown["result"]["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
            let callable: Vec<&str> = names.iter().map(String::as_str).filter(|name| policy.permits(name)).collect();
            prop_assert_eq!(shown, callable);
        }
    }

    #[test]
    fn a_hostile_pattern_costs_no_more_than_pattern_times_name() {
        // With backtracking over all stars this would not end.
        let hostile = glob(&"*a".repeat(500));
        assert!(!hostile.matches(&format!("{}b", "a".repeat(5000))));
        assert!(hostile.matches(&"a".repeat(5000)));
    }
}
