//! Counters that calls increment: atomics at places that are known beforehand.
//!
//! A destination's [`DestinationMetrics`] has one cell for each combination that can occur, so that
//! counting a call is two additions. Gauges (sessions, children, queues) are not kept here:
//! [`crate::metrics_page`] computes them from live state at scrape time. No label holds text that a
//! peer wrote: methods come from the closed set, everything else is `other`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::exchange::{Blame, Failure};
use protocol::method::Method;
use protocol::time::Moment;
use protocol::version::Era;

use crate::audit::Outcome;
use crate::idle_watch::IdleWatch;
use crate::line_sink::LineSink;
use crate::recent::{Counted, Figures, Recent};
use crate::record::{Ending, Record, RecordListener, RefusalRecord, Subject};
use crate::reply::Refusal;
use crate::server_output::ServerOutput;
use crate::status::LimitHit;
use crate::tap::Tap;
use crate::trace::SpanSink;

/// Upper bounds of the latency buckets in microseconds: from a call within this machine to one that
/// used up a long `request_timeout`.
const BOUNDS: [u64; 16] = [
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    30_000_000,
    120_000_000,
];

/// Counts by a word of Rialto. For what is rare: it takes a lock, and holds as many words as the
/// code has.
#[derive(Debug)]
pub(crate) struct LabelledCounter<K>(Mutex<BTreeMap<K, u64>>);

impl<K> Default for LabelledCounter<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Copy> LabelledCounter<K> {
    pub(crate) fn count(&self, key: K) {
        *self.0.lock().entry(key).or_default() += 1;
    }

    pub(crate) fn all(&self) -> Vec<(K, u64)> {
        let counts = self.0.lock();
        counts.iter().map(|(key, count)| (*key, *count)).collect()
    }
}

/// The interval between log lines about a limit that was reached, for each limit.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// How often limits were reached, by their keys. The first time, and then at most once a minute, it
/// is logged.
#[derive(Debug, Default)]
pub(crate) struct LimitHits(Mutex<BTreeMap<&'static str, Hits>>);

#[derive(Debug)]
struct Hits {
    count: u64,
    latest: Instant,
    logged: Option<Instant>,
    /// Hits that no line of the log has counted yet.
    unlogged: u64,
}

impl LimitHits {
    pub(crate) fn count(&self, limit: &'static str) {
        self.count_at(limit, None);
    }

    /// Counts a hit; the line of the log names the destination, if the limit is one of a
    /// destination.
    fn count_at(&self, limit: &'static str, destination: Option<&str>) {
        let now = Instant::now();
        let unlogged = {
            let mut all = self.0.lock();
            let hits = all.entry(limit).or_insert_with(|| Hits {
                count: 0,
                latest: now,
                logged: None,
                unlogged: 0,
            });
            hits.count += 1;
            hits.unlogged += 1;
            hits.latest = now;
            let is_due = hits
                .logged
                .is_none_or(|logged| now.duration_since(logged) >= LOGGED_EVERY);
            is_due.then(|| {
                hits.logged = Some(now);
                std::mem::take(&mut hits.unlogged)
            })
        };
        if let (Some(hits), Some(key)) = (unlogged, key_of(limit)) {
            let destination = destination.filter(|_| !key.starts_with("limits."));
            tracing::warn!(limit = %key, destination, hits, "limit reached");
        }
    }

    pub(crate) fn all(&self) -> Vec<LimitHit> {
        let all = self.0.lock();
        let hit = |(limit, hits): (&&'static str, &Hits)| LimitHit {
            limit,
            count: hits.count,
            ago: hits.latest.elapsed(),
        };
        all.iter().map(hit).collect()
    }
}

/// Returns the key of the configuration that sets a limit; `None` for times and sizes that cannot
/// be set.
fn key_of(limit: &str) -> Option<String> {
    match limit {
        "header_time" | "header_bytes" | "body_time" | "write_time" | "session_calls" => None,
        "max_message_bytes" | "max_sessions" | "max_children" => Some(limit.to_owned()),
        // The limits of an instance that have no key.
        _ if limit.contains(' ') => Some(limit.to_owned()),
        _ => Some(format!("limits.{limit}")),
    }
}

/// How long calls took.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// One more than there are bounds, for what is above all of them.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    /// Returns the sum in seconds, and how many fell into each bucket, with its upper bound in
    /// seconds.
    pub(crate) fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        (
            self.micros.load(Relaxed) as f64 / 1e6,
            bounds.chain([f64::INFINITY]).zip(counts).collect(),
        )
    }
}

/// What a stream of events is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Opened by GET.
    Notices,
    /// The answer to a POST.
    Answer,
    /// `subscriptions/listen`, or another answer of the modern era.
    Modern,
}

impl StreamKind {
    pub(crate) const ALL: [Self; 3] = [Self::Notices, Self::Answer, Self::Modern];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Notices => "get",
            Self::Answer => "post",
            Self::Modern => "modern",
        }
    }
}

