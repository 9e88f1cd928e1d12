//! Signing in against a real resource with its authorization server, with a browser and without, in
//! one process and in several.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;
mod hostile;
mod issuer;
mod processes;
mod signing_in;
