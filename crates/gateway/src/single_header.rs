//! Headers that a request may have once at most.

use http::HeaderValue;

use crate::reply::Refusal;

/// A header that must not be there twice, as far as the headers of a request were read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SingleHeader<'h> {
    Absent,
    Once(&'h HeaderValue),
    Repeated,
}

impl<'h> SingleHeader<'h> {
    /// Returns this with one more value.
    pub(crate) fn and(self, value: &'h HeaderValue) -> Self {
        match self {
            Self::Absent => Self::Once(value),
            Self::Once(_) | Self::Repeated => Self::Repeated,
        }
    }

    /// Returns the value, or the refusal of a header that stands twice.
    pub(crate) fn value(self, name: &'static str) -> Result<Option<&'h HeaderValue>, Refusal> {
        match self {
            Self::Absent => Ok(None),
            Self::Once(value) => Ok(Some(value)),
            Self::Repeated => Err(Refusal::DoubledHeader(name)),
        }
    }
}
