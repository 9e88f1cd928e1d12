//! The cursor of a list: where its next page begins, closed to the client that carries it.

use aws_lc_rs::aead::Aad;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Sealer;

/// In front of what a cursor is bound to, so that no other sealed text opens as a cursor.
const KIND: &str = "cursor.";

impl Sealer {
    pub(crate) fn seal_cursor(&self, cursor: &str, bound_to: &str) -> Option<String> {
        let mut data = cursor.as_bytes().to_vec();
        let nonce = self
            .secrets()?
            .key
            .seal_in_place_append_tag(Aad::from(binding(bound_to)), &mut data)
            .ok()?;
        let mut whole = nonce.as_ref().to_vec();
        whole.append(&mut data);
        Some(URL_SAFE_NO_PAD.encode(whole))
    }

    /// Returns what was sealed for this; `None` for any other text.
    pub(crate) fn open_cursor(&self, sealed: &str, bound_to: &str) -> Option<String> {
        let plain = self.opened(URL_SAFE_NO_PAD.decode(sealed).ok()?, &binding(bound_to))?;
        String::from_utf8(plain).ok()
    }
}

fn binding(bound_to: &str) -> Vec<u8> {
    [KIND.as_bytes(), bound_to.as_bytes()].concat()
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
