//! The keyring of the operating system, which holds the secret parts of entries where there is one.
//!
//! In the file stands a placeholder in their place. Calls block; they are made where blocking is
//! allowed. A keyring that is absent, locked or too small is no failure: the secrets stay in the
//! file, mode 0600.

#[cfg(feature = "keyring")]
use serde::{Deserialize, Serialize};

use super::Entry;
#[cfg(feature = "keyring")]
use crate::secret::Secret;

#[cfg(feature = "keyring")]
const SERVICE: &str = "rialto";
/// What stands in the file.
#[cfg(feature = "keyring")]
const ELSEWHERE: &str = "in the keyring";

#[cfg(feature = "keyring")]
#[derive(Serialize, Deserialize)]
struct Secrets {
    client: Option<Secret>,
    access: Option<Secret>,
    refresh: Option<Secret>,
}

#[cfg(feature = "keyring")]
fn key(stem: &str, entry: &Entry) -> Option<keyring::Entry> {
    let triple = serde_json::json!([entry.issuer, entry.resource, entry.client.id]).to_string();
    let opened = keyring::Entry::new(SERVICE, &format!("{stem}-{}", super::digest(&triple)));
    // «No default store» is how a machine without a keyring answers.
    opened
        .inspect_err(|error| tracing::debug!(%error, "no keyring"))
        .ok()
}

/// Moves the secrets of an entry into the keyring and leaves placeholders. False: they are still in
/// the entry.
#[cfg(feature = "keyring")]
pub(super) fn hand_over(stem: &str, entry: &mut Entry) -> bool {
    let Some(key) = key(stem, entry) else { return false };
    let secrets = Secrets {
        client: entry.client.secret.clone(),
        access: entry.token.as_ref().map(|token| token.access.clone()),
        refresh: entry.token.as_ref().and_then(|token| token.refresh.clone()),
    };
    let Ok(text) = serde_json::to_vec(&secrets) else {
        return false;
    };
    if let Err(error) = key.set_secret(&text) {
        tracing::warn!(%error, "the keyring takes no tokens; they are kept in a file instead");
        return false;
    }
    let placeholder = || Secret::new(ELSEWHERE);
    entry.client.secret = entry.client.secret.as_ref().map(|_| placeholder());
    if let Some(token) = &mut entry.token {
        token.access = placeholder();
        token.refresh = token.refresh.as_ref().map(|_| placeholder());
    }
    true
}

/// Puts the secrets back into an entry. False: the keyring has lost them, and the entry is worth
/// nothing.
#[cfg(feature = "keyring")]
pub(super) fn fill(stem: &str, entry: &mut Entry) -> bool {
    if !entry.in_keyring {
        return true;
    }
    let Some(text) = key(stem, entry).and_then(|key| key.get_secret().ok()) else {
        return false;
    };
    let Ok(secrets) = serde_json::from_slice::<Secrets>(&text) else {
        return false;
    };
    entry.client.secret = secrets.client;
    if let Some(token) = &mut entry.token {
        let Some(access) = secrets.access else {
            return false;
        };
        token.access = access;
        token.refresh = secrets.refresh;
    }
    true
}

#[cfg(feature = "keyring")]
pub(super) fn forget(stem: &str, entry: &Entry) {
    if entry.in_keyring
        && let Some(key) = key(stem, entry)
        && let Err(error) = key.delete_credential()
    {
        tracing::debug!(%error, "the keyring had nothing to forget");
    }
}

#[cfg(not(feature = "keyring"))]
pub(super) fn hand_over(_: &str, _: &mut Entry) -> bool {
    false
}

/// An entry of a build with a keyring is worth nothing to one without.
#[cfg(not(feature = "keyring"))]
pub(super) fn fill(_: &str, entry: &mut Entry) -> bool {
    !entry.in_keyring
}

#[cfg(not(feature = "keyring"))]
pub(super) fn forget(_: &str, _: &Entry) {}
