//! The page at `/ui/`, in Chromium, in front of the real binary with real servers.
//!
//! The scripts of `tests/page` look, click and type; the judges are here. The browser and its driver
//! come from `cargo xtask setup`; without them a test fails with that reason.

mod browser;
mod fixture;
mod hostility;
mod looks;
mod truth;
mod usage;
