//! Values at known places of raw JSON, replaced by splicing: every other byte stays.

use std::ops::Range;

use crate::message::{Member, Message};
use crate::object::{Object, elements};

/// One step of a path into raw JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The member of this name, as often as it stands there.
    Key(&'static str),
    /// Each element of an array.
    Each,
    /// Each member of an object.
    EachMember,
}

/// Replacements in one raw value, each at its place.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    edits: Vec<(Range<usize>, String)>,
}

impl Edits {
    /// Replaces the strings at the ends of these paths for which `replace` has another text. The
    /// value is taken apart once for all paths.
    pub(crate) fn strings(
        &mut self,
        raw: &str,
        paths: &[&[Step]],
        mut replace: impl FnMut(&str) -> Option<String>,
    ) {
        self.values(raw, paths, |value| {
            let text: String = serde_json::from_str(value).ok()?;
            replace(&text).map(|text| crate::message::quoted(&text))
        });
    }

    /// Replaces the raw values at the ends of these paths for which `replace` has another one.
    pub(crate) fn values(
        &mut self,
        raw: &str,
        paths: &[&[Step]],
        mut replace: impl FnMut(&str) -> Option<String>,
    ) {
        walk(raw, paths, &mut |value| {
            let Some(new) = replace(value) else { return };
            // The value borrows from `raw`, so its place in it is where the replacement goes.
            let start = value.as_ptr() as usize - raw.as_ptr() as usize;
            self.edits.push((start..start + value.len(), new));
        });
    }

    /// Returns the value with all replacements made; `None` if there are none.
    pub(crate) fn apply(mut self, raw: &str) -> Option<String> {
        if self.edits.is_empty() {
            return None;
        }
        self.edits.sort_by_key(|(place, _)| place.start);
        let grown: usize = self.edits.iter().map(|(_, new)| new.len()).sum();
        let mut out = String::with_capacity(raw.len() + grown);
        let mut from = 0;
        for (place, new) in &self.edits {
            // A place within one that was replaced is gone with it.
            let Some(kept) = raw.get(from..place.start) else {
                continue;
            };
            out.push_str(kept);
            out.push_str(new);
            from = place.end;
        }
        out.push_str(raw.get(from..).unwrap_or_default());
        Some(out)
    }
}

fn walk<'a>(raw: &'a str, paths: &[&[Step]], found: &mut dyn FnMut(&'a str)) {
    if paths.iter().any(|path| path.is_empty()) {
        return found(raw);
    }
    // What has another shape than expected has no such place.
    match raw.as_bytes().first() {
        Some(b'{') => {
            let members = Object::parse(raw.as_bytes()).unwrap_or_default();
            for (name, value) in members.into_borrowed() {
                descend(value, paths, Some(&name), found);
            }
        }
        Some(b'[') if paths.iter().any(|path| path.first() == Some(&Step::Each)) => {
            for value in elements(raw).unwrap_or_default() {
                descend(value, paths, None, found);
            }
        }
        Some(_) | None => {}
    }
}

/// Goes on in a member of this name, or in an element, along the paths that lead there.
fn descend<'a>(value: &'a str, paths: &[&[Step]], name: Option<&str>, found: &mut dyn FnMut(&'a str)) {
    let leads = |step: &Step| match step {
        Step::Key(key) => name == Some(key),
        Step::Each => name.is_none(),
        Step::EachMember => name.is_some(),
    };
    let further = paths.iter().filter_map(|path| {
        let (step, rest) = path.split_first()?;
        leads(step).then_some(rest)
    });
    let further: Vec<&[Step]> = further.collect();
    if !further.is_empty() {
        walk(value, &further, found);
    }
}

/// Returns a message with places of one member replaced; `None` if nothing was.
pub(crate) fn edited(
    message: &Message,
    member: Member,
    edit: impl FnOnce(&str, &mut Edits),
) -> Option<Message> {
    let raw = std::str::from_utf8(message.raw(member)?).ok()?;
    let mut edits = Edits::default();
    edit(raw, &mut edits);
    let new = edits.apply(raw)?;
    Message::scan(message.spliced(&[(member, new.as_bytes())])).ok()
}

#[cfg(test)]
mod tests {
    use super::Step::{Each, EachMember, Key};
    use super::*;

    fn upper(raw: &str, path: &[Step]) -> Option<String> {
        let mut edits = Edits::default();
        edits.strings(raw, &[path], |text| Some(text.to_uppercase()));
        edits.apply(raw)
    }

    #[test]
    fn known_places_change_and_every_other_byte_stays() {
        let raw = r#"{ "content" : [ {"uri": "a" , "n":1.50}, {"text":"uri"},{"uri":"\u0062"} ],"uri":"c" }"#;
        assert_eq!(
            upper(raw, &[Key("content"), Each, Key("uri")]).unwrap(),
            r#"{ "content" : [ {"uri": "A" , "n":1.50}, {"text":"uri"},{"uri":"B"} ],"uri":"c" }"#
        );
    }

    #[test]
    fn several_paths_are_followed_at_once() {
        let raw = r#"{"a":{"x":"p","y":"q"},"b":[{"x":"r"}]}"#;
        let mut edits = Edits::default();
        let paths: [&[Step]; 2] = [&[Key("b"), Each, Key("x")], &[Key("a"), Key("y")]];
        edits.strings(raw, &paths, |text| Some(text.to_uppercase()));
        assert_eq!(
            edits.apply(raw).unwrap(),
            r#"{"a":{"x":"p","y":"Q"},"b":[{"x":"R"}]}"#
        );
    }

    #[test]
    fn member_that_stands_twice_changes_twice() {
        assert_eq!(
            upper(r#"{"a":"x","\u0061":"y"}"#, &[Key("a")]).unwrap(),
            r#"{"a":"X","\u0061":"Y"}"#
        );
    }

    #[test]
    fn other_shapes_have_no_such_place() {
        assert_eq!(
            upper(r#"{"a":{"k":{"b":"x"}}}"#, &[Key("a"), Each, Key("b")]),
            None
        );
        for raw in ["[]", "7", r#""text""#, r#"{"a":7}"#, r#"{"b":"x"}"#, "{", ""] {
            assert_eq!(upper(raw, &[Key("a")]), None, "{raw}");
        }
        assert_eq!(
            upper(r#"{"a":{"k":{"b":"x"}}}"#, &[Key("a"), EachMember, Key("b")]).unwrap(),
            r#"{"a":{"k":{"b":"X"}}}"#
        );
    }
}
