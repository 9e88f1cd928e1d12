//! Aggregates: many destinations behind one endpoint, with real servers of both eras, and the
//! complaints about gateways that its tests answer by name.

mod callers;
mod catalogue;
mod command_line;
mod eras;
mod failures;
mod fixture;
mod listening;
mod loops;
mod mirrored;
mod names;
mod one_member;
mod reload;
mod restart;
mod routing;
mod search;
mod sign_in;
mod tasks;
