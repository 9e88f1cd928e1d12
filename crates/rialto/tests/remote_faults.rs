//! The remote misbehaves: rows D of the fault catalogue, each in front of the real binary.
//!
//! Tests are named after their row. D16 (a name that resolves differently the second time) needs a resolver of one's own
//! and is left to the unit tests of the address policy; D6 and D18 are about `connect`, and here only as far as `serve`
//! has to do with them. What is always true as well: a tool runs at most once, and each call has one ending.

#[path = "remote_faults/answers.rs"]
mod answers;
#[path = "remote_faults/credentials.rs"]
mod credentials;
#[path = "remote_faults/event_streams.rs"]
mod event_streams;
#[path = "remote_faults/failures.rs"]
mod failures;
#[path = "remote_faults/floods.rs"]
mod floods;
#[path = "remote_faults/old_transport.rs"]
mod old_transport;
#[path = "remote_faults/redirects.rs"]
mod redirects;
#[path = "remote_faults/sessions.rs"]
mod sessions;
#[path = "remote_faults/stage.rs"]
mod stage;
#[path = "remote_faults/tls.rs"]
mod tls;
