//! Sealed states: what a modern client carries from one round of a modern request to the next.
//!
//! The state names a modern request and a round. It is encrypted and authenticated, and bound to
//! the destination and the principal it was made for, so that a forged, foreign or altered one is
//! recognised before anything is looked up. The modern request itself stays here; the key lives as
//! long as the process does.

pub(crate) mod state;

use std::sync::OnceLock;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use protocol::time::Moment;

const PREFIX: &str = "rialto1.";
/// In front of a server's own state. What is sealed as one kind never opens as the other, since the
/// kind is part of what it is bound to: a server could otherwise word a state so that it names a
/// call of another caller.
const WRAPPED: &str = "rialto2.";
const PLAIN: usize = 16 + 4 + 8;

/// The content of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestState {
    pub(crate) modern_request: u128,
    pub(crate) round: u32,
    pub(crate) expires: Moment,
}

/// Seals and opens states with a key of this process. The key is made when it is first needed:
/// collecting randomness takes the library tens of milliseconds, which a start should not wait for.
#[derive(Debug, Default)]
pub(crate) struct Sealer {
    key: OnceLock<Option<RandomizedNonceKey>>,
}

impl Sealer {
    /// Returns the key; `None` if the system has no randomness to give.
    fn key(&self) -> Option<&RandomizedNonceKey> {
        let fresh = || {
            let mut bytes = [0; 32];
            rand::fill(&mut bytes).ok()?;
            RandomizedNonceKey::new(&AES_256_GCM, &bytes).ok()
        };
        self.key.get_or_init(fresh).as_ref()
    }

    pub(crate) fn seal(&self, request_state: RequestState, bound_to: &str) -> Option<String> {
        let mut data = Vec::with_capacity(PLAIN + 16);
        data.extend_from_slice(&request_state.modern_request.to_be_bytes());
        data.extend_from_slice(&request_state.round.to_be_bytes());
        data.extend_from_slice(&(request_state.expires.elapsed().as_millis() as u64).to_be_bytes());
        let nonce = self
            .key()?
            .seal_in_place_append_tag(Aad::from(bound_to.as_bytes()), &mut data)
            .ok()?;
        let mut text = String::with_capacity(PREFIX.len() + 2 * (NONCE_LEN + data.len()));
        text.push_str(PREFIX);
        for byte in nonce.as_ref().iter().chain(&data) {
            text.push(char::from_digit(u32::from(byte >> 4), 16)?);
            text.push(char::from_digit(u32::from(byte & 15), 16)?);
        }
        Some(text)
    }

    /// Returns the content of a state, if it is ours and was made for this.
    pub(crate) fn open(&self, state: &str, bound_to: &str) -> Option<RequestState> {
        let plain = self.opened(decode(state.strip_prefix(PREFIX)?)?, bound_to.as_bytes())?;
        let plain: [u8; PLAIN] = plain.try_into().ok()?;
        let (modern_request, rest) = plain.split_first_chunk::<16>()?;
        let (round, rest) = rest.split_first_chunk::<4>()?;
        let (expires, _) = rest.split_first_chunk::<8>()?;
        Some(RequestState {
            modern_request: u128::from_be_bytes(*modern_request),
            round: u32::from_be_bytes(*round),
            expires: Moment::since_start(Duration::from_millis(u64::from_be_bytes(*expires))),
        })
    }

    /// Seals a server's own state.
    fn wrap(&self, original: &str, bound_to: &str) -> Option<String> {
        let mut data = original.as_bytes().to_vec();
        let nonce = self
            .key()?
            .seal_in_place_append_tag(Aad::from(wrapping(bound_to)), &mut data)
            .ok()?;
        let mut whole = nonce.as_ref().to_vec();
        whole.append(&mut data);
        Some(format!("{WRAPPED}{}", URL_SAFE_NO_PAD.encode(whole)))
    }

    /// Returns a server's own state, if it was sealed for this.
    fn unwrap(&self, state: &str, bound_to: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(state.strip_prefix(WRAPPED)?).ok()?;
        String::from_utf8(self.opened(bytes, &wrapping(bound_to))?).ok()
    }

    /// Returns what was sealed for this, of a nonce and all that follows it.
    fn opened(&self, mut nonce: Vec<u8>, bound_to: &[u8]) -> Option<Vec<u8>> {
        if nonce.len() <= NONCE_LEN {
            return None;
        }
        let mut sealed = nonce.split_off(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let plain = self
            .key()?
            .open_in_place(nonce, Aad::from(bound_to), &mut sealed)
            .ok()?;
        Some(plain.to_vec())
    }
}

fn wrapping(bound_to: &str) -> Vec<u8> {
    [WRAPPED.as_bytes(), bound_to.as_bytes()].concat()
}

/// Returns whether a state has the form of ours; others belong to a server.
pub(crate) fn is_ours(state: &str) -> bool {
    state.starts_with(PREFIX)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || text.len() > 512 {
        return None;
    }
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_state() -> RequestState {
        RequestState {
            modern_request: 7,
            round: 3,
            expires: Moment::START.after(Duration::from_millis(1234)),
        }
    }

    #[test]
    fn state_opens_for_its_own_caller_only() {
        let sealer = Sealer::default();
        let state = sealer.seal(request_state(), "demo/alice").unwrap();
        assert!(is_ours(&state));
        assert_eq!(sealer.open(&state, "demo/alice"), Some(request_state()));
        assert_eq!(sealer.open(&state, "demo/bob"), None);
        assert_eq!(Sealer::default().open(&state, "demo/alice"), None);
        assert_ne!(
            sealer.seal(request_state(), "demo/alice").unwrap(),
            state,
            "states never repeat"
        );
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed() {
        let sealer = Sealer::default();
        let state = sealer.seal(request_state(), "x").unwrap();
        for at in PREFIX.len()..state.len() {
            let mut forged = state.clone().into_bytes();
            forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
            if forged != state.as_bytes() {
                assert_eq!(
                    sealer.open(std::str::from_utf8(&forged).unwrap(), "x"),
                    None,
                    "{at}"
                );
            }
        }
        let wrapped = sealer.wrap(&"x".repeat(PLAIN), "x").unwrap();
        let disguised = wrapped.replace(WRAPPED, PREFIX);
        for junk in [
            &disguised,
            "",
            "rialto1.",
            "rialto1.zz",
            "rialto1.0",
            "other",
            &"rialto1.00".repeat(100),
        ] {
            assert_eq!(sealer.open(junk, "x"), None);
        }
    }
}
