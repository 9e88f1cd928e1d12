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

/// The registry on a Redis server of its own.
pub(crate) struct Redis {
    server: testkit::redis::Redis,
    registry: RedisRegistry,
}

impl Engine for Redis {
    async fn start() -> Self {
        let server = testkit::redis::Redis::start().unwrap();
        let settings = RedisSettings::new(&server.url());
        let registry = RedisRegistry::connect(&settings).await.unwrap();
        Self { server, registry }
    }

    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.registry.clone())
    }

    async fn grow_old(&mut self) {
        assert_eq!(self.server.command(&["SET", "rialto:since", "0"]).unwrap(), "+OK");
    }

    async fn end_leases(&mut self) {
        // A key whose time is over is a key that is gone.
        for keys in ["rialto:node:*", "rialto:held:*"] {
            let leases = self.server.command(&["KEYS", keys]).unwrap();
            for lease in leases.lines() {
                assert_eq!(self.server.command(&["DEL", lease]).unwrap(), ":1");
            }
        }
    }

    fn tick(&mut self, _some: Duration) {}

    async fn lose_everything(&mut self) {
        assert_eq!(self.server.command(&["FLUSHALL"]).unwrap(), "+OK");
    }
}
