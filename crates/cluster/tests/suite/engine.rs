//! The engines that the suite runs on, and what a test can do to each from outside.

use std::sync::Arc;
use std::time::Duration;

use cluster::registry::LEASE;
use cluster::{FileRegistry, MemoryRegistry, RedisRegistry, RedisSettings, Registry};

/// An engine, and what befalls it.
pub(crate) trait Engine: Sized {
    /// Starts an empty engine.
    async fn start() -> Self;

    /// Returns the registry, as one replica has it.
    fn registry(&self) -> Arc<dyn Registry>;

    /// Lets more than a lease pass since the registry began, before there are leases.
    async fn grow_old(&mut self);

    /// Ends every lease by the engine's clock.
    async fn end_leases(&mut self);

    /// Lets some of a short time pass. An engine with a clock of its own does nothing.
    fn tick(&mut self, some: Duration);

    /// Loses every node and record.
    async fn lose_everything(&mut self);
}

/// The registry in memory.
pub(crate) struct Memory(MemoryRegistry);

impl Engine for Memory {
    async fn start() -> Self {
        Self(MemoryRegistry::new())
    }

    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.0.clone())
    }

    async fn grow_old(&mut self) {
        self.0.advance(LEASE);
    }

    async fn end_leases(&mut self) {
        self.0.advance(LEASE);
    }

    fn tick(&mut self, some: Duration) {
        self.0.advance(some);
    }

    async fn lose_everything(&mut self) {
        self.0.clear();
    }
}

/// The registry in a file. Every lease ends with the process, for which opening the file again
/// stands.
pub(crate) struct File {
    directory: tempfile::TempDir,
    registry: Option<FileRegistry>,
}

impl File {
    fn reopen(&mut self) {
        self.registry = None;
        self.registry = Some(FileRegistry::open(self.directory.path()).unwrap());
    }
}

impl Engine for File {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = Self {
            directory,
            registry: None,
        };
        engine.reopen();
        engine
    }

    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.registry.clone().unwrap())
    }

    async fn grow_old(&mut self) {}

    async fn end_leases(&mut self) {
        self.reopen();
    }

    fn tick(&mut self, _some: Duration) {}

    async fn lose_everything(&mut self) {
        self.registry = None;
        std::fs::remove_file(self.directory.path().join(cluster::file::FILE)).unwrap();
        self.reopen();
    }
}

/// The registry on Redis servers of its own.
pub(crate) struct Redis<S> {
    servers: S,
    registry: RedisRegistry,
}

/// The servers of an engine, and how they are reached.
pub(crate) trait Servers: Sized {
    /// What the keys begin with.
    const PREFIX: &'static str;

    fn start() -> testkit::Result<Self>;

    fn url(&self) -> String;

    /// Returns the server that has the registry.
    fn primary(&self) -> &testkit::redis::Redis;
}

/// One server.
pub(crate) struct Single(testkit::redis::Redis);

impl Servers for Single {
    const PREFIX: &'static str = "rialto";

    fn start() -> testkit::Result<Self> {
        testkit::redis::Redis::start().map(Self)
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn primary(&self) -> &testkit::redis::Redis {
        &self.0
    }
}

/// A server that a Sentinel names.
pub(crate) struct Watched {
    server: testkit::redis::Redis,
    sentinel: testkit::redis::Sentinel,
}

impl Servers for Watched {
    const PREFIX: &'static str = "rialto";

    fn start() -> testkit::Result<Self> {
        let server = testkit::redis::Redis::start()?;
        let sentinel = testkit::redis::Sentinel::start(&server, "")?;
        Ok(Self { server, sentinel })
    }

    fn url(&self) -> String {
        self.sentinel.url()
    }

    fn primary(&self) -> &testkit::redis::Redis {
        &self.server
    }
}

/// A cluster of which the URL names a node that does not have the registry.
pub(crate) struct Cluster {
    cluster: testkit::redis::RedisCluster,
    primary: usize,
}

impl Servers for Cluster {
    const PREFIX: &'static str = "{rialto}";

    fn start() -> testkit::Result<Self> {
        let cluster = testkit::redis::RedisCluster::start(2)?;
        let primary = cluster.primary_of(Self::PREFIX)?;
        Ok(Self { cluster, primary })
    }

    fn url(&self) -> String {
        self.cluster.url(&[1 - self.primary])
    }

    fn primary(&self) -> &testkit::redis::Redis {
        self.cluster.node(self.primary)
    }
}

impl<S: Servers> Redis<S> {
    fn command(&self, words: &[&str]) -> String {
        self.servers.primary().command(words).unwrap()
    }
}

impl<S: Servers> Engine for Redis<S> {
    async fn start() -> Self {
        let servers = S::start().unwrap();
        let settings = RedisSettings::new(&servers.url());
        let registry = RedisRegistry::connect(&settings).await.unwrap();
        Self { servers, registry }
    }

    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.registry.clone())
    }

    async fn grow_old(&mut self) {
        let since = format!("{}:since", S::PREFIX);
        assert_eq!(self.command(&["SET", &since, "0"]), "+OK");
    }

    async fn end_leases(&mut self) {
        // A key whose time is over is a key that is gone.
        for keys in ["node", "held"] {
            let leases = self.command(&["KEYS", &format!("{}:{keys}:*", S::PREFIX)]);
            for lease in leases.lines() {
                assert_eq!(self.command(&["DEL", lease]), ":1");
            }
        }
    }

    fn tick(&mut self, _some: Duration) {}

    async fn lose_everything(&mut self) {
        assert_eq!(self.command(&["FLUSHALL"]), "+OK");
    }
}
