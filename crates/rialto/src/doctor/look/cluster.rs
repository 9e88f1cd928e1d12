//! Looks at the engine of a fleet: connects as a replica does, which tries every operation, and
//! takes a lease of its own for a moment.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cluster::redis::{ACL_RULES, ConnectError};
use cluster::{ClusterKey, Node, NodeId, RedisRegistry, RedisSettings, Registry as _};
use gateway::settings::ClusterSettings;

use crate::doctor::finding::Cure;
use crate::doctor::judge::cluster::{ClusterSeen, EngineFailure, EngineSeen};

/// Looks at a cluster.
pub(crate) async fn look(settings: &ClusterSettings) -> ClusterSeen {
    let key = ClusterKey::read(&settings.key_file);
    ClusterSeen {
        key_failure: key.err().map(|error| error.to_string()),
        engine: engine(settings).await,
    }
}

async fn engine(settings: &ClusterSettings) -> Result<EngineSeen, EngineFailure> {
    let engine = RedisSettings {
        prefix: settings.prefix.clone(),
        ..RedisSettings::new(&settings.url)
    };
    let registry = RedisRegistry::connect(&engine)
        .await
        .map_err(|error| failure(&error))?;
    let away = |error: cluster::RegistryError| EngineFailure {
        id: "engine_unreachable",
        what: error.to_string(),
        is_outage: true,
        cure: Cure::Run("rialto cluster status".into()),
    };
    let report = registry.inspect().await.map_err(away)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let replicas = registry.nodes().await.map_err(away)?;
    Ok(EngineSeen {
        address: report.address,
        product: format!("{} {}", report.product, report.version),
        eviction: report.eviction_policy,
        ahead: report.clock.map(|clock| clock.as_secs_f64() - now.as_secs_f64()),
        lease: Some(lease(&registry).await),
        // A check of the engine joins for a moment, without an address.
        replicas: replicas
            .iter()
            .filter(|status| status.node.address.is_some())
            .count(),
    })
}

/// Takes, renews and ends a lease.
async fn lease(registry: &RedisRegistry) -> Result<std::time::Duration, String> {
    let node = Node {
        id: NodeId::generate("doctor").map_err(|error| error.to_string())?,
        address: None,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        is_draining: false,
    };
    let began = Instant::now();
    let text = |error: cluster::RegistryError| error.to_string();
    registry.join(&node).await.map_err(text)?;
    registry.renew(&node.id).await.map_err(text)?;
    registry.leave(&node.id).await.map_err(text)?;
    Ok(began.elapsed())
}

fn failure(error: &ConnectError) -> EngineFailure {
    let in_file = |line: &str| Cure::Write {
        file: "destinations.yml".into(),
        line: format!("cluster: {{ url: {line} }}"),
    };
    let (id, cure) = match error {
        ConnectError::Unreachable { .. } => (
            "engine_unreachable",
            Cure::Run("systemctl status valkey redis    # does it run, and at this address?".into()),
        ),
        ConnectError::Url { .. } | ConnectError::OtherProgram { .. } => {
            ("engine_url", in_file("redis://HOST:6379"))
        }
        ConnectError::TlsNeeded { .. } | ConnectError::Tls { .. } => {
            ("engine_tls", in_file("rediss://HOST:6379"))
        }
        ConnectError::Credentials { .. } => (
            "engine_credentials",
            in_file("\"rediss://USER:${secret:engine}@HOST:6379\""),
        ),
        ConnectError::SentinelCredentials { .. } | ConnectError::UnknownPrimary { .. } => {
            ("engine_sentinel", in_file("redis+sentinel://HOST:26379/NAME"))
        }
        ConnectError::TooOld { .. } => ("engine_too_old", Cure::Do("install Valkey 8 or Redis 7".into())),
        ConnectError::Evicts { .. } => (
            "engine_evicts",
            Cure::Run(
                "valkey-cli config set maxmemory-policy noeviction    # and in its configuration".into(),
            ),
        ),
        ConnectError::Replica { .. } => ("engine_read_only", in_file("redis://PRIMARY:6379")),
        ConnectError::ClusterMode { .. } => (
            "engine_cluster_mode",
            in_file("redis+cluster://HOST:6379,HOST:6379"),
        ),
        ConnectError::NoCluster { .. } => ("engine_cluster_mode", in_file("redis://HOST:6379")),
        ConnectError::Forbidden { prefix, .. } => (
            "engine_acl",
            Cure::Run(format!(
                "valkey-cli acl setuser USER '~{prefix}:*' '{}'",
                ACL_RULES.replace(' ', "' '")
            )),
        ),
        ConnectError::Unusable { .. } => ("engine_unusable", Cure::Run("rialto cluster status".into())),
    };
    EngineFailure {
        id,
        what: error.to_string(),
        is_outage: matches!(error, ConnectError::Unreachable { .. }),
        cure,
    }
}
