//! What observations mean. Each judge takes plain data and returns facts and findings; it looks at
//! nothing itself.

pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod machine;
pub(crate) mod server;
pub(crate) mod sign_in;
pub(crate) mod way_in;
