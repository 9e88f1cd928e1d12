//! Seals what clients carry for Rialto: encrypted, authenticated, and bound to the destination and
//! the principal it was made for. So a forged, foreign or altered text is recognised before
//! anything is looked up.
//!
//! | Sealed | What it holds |
//! |---|---|
//! | Rialto's own `requestState` | the name of a parked modern request, and its round; the request itself stays in its process |
//! | a server's own `requestState` ([`state`]) | the server's text; in a fleet also the process that had the server |
//! | the cursor of a list of an aggregate (`cursor`) | where its next page begins |
//! | the cookie of the web page at `/ui/` (`page`) | the admin that has signed in there, and until when |
//! | the token of an event id (`call`) | the JSON-RPC id of the call whose stream it is |
//!
//! The key lives as long as the process, in `state_dir`, or in the cluster key of a fleet. With one
//! of the latter two, another process recognises what this one sealed. Then it can answer that a
//! call is lost, or forward the request to the replica that has it.

mod call;
mod cursor;
mod page;
pub(crate) mod state;

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use protocol::modern_request::WAITING_TIME;

use crate::state_dir::Key;

const PREFIX: &str = "rialto1.";
/// In front of a server's own state. What is sealed as one kind never opens as the other, since the
/// kind is part of what it is bound to: a server could otherwise word a state so that it names a
/// call of another caller.
const WRAPPED: &str = "rialto2.";
const PLAIN: usize = 8 + 16 + 4 + 8;
/// How far the clock may have been set back between two processes, or be behind on another machine.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// The content of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestState {
    pub(crate) modern_request: u128,
    pub(crate) round: u32,
    /// By the time of day, since a later process reads it. Whole milliseconds are kept.
    pub(crate) expires: SystemTime,
}

impl RequestState {
    /// Returns whether the client of a state that another process made may still come back. A
    /// state from the future is as good as expired: otherwise a clock that was set back by a year
    /// would keep it for a year.
    pub(crate) fn is_current(&self, now: SystemTime) -> bool {
        let left = self.expires.duration_since(now).unwrap_or_default();
        left > Duration::ZERO && left <= WAITING_TIME + CLOCK_TOLERANCE
    }
}

/// A state of Rialto that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) request_state: RequestState,
    /// The process that sealed it.
    pub(crate) process: u64,
    /// Whether this process sealed it, or an earlier one with the same key.
    pub(crate) is_own: bool,
}

/// Seals and opens states.
#[derive(Debug, Default)]
pub(crate) struct Sealer {
    secrets: OnceLock<Option<Secrets>>,
}

#[derive(Debug)]
struct Secrets {
    key: RandomizedNonceKey,
    /// Names this process in its states. It is random, so an earlier process had another. In a
    /// fleet it is part of the replica's id.
    process: u64,
    /// Whether a server's own state names the process too: in a fleet, the server of another
    /// replica may not know it.
    names_process: bool,
}

/// The length of a process in front of a server's own state.
const PROCESS: usize = 8;

impl Secrets {
    fn new(key: &Key) -> Option<Self> {
        let mut process = [0; 8];
        rand::fill(&mut process).ok()?;
        Self::of_process(key, u64::from_be_bytes(process))
    }

    fn of_process(key: &Key, process: u64) -> Option<Self> {
        Some(Self {
            key: RandomizedNonceKey::new(&AES_256_GCM, key).ok()?,
            process,
            names_process: false,
        })
    }
}

impl Sealer {
    /// Seals with a key that outlives the process.
    pub(crate) fn with_key(key: Key) -> Self {
        Self {
            secrets: OnceLock::from(Secrets::new(&key)),
        }
    }

    /// Seals with the key of a fleet, as the replica that has this number.
    pub(crate) fn of_replica(key: &Key, process: u64) -> Self {
        Self {
            secrets: OnceLock::from(Secrets::of_process(key, process).map(|secrets| Secrets {
                names_process: true,
                ..secrets
            })),
        }
    }

