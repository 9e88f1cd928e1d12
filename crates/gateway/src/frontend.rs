//! How clients reach Rialto: HTTP (Streamable HTTP and HTTP+SSE) and stdio.

pub(crate) mod body;
pub(crate) mod client_stream;
mod cors;
pub(crate) mod forwarding;
pub(crate) mod head;
pub(crate) mod header_timer;
pub(crate) mod http;
pub(crate) mod http_sse;
mod keep_alive;
pub(crate) mod lingering;
pub(crate) mod listener;
pub(crate) mod local;
pub(crate) mod modern;
mod page;
pub(crate) mod peers;
mod placed;
pub(crate) mod request_body;
pub(crate) mod respond;
pub(crate) mod stdio;
mod tls_listener;
pub(crate) mod write_timeout;
