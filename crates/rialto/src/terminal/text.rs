//! Values as people read them, and lines that fit a terminal.

use std::time::Duration;

/// A colour or weight, where the terminal may have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Dim,
    Bold,
    Green,
    Yellow,
    Red,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
            Self::Red => "\x1b[31m",
        }
    }

    /// Returns the text in this style, if the terminal may have it.
    pub(crate) fn paint(self, text: &str, has_colour: bool) -> String {
        match has_colour && self != Self::Plain && !text.is_empty() {
            true => format!("{}{text}\x1b[0m", self.code()),
            false => text.to_owned(),
        }
    }
}

/// Returns a text cut to so many columns, with a mark where it was cut.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

/// Returns a text in exactly so many columns, cut or filled up at its end.
pub(crate) fn column(text: &str, columns: usize) -> String {
    let mut cell = cut(text, columns);
    cell.extend(std::iter::repeat_n(
        ' ',
        columns.saturating_sub(cell.chars().count()),
    ));
    cell
}

/// The same, filled up at its beginning: for numbers.
pub(crate) fn column_right(text: &str, columns: usize) -> String {
    let cell = cut(text, columns);
    let room = columns.saturating_sub(cell.chars().count());
    " ".repeat(room) + &cell
}

/// Returns a text in lines of at most so many columns, broken at spaces where there are some.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut rest: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    while rest.len() > columns {
        let head = rest.get(..=columns).unwrap_or_default();
        let space = head.iter().rposition(|character| *character == ' ');
        let at = space.filter(|at| *at > 0).unwrap_or(columns);
        let tail = rest.split_off(at);
        lines.push(rest.into_iter().collect());
        let skipped = usize::from(space.is_some_and(|at| at > 0));
        rest = tail.into_iter().skip(skipped).collect();
    }
    lines.push(rest.into_iter().collect());
    lines
}

/// `3 ms`, `2.1 s`, `12 s`, `4 min`.
pub(crate) fn span(span: Duration) -> String {
    let milliseconds = span.as_millis();
    match milliseconds {
        0..1_000 => format!("{milliseconds} ms"),
        1_000..9_950 => format!("{:.1} s", span.as_secs_f64()),
        9_950..120_000 => format!("{:.0} s", span.as_secs_f64()),
        _ => format!("{} min", span.as_secs() / 60),
    }
}

/// `842 B`, `1.2 kB`, `3.4 MB`.
pub(crate) fn size(bytes: u64) -> String {
    let scaled = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..999_500 => one_decimal(scaled / 1e3, "kB"),
        _ => one_decimal(scaled / 1e6, "MB"),
    }
}

fn one_decimal(value: f64, unit: &str) -> String {
    match value < 9.95 {
        true => format!("{value:.1} {unit}"),
        false => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_digits_and_a_unit() {
        for (milliseconds, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (2_140, "2.1 s"),
            (11_600, "12 s"),
            (119_000, "119 s"),
            (250_000, "4 min"),
        ] {
            assert_eq!(span(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn sizes_have_two_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (842, "842 B"),
            (1_234, "1.2 kB"),
            (12_345, "12 kB"),
            (999_999, "1.0 MB"),
            (3_400_000, "3.4 MB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn columns_are_cut_and_filled_up_by_characters() {
        assert_eq!(column("äöü", 5), "äöü  ");
        assert_eq!(column("abcdef", 4), "abc…");
        assert_eq!(column_right("3 ms", 6), "  3 ms");
        assert_eq!(cut("abc", 0), "…");
    }

    #[test]
    fn lines_are_broken_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("", 4), [""]);
    }

    #[test]
    fn styles_are_for_terminals_that_may_have_them() {
        assert_eq!(Style::Dim.paint("x", false), "x");
        assert_eq!(Style::Dim.paint("x", true), "\x1b[2mx\x1b[0m");
        assert_eq!(Style::Plain.paint("x", true), "x");
    }
}