    /// Returns the key; `None` if the system has no randomness to give. A key of this process alone
    /// is made when it is first needed: collecting randomness takes the library tens of
    /// milliseconds, which a start should not wait for.
    fn secrets(&self) -> Option<&Secrets> {
        let fresh = || {
            let mut key = Key::default();
            rand::fill(&mut key).ok()?;
            Secrets::new(&key)
        };
        self.secrets.get_or_init(fresh).as_ref()
    }

    pub(crate) fn seal(&self, request_state: RequestState, bound_to: &str) -> Option<String> {
        let secrets = self.secrets()?;
        let expires = request_state.expires.duration_since(UNIX_EPOCH).ok()?;
        let mut data = Vec::with_capacity(PLAIN + 16);
        data.extend_from_slice(&secrets.process.to_be_bytes());
        data.extend_from_slice(&request_state.modern_request.to_be_bytes());
        data.extend_from_slice(&request_state.round.to_be_bytes());
        data.extend_from_slice(&(expires.as_millis() as u64).to_be_bytes());
        let nonce = secrets
            .key
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
    pub(crate) fn open(&self, state: &str, bound_to: &str) -> Option<Opened> {
        let plain = self.opened(decode(state.strip_prefix(PREFIX)?)?, bound_to.as_bytes())?;
        let plain: [u8; PLAIN] = plain.try_into().ok()?;
        let (process, rest) = plain.split_first_chunk::<8>()?;
        let (modern_request, rest) = rest.split_first_chunk::<16>()?;
        let (round, rest) = rest.split_first_chunk::<4>()?;
        let (expires, _) = rest.split_first_chunk::<8>()?;
        let expires = Duration::from_millis(u64::from_be_bytes(*expires));
        Some(Opened {
            request_state: RequestState {
                modern_request: u128::from_be_bytes(*modern_request),
                round: u32::from_be_bytes(*round),
                expires: UNIX_EPOCH.checked_add(expires)?,
            },
            process: u64::from_be_bytes(*process),
            is_own: u64::from_be_bytes(*process) == self.secrets()?.process,
        })
    }

    /// Seals a server's own state.
    fn wrap(&self, original: &str, bound_to: &str) -> Option<String> {
        let secrets = self.secrets()?;
        let mut data = Vec::with_capacity(PROCESS + original.len());
        if secrets.names_process {
            data.extend_from_slice(&secrets.process.to_be_bytes());
        }
        data.extend_from_slice(original.as_bytes());
        let sealed = self.sealed(data, &binding(WRAPPED, bound_to))?;
        Some(format!("{WRAPPED}{sealed}"))
    }

    /// Returns a server's own state, if it was sealed for this.
    fn unwrap(&self, state: &str, bound_to: &str) -> Option<String> {
        let (_, original) = self.unwrapped(state, bound_to)?;
        Some(original)
    }

    /// Returns the other process whose server gave a state, if its replica sealed it for this.
    pub(crate) fn other_process(&self, state: &str, bound_to: &str) -> Option<u64> {
        let (process, _) = self.unwrapped(state, bound_to)?;
        process.filter(|process| Some(*process) != self.secrets().map(|own| own.process))
    }

    fn unwrapped(&self, state: &str, bound_to: &str) -> Option<(Option<u64>, String)> {
        let mut plain = self.unsealed(state.strip_prefix(WRAPPED)?, &binding(WRAPPED, bound_to))?;
        let process = match self.secrets()?.names_process {
            true => {
                let (process, rest) = plain.split_first_chunk::<PROCESS>()?;
                let process = u64::from_be_bytes(*process);
                plain = rest.to_vec();
                Some(process)
            }
            false => None,
        };
        Some((process, String::from_utf8(plain).ok()?))
    }

    /// Returns data sealed for this, as text: a nonce and all that follows it.
    fn sealed(&self, mut data: Vec<u8>, bound_to: &[u8]) -> Option<String> {
        let key = &self.secrets()?.key;
        let nonce = key
            .seal_in_place_append_tag(Aad::from(bound_to), &mut data)
            .ok()?;
        let mut whole = nonce.as_ref().to_vec();
        whole.append(&mut data);
        Some(URL_SAFE_NO_PAD.encode(whole))
    }

    /// Returns what was sealed for this, of a text of [`Self::sealed`].
    fn unsealed(&self, text: &str, bound_to: &[u8]) -> Option<Vec<u8>> {
        self.opened(URL_SAFE_NO_PAD.decode(text).ok()?, bound_to)
    }

    /// Returns what was sealed for this, of a nonce and all that follows it.
    fn opened(&self, mut nonce: Vec<u8>, bound_to: &[u8]) -> Option<Vec<u8>> {
        if nonce.len() <= NONCE_LEN {
            return None;
        }
        let mut sealed = nonce.split_off(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let plain = self
            .secrets()?
            .key
            .open_in_place(nonce, Aad::from(bound_to), &mut sealed)
            .ok()?;
        Some(plain.to_vec())
    }
}

/// Returns what a text of a kind is bound to, so that no text of another kind opens as one.
fn binding(kind: &str, bound_to: &str) -> Vec<u8> {
    [kind.as_bytes(), bound_to.as_bytes()].concat()
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
            expires: UNIX_EPOCH + Duration::from_millis(1_234_567),
        }
    }

