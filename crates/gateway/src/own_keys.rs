//! Hashing of keys that Rialto gives out itself, or that are cryptographic hashes. Nobody can put one of their own
//! choice into a map, so none can be chosen to collide, and they need no hash that withstands it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by such keys: numbers that are counted up, random identifiers, or hashes.
pub(crate) type OwnKeys<K, V> = HashMap<K, V, BuildHasherDefault<OwnKeyHasher>>;

#[derive(Debug, Default)]
pub(crate) struct OwnKeyHasher(u64);

impl Hasher for OwnKeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    /// Spreads a number over all bits, of which a map takes the lowest and the highest.
    fn write_u64(&mut self, number: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ number).wrapping_mul(ODD).rotate_left(32);
    }

    fn write_usize(&mut self, _length: usize) {
        // The length of a key, which all keys of one map share.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher as _, Hash};

    use aws_lc_rs::digest;
    use uuid::Uuid;

    use super::*;

    fn spread<K: Hash>(keys: impl Iterator<Item = K>) -> (usize, usize) {
        let hashes: Vec<u64> = keys
            .map(|key| BuildHasherDefault::<OwnKeyHasher>::default().hash_one(key))
            .collect();
        let low: BTreeSet<u64> = hashes.iter().map(|hash| hash % 1024).collect();
        let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
        (low.len(), high.len())
    }

    /// Of 1,024 places, a random choice of as many keys reaches about 647.
    #[test]
    fn keys_are_spread_over_a_map() {
        let hash = |number: u64| -> [u8; 32] {
            let digest = digest::digest(&digest::SHA256, &number.to_le_bytes());
            digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
        };
        for (low, high) in [
            spread(0..1024_u64),
            spread((0..1024).map(|_| Uuid::new_v4())),
            spread((0..1024).map(hash)),
        ] {
            assert!(low > 550 && high > 100, "{low} places, {high} marks");
        }
    }
}
