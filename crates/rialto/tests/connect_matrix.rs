//! The matrix of eras for hosts that start programs: official SDK clients of both eras with their own stdio transports,
//! `rialto connect` as the program, and official servers of both eras on every kind of HTTP transport behind it.
//!
//! Cells, scenarios and what cannot be are those of `remote_matrix.rs`. Nothing is configured: `connect` is given an
//! address and finds transport and era by itself.

#[path = "eras/client.rs"]
mod client;
#[path = "eras/judge.rs"]
mod judge;
#[path = "remote_matrix/pair.rs"]
mod pair;
#[path = "connect_matrix/by_connect.rs"]
mod road;
#[path = "interop/sdk.rs"]
mod sdk;
#[path = "eras/stages.rs"]
mod stages;

use client::Client;
use pair::{Pair, SCENARIOS, Server};

include!("remote_matrix/cells.rs");
