//! The cursor of a list: where its next page begins, closed to the client that carries it.

use super::{Sealer, binding};

/// In front of what a cursor is bound to, so that no other sealed text opens as a cursor.
const KIND: &str = "cursor.";

impl Sealer {
    pub(crate) fn seal_cursor(&self, cursor: &str, bound_to: &str) -> Option<String> {
        self.sealed(cursor.as_bytes().to_vec(), &binding(KIND, bound_to))
    }

    /// Returns what was sealed for this; `None` for any other text.
    pub(crate) fn open_cursor(&self, sealed: &str, bound_to: &str) -> Option<String> {
        String::from_utf8(self.unsealed(sealed, &binding(KIND, bound_to))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_opens_for_its_own_caller_only() {
        let sealer = Sealer::default();
        let sealed = sealer.seal_cursor(r#"{"at":7}"#, "work/alice").unwrap();
        assert!(!sealed.contains("at"));
        assert_eq!(
            sealer.open_cursor(&sealed, "work/alice").as_deref(),
            Some(r#"{"at":7}"#)
        );
        assert_eq!(sealer.open_cursor(&sealed, "work/bob"), None);
        assert_eq!(sealer.open_cursor("no cursor", "work/alice"), None);
    }
}
