//! A report as a person reads it, and as a program does.

use gateway::escape;
use serde_json::{Value, json};

use super::finding::{Cure, Fact, Finding, Fix, Group, Report, Weight};
use crate::terminal::text::{Style, wrapped};

/// The longest text that is shown. Servers choose some of them.
const LONGEST: usize = 1000;
/// A longer subject has no column.
const LONG_SUBJECT: usize = 20;
/// Wider lines are hard to read.
const WIDEST: usize = 110;

/// How a page is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) columns: usize,
    pub(crate) has_colour: bool,
}

/// Returns the page.
pub(crate) fn text(report: &Report, shape: Shape) -> String {
    let mut page = Page {
        text: String::new(),
        columns: shape.columns.clamp(40, WIDEST),
        has_colour: shape.has_colour,
    };
    for group in Group::ALL {
        let facts: Vec<&Fact> = report.facts.iter().filter(|fact| fact.group == group).collect();
        let mut findings: Vec<&Finding> = report
            .findings
            .iter()
            .filter(|finding| finding.group == group)
            .collect();
        if facts.is_empty() && findings.is_empty() {
            continue;
        }
        page.line("", Style::Bold, group.title());
        let subjects = facts.iter().map(|fact| fact.subject.chars().count());
        let width = subjects.filter(|width| *width <= LONG_SUBJECT).max().unwrap_or(0);
        for fact in facts {
            page.fact(fact, width);
        }
        // What must be done first.
        findings.sort_by_key(|finding| (finding.is_fixed, std::cmp::Reverse(finding.weight)));
        for finding in findings {
            page.finding(finding);
        }
        page.text.push('\n');
    }
    let (style, verdict) = verdict(report);
    page.line("", style, &verdict);
    page.text
}

/// Returns the last line.
fn verdict(report: &Report) -> (Style, String) {
    let parts: Vec<String> = [
        (Weight::Act, "to fix"),
        (Weight::Later, "to try again later"),
        (Weight::Note, "to know"),
    ]
    .into_iter()
    .filter_map(|(weight, words)| match report.count(weight) {
        0 => None,
        count => Some(format!("{count} {words}")),
    })
    .collect();
    let style = match report.exit_code() {
        0 => Style::Green,
        10 => Style::Yellow,
        _ => Style::Red,
    };
    let fixed = report.findings.iter().filter(|finding| finding.is_fixed).count();
    let fixable = report
        .findings
        .iter()
        .filter(|finding| finding.fix.is_some() && !finding.is_fixed)
        .count();
    let mut text = match (parts.is_empty(), report.facts.is_empty()) {
        (true, true) => {
            "nothing was found to look at: there is no destinations.yml and no file of a host".to_owned()
        }
        (true, false) => "all is well".to_owned(),
        (false, _) if report.exit_code() == 0 => format!("all is well; {}", parts.join(", ")),
        (false, _) => parts.join(", "),
    };
    if fixed > 0 {
        text.push_str(&format!("; {fixed} fixed now"));
    }
    if fixable > 0 {
        text.push_str(&format!("; --fix cures {fixable} of them"));
    }
    (style, text)
}

struct Page {
    text: String,
    columns: usize,
    has_colour: bool,
}

impl Page {
    fn line(&mut self, indent: &str, style: Style, text: &str) {
        self.text.push_str(indent);
        self.text.push_str(&style.paint(text, self.has_colour));
        self.text.push('\n');
    }

    /// Adds a text in lines that fit. The first one has a start of its own.
    fn paragraph(&mut self, start: &str, start_style: Style, style: Style, text: &str) {
        let width = start.chars().count();
        let indent = " ".repeat(width);
        for (number, line) in wrapped(text, self.columns - width).iter().enumerate() {
            match number {
                0 => self.text.push_str(&start_style.paint(start, self.has_colour)),
                _ => self.text.push_str(&indent),
            }
            self.text.push_str(&style.paint(line, self.has_colour));
            self.text.push('\n');
        }
    }

    /// Adds a fact; short subjects make a column.
    fn fact(&mut self, fact: &Fact, width: usize) {
        let subject = shown(&fact.subject);
        let text = format!("{subject:<width$}  {}", shown(&fact.text));
        self.paragraph("  ✔ ", Style::Green, Style::Plain, &text);
    }

