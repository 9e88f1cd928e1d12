//! What `rialto doctor` reports: facts that were observed, and findings with their cures.

use std::path::PathBuf;

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    Machine,
    Servers,
    Hosts,
    SignIn,
    WayIn,
    Cluster,
}

impl Group {
    pub(crate) const ALL: [Self; 6] = [
        Self::Machine,
        Self::Servers,
        Self::Hosts,
        Self::SignIn,
        Self::WayIn,
        Self::Cluster,
    ];

    /// Returns its heading.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Machine => "this machine",
            Self::Servers => "servers",
            Self::Hosts => "hosts",
            Self::SignIn => "sign-in",
            Self::WayIn => "the way in",
            Self::Cluster => "cluster",
        }
    }

    /// Returns its name in JSON.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Servers => "servers",
            Self::Hosts => "hosts",
            Self::SignIn => "sign_in",
            Self::WayIn => "way_in",
            Self::Cluster => "cluster",
        }
    }
}

/// What follows from a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// It is good to know, and everything works.
    Note,
    /// It may pass by itself.
    Later,
    /// It stays until a person acts.
    Act,
}

impl Weight {
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Later => "try_later",
            Self::Act => "act",
        }
    }

    /// Returns the exit code that it leads to.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Note => 0,
            Self::Later => 10,
            Self::Act => 11,
        }
    }
}

/// What helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cure {
    /// A line for the shell.
    Run(String),
    /// A line for a file.
    Write { file: String, line: String },
    /// Steps that no line describes.
    Do(String),
}

/// What `--fix` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fix {
    /// Closes a file or directory to other users.
    Close(PathBuf),
    /// Renames a key at the top of a file of JSON.
    RenameKey {
        file: PathBuf,
        from: &'static str,
        to: &'static str,
    },
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) group: Group,
    /// The server, host, file or address.
    pub(crate) subject: String,
    /// What programs know it by.
    pub(crate) id: &'static str,
    pub(crate) weight: Weight,
    /// What was observed: a clause whose subject is the subject.
    pub(crate) what: String,
    /// Why that matters.
    pub(crate) why: String,
    pub(crate) cure: Cure,
    pub(crate) fix: Option<Fix>,
    /// `--fix` has cured it.
    pub(crate) is_fixed: bool,
}

impl Finding {
    /// Returns a finding that no program can fix.
    pub(crate) fn new(
        (group, subject): (Group, &str),
        (id, weight): (&'static str, Weight),
        what: impl Into<String>,
        why: impl Into<String>,
        cure: Cure,
    ) -> Self {
        Self {
            group,
            subject: subject.to_owned(),
            id,
            weight,
            what: what.into(),
            why: why.into(),
            cure,
            fix: None,
            is_fixed: false,
        }
    }

    /// Returns the same finding, which `--fix` can cure.
    pub(crate) fn fixed_by(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }
}

/// Something that is as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) group: Group,
    pub(crate) subject: String,
    pub(crate) text: String,
}

/// All that was observed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) facts: Vec<Fact>,
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn fact(&mut self, group: Group, subject: &str, text: impl Into<String>) {
        self.facts.push(Fact {
            group,
            subject: subject.to_owned(),
            text: text.into(),
        });
    }

    pub(crate) fn find(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Adds what another judge found.
    pub(crate) fn extend(&mut self, other: Self) {
        self.facts.extend(other.facts);
        self.findings.extend(other.findings);
    }

    /// Returns the exit code for what is left after `--fix`.
    pub(crate) fn exit_code(&self) -> u8 {
        let left = self.findings.iter().filter(|finding| !finding.is_fixed);
        left.map(|finding| finding.weight)
            .max()
            .map_or(0, Weight::exit_code)
    }

    /// Returns how many findings of a weight are left.
    pub(crate) fn count(&self, weight: Weight) -> usize {
        let left = self.findings.iter().filter(|finding| !finding.is_fixed);
        left.filter(|finding| finding.weight == weight).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(weight: Weight) -> Finding {
        let cure = Cure::Do("wait".into());
        Finding::new((Group::Machine, "x"), ("x", weight), "is x", "since y", cure)
    }

    #[test]
    fn exit_code_is_that_of_the_heaviest_finding_that_is_left() {
        let mut report = Report::default();
        assert_eq!(report.exit_code(), 0);
        report.find(finding(Weight::Note));
        assert_eq!(report.exit_code(), 0);
        report.find(finding(Weight::Later));
        assert_eq!(report.exit_code(), 10);
        report.find(finding(Weight::Act));
        assert_eq!(report.exit_code(), 11);
        report.findings[2].is_fixed = true;
        assert_eq!(report.exit_code(), 10);
        assert_eq!(report.count(Weight::Act), 0);
    }
}
