//! The cookie of the page: the admin that has signed in, closed to the browser that carries it.

use super::Sealer;

/// What it is bound to, so that no other sealed text opens as one.
const KIND: &[u8] = b"page.";

impl Sealer {
    pub(crate) fn seal_page_ticket(&self, ticket: &str) -> Option<String> {
        self.sealed(ticket.as_bytes().to_vec(), KIND)
    }

    /// Returns what was sealed; `None` for any other text.
    pub(crate) fn open_page_ticket(&self, sealed: &str) -> Option<String> {
        String::from_utf8(self.unsealed(sealed, KIND)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_opens_under_its_own_key_and_as_a_ticket_alone() {
        let sealer = Sealer::default();
        let sealed = sealer.seal_page_ticket("alice").unwrap();
        assert_eq!(sealer.open_page_ticket(&sealed).as_deref(), Some("alice"));
        assert_eq!(Sealer::default().open_page_ticket(&sealed), None);
        let cursor = sealer.seal_cursor("alice", "").unwrap();
        assert_eq!(sealer.open_page_ticket(&cursor), None);
        assert_eq!(sealer.open_page_ticket(""), None);
    }
}
