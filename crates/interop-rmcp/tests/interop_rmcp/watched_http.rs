//! rmcp's HTTP client with an observer in between, which can also break a connection.
//!
//! What is sent and received is left as it is; only the method and target of each request are
//! noted.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt, stream};
use http::{HeaderName, HeaderValue};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use tokio::sync::watch;

type Refusal = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// An exchange that the server accepted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Exchange {
    Post { session_id: Option<String> },
    Listen,
    Resume,
    Delete,
}

#[derive(Clone)]
pub(crate) struct WatchedHttp {
    http: reqwest::Client,
    exchanges: watch::Sender<Vec<Exchange>>,
    /// Whether the next stream on which progress comes is to break after that.
    breaks: Arc<AtomicBool>,
}

impl WatchedHttp {
    pub(crate) fn new(breaks: bool) -> Self {
        let http = reqwest::Client::builder().no_proxy().build();
        Self {
            http: http.expect("a plain HTTP client can be made"),
            exchanges: watch::Sender::default(),
            breaks: Arc::new(AtomicBool::new(breaks)),
        }
    }

    pub(crate) fn exchanges(&self) -> &watch::Sender<Vec<Exchange>> {
        &self.exchanges
    }

    fn note(&self, exchange: Exchange) {
        self.exchanges.send_modify(|seen| seen.push(exchange));
    }

    /// Passes a stream on until its first progress event is through, then breaks the connection.
    fn broken(&self, whole: BoxedSseResponse) -> BoxedSseResponse {
        let breaks = Arc::clone(&self.breaks);
        stream::unfold((Some(whole), false), move |(whole, is_broken)| {
            let breaks = Arc::clone(&breaks);
            async move {
                let mut whole = whole?;
                if is_broken {
                    let error = io::Error::other("connection broken on purpose");
                    return Some((Err(SseError::Body(error.into())), (None, true)));
                }
                let event = whole.next().await?;
                let is_progress = event.as_ref().is_ok_and(|event| {
                    let data = event.data.as_deref().unwrap_or_default();
                    data.contains("notifications/progress")
                });
                let is_broken = is_progress && breaks.swap(false, Ordering::Relaxed);
                Some((event, (Some(whole), is_broken)))
            }
        })
        .boxed()
    }
}

impl StreamableHttpClient for WatchedHttp {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Refusal> {
        let posted = self
            .http
            .post_message(uri, message, session_id, auth_header, custom_headers);
        let (response, session_id) = match posted.await? {
            StreamableHttpPostResponse::Sse(stream, session_id) => {
                let stream = self.broken(stream);
                (
                    StreamableHttpPostResponse::Sse(stream, session_id.clone()),
                    session_id,
                )
            }
            StreamableHttpPostResponse::Json(message, session_id) => {
                let response = StreamableHttpPostResponse::Json(message, session_id.clone());
                (response, session_id)
            }
            // The enum may grow; what is new is passed on like an acceptance.
            other => (other, None),
        };
        self.note(Exchange::Post { session_id });
        Ok(response)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), Refusal> {
        self.http
            .delete_session(uri, session_id, auth_header, custom_headers)
            .await?;
        self.note(Exchange::Delete);
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxedSseResponse, Refusal> {
        let exchange = match &last_event_id {
            Some(_) => Exchange::Resume,
            None => Exchange::Listen,
        };
        let stream = self
            .http
            .get_stream(uri, session_id, last_event_id, auth_header, custom_headers)
            .await?;
        self.note(exchange);
        Ok(stream)
    }
}
