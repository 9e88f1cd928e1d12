//! Families of samples, and how they are written: the adapter to the metrics library, which knows
//! nothing of their meaning.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

pub(super) type Labels = Vec<(&'static str, String)>;

/// One number of a family.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Count(u64),
    /// A counter that counts in parts.
    Seconds(f64),
    Level(f64),
    Histogram {
        sum: f64,
        buckets: Vec<(f64, u64)>,
    },
}

/// All samples of one name. A counter's name gets its `_total` from the encoder.
#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    pub(super) samples: Vec<(Labels, Value)>,
}

impl Family {
    pub(super) fn new(name: &'static str, kind: MetricType, help: &'static str) -> Self {
        Self {
            name,
            help,
            kind,
            samples: Vec::new(),
        }
    }

    pub(super) fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Counter, help)
    }

    pub(super) fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Gauge, help)
    }

    pub(super) fn count(mut self, labels: Labels, count: u64) -> Self {
        self.samples.push((labels, Value::Count(count)));
        self
    }

    pub(super) fn level(mut self, level: f64) -> Self {
        self.samples.push((Vec::new(), Value::Level(level)));
        self
    }

    /// Adds a level, if it is known.
    pub(super) fn maybe(self, level: Option<f64>) -> Self {
        match level {
            Some(level) => self.level(level),
            None => self,
        }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        for (labels, value) in &self.samples {
            if labels.is_empty() {
                value.encode(&mut family)?;
            } else {
                value.encode(&mut family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        type NoExemplar<'a> = Option<&'a Exemplar<Labels, f64>>;
        match self {
            Self::Count(count) => encoder.encode_counter(count, NoExemplar::None),
            Self::Seconds(seconds) => encoder.encode_counter(seconds, NoExemplar::None),
            Self::Level(level) => encoder.encode_gauge(level),
            Self::Histogram { sum, buckets } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<Labels>(*sum, count, buckets, None)
            }
        }
    }
}

/// A page that is complete.
#[derive(Debug)]
pub(super) struct Page(pub(super) Vec<Family>);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}
