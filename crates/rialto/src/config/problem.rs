//! What is wrong with a configuration: where it stands, what it is, and how to mend it.
//!
//! Problems are collected and shown together, so that a file is mended in one go. No problem ever
//! shows a value that came out of an interpolation.

use std::fmt;

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A flag of the command line, with its dashes.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// The socket that systemd passed.
    Socket,
    /// A file as a whole, or one line of it (0: no line known).
    File { file: String, line: u64 },
    /// A field of a file.
    Field {
        file: String,
        line: u64,
        section: Option<Section>,
        field: String,
    },
}

/// A part of a file that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Section {
    Destination(String),
    Aggregate(String),
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(name) => write!(f, "destination `{name}`"),
            Self::Aggregate(name) => write!(f, "aggregate `{name}`"),
        }
    }
}

impl Place {
    /// Returns the part of the file, if it has a name.
    pub(crate) fn section(&self) -> Option<Section> {
        match self {
            Self::Flag(_) | Self::Variable(_) | Self::Socket | Self::File { .. } => None,
            Self::Field { section, .. } => section.clone(),
        }
    }

    /// Returns the line in the file; 0 for flags, variables, and where none is known.
    pub(crate) fn line(&self) -> u64 {
        match self {
            Self::Flag(_) | Self::Variable(_) | Self::Socket => 0,
            Self::File { line, .. } | Self::Field { line, .. } => *line,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => f.write_str(flag),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Socket => f.write_str("socket of systemd"),
            Self::File { file, line } => write!(f, "{file}{}", LineSuffix(*line)),
            Self::Field {
                file,
                line,
                section,
                field,
            } => {
                write!(f, "{file}{}: ", LineSuffix(*line))?;
                match (section, field.as_str()) {
                    (Some(section), "") => section.fmt(f),
                    (Some(section), field) => write!(f, "{section}, field `{field}`"),
                    (None, field) => write!(f, "field `{field}`"),
                }
            }
        }
    }
}

struct LineSuffix(u64);

impl fmt::Display for LineSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            Ok(())
        } else {
            write!(f, ":{}", self.0)
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Why there are no settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// Neither a file, nor a command, nor the demo.
    NothingToServe,
    /// Everything that is wrong, never empty.
    Problems(Vec<Problem>),
}

impl ConfigError {
    /// A configuration that cannot be used is bad usage.
    pub(crate) const EXIT_CODE: u8 = 2;
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToServe => f.write_str(FIRST_MINUTE),
            Self::Problems(problems) => match problems.as_slice() {
                [only] => only.fmt(f),
                several => {
                    write!(f, "{} problems in the configuration:", several.len())?;
                    several.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
                }
            },
        }
    }
}

impl std::error::Error for ConfigError {}

const FIRST_MINUTE: &str = "\
nothing to serve: there is no destinations.yml in this directory, no --config, no command and no --demo.

For a first look, without any server of your own:
    rialto serve --demo

For one stdio server:
    rialto serve -- npx -y @modelcontextprotocol/server-everything

For several, write this to destinations.yml and type `rialto serve`:
    destinations:
      everything:
        command: npx -y @modelcontextprotocol/server-everything

The mcpServers file of a desktop host works too: rialto serve --config FILE";
