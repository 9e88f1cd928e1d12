//! The cookie of the page: the admin that has signed in, closed to the browser that carries it.

use aws_lc_rs::aead::Aad;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Sealer;

/// What it is bound to, so that no other sealed text opens as one.
const KIND: &[u8] = b"page.";

impl Sealer {
    pub(crate) fn seal_page_ticket(&self, ticket: &str) -> Option<String> {
        let mut data = ticket.as_bytes().to_vec();
        let key = &self.secrets()?.key;
        let nonce = key.seal_in_place_append_tag(Aad::from(KIND), &mut data).ok()?;
        let mut whole = nonce.as_ref().to_vec();
        whole.append(&mut data);
        Some(URL_SAFE_NO_PAD.encode(whole))
    }

    /// Returns what was sealed; `None` for any other text.
    pub(crate) fn open_page_ticket(&self, sealed: &str) -> Option<String> {
        let plain = self.opened(URL_SAFE_NO_PAD.decode(sealed).ok()?, KIND)?;
        String::from_utf8(plain).ok()
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
