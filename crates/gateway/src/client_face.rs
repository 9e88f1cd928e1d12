//! The doors clients come in by.

pub(crate) mod body;
pub(crate) mod client_stream;
mod cors;
pub(crate) mod head;
pub(crate) mod head_clock;
pub(crate) mod http;
pub(crate) mod http_sse;
pub(crate) mod intake;
pub(crate) mod lingering;
pub(crate) mod modern;
pub(crate) mod respond;
pub(crate) mod stdio;
mod stream_time;
pub(crate) mod write_timeout;
