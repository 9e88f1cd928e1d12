//! A client's messages ↔ Ask / Tell. One file per era; [`legacy`] is the era with sessions.

pub mod legacy;
