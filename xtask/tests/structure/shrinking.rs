//! Lists of known exceptions to a rule, each with a count, that may only shrink.
//!
//! `UPDATE_STRUCTURE=1 cargo test -p xtask --test structure` writes the lists anew. It refuses a
//! list whose total would grow: an exception is added by hand, in a commit that says why. A line
//! may end with ` # reason`, and the reason stays.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Exceptions by name, with how often each occurs.
pub(crate) type Counts = BTreeMap<String, usize>;

/// What happens when there is less to list than the list says.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fallen {
    /// The rule fails until the list is written anew.
    Fails,
    /// The list is a limit.
    Passes,
}

/// A list beside this file.
pub(crate) struct List {
    pub(crate) name: &'static str,
    /// What the list is about; stands at its head.
    pub(crate) about: &'static str,
    pub(crate) fallen: Fallen,
}

impl List {
    fn path(&self) -> PathBuf {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/structure");
        folder.join(self.name)
    }

    /// Returns the list as it is written.
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_default()
    }

    /// Panics unless the exceptions are those of the list. `explain` returns where an exception
    /// occurs.
    pub(crate) fn check(&self, found: &Counts, explain: impl Fn(&str) -> String) {
        let text = self.text();
        let listed = parse(&text);
        if std::env::var_os("UPDATE_STRUCTURE").is_some() {
            let (before, now) = (listed.values().sum::<usize>(), found.values().sum::<usize>());
            assert!(
                text.is_empty() || now <= before,
                "{}: {now} exceptions, and only {before} are listed; a list may only shrink\n{}",
                self.name,
                differences(&listed, found, self.fallen, &explain)
            );
            std::fs::write(self.path(), self.render(found, &reasons(&text)))
                .expect("the list can be written");
            return;
        }
        let differences = differences(&listed, found, self.fallen, &explain);
        assert!(
            differences.is_empty(),
            "xtask/tests/structure/{}: {}\n{differences}\n\
             `UPDATE_STRUCTURE=1 cargo test -p xtask --test structure` writes the list anew, if it shrinks.",
            self.name,
            self.about
        );
    }

    fn render(&self, found: &Counts, reasons: &BTreeMap<String, String>) -> String {
        let mut text = format!("# {}\n", self.about);
        for (name, count) in found {
            let _ = match reasons.get(name) {
                Some(reason) => writeln!(text, "{name}: {count} # {reason}"),
                None => writeln!(text, "{name}: {count}"),
            };
        }
        text
    }
}

fn parse(text: &str) -> Counts {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let line = line.split_once(" # ").map_or(line, |(line, _)| line);
            let (name, count) = line.rsplit_once(": ").expect("a line is `name: count`");
            (name.to_owned(), count.parse().expect("a count is a number"))
        })
        .collect()
}

/// Returns the reasons in a list, by the names of the exceptions.
pub(crate) fn reasons(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let reasons = lines.filter_map(|line| {
        let (line, reason) = line.split_once(" # ")?;
        let (name, _) = line.rsplit_once(": ")?;
        Some((name.to_owned(), reason.to_owned()))
    });
    reasons.collect()
}

fn differences(listed: &Counts, found: &Counts, fallen: Fallen, explain: &impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    for (name, count) in found {
        let limit = listed.get(name).copied().unwrap_or(0);
        if *count > limit {
            let _ = writeln!(
                text,
                "  {name}: {count}, {limit} allowed\n{}",
                explain(name).trim_end()
            );
        }
    }
    for (name, limit) in listed {
        let count = found.get(name).copied().unwrap_or(0);
        if count < *limit && fallen == Fallen::Fails {
            let _ = writeln!(text, "  {name}: {count}, {limit} listed; shorten the list");
        }
    }
    text
}

#[test]
fn reason_of_an_exception_stays_when_the_list_is_written() {
    let list = List {
        name: "none.txt",
        about: "about",
        fallen: Fallen::Fails,
    };
    let text = "# about\na b: 2 # it must\nc: 1\n";
    assert_eq!(list.render(&parse(text), &reasons(text)), text);
}

#[test]
fn growth_and_a_list_that_is_too_long_are_both_reported() {
    let counts = |text: &str| parse(text);
    let explain = |name: &str| format!("    {name} is here");
    let listed = counts("# about\na b: 2\nc: 1\n");
    let told = differences(&listed, &counts("a b: 3\nd: 1\n"), Fallen::Fails, &explain);
    assert_eq!(
        told,
        "  a b: 3, 2 allowed\n    a b is here\n  d: 1, 0 allowed\n    d is here\n  c: 0, 1 listed; shorten the list\n"
    );
    assert_eq!(
        differences(&listed, &counts("a b: 1"), Fallen::Passes, &explain),
        ""
    );
}
