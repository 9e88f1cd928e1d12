//! What Rialto's speed is measured with, and against.
//!
//! Two servers (one handler over stdio, the same handler over HTTP), a load generator that costs
//! little itself, and a runner that sets systems side by side in one run. Development only: nothing
//! else in the house may depend on it. It measures; it asserts nothing about protocol conformance,
//! which has tests of its own.

pub mod aggregate;
pub mod connect;
pub mod connection;
pub mod echo;
pub mod fan_out;
pub mod fleet;
pub mod handler;
pub mod hosts;
pub mod instructions;
pub mod issuer;
pub mod load;
pub mod meter;
pub mod native;
pub mod order;
pub mod overload;
pub mod page;
pub mod pipe;
pub mod report;
pub mod request;
pub mod row;
pub mod runner;
pub mod sdk;
pub mod shallow;
pub mod system;
pub mod threads;
pub mod tls;
