//! How far the handshake of a session is.

use bytes::Bytes;

use crate::client_face::legacy;
use crate::exchange::Welcome;
use crate::version::Version;

/// The handshake of a session.
#[derive(Debug)]
pub(super) struct Handshake {
    /// The revision that the client asked for.
    asked: Option<Version>,
    /// The revision that the client asked for, then the one that holds.
    version: Version,
    /// Rialto opened the session for a client that never sent `initialize`.
    implicit: bool,
    welcomed: bool,
}

impl Handshake {
    pub(super) fn new(asked: Option<Version>, implicit: bool) -> Self {
        Self {
            asked,
            version: asked.unwrap_or(Version::NEWEST_LEGACY),
            implicit,
            welcomed: false,
        }
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn is_implicit(&self) -> bool {
        self.implicit
    }

    pub(super) const fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// Takes the server's welcome. Returns the answer to the request with this id.
    pub(super) fn handle_welcome(&mut self, id: &[u8], welcome: &Welcome) -> Bytes {
        let (body, version) = legacy::lower_welcome(id, welcome, self.asked);
        self.version = version;
        self.welcomed = true;
        body
    }
}
