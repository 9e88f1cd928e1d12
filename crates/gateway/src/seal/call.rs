//! The token at the end of an event id: it names the call of a stream beyond the process that has
//! it.

use protocol::session::TOKEN_MARK;

use super::{Sealer, binding};

/// In front of what a token is bound to, so that no other sealed text opens as a token.
const KIND: &str = "call.";
/// Longer ids of requests are not sealed: event ids come back in a header.
const MAX_ID: usize = 256;

impl Sealer {
    /// Returns the token for a request with this id. A token without content names no call.
    pub(crate) fn seal_call(&self, id: &[u8], bound_to: &str) -> Option<Box<str>> {
        if id.len() > MAX_ID {
            return Some(TOKEN_MARK.to_string().into());
        }
        let sealed = self.sealed(id.to_vec(), &binding(KIND, bound_to))?;
        Some(format!("{TOKEN_MARK}{sealed}").into())
    }

    /// Returns the id of the request that a token names, without its mark.
    pub(crate) fn open_call(&self, token: &str, bound_to: &str) -> Option<Vec<u8>> {
        self.unsealed(token, &binding(KIND, bound_to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_names_its_call_to_the_session_that_it_was_made_for() {
        let sealer = Sealer::default();
        let token = sealer.seal_call(br#""a.1""#, "session").unwrap();
        let sealed = token.strip_prefix(TOKEN_MARK).unwrap();
        assert!(sealed.bytes().all(|byte| byte.is_ascii_graphic()), "{sealed}");
        assert_eq!(
            sealer.open_call(sealed, "session").as_deref(),
            Some(&br#""a.1""#[..])
        );
        assert_eq!(sealer.open_call(sealed, "other"), None);
        assert_eq!(sealer.open_call("", "session"), None);
        assert_eq!(
            Sealer::default().open_call(sealed, "session"),
            None,
            "another key"
        );
    }

    #[test]
    fn long_id_is_not_sealed() {
        let sealer = Sealer::default();
        let longest = [b'1'; MAX_ID];
        assert!(sealer.seal_call(&longest, "session").unwrap().len() > 1);
        let longer = [b'1'; MAX_ID + 1];
        assert_eq!(sealer.seal_call(&longer, "session").as_deref(), Some("."));
    }
}
