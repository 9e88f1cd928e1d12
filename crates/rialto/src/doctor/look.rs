//! The observers: each looks at one group, and returns plain data for its judge.

pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod machine;
pub(crate) mod server;
pub(crate) mod sign_in;
pub(crate) mod way_in;
