//! SHA-256, and the file that lists it for every package.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use sha2::{Digest as _, Sha256};

/// The name of the list, as `sha256sum --check` reads it.
pub const LIST: &str = "SHA256SUMS";

pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns the checksum in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the names that a list has.
pub fn listed(list: &str) -> Vec<&str> {
    list.lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(_, name)| name)
        .collect()
}

/// Writes the list of a folder anew: what it named before and still exists, and what is new.
pub fn write(folder: &Path, new: &[String]) -> anyhow::Result<()> {
    let before = std::fs::read_to_string(folder.join(LIST)).unwrap_or_default();
    let names = listed(&before).into_iter().chain(new.iter().map(String::as_str));
    let mut lines = BTreeMap::new();
    for name in names.filter(|name| folder.join(name).is_file()) {
        let bytes = std::fs::read(folder.join(name)).with_context(|| format!("cannot read {name}"))?;
        lines.insert(name.to_owned(), sha256(&bytes));
    }
    let text: String = lines
        .iter()
        .map(|(name, sum)| format!("{sum}  {name}\n"))
        .collect();
    std::fs::write(folder.join(LIST), text).context("cannot write the checksums")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_sha256sum() {
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(listed("abc  one.deb\nabd  two.rpm\n"), ["one.deb", "two.rpm"]);
    }
}
