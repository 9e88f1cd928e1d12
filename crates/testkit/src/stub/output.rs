//! stdout, shared by the reading thread and the one for what is due later.

use std::io::Write;

/// Everything the child writes goes through here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Output;

impl Output {
    /// One message, in one write.
    pub(super) fn line(self, message: &str) {
        self.bytes(format!("{message}\n").as_bytes());
    }

    /// These bytes, at once and as they are.
    pub(super) fn bytes(self, bytes: &[u8]) {
        self.piecewise(|stdout| stdout.write_all(bytes));
    }

    /// Makes several writes without any other in between.
    pub(super) fn piecewise(self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        let mut stdout = std::io::stdout().lock();
        // When the other side has gone, stdin ends; a stub that ignores that lives on.
        let _ = write(&mut stdout).and_then(|()| stdout.flush());
    }
}
