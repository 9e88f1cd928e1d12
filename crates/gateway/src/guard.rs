//! Who may come in, and how much.

pub(crate) mod limits;
pub(crate) mod origin;
pub(crate) mod rate;
