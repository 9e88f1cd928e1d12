//! The matrix of eras for servers that are reached over HTTP: official SDK clients of both eras,
//! servers of both, on every kind of HTTP transport, the real binary in between.
//!
//! The scenarios and what they must show are those of `eras`. A cell that cannot exist, with or
//! without a bridge, is listed with its reason in `Pair::objection` of testkit; it has no test
//! here, and one test counts them.

mod by_serve;

testkit::remote_matrix!(crate::by_serve::play);
