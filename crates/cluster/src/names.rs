//! Which node holds a name, for the engines that keep this in memory. A name stands for what only
//! one replica has: a task, or the one server of a destination (`placement: one`). Requests for it
//! are forwarded to the holder.

use std::collections::HashMap;

use crate::record::NodeId;

/// As many names as are kept. Beyond it the one that expires first goes.
const MAX_NAMES: usize = 100_000;

/// Which node holds a name, and until when.
#[derive(Debug, Default)]
pub(crate) struct Names {
    held: HashMap<String, Holding>,
}

#[derive(Debug)]
struct Holding {
    node: NodeId,
    /// In the unit of the caller.
    expires: u64,
}

impl Names {
    /// Makes a node the holder of a name, unless another one holds it that lives. Returns the
    /// holder.
    pub(crate) fn hold(
        &mut self,
        now: u64,
        name: &str,
        node: &NodeId,
        expires: u64,
        lives: impl Fn(&NodeId) -> bool,
    ) -> NodeId {
        if let Some(holder) = self.holder(now, name)
            && holder != *node
            && lives(&holder)
        {
            return holder;
        }
        if self.held.len() >= MAX_NAMES && !self.held.contains_key(name) {
            self.make_room(now);
        }
        let holding = Holding {
            node: node.clone(),
            expires,
        };
        self.held.insert(name.to_owned(), holding);
        node.clone()
    }

    /// Leases a name to a node, unless another one has it. Returns the node that has it.
    pub(crate) fn lease(&mut self, now: u64, name: &str, node: &NodeId, expires: u64) -> NodeId {
        self.hold(now, name, node, expires, |_| true)
    }

    /// Returns the node that holds a name, whether it lives or not.
    pub(crate) fn holder(&self, now: u64, name: &str) -> Option<NodeId> {
        let holding = self.held.get(name)?;
        (holding.expires > now).then(|| holding.node.clone())
    }

    /// Lets a name go, if this node holds it.
    pub(crate) fn let_go(&mut self, name: &str, node: &NodeId) {
        if self.held.get(name).is_some_and(|holding| holding.node == *node) {
            self.held.remove(name);
        }
    }

    /// Drops what has expired.
    pub(crate) fn expire(&mut self, now: u64) {
        self.held.retain(|_, holding| holding.expires > now);
    }

    fn make_room(&mut self, now: u64) {
        self.expire(now);
        if self.held.len() >= MAX_NAMES
            && let Some(first) = self.held.iter().min_by_key(|(_, holding)| holding.expires)
        {
            let first = first.0.clone();
            self.held.remove(&first);
        }
    }
}
