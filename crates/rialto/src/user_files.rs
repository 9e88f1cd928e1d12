//! Where a user's own files of Rialto are: the configuration of the local service, and what is kept
//! between runs.
//!
//! Nothing is read or made here.

use std::path::{Path, PathBuf};

use gateway::platform;

use crate::config::Environment;

/// The file of destinations that the local service serves.
const DESTINATIONS: &str = "destinations.yml";

/// Returns the user's own file of destinations, if there is a home directory.
pub(crate) fn destinations(environment: &Environment) -> Option<PathBuf> {
    Some(config_dir(environment)?.join(DESTINATIONS))
}

/// Returns whether a program finds a file as the user's own file of destinations if it has no
/// variable but `HOME`. Some hosts pass hardly any others on.
pub(crate) fn is_found_by_home(file: &Path, environment: &Environment) -> bool {
    let home = environment.filled("HOME").map(Path::new);
    let usual = home.map(|home| platform::config_home(home).join("rialto").join(DESTINATIONS));
    usual.as_deref() == Some(file) && environment.filled("RIALTO_CONFIG").is_none()
}

/// Returns the directory of the user's configuration of Rialto.
pub(crate) fn config_dir(environment: &Environment) -> Option<PathBuf> {
    let of_user = environment.filled("XDG_CONFIG_HOME").map(PathBuf::from);
    let of_home = || {
        environment
            .filled("HOME")
            .map(|home| platform::config_home(Path::new(home)))
    };
    Some(of_user.or_else(of_home)?.join("rialto"))
}

/// Returns the directory of what a user keeps between runs, but would not carry to another machine.
pub(crate) fn state_dir(environment: &Environment) -> Option<PathBuf> {
    let of_rialto = environment.filled("RIALTO_STATE_DIR").map(PathBuf::from);
    let of_user = || {
        let state = environment.filled("XDG_STATE_HOME")?;
        Some(PathBuf::from(state).join("rialto"))
    };
    let of_home = || {
        let home = environment.filled("HOME")?;
        Some(platform::state_home(Path::new(home)).join("rialto"))
    };
    of_rialto.or_else(of_user).or_else(of_home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_user_beat_those_below_the_home_directory() {
        let home = Environment::from_iter([("HOME", "/home/me")]);
        assert_eq!(
            destinations(&home),
            Some(platform::config_home(Path::new("/home/me")).join("rialto/destinations.yml"))
        );
        assert_eq!(
            state_dir(&home),
            Some(platform::state_home(Path::new("/home/me")).join("rialto"))
        );
        let named = Environment::from_iter([
            ("HOME", "/home/me"),
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_STATE_HOME", "/s"),
        ]);
        assert_eq!(destinations(&named), Some("/c/rialto/destinations.yml".into()));
        assert_eq!(state_dir(&named), Some("/s/rialto".into()));
        assert_eq!(destinations(&Environment::default()), None);
    }
}
