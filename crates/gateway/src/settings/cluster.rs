//! What a replica of a fleet knows about the fleet.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// How this replica belongs to a fleet.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Where the engine is: `redis://`, `rediss://` or `unix://`. It may hold a password.
    pub url: String,
    /// The secret that all replicas share.
    pub key_file: PathBuf,
    /// Where requests of the other replicas are accepted.
    pub listen: SocketAddr,
    /// `HOST:PORT` under which the other replicas reach this one. Port 0 stands for the port that
    /// `listen` got.
    pub advertise: String,
    /// What every key in the engine begins with.
    pub prefix: String,
    /// The name of this replica; an incarnation is added at each start.
    pub name: String,
}

impl ClusterSettings {
    /// Returns the address for the other replicas, once the listener has its port.
    pub fn advertised(&self, bound: SocketAddr) -> String {
        match self.advertise.strip_suffix(":0") {
            Some(host) => format!("{host}:{}", bound.port()),
            None => self.advertise.clone(),
        }
    }
}

impl fmt::Debug for ClusterSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSettings")
            .field("url", &"[redacted]")
            .field("key_file", &self.key_file)
            .field("listen", &self.listen)
            .field("advertise", &self.advertise)
            .field("prefix", &self.prefix)
            .field("name", &self.name)
            .finish()
    }
}

/// Where in a fleet the instances of a destination run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Placement {
    /// Every replica has its own.
    #[default]
    Replica,
    /// One replica has them for the whole fleet, which suits a server with state in memory.
    One,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(advertise: &str) -> ClusterSettings {
        ClusterSettings {
            url: "redis://:geheim@127.0.0.1".to_owned(),
            key_file: "cluster.key".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: advertise.to_owned(),
            prefix: "rialto".to_owned(),
            name: "a".to_owned(),
        }
    }

    #[test]
    fn port_zero_becomes_the_port_of_the_listener() {
        let bound = SocketAddr::from(([127, 0, 0, 1], 4711));
        assert_eq!(settings("127.0.0.1:0").advertised(bound), "127.0.0.1:4711");
        assert_eq!(settings("[::1]:0").advertised(bound), "[::1]:4711");
        assert_eq!(settings("a.internal:3010").advertised(bound), "a.internal:3010");
    }

    #[test]
    fn debug_shows_no_password() {
        let shown = format!("{:?}", settings("a:1"));
        assert!(
            !shown.contains("geheim") && shown.contains("cluster.key"),
            "{shown}"
        );
    }
}
