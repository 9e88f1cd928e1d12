//! The lines of a text that change, for a look before they are written.

/// Beyond this many lines without a match, the rest of both texts counts as changed.
const WINDOW: usize = 400;

/// Returns the changed lines, those that go with `-` and those that come with `+`. What is hidden
/// shows as `•••`.
pub(super) fn lines(before: &str, after: &str, hidden: &[String]) -> Vec<String> {
    let before: Vec<&str> = before.lines().collect();
    let after: Vec<&str> = after.lines().collect();
    let mut changed = Vec::new();
    let (mut old, mut new) = (0, 0);
    while old < before.len() || new < after.len() {
        if old < before.len() && before.get(old) == after.get(new) {
            old += 1;
            new += 1;
            continue;
        }
        let (gone, come) = next_match(
            before.get(old..).unwrap_or_default(),
            after.get(new..).unwrap_or_default(),
        );
        let shown = |mark: char, line: &&str| format!("{mark} {}", masked(line, hidden));
        changed.extend(before.iter().skip(old).take(gone).map(|line| shown('-', line)));
        changed.extend(after.iter().skip(new).take(come).map(|line| shown('+', line)));
        old += gone;
        new += come;
    }
    changed
}

/// Returns after how many lines of each the two go on alike. At least one line is passed.
fn next_match(before: &[&str], after: &[&str]) -> (usize, usize) {
    for total in 1..=WINDOW {
        for gone in 0..=total.min(before.len()) {
            let come = total - gone;
            if come > after.len() {
                continue;
            }
            let is_end = gone == before.len() && come == after.len();
            let is_same = before.get(gone).is_some_and(|line| {
                after.get(come) == Some(line) && before.get(gone + 1) == after.get(come + 1)
            });
            if is_end || is_same {
                return (gone, come);
            }
        }
    }
    (before.len(), after.len())
}

fn masked(line: &str, hidden: &[String]) -> String {
    let mut line = line.to_owned();
    for secret in hidden.iter().filter(|secret| !secret.is_empty()) {
        let quoted = crate::hosts::plain::quoted(secret);
        let inner = quoted.trim_matches('"');
        line = line.replace(inner, "•••").replace(secret.as_str(), "•••");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_shown_and_others_are_not() {
        let before = "{\n  \"command\": \"npx\",\n  \"args\": [\n    \"-y\"\n  ],\n  \"env\": {}\n}\n";
        let after = "{\n  \"command\": \"rialto\",\n  \"args\": [\"attach\"],\n  \"env\": {}\n}\n";
        assert_eq!(
            lines(before, after, &[]),
            [
                "-   \"command\": \"npx\",",
                "-   \"args\": [",
                "-     \"-y\"",
                "-   ],",
                "+   \"command\": \"rialto\",",
                "+   \"args\": [\"attach\"],",
            ]
        );
        assert_eq!(lines("a\n", "a\nb\n", &[]), ["+ b"]);
        assert_eq!(lines("a\nb\n", "b\n", &[]), ["- a"]);
        assert!(lines("a\nb\n", "a\nb\n", &[]).is_empty());
    }

    #[test]
    fn secrets_are_not_shown() {
        let hidden = ["ge\"heim".to_owned()];
        let shown = lines("  \"--token=ge\\\"heim\",\n  x ge\"heim\n", "", &hidden);
        assert_eq!(shown, ["-   \"--token=•••\",", "-   x •••"]);
    }

    proptest::proptest! {
        #[test]
        fn the_changed_lines_make_one_text_of_the_other(
            before in proptest::collection::vec("[ab]", 0..20), after in proptest::collection::vec("[ab]", 0..20)
        ) {
            let changed = lines(&before.join("\n"), &after.join("\n"), &[]);
            let count = |mark: char| changed.iter().filter(|line| line.starts_with(mark)).count() as i64;
            let lines = |text: &[String]| text.join("\n").lines().count() as i64;
            proptest::prop_assert_eq!(count('+') - count('-'), lines(&after) - lines(&before));
        }
    }
}
