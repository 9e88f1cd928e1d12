//! What a fuzzer and `cargo test` both ask of the configuration: any text is read or refused in
//! words, and twice alike.

use std::path::PathBuf;

use crate::config::{ConfigError, Environment, Loaded, Place, from_text};
use crate::flags::ServeFlags;

/// # Panics
///
/// If a refusal is empty, names a line that is not there, or differs the second time.
pub(crate) fn holds(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // `${file:…}` of a terminal would wait for a user to type.
    if text.contains("/dev") || text.contains("/proc") {
        return;
    }
    let lines = text.split(['\n', '\r']).count() as u64;
    let said = read(text).map(|loaded| {
        for destination in &loaded.settings.destinations {
            assert!(!destination.name.is_empty(), "a destination without a name");
        }
        loaded.notes
    });
    match &said {
        Ok(_) | Err(ConfigError::NothingToServe) => {}
        Err(ConfigError::Problems(problems)) => {
            assert!(!problems.is_empty(), "refused without a reason");
            for problem in problems {
                assert!(!problem.message.is_empty(), "refused without a word");
                let line = match &problem.place {
                    Place::File { line, .. } | Place::Field { line, .. } => *line,
                    Place::Flag(_) | Place::Variable(_) | Place::Socket => 0,
                };
                assert!(line <= lines, "{problem} is about a line that is not there");
            }
        }
    }
    let again = read(text).map(|loaded| loaded.notes);
    assert_eq!(format!("{said:?}"), format!("{again:?}"));
}

fn read(text: &str) -> Result<Loaded, ConfigError> {
    let environment = [("HOME", "/home/me"), ("EMPTY", ""), ("TRICKY", "${HOME} $$")];
    from_text(
        "destinations.yml",
        text,
        PathBuf::from("/nowhere"),
        &ServeFlags::default(),
        &environment.into_iter().collect::<Environment>(),
    )
}
