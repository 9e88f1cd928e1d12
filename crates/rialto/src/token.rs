//! `rialto token`: makes a bearer token, shows it once, and prints what to keep of it.

use std::io::Write as _;
use std::process::ExitCode;

use gateway::settings::TokenName;
use gateway::tokens::{self, Minted};

use crate::flags::TokenFlags;
use crate::{exit, fail};

pub(crate) fn run(flags: &TokenFlags) -> ExitCode {
    let name = match TokenName::parse(&flags.name) {
        Ok(name) => name,
        Err(message) => return fail(exit::CONFIGURATION, &format!("--name: {message}")),
    };
    let Some(minted) = tokens::mint() else {
        return fail(exit::FAILED, "the system has no randomness to give");
    };
    match std::io::stdout()
        .lock()
        .write_all(text(&name, &minted).as_bytes())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(exit::FAILED, &format!("cannot write the token: {error}")),
    }
}

/// Returns the token alone on the first line, for scripts; the rest is ready to be put into a file.
fn text(name: &TokenName, minted: &Minted) -> String {
    format!(
        "{token}

# This is the only time the token is shown. Clients send it as
#   Authorization: Bearer TOKEN
# Only its hash is kept, in destinations.yml:
auth:
  tokens:
    - {{ name: {name}, hash: \"{hash}\" }}
",
        token = minted.token.expose(),
        name = name.as_str(),
        hash = minted.hash,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_stands_alone_on_the_first_line_and_only_there() {
        let minted = tokens::mint().expect("randomness");
        let text = text(&TokenName::parse("ci").expect("a name"), &minted);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], minted.token.expose());
        assert_eq!(text.matches(minted.token.expose()).count(), 1);
        assert!(
            lines
                .last()
                .is_some_and(|line| line.contains(&minted.hash.to_string()))
        );
    }
}
