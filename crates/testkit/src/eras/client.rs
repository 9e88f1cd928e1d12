//! The official clients that cross, each in the era it speaks.

use crate::interop::sdk::{Era, Sdk};
use crate::revision::{LEGACY, MODERN};

/// An official client and the era it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    TypeScript1,
    TypeScript2Legacy,
    TypeScript2Modern,
    Python1,
    Python2Legacy,
    Python2Modern,
}

impl Client {
    /// The revision it speaks to Rialto.
    pub fn version(self) -> &'static str {
        match self {
            Client::TypeScript1 | Client::TypeScript2Legacy | Client::Python1 | Client::Python2Legacy => {
                LEGACY
            }
            Client::TypeScript2Modern | Client::Python2Modern => MODERN,
        }
    }

    pub fn sdk(self) -> (Sdk, Era) {
        match self {
            Client::TypeScript1 => (Sdk::TypeScript1, Era::Legacy),
            Client::TypeScript2Legacy => (Sdk::TypeScript2, Era::Legacy),
            Client::TypeScript2Modern => (Sdk::TypeScript2, Era::Modern),
            Client::Python1 => (Sdk::Python1, Era::Legacy),
            Client::Python2Legacy => (Sdk::Python2, Era::Legacy),
            // What it does by default; it must find out for itself that Rialto shows it the modern
            // era.
            Client::Python2Modern => (Sdk::Python2, Era::Auto),
        }
    }
}
