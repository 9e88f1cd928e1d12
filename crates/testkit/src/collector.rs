//! A collector of spans: takes OTLP over HTTP and reads as much of it as a test wants to know.
//!
//! It knows the few fields of the protocol buffers by their numbers and skips the rest. It is no
//! validator.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::{Result, wait_until};

/// One span, as far as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectedSpan {
    pub name: String,
    /// Hexadecimal, like all ids here.
    pub trace_id: String,
    pub span_id: String,
    /// Empty for the first span of a trace.
    pub parent_span_id: String,
    pub kind: u64,
    pub attributes: BTreeMap<String, String>,
    /// 2 is an error.
    pub status: u64,
}

/// A collector that listens until it is dropped.
#[derive(Debug)]
pub struct Collector {
    address: String,
    spans: Arc<Mutex<Vec<CollectedSpan>>>,
    _listening: JoinSet<()>,
}

impl Collector {
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let spans: Arc<Mutex<Vec<CollectedSpan>>> = Arc::default();
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, Arc::clone(&spans)));
        Ok(Self {
            address,
            spans,
            _listening: listening,
        })
    }

    /// Returns the value for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a span with this name.
    pub async fn wait_for(&self, name: &str) -> CollectedSpan {
        wait_until(&format!("a span {name}"), Duration::from_secs(30), || {
            self.spans().into_iter().find(|span| span.name == name)
        })
        .await
    }
}

async fn listen(listener: TcpListener, spans: Arc<Mutex<Vec<CollectedSpan>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let spans = Arc::clone(&spans);
        connections.spawn(async move {
            let service = service_fn(|request: Request<Incoming>| take(request, &spans));
            // A connection that breaks is the exporter's business.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn take(
    request: Request<Incoming>,
    spans: &Mutex<Vec<CollectedSpan>>,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let found = request.uri().path() == "/v1/traces";
    let body = request.into_body().collect().await;
    if let (true, Ok(body)) = (found, body) {
        let read = spans_of(&body.to_bytes());
        spans.lock().unwrap_or_else(PoisonError::into_inner).extend(read);
    }
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = if found {
        hyper::StatusCode::OK
    } else {
        hyper::StatusCode::NOT_FOUND
    };
    Ok(response)
}

/// The spans of an `ExportTraceServiceRequest`: resource_spans (1) > scope_spans (2) > spans (2).
fn spans_of(request: &[u8]) -> Vec<CollectedSpan> {
    inside(request, 1)
        .flat_map(|resource| inside(resource, 2))
        .flat_map(|scope| inside(scope, 2))
        .map(span_of)
        .collect()
}

fn span_of(span: &[u8]) -> CollectedSpan {
    let bytes = |field| inside(span, field).next().unwrap_or_default();
    let status = inside(span, 15).next().unwrap_or_default();
    CollectedSpan {
        name: String::from_utf8_lossy(bytes(5)).into_owned(),
        trace_id: hexadecimal(bytes(1)),
        span_id: hexadecimal(bytes(2)),
        parent_span_id: hexadecimal(bytes(4)),
        kind: number(span, 6),
        attributes: inside(span, 9).map(attribute).collect(),
        status: number(status, 3),
    }
}

/// A `KeyValue`: its key (1) and its value (2), which is a string (1) or an integer (3).
fn attribute(pair: &[u8]) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let value = inside(pair, 2).next().unwrap_or_default();
    let value_text = match inside(value, 1).next() {
        Some(string) => text(string),
        None => number(value, 3).to_string(),
    };
    (text(inside(pair, 1).next().unwrap_or_default()), value_text)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A field of a message of protocol buffers.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, as far as they can be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let key = self.varint()?;
            let field = match key & 7 {
                0 => Field::Number(self.varint()?),
                1 => {
                    self.cut(8)?;
                    continue;
                }
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    Field::Bytes(self.cut(length)?)
                }
                5 => {
                    self.cut(4)?;
                    continue;
                }
                _ => return None,
            };
            return Some((key >> 3, field));
        }
    }
}

impl<'a> Fields<'a> {
    fn cut(&mut self, length: usize) -> Option<&'a [u8]> {
        let (cut, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(cut)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.cut(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

/// The contents of every field with this number.
fn inside(message: &[u8], wanted: u64) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter_map(move |(number, field)| match field {
        Field::Bytes(bytes) if number == wanted => Some(bytes),
        Field::Bytes(_) | Field::Number(_) => None,
    })
}

fn number(message: &[u8], wanted: u64) -> u64 {
    Fields(message)
        .find_map(|(number, field)| match field {
            Field::Number(value) if number == wanted => Some(value),
            Field::Number(_) | Field::Bytes(_) => None,
        })
        .unwrap_or_default()
}
