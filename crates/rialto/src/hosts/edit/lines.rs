//! An edit of plain text, carried over to the text as it is in the file.
//!
//! Editors of JSON and TOML see the text without its byte order mark and with plain line breaks. Of
//! their result only the part between the first and the last difference is taken over, so that no
//! other byte of the file can change.

/// Returns the text with the edit, or `None` if the edit has no result.
pub(in crate::hosts) fn in_place(
    original: &str,
    edit: impl FnOnce(&str) -> Option<String>,
) -> Option<String> {
    let body = original.strip_prefix('\u{feff}').unwrap_or(original);
    let mark = &original[..original.len() - body.len()];
    let plain = body.replace("\r\n", "\n");
    let edited = edit(&plain)?;
    let start = common_start(&plain, &edited);
    let end = common_end(&plain[start..], &edited[start..]);
    let inserted = &edited[start..edited.len() - end];
    let inserted = match uses_crlf(body) {
        true => inserted.replace('\n', "\r\n"),
        false => inserted.to_owned(),
    };
    let from = position(body, start);
    let to = position(body, plain.len() - end);
    Some([mark, &body[..from], &inserted, &body[to..]].concat())
}

/// Returns whether the first line ends with CR LF.
fn uses_crlf(text: &str) -> bool {
    text.find('\n').is_some_and(|at| text[..at].ends_with('\r'))
}

/// Returns whether some lines end with CR LF, and some with LF.
pub(super) fn are_mixed(text: &str) -> bool {
    let pairs = text.matches("\r\n").count();
    pairs > 0 && pairs < text.matches('\n').count()
}

fn common_start(one: &str, two: &str) -> usize {
    let same = one.char_indices().zip(two.chars()).find(|((_, a), b)| a != b);
    match same {
        Some(((at, _), _)) => at,
        None => one.len().min(two.len()),
    }
}

fn common_end(one: &str, two: &str) -> usize {
    one.chars()
        .rev()
        .zip(two.chars().rev())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum()
}

/// Returns where a position of the plain text is in the text with its own line breaks.
fn position(body: &str, plain: usize) -> usize {
    let mut passed = 0;
    let mut at = 0;
    while passed < plain {
        let rest = &body[at..];
        let character = rest.chars().next().map_or(1, char::len_utf8);
        let is_pair = rest.starts_with("\r\n");
        at += if is_pair { 2 } else { character };
        passed += if is_pair { 1 } else { character };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_edited_part_changes_and_gets_the_line_breaks_of_the_file() {
        for (original, expected) in [
            ("a\nb\nc\n", "a\nX\nY\nc\n"),
            ("a\r\nb\r\nc\r\n", "a\r\nX\r\nY\r\nc\r\n"),
            ("\u{feff}a\r\nb\r\nc\n", "\u{feff}a\r\nX\r\nY\r\nc\n"),
            ("ä\nb\nü\r\n", "ä\nX\nY\nü\r\n"),
        ] {
            let edited = in_place(original, |plain| Some(plain.replace('b', "X\nY")));
            assert_eq!(edited.as_deref(), Some(expected), "{original:?}");
        }
    }

    #[test]
    fn mixed_line_ends_are_noticed() {
        for (text, expected) in [
            ("a\nb\n", false),
            ("a\r\nb\r\n", false),
            ("a\r\nb\n", true),
            ("", false),
        ] {
            assert_eq!(are_mixed(text), expected, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_an_edit_leaves_alone_stays_byte_for_byte(
            before in "(a|ä|\r\n|\n|x)*", after in "(a|ä|\r\n|\n|x)*", inserted in "[bB\n]*"
        ) {
            let original = format!("{before}#{after}");
            let edited = in_place(&original, |plain| Some(plain.replace('#', &inserted))).expect("edited");
            let plain = original.replace("\r\n", "\n").replace('#', &inserted);
            proptest::prop_assert_eq!(edited.replace("\r\n", "\n"), plain);
            if !inserted.is_empty() && !inserted.starts_with('\n') && !inserted.ends_with('\n') {
                proptest::prop_assert!(edited.starts_with(&before) && edited.ends_with(&after));
            }
        }
    }
}
