//! The handshake of a session: not answered, accepted or refused.

use bytes::Bytes;

use crate::client_face::legacy;
use crate::exchange::ServerInfo;
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
    /// The session goes on after its process has ended: Rialto sends the handshake once more.
    restored: bool,
    state: HandshakeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HandshakeState {
    /// The server has not answered.
    Unanswered,
    Accepted,
    /// The server has answered with an error, and the backend has forgotten the session.
    Refused,
}

impl Handshake {
    pub(super) fn new(asked: Option<Version>, implicit: bool) -> Self {
        Self {
            asked,
            version: asked.unwrap_or(Version::NEWEST_LEGACY),
            implicit,
            restored: false,
            state: HandshakeState::Unanswered,
        }
    }

    /// Takes note that the client will send no `initialize`, since it did so in an earlier process.
    pub(super) const fn set_restored(&mut self) {
        self.restored = true;
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn is_implicit(&self) -> bool {
        self.implicit
    }

    pub(super) fn is_opened(&self) -> bool {
        self.state == HandshakeState::Accepted
    }

    /// The server has refused the handshake.
    pub(super) const fn handle_refusal(&mut self) {
        self.state = HandshakeState::Refused;
    }

    /// Returns whether Rialto has to do its own handshake once more. A client that sent
    /// `initialize` here does so itself.
    pub(super) fn begin_again(&mut self) -> bool {
        let again = (self.implicit || self.restored) && self.state == HandshakeState::Refused;
        if again {
            self.state = HandshakeState::Unanswered;
        }
        again
    }

    /// Takes the server's declaration. Returns the answer to the request with this id.
    pub(super) fn handle_server_info(&mut self, id: &[u8], server_info: &ServerInfo) -> Bytes {
        let (body, version) = legacy::lower_server_info(id, server_info, self.asked);
        self.version = version;
        self.state = HandshakeState::Accepted;
        body
    }
}
