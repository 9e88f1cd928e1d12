//! A gateway for tests: one destination, whose remote server is never reached.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use cluster::record::{Node, NodeId};
use cluster::{ClusterKey, MemoryRegistry};

use crate::backend::process::Launcher;
use crate::endpoint::Endpoint;
use crate::gateway::Gateway;
use crate::peer::Peers;
use crate::replica::Replica;
use crate::settings::{
    self, AuditSettings, AuditSink, AuthSettings, BackendSpec, Capabilities, EraChoice, LimitSettings,
    OnAuditFailure, Outages, Placement, Projects, RemoteSpec, Retry, Settings, Sharing, SharingRules, Show,
    SignIn, ToolPolicy, Transport,
};
use crate::threads::Threads;

const NAME: &str = "demo";

/// Returns settings with one shared remote server.
pub(crate) fn settings() -> Settings {
    let destination = settings::Destination {
        name: NAME.to_owned(),
        backend: BackendSpec::Remote(RemoteSpec {
            url: "http://127.0.0.1:9/mcp".parse().expect("a URL"),
            transport: Transport::StreamableHttp,
            headers: Vec::new(),
            forward_headers: Vec::new(),
            ca_file: None,
            retry: Retry::Safe,
            outages: Outages::Refuse,
            sign_in: SignIn::No,
            socket: None,
        }),
        instances: SharingRules {
            sharing: Sharing::Shared,
            capabilities: Capabilities::Union,
            start_timeout: Duration::from_secs(60),
            max_children: 4,
            linger: Duration::from_secs(60),
            projects: Projects::Apart,
        },
        request_timeout: Duration::from_secs(60),
        stream_timeout: Duration::from_secs(60),
        max_message_bytes: 1 << 20,
        max_sessions: 4,
        max_calls: None,
        era: EraChoice::Auto,
        show: Show::Both,
        roots: Vec::new(),
        legacy_sse: false,
        placement: Placement::Replica,
        tools: ToolPolicy::default(),
    };
    Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        has_listener: true,
        threads: NonZeroUsize::MIN,
        tls: None,
        request_timeout: destination.request_timeout,
        stream_timeout: destination.stream_timeout,
        max_message_bytes: destination.max_message_bytes,
        session_idle: Duration::from_secs(60),
        drain: Duration::from_secs(1),
        state_dir: None,
        offers_dir: None,
        cluster: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        public_url: None,
        auth: AuthSettings::default(),
        limits: LimitSettings::default(),
        metrics: true,
        ui: true,
        audit: AuditSettings {
            sink: AuditSink::Off,
            bodies: false,
            on_failure: OnAuditFailure::Count,
            chain: false,
            chain_key: None,
        },
        destinations: vec![destination],
        root_destination: None,
        keep_going: false,
    }
}

/// Returns a gateway with these settings.
pub(crate) fn gateway(settings: &Settings) -> Arc<Gateway> {
    let launcher = Launcher::without_warden();
    let gateway = Gateway::new(settings, settings.listen, launcher, BTreeMap::new());
    gateway.expect("the settings are good")
}

/// Returns the destination of a gateway with these settings.
pub(crate) fn destination(settings: &Settings) -> Arc<Endpoint> {
    Arc::clone(&gateway(settings).config().destinations[NAME])
}

/// Returns a gateway that shares this registry with others.
pub(crate) fn replica(settings: &Settings, registry: &MemoryRegistry, name: &str) -> Arc<Gateway> {
    let key = ClusterKey::generate().expect("randomness");
    let id = NodeId::generate(name).expect("a plain name");
    let peers = Peers::open(&key, &id, settings.listen).expect("a free port");
    let replica = Replica {
        registry: Arc::new(registry.clone()),
        node: Node {
            id,
            address: Some(peers.address().to_string()),
            program: String::new(),
            is_draining: false,
        },
        key,
        peers: Arc::new(peers),
    };
    let launcher = Launcher::without_warden();
    let gateway = Gateway::build(
        settings,
        settings.listen,
        launcher,
        BTreeMap::new(),
        Some(replica),
        Threads::default(),
    );
    gateway.expect("the settings are good")
}
