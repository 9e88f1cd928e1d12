//! A shallow look into a JSON object: its members as raw slices, nothing parsed and nothing copied.
//!
//! It hides how a value is skipped. It does not validate: what bridges send is JSON, and a server
//! that checked would measure its own checking.

use memchr::memchr2;

/// The members of an object, in the order they stand in.
#[derive(Debug)]
pub struct Members<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Members<'a> {
    /// Looks into an object; anything else has no members.
    pub fn of(text: &'a [u8]) -> Self {
        let at = match skip_space(text, 0) {
            at if text.get(at) == Some(&b'{') => at + 1,
            _ => text.len(),
        };
        Self { text, at }
    }

    /// The value of one member.
    pub fn find(mut self, key: &[u8]) -> Option<&'a [u8]> {
        self.find_map(|(name, value)| (name == key).then_some(value))
    }
}

impl<'a> Iterator for Members<'a> {
    /// The key without its quotes, and the value as it is written.
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut at = skip_space(self.text, self.at);
        if self.text.get(at) == Some(&b',') {
            at = skip_space(self.text, at + 1);
        }
        if self.text.get(at) != Some(&b'"') {
            return None;
        }
        let key_end = string_end(self.text, at);
        let key = self.text.get(at + 1..key_end.checked_sub(1)?)?;
        let colon = skip_space(self.text, key_end);
        if self.text.get(colon) != Some(&b':') {
            return None;
        }
        let start = skip_space(self.text, colon + 1);
        let end = value_end(self.text, start);
        self.at = end;
        Some((key, self.text.get(start..end)?))
    }
}

/// The inside of a JSON string; escapes stay as they are written.
pub fn unquoted(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// A whole number.
pub fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

/// Behind the closing quote of the string that begins at `at`.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    loop {
        match memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
            Some(found) if text.get(at + found) == Some(&b'\\') => at += found + 2,
            Some(found) => return at + found + 1,
            None => return text.len(),
        }
    }
}

fn value_end(text: &[u8], start: usize) -> usize {
    match text.get(start) {
        Some(b'"') => string_end(text, start),
        Some(b'{' | b'[') => {
            let (mut at, mut depth) = (start, 0_usize);
            while let Some(byte) = text.get(at) {
                match byte {
                    b'"' => {
                        at = string_end(text, at);
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 {
                            return at + 1;
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
            at
        }
        _ => {
            let rest = text.get(start..).unwrap_or_default();
            let length = rest
                .iter()
                .position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n'))
                .unwrap_or(rest.len());
            start + length
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_in_any_order_and_whatever_stands_between_them() {
        let text = br#" { "a" : {"id":[1,"}"]} , "id":17,"t":"x\"}y" }"#;
        assert_eq!(Members::of(text).find(b"id"), Some(&b"17"[..]));
        assert_eq!(Members::of(text).find(b"a"), Some(&br#"{"id":[1,"}"]}"#[..]));
        assert_eq!(
            Members::of(text).find(b"t").and_then(unquoted),
            Some(&br#"x\"}y"#[..])
        );
        assert_eq!(Members::of(text).find(b"none"), None);
    }

    #[test]
    fn cut_text_and_other_values_have_no_members() {
        for text in [&b""[..], b"[1]", b"{", b"{\"a", b"{\"a\"", b"{\"a\":"] {
            assert_eq!(Members::of(text).find(b"b"), None);
        }
    }
}
