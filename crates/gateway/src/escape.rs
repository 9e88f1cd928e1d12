//! Text from strangers, made safe to write as part of one line of a log.
//!
//! A tool name, a host or a line of a child's stderr may hold line breaks, terminal commands, or
//! marks that turn the reading direction around; written as they are, they forge records.
//! Everything that could do so is spelled out, and nothing is longer than its limit. It does not
//! judge what a text means: secrets are the business of `audit::redact`.

use std::fmt::{self, Write};

/// The longest value a record carries.
pub const MAX_VALUE_BYTES: usize = 4096;

/// Stands at the end of a value that was cut.
pub const TRUNCATED: &str = "…truncated";

/// Returns whether a character can break a line, drive a terminal, or hide or reorder the text
/// around it.
pub fn is_hazard(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
    )
}

/// Returns the longest beginning of `text` that has at most `limit` bytes and does not split a
/// character.
pub fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// Returns a text of several lines with its hazards spelled out. Lines and tabs stay.
pub fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            character if is_hazard(character) => out.extend(character.escape_unicode()),
            character => out.push(character),
        }
    }
    out
}

/// Writes `text` as a JSON string with its quotes, cut at `limit` bytes.
pub fn json_string<W: Write>(out: &mut W, text: &str, limit: usize) -> fmt::Result {
    out.write_char('"')?;
    // Nearly all names are short and have nothing to spell out.
    if text.len() <= limit && text.bytes().all(is_plain) {
        out.write_str(text)?;
        return out.write_char('"');
    }
    let kept = cut(text, limit);
    spell_out::<true, W>(out, kept)?;
    if kept.len() < text.len() {
        out.write_str(TRUNCATED)?;
    }
    out.write_char('"')
}

/// Writes valid JSON without line breaks outside its strings, with the hazards inside its strings
/// spelled out.
///
/// In valid JSON such characters can only stand inside strings, where the escape means the same.
pub fn json_text<W: Write>(out: &mut W, json: &str) -> fmt::Result {
    spell_out::<false, W>(out, json)
}

#[derive(Clone, Copy)]
enum Byte {
    Plain,
    Quoting,
    Control,
    /// The first byte of characters of which some are hazards.
    Lead,
}

const BYTES: [Byte; 256] = {
    let mut table = [Byte::Plain; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = Byte::Control;
        byte += 1;
    }
    table[0x7f] = Byte::Control;
    table[b'"' as usize] = Byte::Quoting;
    table[b'\\' as usize] = Byte::Quoting;
    table[0xc2] = Byte::Lead;
    table[0xd8] = Byte::Lead;
    table[0xe2] = Byte::Lead;
    table[0xef] = Byte::Lead;
    table
};

/// Returns whether a byte stands for a character of its own that is written as it is.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

fn spell_out<const QUOTE: bool, W: Write>(out: &mut W, text: &str) -> fmt::Result {
    let bytes = text.as_bytes();
    let (mut start, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let length = match BYTES[usize::from(byte)] {
            Byte::Plain => {
                at += 1;
                continue;
            }
            Byte::Quoting if !QUOTE => {
                at += 1;
                continue;
            }
            Byte::Quoting => {
                out.write_str(&text[start..at])?;
                out.write_char('\\')?;
                out.write_char(char::from(byte))?;
                1
            }
            Byte::Control => {
                out.write_str(&text[start..at])?;
                match byte {
                    b'\n' => out.write_str("\\n")?,
                    b'\r' => out.write_str("\\r")?,
                    b'\t' => out.write_str("\\t")?,
                    other => write!(out, "\\u{other:04x}")?,
                }
                1
            }
            Byte::Lead => {
                let character = text[at..].chars().next().unwrap_or_default();
                let length = character.len_utf8();
                if !is_hazard(character) {
                    at += length;
                    continue;
                }
                out.write_str(&text[start..at])?;
                // Every hazard lies in the basic plane, so four digits always do.
                write!(out, "\\u{:04x}", u32::from(character))?;
                length
            }
        };
        at += length;
        start = at;
    }
    out.write_str(&text[start..])
}

