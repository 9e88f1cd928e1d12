//! This process as a replica of a fleet (`cluster`): what it has before it serves.

use std::sync::Arc;

use cluster::key::{ClusterKey, KeyError};
use cluster::record::{Node, NodeId, NodeIdError};
use cluster::redis::ConnectError;
use cluster::registry::Registry;
use cluster::{RedisRegistry, RedisSettings};

use crate::peer::{Peers, PeersError};
use crate::settings::ClusterSettings;

/// Why a process cannot become a replica. Each text names the setting to change.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("`cluster.key_file` cannot be used")]
    Key(#[source] KeyError),
    #[error("`cluster.name` cannot be used")]
    Name(#[source] NodeIdError),
    #[error(transparent)]
    Peers(#[from] PeersError),
    #[error("`cluster.url` cannot be used")]
    Engine(#[source] ConnectError),
}

/// A replica that has its engine, its key and its address for the others.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) key: ClusterKey,
    pub(crate) node: Node,
    pub(crate) peers: Arc<Peers>,
}

impl Replica {
    /// Checks the key and the engine, and listens for the other replicas. It joins them later.
    pub(crate) async fn connect(settings: &ClusterSettings) -> Result<Self, ClusterError> {
        let key = ClusterKey::read(&settings.key_file).map_err(ClusterError::Key)?;
        let id = NodeId::generate(&settings.name).map_err(ClusterError::Name)?;
        let peers = Peers::open(&key, &id, settings.listen)?;
        let engine = RedisSettings {
            prefix: settings.prefix.clone(),
            ..RedisSettings::new(&settings.url)
        };
        let registry = RedisRegistry::connect(&engine)
            .await
            .map_err(ClusterError::Engine)?;
        Ok(Self {
            registry: Arc::new(registry),
            key,
            node: Node {
                id,
                address: Some(settings.advertised(peers.address())),
                program: env!("CARGO_PKG_VERSION").to_owned(),
                is_draining: false,
            },
            peers: Arc::new(peers),
        })
    }
}