/// How a run of a child came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChildEnd {
    ByItself,
    /// It showed no activity, or its output could not be used.
    Replaced,
    Stopped,
    /// It could not even be started.
    NotStarted,
}

impl ChildEnd {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ByItself => "by_itself",
            Self::Replaced => "replaced",
            Self::Stopped => "stopped",
            Self::NotStarted => "not_started",
        }
    }
}

/// What passed through one destination.
#[derive(Debug)]
pub(crate) struct DestinationMetrics {
    /// One cell for each era, method and outcome.
    calls: Box<[AtomicU64]>,
    /// One for each method.
    pub(crate) latencies: Box<[Histogram]>,
    pub(crate) failures: LabelledCounter<(Blame, &'static str)>,
    /// Calls that ran into a limit of their instance.
    pub(crate) overloads: LimitHits,
    streams: [AtomicUsize; StreamKind::ALL.len()],
    pub(crate) child_ends: LabelledCounter<ChildEnd>,
    pub(crate) sessions_opened: AtomicU64,
    pub(crate) sessions_restored: AtomicU64,
    pub(crate) sessions_evicted: AtomicU64,
    pub(crate) sessions_expired: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) server_bytes_received: AtomicU64,
    pub(crate) server_bytes_sent: AtomicU64,
    pub(crate) child_starts: AtomicU64,
    pub(crate) child_restarts: AtomicU64,
    /// Of sessions that have ended; those of living ones are read from them.
    pub(crate) events_lost: AtomicU64,
    /// For tasks that wait until no call is open.
    pub(crate) idle: IdleWatch,
    recent: Recent,
    /// The messages of its server, for readers that want them.
    pub(crate) tap: Tap,
    /// What its servers wrote to stderr last.
    pub(crate) output: ServerOutput,
}

/// The methods whose latency tells how fast the server works. Lists may come from memory, and what
/// waits on purpose would hide the rest.
const WORK: [Method; 4] = [
    Method::ToolsCall,
    Method::PromptsGet,
    Method::ResourcesRead,
    Method::CompletionComplete,
];

/// Returns whether the server works on such a request, so that its time tells something.
pub(crate) fn is_work(method: Method) -> bool {
    WORK.contains(&method)
}

impl Default for DestinationMetrics {
    fn default() -> Self {
        let cells = Era::ALL.len() * Method::ALL.len() * Outcome::ALL.len();
        Self {
            calls: (0..cells).map(|_| AtomicU64::new(0)).collect(),
            latencies: Method::ALL.iter().map(|_| Histogram::default()).collect(),
            failures: LabelledCounter::default(),
            overloads: LimitHits::default(),
            streams: Default::default(),
            child_ends: LabelledCounter::default(),
            sessions_opened: AtomicU64::new(0),
            sessions_restored: AtomicU64::new(0),
            sessions_evicted: AtomicU64::new(0),
            sessions_expired: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            server_bytes_received: AtomicU64::new(0),
            server_bytes_sent: AtomicU64::new(0),
            child_starts: AtomicU64::new(0),
            child_restarts: AtomicU64::new(0),
            events_lost: AtomicU64::new(0),
            idle: IdleWatch::default(),
            recent: Recent::default(),
            tap: Tap::default(),
            output: ServerOutput::default(),
        }
    }
}

impl RecordListener for DestinationMetrics {
    fn handle_record(&self, subject: &Subject<'_>, record: &Record<'_>) {
        match record.ending {
            // Requests that were refused are counted by the listener.
            Ending::Refused(_) => return,
            Ending::Failed(failure) => self.failed(failure, subject.destination),
            Ending::Done | Ending::Error | Ending::Closed => {}
        }
        if let (Some(era), Some(message)) = (subject.era, record.message) {
            self.ended(era, message.method(), record.ending.outcome(), record.latency);
        }
    }
}

impl RecordListener for ListenerMetrics {
    fn handle_record(&self, subject: &Subject<'_>, record: &Record<'_>) {
        match record.ending {
            Ending::Refused(refused) => self.count_refusal(refused, Some(subject.destination)),
            Ending::Done | Ending::Error | Ending::Failed(_) | Ending::Closed => {}
        }
    }
}

impl DestinationMetrics {
    fn cell(era: Era, method: Method, outcome: Outcome) -> usize {
        (era as usize * Method::ALL.len() + method as usize) * Outcome::ALL.len() + outcome as usize
    }

    /// A message of a client has come to its end.
    fn ended(&self, era: Era, method: Method, outcome: Outcome, latency: Duration) {
        self.calls[Self::cell(era, method, outcome)].fetch_add(1, Relaxed);
        self.latencies[method as usize].observe(latency);
    }

    /// A call to this destination got no answer from its server.
    fn failed(&self, failure: &Failure, destination: &str) {
        self.failures.count((failure.blame(), failure.reason()));
        if let Failure::Overloaded { limit } = failure {
            self.overloads.count_at(limit, Some(destination));
        }
    }

    pub(crate) fn child_ended(&self, end: ChildEnd) {
        self.child_ends.count(end);
    }

