//! A sorted vector as a map, for the few entries of one session. Most sessions are idle, and there
//! may be thousands.
//!
//! The vector has room for its entries and little more; a tree of the standard library keeps a node
//! for eleven. Session keys rise, so a new entry goes to the end. Large maps need another type:
//! removing the first entry moves all others.

/// A map whose entries stand in one vector, in the order of their keys.
#[derive(Debug, Clone)]
pub struct VecMap<K, V> {
    entries: Vec<(K, V)>,
}

impl<K, V> Default for VecMap<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K: Ord, V> VecMap<K, V> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.entries.binary_search_by(|(known, _)| known.cmp(key))
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(key).ok()?;
        self.entries.get(at).map(|(_, value)| value)
    }

    /// Returns the value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    /// Inserts an entry. Returns the value that it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => {
                let entry = self.entries.get_mut(at);
                entry.map(|(_, old)| std::mem::replace(old, value))
            }
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

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// Keeps the entries that pass.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K, V> VecMap<K, V> {
    /// Returns how many entries it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all entries in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// Returns its entries in the order of their keys.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// Returns its keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns its values in the order of their keys.
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
        fn a_vec_map_is_a_map_in_the_order_of_its_keys(steps in proptest::collection::vec((0_u8..4, 0_u8..8, any::<u8>()), 0..100)) {
            let (mut map, mut model) = (VecMap::default(), BTreeMap::new());
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    1 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    2 => {
                        map.retain(|key, kept| *kept >= value && *key != 0);
                        model.retain(|key, kept| *kept >= value && *key != 0);
                    }
                    _ => prop_assert_eq!(map.get_mut(&key), model.get_mut(&key)),
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(map.iter().eq(model.iter()) && map.keys().eq(model.keys()) && map.values().eq(model.values()));
                prop_assert!(map.iter_mut().eq(model.iter_mut()));
            }
        }
    }

    #[test]
    fn a_vec_map_of_one_entry_takes_the_room_of_one() {
        let mut map = VecMap::default();
        map.insert(1, [0_u64; 8]);
        assert_eq!(map.entries.capacity(), 1);
    }
}
