//! The instructions of an aggregate: its own text, then that of each member, within a limit.

/// What stands where a text was cut.
const CUT: &str = "…";

/// The instructions of all members together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Instructions {
    pub(super) text: Option<String>,
    /// The members whose text was cut.
    pub(super) cut: Vec<usize>,
}

/// Returns the instructions. `members` has the position, the heading and the text of each member
/// that has one. All texts are cut to one length if they are too long together.
pub(super) fn instructions(
    own: Option<&str>,
    members: &[(usize, Option<&str>, String)],
    limit: usize,
) -> Instructions {
    let headings = members
        .iter()
        .map(|(_, heading, _)| heading.map_or(0, |heading| heading.len() + 6));
    let fixed = own.map_or(0, |own| own.len() + 2) + headings.sum::<usize>();
    let room = limit.saturating_sub(fixed);
    let longest = longest_within(members.iter().map(|(_, _, text)| text.len()), room);
    let mut parts: Vec<String> = own.map(str::to_owned).into_iter().collect();
    let mut cut = Vec::new();
    for (at, heading, text) in members {
        let kept = if text.len() <= longest {
            text.clone()
        } else {
            cut.push(*at);
            shortened(text, longest)
        };
        if kept.is_empty() {
            continue;
        }
        match heading {
            Some(heading) => parts.push(format!("## {heading}\n{kept}")),
            None => parts.push(kept),
        }
    }
    Instructions {
        text: (!parts.is_empty()).then(|| parts.join("\n\n")),
        cut,
    }
}

/// Returns the greatest length to which texts of these lengths can be cut to fit together.
fn longest_within(lengths: impl Iterator<Item = usize>, room: usize) -> usize {
    let mut lengths: Vec<usize> = lengths.collect();
    lengths.sort_unstable();
    let mut left = room;
    let mut remaining = lengths.len();
    for length in &lengths {
        let share = left / remaining.max(1);
        if *length > share {
            return share;
        }
        left -= length;
        remaining -= 1;
    }
    usize::MAX
}

fn shortened(text: &str, length: usize) -> String {
    let Some(room) = length.checked_sub(CUT.len()) else {
        return String::new();
    };
    let end = (0..=room.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at));
    let kept = text.get(..end.unwrap_or(0)).unwrap_or_default();
    [kept.trim_end(), CUT].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: Option<&str>, texts: &[&str], limit: usize) -> Instructions {
        let names = ["gh", "files", "linear"];
        let members: Vec<(usize, Option<&str>, String)> = texts
            .iter()
            .enumerate()
            .map(|(at, text)| (at, Some(names[at]), (*text).to_owned()))
            .collect();
        instructions(own, &members, limit)
    }

    #[test]
    fn own_text_comes_first_and_each_member_has_a_heading() {
        let all = of(Some("Use gh."), &["For code.", "For files."], 2048);
        assert_eq!(
            all.text.as_deref(),
            Some("Use gh.\n\n## gh\nFor code.\n\n## files\nFor files.")
        );
        assert!(all.cut.is_empty());
        assert_eq!(of(None, &[], 2048), Instructions::default());
    }

    #[test]
    fn long_texts_are_cut_so_that_the_whole_stays_within_the_limit() {
        let long = "äö".repeat(1000);
        for limit in [100, 500, 2048] {
            let all = of(Some("Own."), &["Short.", &long, &long], limit);
            let text = all.text.unwrap();
            assert!(text.len() <= limit, "{} > {limit}", text.len());
            assert!(text.contains("Short.") && text.contains('…'));
            assert_eq!(all.cut, [1, 2]);
        }
        let exact = of(None, &["abc"], "## gh\nabc".len() + 10);
        assert!(exact.cut.is_empty());
    }
}
