//! Sends spans to a collector: OTLP over HTTP, in batches, on a thread of its own.
//!
//! The gateway puts spans into a bounded queue and never waits for it; here is its other end. A
//! collector that is slow or away costs spans, which are counted, and nothing else. It does not
//! decide what is recorded.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use gateway::trace::{Span, SpanSink};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;

use crate::config::TraceSettings;

/// Spans that wait, and spans that leave together.
const QUEUE: usize = 4096;
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_millis(200);
/// How long a collector may take for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of the process waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// The thread that exports.
#[derive(Debug)]
pub(crate) struct Exporter {
    ended: Receiver<()>,
}

/// Starts to export the spans of the sink.
pub(crate) fn start(settings: &TraceSettings) -> anyhow::Result<(Arc<SpanSink>, Exporter)> {
    let (sink, spans) = SpanSink::bounded(QUEUE, settings.sample);
    let (over, ended) = sync_channel(1);
    let (endpoint, counted) = (settings.endpoint.clone(), Arc::downgrade(&sink));
    std::thread::Builder::new()
        .name("spans".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(export(&endpoint, spans, |exported, lost| {
                    if let Some(sink) = counted.upgrade() {
                        sink.count_exported(exported);
                        sink.count_lost(lost);
                    }
                })),
                Err(error) => tracing::error!(%error, "spans cannot be exported"),
            }
            // The receiver may be gone.
            let _ = over.send(());
        })
        .context("cannot start the thread that exports spans")?;
    Ok((sink, Exporter { ended }))
}

impl Exporter {
    /// Waits for the last spans, once no handle of the sink is left.
    pub(crate) fn finish(self) {
        match self.ended.recv_timeout(LAST_SPANS) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => tracing::warn!("the last spans were not exported in time"),
        }
    }
}

async fn export(endpoint: &str, mut spans: mpsc::Receiver<Span>, count: impl Fn(u64, u64)) {
    let built = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_endpoint(traces_of(endpoint))
        .with_timeout(EXPORT_TIMEOUT)
        .build();
    let mut exporter = match built {
        Ok(exporter) => exporter,
        Err(error) => {
            tracing::error!(%error, endpoint, "spans cannot be exported");
            return;
        }
    };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    exporter.set_resource(
        &Resource::builder()
            .with_service_name("rialto")
            .with_attribute(version)
            .build(),
    );
    let scope = InstrumentationScope::builder("rialto")
        .with_version(env!("CARGO_PKG_VERSION"))
        .build();
    let mut batch = Vec::with_capacity(BATCH);
    let mut failing = false;
    while spans.recv_many(&mut batch, BATCH).await > 0 {
        if batch.len() < BATCH && !spans.is_closed() {
            tokio::time::sleep(GATHER).await;
            while batch.len() < BATCH
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
        }
        let size = batch.len() as u64;
        let data = batch.drain(..).map(|span| exported(span, &scope)).collect();
        let result = match tokio::time::timeout(EXPORT_TIMEOUT, exporter.export(data)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the collector did not answer in time".to_owned()),
        };
        match result {
            Ok(()) => {
                count(size, 0);
                failing = false;
            }
            Err(error) => {
                count(0, size);
                // Once for each outage: the counter tells the rest.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(error, spans = size, "spans were lost");
                }
            }
        }
    }
}

/// Returns where a collector takes traces (OTLP/HTTP, default URL paths).
fn traces_of(endpoint: &str) -> String {
    format!("{}/v1/traces", endpoint.trim_end_matches('/'))
}

fn exported(span: Span, scope: &InstrumentationScope) -> SpanData {
    let mut attributes: Vec<KeyValue> = span
        .attributes
        .into_iter()
        .map(|(key, value)| KeyValue::new(key, value))
        .collect();
    attributes.push(KeyValue::new(
        "http.response.status_code",
        i64::from(span.status_code),
    ));
    let status = match span.error {
        Some(error) => {
            attributes.push(KeyValue::new("error.type", error));
            Status::error(error)
        }
        None => Status::Unset,
    };
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(span.context.trace.to_be_bytes()),
            SpanId::from_bytes(span.context.span.to_be_bytes()),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: SpanId::from_bytes(span.parent.unwrap_or_default().to_be_bytes()),
        parent_span_is_remote: span.parent.is_some(),
        span_kind: SpanKind::Server,
        name: span.name.into(),
        start_time: span.began,
        end_time: span.ended,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: scope.clone(),
    }
}
