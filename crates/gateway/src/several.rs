//! What is collected under a lock to be done after it: mostly one thing, for which nothing is allocated.

/// Any number of things, the first of them in place.
#[derive(Debug)]
pub(crate) struct Several<T> {
    first: Option<T>,
    others: Vec<T>,
}

impl<T> Default for Several<T> {
    fn default() -> Self {
        Self {
            first: None,
            others: Vec::new(),
        }
    }
}

impl<T> Several<T> {
    pub(crate) fn push(&mut self, thing: T) {
        match self.first {
            None => self.first = Some(thing),
            Some(_) => self.others.push(thing),
        }
    }
}

impl<T> IntoIterator for Several<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    /// In the order in which they came.
    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_come_out_in_the_order_they_came_in() {
        for count in 0..4 {
            let mut several = Several::default();
            (0..count).for_each(|thing| several.push(thing));
            assert!(several.into_iter().eq(0..count));
        }
    }
}