    /// Messages of clients that have come to their end.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (Era, Method, Outcome, u64)> {
        let all = Era::ALL.into_iter().flat_map(|era| {
            Method::ALL.iter().flat_map(move |method| {
                Outcome::ALL
                    .into_iter()
                    .map(move |outcome| (era, *method, outcome))
            })
        });
        all.map(|(era, method, outcome)| {
            let count = self.calls[Self::cell(era, method, outcome)].load(Relaxed);
            (era, method, outcome, count)
        })
        .filter(|(.., count)| *count > 0)
    }

    /// Returns what is compared with earlier copies of itself.
    fn counted(&self) -> Counted {
        let mut buckets = vec![0; BOUNDS.len() + 1];
        for method in WORK {
            let histogram = &self.latencies[method as usize];
            for (sum, bucket) in buckets.iter_mut().zip(&histogram.buckets) {
                *sum += bucket.load(Relaxed);
            }
        }
        Counted {
            buckets,
            failures: self.failures.all().into_iter().collect(),
        }
    }

    /// Keeps a copy of the counters for [`DestinationMetrics::recent`], if one is due.
    pub(crate) fn note_recent(&self, now: Moment) {
        self.recent.note(now, || self.counted());
    }

    /// Returns what happened in the last five minutes.
    pub(crate) fn recent(&self, now: Moment) -> Figures {
        let bounds = BOUNDS.map(Duration::from_micros);
        self.recent.window(now, &self.counted()).figures(&bounds)
    }

    pub(crate) fn stream_opened(&self, kind: StreamKind) {
        self.streams[kind as usize].fetch_add(1, Relaxed);
    }

    /// Returns how many streams of a kind are being sent.
    pub(crate) fn open_streams(&self, kind: StreamKind) -> usize {
        self.streams[kind as usize].load(Relaxed)
    }

    pub(crate) fn stream_closed(&self, kind: StreamKind) {
        self.streams[kind as usize].fetch_sub(1, Relaxed);
    }
}

/// Metrics of the listener: before a destination is known, or of no one destination.
#[derive(Debug, Default)]
pub(crate) struct ListenerMetrics {
    pub(crate) refusals: LabelledCounter<&'static str>,
    pub(crate) limit_hits: Arc<LimitHits>,
    pub(crate) connections_accepted: AtomicU64,
    /// Idle ones that were closed to make room.
    pub(crate) connections_evicted: AtomicU64,
    /// Where the binary writes its log, for the lines that were lost.
    pub(crate) log: OnceLock<LineSink>,
    /// The sink of spans, if there is one.
    pub(crate) spans: OnceLock<Arc<SpanSink>>,
}

impl ListenerMetrics {
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.count_refusal(refusal.recorded(), None);
    }

    fn count_refusal(&self, refused: RefusalRecord, destination: Option<&str>) {
        self.refusals.count(refused.reason);
        if let Some(limit) = refused.limit {
            self.limit_hits.count_at(limit, destination);
        }
    }

    /// Counts a limit whose client receives no refusal.
    pub(crate) fn limit_hit(&self, limit: &'static str) {
        self.limit_hits.count(limit);
    }
}

pub(crate) const fn method_label(method: Method) -> &'static str {
    match method.name() {
        Some(name) => name,
        None => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_cell_of_its_own() {
        let mut cells = std::collections::BTreeSet::new();
        for era in Era::ALL {
            for method in Method::ALL {
                for outcome in Outcome::ALL {
                    assert!(cells.insert(DestinationMetrics::cell(era, *method, outcome)));
                }
            }
        }
        assert_eq!(cells.len(), DestinationMetrics::default().calls.len());
        assert_eq!(cells.last(), Some(&(cells.len() - 1)));
    }

    #[test]
    fn discriminants_are_places_in_the_lists() {
        for (at, method) in Method::ALL.iter().enumerate() {
            assert_eq!(*method as usize, at);
        }
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
        for (at, kind) in StreamKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
        }
    }

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for micros in [0, 250, 251, 120_000_000, 120_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let (sum, buckets) = histogram.read();
        assert!((sum - 240.000_502).abs() < 1e-6, "{sum}");
        assert_eq!(buckets[0], (0.00025, 2));
        assert_eq!(buckets[1], (0.0005, 1));
        assert_eq!(buckets[15], (120.0, 1));
        assert_eq!(buckets[16], (f64::INFINITY, 1));
    }

    #[test]
    fn ended_calls_are_counted_by_method_and_outcome() {
        let metrics = DestinationMetrics::default();
        metrics.ended(Era::Modern, Method::ToolsCall, Outcome::Timeout, Duration::ZERO);
        metrics.ended(Era::Modern, Method::ToolsCall, Outcome::Timeout, Duration::ZERO);
        let calls: Vec<_> = metrics.calls().collect();
        assert_eq!(calls, [(Era::Modern, Method::ToolsCall, Outcome::Timeout, 2)]);
    }
}
