//! A cluster of Redis servers, as `redis-cli --cluster create` makes it.

use super::Redis;
use crate::failure::{Failure, Result};
use crate::patience::{PATIENCE, look_until};

/// How many slots the keys of a cluster are spread over.
const SLOTS: usize = 16384;

/// Nodes that share the slots. They end with this value.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts this many primaries, each with an equal part of the slots.
    pub fn start(primaries: usize) -> Result<Self> {
        let mut cluster = Self { nodes: Vec::new() };
        for number in 0..primaries {
            let node = start_node()?;
            let first = number * SLOTS / primaries;
            let last = (number + 1) * SLOTS / primaries - 1;
            expect_ok(&node, &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            expect_ok(&node, &["SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            cluster.nodes.push(node);
        }
        for node in cluster.nodes.iter().skip(1) {
            cluster.introduce(node)?;
        }
        cluster.settle()?;
        Ok(cluster)
    }

    /// Adds a copy of a primary, and waits until it has everything. Returns its number.
    pub fn add_copy(&mut self, primary: usize) -> Result<usize> {
        let copy = start_node()?;
        self.introduce(&copy)?;
        let id = self.node(primary).command(&["CLUSTER", "MYID"])?;
        let followed = look_until(PATIENCE, || {
            // It has to know the primary first.
            let answer = copy.command(&["CLUSTER", "REPLICATE", &id]).ok()?;
            (answer == "+OK").then_some(())
        });
        followed.ok_or_else(|| Failure::new("the copy does not learn of its primary"))?;
        let followed = look_until(PATIENCE, || {
            let text = copy.command(&["INFO", "replication"]).ok()?;
            text.contains("master_link_status:up").then_some(())
        });
        followed.ok_or_else(|| Failure::new("the copy does not follow its primary"))?;
        self.nodes.push(copy);
        self.settle()?;
        Ok(self.nodes.len() - 1)
    }

    /// Returns a node.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn node(&self, number: usize) -> &Redis {
        self.nodes.get(number).expect("the cluster has this node")
    }

    /// Kills a node.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        match self.nodes.get_mut(number) {
            Some(node) => node.kill(),
            None => Err(Failure::new(format!("the cluster has no node {number}"))),
        }
    }

    /// Returns the number of the primary that has a key's slot.
    pub fn primary_of(&self, key: &str) -> Result<usize> {
        let answers = |node: &Redis| {
            let answer = node.command(&["EXISTS", key]);
            answer.is_ok_and(|answer| answer.starts_with(':'))
        };
        let found = self.nodes.iter().position(answers);
        found.ok_or_else(|| Failure::new(format!("no node has the slot of {key}")))
    }

    /// Returns the URL that names these nodes.
    pub fn url(&self, nodes: &[usize]) -> String {
        let addresses = nodes
            .iter()
            .map(|number| format!("127.0.0.1:{}", self.node(*number).port()));
        format!("redis+cluster://{}", addresses.collect::<Vec<_>>().join(","))
    }

    /// Lets a new node know the first one, and so all.
    fn introduce(&self, node: &Redis) -> Result<()> {
        let first = self.node(0);
        // `PORT@BUS` stands in the node's own line: `ID HOST:PORT@BUS …`.
        let line = first.command(&["CLUSTER", "NODES"])?;
        let own = line.lines().find(|line| line.contains("myself"));
        let bus = own.and_then(|line| line.split_once('@')?.1.split([' ', ',']).next());
        let bus = bus.ok_or_else(|| Failure::new(format!("no port of the bus in {line}")))?;
        expect_ok(node, &["MEET", "127.0.0.1", &first.port().to_string(), bus])
    }

    /// Waits until every node knows every other one, and serves.
    fn settle(&self) -> Result<()> {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            let settled = look_until(PATIENCE, || {
                let text = node.command(&["CLUSTER", "INFO"]).ok()?;
                (text.contains("cluster_state:ok") && text.contains(&known)).then_some(())
            });
            settled.ok_or_else(|| Failure::new("the nodes do not become a cluster"))?;
        }
        Ok(())
    }
}

fn start_node() -> Result<Redis> {
    let settings = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        "PORT",
        "--cluster-node-timeout",
        "3000",
    ];
    Redis::start_with(&settings)
}

/// Sends a command of `CLUSTER`.
fn expect_ok(node: &Redis, words: &[&str]) -> Result<()> {
    let answer = node.command(&[&["CLUSTER"], words].concat())?;
    match answer.as_str() {
        "+OK" => Ok(()),
        other => Err(Failure::new(format!("CLUSTER {}: {other}", words.join(" ")))),
    }
}