    fn own(sealer: &Sealer, request_state: RequestState) -> Option<Opened> {
        Some(Opened {
            request_state,
            process: sealer.secrets()?.process,
            is_own: true,
        })
    }

    #[test]
    fn state_opens_for_its_own_caller_only() {
        let sealer = Sealer::default();
        let state = sealer.seal(request_state(), "demo/alice").unwrap();
        assert!(is_ours(&state));
        assert_eq!(sealer.open(&state, "demo/alice"), own(&sealer, request_state()));
        assert_eq!(sealer.open(&state, "demo/bob"), None);
        assert_eq!(Sealer::default().open(&state, "demo/alice"), None);
        assert_ne!(
            sealer.seal(request_state(), "demo/alice").unwrap(),
            state,
            "states never repeat"
        );
    }

    #[test]
    fn state_of_a_server_names_its_replica() {
        let key = [7; 32];
        let [first, second] = [12, 13].map(|process| Sealer::of_replica(&key, process));
        let state = first.wrap("own", "demo/alice").unwrap();
        assert_eq!(second.other_process(&state, "demo/alice"), Some(12));
        assert_eq!(first.other_process(&state, "demo/alice"), None);
        assert_eq!(second.other_process(&state, "demo/bob"), None);
        assert_eq!(second.unwrap(&state, "demo/alice").as_deref(), Some("own"));
        let alone = Sealer::with_key(key).wrap("own", "demo/alice").unwrap();
        assert_eq!(Sealer::with_key(key).other_process(&alone, "demo/alice"), None);
    }

    #[test]
    fn state_of_an_earlier_process_opens_with_the_same_key_and_is_distinguished() {
        let key = [7; 32];
        let state = Sealer::with_key(key).seal(request_state(), "demo/alice").unwrap();
        let later = Sealer::with_key(key);
        let opened = later.open(&state, "demo/alice").unwrap();
        assert_eq!((opened.request_state, opened.is_own), (request_state(), false));
        let replica = Sealer::of_replica(&key, 12);
        let state = replica.seal(request_state(), "demo/alice").unwrap();
        assert_eq!(
            later.open(&state, "demo/alice").map(|opened| opened.process),
            Some(12)
        );
        assert_eq!(later.open(&state, "demo/bob"), None);
        assert_eq!(Sealer::with_key([8; 32]).open(&state, "demo/alice"), None);
    }

    #[test]
    fn clock_that_is_set_back_does_not_keep_a_state() {
        let made = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let state = RequestState {
            expires: made + WAITING_TIME,
            ..request_state()
        };
        let second = Duration::from_secs(1);
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        for (now, is_current) in [
            (made, true),
            (made + WAITING_TIME - second, true),
            (made + WAITING_TIME, false),
            (made + year, false),
            (made - CLOCK_TOLERANCE, true),
            (made - CLOCK_TOLERANCE - second, false),
            (UNIX_EPOCH, false),
        ] {
            assert_eq!(state.is_current(now), is_current, "{now:?}");
        }
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
