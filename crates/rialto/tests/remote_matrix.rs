//! The matrix of eras for servers that are reached over HTTP: official SDK clients of both eras, servers of both, on
//! every kind of HTTP transport, the real binary in between.
//!
//! The scenarios and what they must show are those of `eras.rs`. A cell that cannot exist, with or without a bridge, is
//! listed with its reason in `Pair::objection`; it has no test here, and one test counts them.

#[path = "eras/client.rs"]
mod client;
#[path = "eras/judge.rs"]
mod judge;
#[path = "remote_matrix/pair.rs"]
mod pair;
#[path = "remote_matrix/by_serve.rs"]
mod road;
#[path = "interop/sdk.rs"]
mod sdk;
#[path = "eras/stages.rs"]
mod stages;
#[path = "eras/through_serve.rs"]
mod through_serve;

use client::Client;
use pair::{Pair, SCENARIOS, Server};

include!("remote_matrix/cells.rs");
