//! A map of few entries, for what every session has: it is mostly idle, and there may be thousands.
//!
//! The entries stand in one row in the order of their keys, with room for what is there and little more; a tree of the
//! standard library keeps a node for eleven when its only entry goes. Keys are given out in rising order, so that a new one
//! is put at the end. It is not for what grows large: removing the first of many moves all the others.

/// A map of few entries.
#[derive(Debug, Clone)]
pub struct Few<K, V> {
    entries: Vec<(K, V)>,
}

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: Ord, V> Few<K, V> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.entries.binary_search_by(|(known, _)| known.cmp(key))
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(key).ok()?;
        self.entries.get(at).map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    /// Puts an entry in, and gives the one it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                // Most have one entry and never two; a vector would begin with four.
                if self.entries.capacity() == 0 {
                    self.entries.reserve_exact(1);
                }
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        Some(self.entries.remove(at).1)
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K, V> Few<K, V> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_in_the_order_of_its_keys(steps in proptest::collection::vec((0_u8..4, 0_u8..8, any::<u8>()), 0..100)) {
            let (mut few, mut map) = (Few::default(), BTreeMap::new());
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(few.insert(key, value), map.insert(key, value)),
                    1 => prop_assert_eq!(few.remove(&key), map.remove(&key)),
                    2 => {
                        few.retain(|key, kept| *kept >= value && *key != 0);
                        map.retain(|key, kept| *kept >= value && *key != 0);
                    }
                    _ => prop_assert_eq!(few.get_mut(&key), map.get_mut(&key)),
                }
                prop_assert_eq!(few.get(&key), map.get(&key));
                prop_assert_eq!((few.len(), few.is_empty()), (map.len(), map.is_empty()));
                prop_assert!(few.iter().eq(map.iter()) && few.keys().eq(map.keys()) && few.values().eq(map.values()));
                prop_assert!(few.iter_mut().eq(map.iter_mut()));
            }
        }
    }

    #[test]
    fn one_entry_takes_the_room_of_one() {
        let mut few = Few::default();
        few.insert(1, [0_u64; 8]);
        assert_eq!(few.entries.capacity(), 1);
    }
}
