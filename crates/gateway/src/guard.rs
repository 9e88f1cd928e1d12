//! Who may come in.

pub(crate) mod origin;
