//! What an operator wants to know about the engine of a fleet.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::connect::Info;
use super::{CommandError, RedisRegistry, answer_of};
use crate::error::RegistryError;
use crate::registry::Registry as _;

/// How often the latency is measured. The median is reported.
const SAMPLES: usize = 9;
/// How many keys the engine looks at in one step of a count.
const KEYS_AT_ONCE: usize = 1000;
/// A count of sessions ends here: an operator needs no exact number beyond it.
const MOST_SESSIONS: u64 = 1_000_000;

/// The engine, as a replica sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineReport {
    /// Where it is.
    pub address: String,
    /// `redis` or `valkey`.
    pub product: &'static str,
    /// Its own version.
    pub version: String,
    /// What it does when its memory is full, where it reports that.
    pub eviction_policy: Option<String>,
    /// Its clock, since 1970, where it reports that.
    pub clock: Option<Duration>,
    /// The median time of a look-up.
    pub latency: Duration,
    /// How many sessions have a record.
    pub sessions: SessionCount,
}

/// How many sessions have a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionCount {
    /// All were counted.
    Exactly(u64),
    /// The count was ended there.
    AtLeast(u64),
    /// The user of the engine may not run `SCAN`.
    Forbidden,
}

impl RedisRegistry {
    /// Asks the engine about itself, and counts the sessions.
    pub async fn inspect(&self) -> Result<EngineReport, RegistryError> {
        let info = Info::of(&self.shared).await.map_err(|error| answer_of(&error))?;
        let (product, version) = match info.member("valkey_version") {
            Some(version) => ("valkey", version),
            None => ("redis", info.member("redis_version").unwrap_or_default()),
        };
        Ok(EngineReport {
            address: self.shared.address(),
            product,
            version: version.to_owned(),
            eviction_policy: info.member("maxmemory_policy").map(str::to_owned),
            clock: info
                .member("server_time_usec")
                .and_then(|microseconds| microseconds.parse().ok())
                .map(Duration::from_micros),
            latency: self.latency().await?,
            sessions: self.count_sessions().await?,
        })
    }

    /// Returns the median time of a look-up: the operation that a client's request waits for.
    async fn latency(&self) -> Result<Duration, RegistryError> {
        let mut samples = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let start = Instant::now();
            self.look_up(Uuid::new_v4()).await?;
            samples.push(start.elapsed());
        }
        samples.sort();
        Ok(samples.get(SAMPLES / 2).copied().unwrap_or_default())
    }

    async fn count_sessions(&self) -> Result<SessionCount, RegistryError> {
        let pattern = format!("{}:session:*", self.shared.prefix);
        let (mut cursor, mut found) = (0_u64, 0_u64);
        loop {
            let mut scan = ::redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(KEYS_AT_ONCE);
            let step: Result<(u64, Vec<Vec<u8>>), CommandError> = self
                .shared
                .within(async |mut connection| scan.query_async(&mut connection).await)
                .await;
            match step {
                Ok((next, keys)) => {
                    cursor = next;
                    found = found.saturating_add(keys.len() as u64);
                }
                Err(CommandError::Redis(error)) if error.code() == Some("NOPERM") => {
                    return Ok(SessionCount::Forbidden);
                }
                Err(error) => return Err(answer_of(&error)),
            }
            if cursor == 0 {
                return Ok(SessionCount::Exactly(found));
            }
            if found >= MOST_SESSIONS {
                return Ok(SessionCount::AtLeast(found));
            }
        }
    }
}