/// A writer of one value for people: hazards are spelled as in Rust (`\n`, `\u{202e}`), and the
/// value is cut.
#[derive(Debug)]
pub struct OneLine<'a, W: Write> {
    out: &'a mut W,
    left: usize,
    is_cut: bool,
}

impl<'a, W: Write> OneLine<'a, W> {
    pub fn new(out: &'a mut W, limit: usize) -> Self {
        Self {
            out,
            left: limit,
            is_cut: false,
        }
    }
}

impl<W: Write> Write for OneLine<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_cut {
            return Ok(());
        }
        let kept = cut(text, self.left);
        self.left -= kept.len();
        let mut rest = kept;
        while let Some((at, character)) = rest.char_indices().find(|(_, found)| is_hazard(*found)) {
            self.out.write_str(&rest[..at])?;
            write!(self.out, "{}", character.escape_default())?;
            rest = &rest[at + character.len_utf8()..];
        }
        self.out.write_str(rest)?;
        if kept.len() < text.len() {
            self.is_cut = true;
            self.out.write_str(TRUNCATED)?;
        }
        Ok(())
    }
}

/// Returns `text` as one line that a terminal shows and does not obey, cut at `limit` bytes.
pub fn one_line(text: &str, limit: usize) -> String {
    let mut line = String::new();
    // Writing to a `String` cannot fail.
    let _ = OneLine::new(&mut line, limit).write_str(text);
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn as_json(text: &str) -> String {
        let mut out = String::new();
        json_string(&mut out, text, MAX_VALUE_BYTES).unwrap();
        out
    }

    #[test]
    fn lines_stay_and_hazards_among_them_are_spelled_out() {
        assert_eq!(lines("a\n\tb\u{1b}[2J\u{202e}ü•"), "a\n\tb\\u{1b}[2J\\u{202e}ü•");
    }

    proptest! {
        #[test]
        fn any_text_survives_as_a_json_string(text in any::<String>()) {
            let json = as_json(&text);
            prop_assert!(!json.chars().any(is_hazard));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }

        #[test]
        fn hazardous_text_survives_as_a_json_string(text in "[\u{0}-\u{a0}\u{600}-\u{620}\u{2000}-\u{2070}\u{fef0}-\u{ffff}]*") {
            let json = as_json(&text);
            prop_assert!(!json.chars().any(is_hazard));
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }

        #[test]
        fn json_keeps_its_meaning_when_its_hazards_are_spelled_out(text in any::<String>()) {
            let json = serde_json::to_string(&text).unwrap();
            let mut out = String::new();
            json_text(&mut out, &json).unwrap();
            prop_assert!(!out.chars().any(is_hazard));
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        }

        #[test]
        fn a_value_for_people_holds_no_hazard_and_is_bounded(pieces in proptest::collection::vec(any::<String>(), 0..8)) {
            let mut out = String::new();
            let mut value = OneLine::new(&mut out, 20);
            for piece in &pieces {
                value.write_str(piece).unwrap();
            }
            prop_assert!(!out.chars().any(is_hazard));
            prop_assert!(out.len() <= 20 * 10 + TRUNCATED.len());
        }
    }

    #[test]
    fn a_long_value_is_cut_between_characters_and_marked() {
        let mut out = String::new();
        json_string(&mut out, "aé", 2).unwrap();
        assert_eq!(out, "\"a…truncated\"");
    }

    #[test]
    fn a_value_for_people_is_cut_once_across_its_pieces() {
        let mut out = String::new();
        let mut value = OneLine::new(&mut out, 4);
        for piece in ["ab", "c\nd", "efg"] {
            value.write_str(piece).unwrap();
        }
        assert_eq!(out, "abc\\n…truncated");
    }
}