    fn finding(&mut self, finding: &Finding) {
        let (mark, style) = match (finding.is_fixed, finding.weight) {
            (true, _) => ("  ✔ ", Style::Green),
            (false, Weight::Act) => ("  ✘ ", Style::Red),
            (false, Weight::Later) => ("  … ", Style::Yellow),
            (false, Weight::Note) => ("  • ", Style::Yellow),
        };
        let what = format!("{} {}", finding.subject, finding.what);
        self.paragraph(mark, style, Style::Bold, &shown(&what));
        self.paragraph("    ", Style::Plain, Style::Dim, &shown(&finding.why));
        if finding.is_fixed {
            return self.paragraph("    ", Style::Plain, Style::Green, "fixed now");
        }
        match &finding.cure {
            // A line to paste is in one piece, however long.
            Cure::Run(line) => self.pasted("$", &shown(line)),
            Cure::Write { file, line } => {
                self.paragraph(
                    "    ",
                    Style::Plain,
                    Style::Plain,
                    &format!("in {}:", shown(file)),
                );
                self.pasted(" ", &shown(line));
            }
            Cure::Do(steps) => self.paragraph("    → ", Style::Plain, Style::Plain, &shown(steps)),
        }
        let is_named = matches!(&finding.cure, Cure::Run(line) if line.contains("--fix"));
        if finding.fix.is_some() && !is_named {
            self.paragraph("    ", Style::Plain, Style::Plain, "or: rialto doctor --fix");
        }
    }

    fn pasted(&mut self, prompt: &str, line: &str) {
        let (line, remark) = line
            .split_once("    #")
            .map_or((line, None), |(line, remark)| (line, Some(remark)));
        let remark = remark.map_or_else(String::new, |remark| {
            format!("    {}", Style::Dim.paint(&format!("#{remark}"), self.has_colour))
        });
        let prompt = Style::Dim.paint(prompt, self.has_colour);
        self.text.push_str(&format!("    {prompt} {line}{remark}\n"));
    }
}

fn shown(text: &str) -> String {
    escape::one_line(text, LONGEST)
}

/// Returns the report for a program.
pub(crate) fn json(report: &Report) -> Value {
    let facts = report
        .facts
        .iter()
        .map(|fact| json!({ "group": fact.group.key(), "subject": fact.subject, "text": fact.text }));
    let findings = report.findings.iter().map(|finding| {
        let cure = match &finding.cure {
            Cure::Run(line) => json!({ "kind": "run", "line": line }),
            Cure::Write { file, line } => json!({ "kind": "write", "file": file, "line": line }),
            Cure::Do(steps) => json!({ "kind": "do", "line": steps }),
        };
        let fix = match &finding.fix {
            None => "none",
            Some(Fix::Close(_) | Fix::RenameKey { .. }) if finding.is_fixed => "done",
            Some(Fix::Close(_) | Fix::RenameKey { .. }) => "offered",
        };
        json!({
            "group": finding.group.key(),
            "subject": finding.subject,
            "id": finding.id,
            "weight": finding.weight.key(),
            "what": finding.what,
            "why": finding.why,
            "cure": cure,
            "fix": fix,
        })
    });
    json!({
        "ok": report.exit_code() == 0,
        "exit_code": report.exit_code(),
        "facts": facts.collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.fact(Group::Machine, "node", "version v22.3.0");
        let line = "x".repeat(90);
        report.find(Finding::new(
            (Group::Hosts, "Cursor"),
            ("x", Weight::Note),
            "is \u{1b}[31mred",
            "a why that is long enough to be broken somewhere in the middle of its words, at forty columns",
            Cure::Run(format!("rialto {line}")),
        ));
        let cure = Cure::Write {
            file: "a file".into(),
            line: "a: b".into(),
        };
        let closing = Finding::new(
            (Group::Hosts, "VS Code"),
            ("y", Weight::Act),
            "is open",
            "why",
            cure,
        );
        report.find(closing.fixed_by(Fix::Close(PathBuf::from("/x"))));
        report
    }

    #[test]
    fn page_has_facts_findings_and_a_verdict_and_no_line_to_paste_is_broken() {
        let text = text(
            &report(),
            Shape {
                columns: 40,
                has_colour: false,
            },
        );
        assert!(
            text.starts_with("this machine\n  ✔ node  version v22.3.0\n\nhosts\n  ✘ VS Code is open\n"),
            "{text}"
        );
        assert!(
            text.contains(&format!("    $ rialto {}\n", "x".repeat(90))),
            "{text}"
        );
        assert!(
            text.contains("    in a file:\n      a: b\n    or: rialto doctor --fix\n"),
            "{text}"
        );
        assert!(
            text.ends_with("1 to fix, 1 to know; --fix cures 1 of them\n"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let prose = text.lines().filter(|line| !line.starts_with("    $"));
        assert!(prose.into_iter().all(|line| line.chars().count() <= 70), "{text}");
    }

    #[test]
    fn json_has_the_same_findings() {
        let json = json(&report());
        assert_eq!(json["exit_code"], 11);
        assert_eq!(json["ok"], false);
        assert_eq!(json["facts"][0]["subject"], "node");
        assert_eq!(json["findings"][1]["cure"]["kind"], "write");
        assert_eq!(json["findings"][1]["fix"], "offered");
        assert_eq!(json["findings"][0]["weight"], "note");
    }
}
