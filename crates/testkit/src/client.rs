//! A scripted MCP client over Streamable HTTP, for tests: it sends what a test wants and shows what
//! came.
//!
//! One client is one session on one URL. Connections are kept alive and used again once a body has
//! been read to its end; calls at the same time have a connection each. It refuses to help: it
//! never repeats a request that may have been received, never answers a question by itself, never
//! reconnects a stream.

use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::http::HeaderMap;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::failure::{Failure, Result};
use crate::sse::{Event, Reader};

pub mod raw_http;
mod reply;

pub use reply::Reply;

/// What a client that obeys the specification accepts.
pub const ACCEPT: &str = "application/json, text/event-stream";
/// No answer and no event takes longer than this unless a test sets another limit.
const DEADLINE: Duration = Duration::from_secs(60);
const MOST_IDLE_CONNECTIONS: usize = 1024;

type Connection = SendRequest<Full<Bytes>>;

/// Clones share the session and the connections.
#[derive(Debug, Clone)]
pub struct McpClient {
    shared: Arc<Shared>,
    deadline: Duration,
}

#[derive(Debug)]
struct Shared {
    /// `host:port`.
    authority: String,
    path: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<String>,
    version: Option<String>,
    headers: Vec<(String, String)>,
    /// The `Accept` of a POST, if it is not [`ACCEPT`].
    accept: Option<String>,
    idle: Vec<Connection>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl McpClient {
    /// A client of an endpoint such as `http://127.0.0.1:3000/name/mcp`; opens the first
    /// connection.
    pub async fn connect(url: &str) -> Result<Self> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| Failure::new(format!("no http URL: {url}")))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let shared = Arc::new(Shared {
            authority: authority.to_owned(),
            path: format!("/{path}"),
            state: Mutex::default(),
        });
        let client = Self {
            shared,
            deadline: DEADLINE,
        };
        let connection = client.dial().await?;
        client.shared.state().idle.push(connection);
        Ok(client)
    }

    /// The longest that an answer, or the next event of a stream, may take.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sends this header with every message from now on.
    #[must_use]
    pub fn with_header(self, name: &str, value: &str) -> Self {
        self.shared
            .state()
            .headers
            .push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends this `Accept` with every POST from now on. `application/json` makes it a client that
    /// reads no events.
    #[must_use]
    pub fn accepting(self, accept: &str) -> Self {
        self.shared.state().accept = Some(accept.to_owned());
        self
    }

    pub fn session(&self) -> Option<String> {
        self.shared.state().session.clone()
    }

    /// Uses this session id from now on, or none.
    pub fn set_session(&self, session: Option<&str>) {
        self.shared.state().session = session.map(str::to_owned);
    }

    /// Sends this `MCP-Protocol-Version` from now on, or none.
    pub fn set_version(&self, version: Option<&str>) {
        self.shared.state().version = version.map(str::to_owned);
    }

    /// Sends `initialize` with id 0 and keeps the session id and the version that come back.
    pub async fn initialize(&self, version: &str, capabilities: Value) -> Result<Reply> {
        let client = json!({"name": "testkit", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": client});
        let reply = self.request(0, "initialize", params).await?;
        if reply.status == 200 {
            self.set_session(reply.header("mcp-session-id"));
            self.set_version(reply.answer()["result"]["protocolVersion"].as_str());
        }
        Ok(reply)
    }

    /// The whole handshake; anything but 200 and 202 is a failure.
    pub async fn handshake(&self, version: &str, capabilities: Value) -> Result<Reply> {
        let reply = self.initialize(version, capabilities).await?;
        reply.expect_status(200)?;
        if let Some(error) = reply.answer().get("error") {
            return Err(Failure::new(format!("initialize was answered with {error}")));
        }
        self.notify("notifications/initialized", json!({}))
            .await?
            .expect_status(202)?;
        Ok(reply)
    }

    /// Sends a request and reads everything that comes for it. `id` and `params` are raw JSON:
    /// `7`, `r#""seven""#`, a `Value`.
    pub async fn request(&self, id: impl Display, method: &str, params: impl Display) -> Result<Reply> {
        self.open(id, method, params).await?.reply().await
    }

    /// Sends a request and returns as soon as the head of the answer is there.
    pub async fn open(&self, id: impl Display, method: &str, params: impl Display) -> Result<Response> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.post(body).await
    }

    /// `tools/call`.
    pub async fn call(&self, id: impl Display, tool: &str, arguments: impl Display) -> Result<Reply> {
        self.request(
            id,
            "tools/call",
            format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#),
        )
        .await
    }

    /// `tools/call` with a progress token, its answer still open.
    pub async fn open_call(
        &self,
        id: impl Display,
        tool: &str,
        arguments: impl Display,
        progress_token: impl Display,
    ) -> Result<Response> {
        let meta = format!(r#"{{"progressToken":{progress_token}}}"#);
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments},"_meta":{meta}}}"#);
        self.open(id, "tools/call", params).await
    }

    pub async fn notify(&self, method: &str, params: impl Display) -> Result<Reply> {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        self.post(body).await?.reply().await
    }

    /// `notifications/cancelled` for one of our requests.
    pub async fn cancel(&self, id: impl Display) -> Result<Reply> {
        self.notify(
            "notifications/cancelled",
            format!(r#"{{"requestId":{id},"reason":"test"}}"#),
        )
        .await
    }

    /// Answers a question of the server.
    pub async fn respond(&self, id: impl Display, result: impl Display) -> Result<Reply> {
        self.post(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#))
            .await?
            .reply()
            .await
    }

    /// Refuses a question of the server.
    pub async fn respond_error(&self, id: impl Display, code: i64, message: &str) -> Result<Reply> {
        let error = json!({"code": code, "message": message});
        self.post(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
            .await?
            .reply()
            .await
    }

    /// Opens the GET stream, or resumes a stream after that event. A refusal is a failure that
    /// shows its status.
    pub async fn get_stream(&self, last_event_id: Option<&str>) -> Result<EventStream> {
        let response = self.get(last_event_id).await?;
        if response.status == 200 {
            return Ok(response.events());
        }
        let reply = response.reply().await?;
        Err(Failure::new(format!("the GET stream was refused: {reply:?}")))
    }

    /// The same, refused or not.
    pub async fn get(&self, last_event_id: Option<&str>) -> Result<Response> {
        let mut headers = self.standing_headers();
        headers.push(("accept".to_owned(), "text/event-stream".to_owned()));
        headers.extend(last_event_id.map(|id| ("last-event-id".to_owned(), id.to_owned())));
        self.exchange(Method::GET, &self.shared.path, &headers, Bytes::new())
            .await
    }

    /// Calls `echo` with a marker, which has to come back.
    pub async fn expect_echo(&self, marker: &str) -> Result<()> {
        let reply = self.call(1, "echo", json!({"marker": marker})).await?;
        reply.expect_status(200)?;
        assert_eq!(reply.text(), marker);
        Ok(())
    }

    /// Returns the metrics page of the gateway that serves this client.
    pub async fn metrics(&self) -> Result<String> {
        let page = self.send("GET", "/metrics", &[], "").await?.reply().await?;
        Ok(page.body_text())
    }

    /// Ends the session; the id is kept, so that a test can see it refused afterwards.
    pub async fn delete(&self) -> Result<Reply> {
        let headers = self.standing_headers();
        self.exchange(Method::DELETE, &self.shared.path, &headers, Bytes::new())
            .await?
            .reply()
            .await
    }

    /// POSTs this body with the headers of a client that obeys the specification.
    pub async fn post(&self, body: impl Into<Bytes>) -> Result<Response> {
        let mut headers = self.standing_headers();
        let accept = self.shared.state().accept.clone();
        headers.push(("accept".to_owned(), accept.unwrap_or_else(|| ACCEPT.to_owned())));
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
        self.exchange(Method::POST, &self.shared.path, &headers, body.into())
            .await
    }

    /// Sends exactly this: no header is added but `Host` (unless given) and the length of the body.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response> {
        let method =
            Method::from_bytes(method.as_bytes()).map_err(|error| Failure::new(error.to_string()))?;
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self.exchange(method, path, &headers, body.into()).await
    }

    fn standing_headers(&self) -> Vec<(String, String)> {
        let state = self.shared.state();
        let mut headers = state.headers.clone();
        headers.extend(
            state
                .session
                .clone()
                .map(|session| ("mcp-session-id".to_owned(), session)),
        );
        headers.extend(
            state
                .version
                .clone()
                .map(|version| ("mcp-protocol-version".to_owned(), version)),
        );
        headers
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<Response> {
        let what = format!("{method} {path}");
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", &self.shared.authority);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body))?;
        let answered = tokio::time::timeout(self.deadline, self.dispatch(request)).await;
        let answered = answered.map_err(|_| Failure::new(format!("no answer in {:?}", self.deadline)));
        let (response, connection) = answered
            .and_then(|result| result)
            .map_err(|failure| failure.during(&what))?;
        let (head, body) = response.into_parts();
        Ok(Response {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            lease: Lease {
                shared: Arc::clone(&self.shared),
                connection,
            },
            deadline: self.deadline,
        })
    }

    async fn dispatch(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(hyper::Response<Incoming>, Connection)> {
        loop {
            let idle = self.shared.state().idle.pop();
            let used_before = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.dial().await?,
            };
            if connection.ready().await.is_err() && used_before {
                continue;
            }
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                Err(mut error) => match error.take_message() {
                    // Hyper gives the request back only if not one byte of it was written: the
                    // server had closed the idle connection, and another one may be tried.
                    Some(unsent) if used_before => request = unsent,
                    Some(_) | None => return Err(error.into_error().into()),
                },
            }
        }
    }

    async fn dial(&self) -> Result<Connection> {
        let authority = &self.shared.authority;
        let stream = TcpStream::connect(authority).await;
        let stream =
            stream.map_err(|error| Failure::from(error).during(&format!("connect to {authority}")))?;
        stream.set_nodelay(true)?;
        let (connection, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the testkit may not use the product's tasks"
        )]
        tokio::spawn(async move {
            // An error of the connection is also reported to the call that waits on it.
            let _ = driver.await;
        });
        Ok(connection)
    }
}

/// A connection in use; it becomes idle again only if the whole body has been read.
#[derive(Debug)]
struct Lease {
    shared: Arc<Shared>,
    connection: Connection,
}

impl Lease {
    fn give_back(self) {
        let mut state = self.shared.state();
        if !self.connection.is_closed() && state.idle.len() < MOST_IDLE_CONNECTIONS {
            state.idle.push(self.connection);
        }
    }
}

/// The head of an answer, its body still to be read.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    lease: Lease,
    deadline: Duration,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the body is `text/event-stream`.
    pub fn is_stream(&self) -> bool {
        self.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// Reads the body as a stream of events.
    pub fn events(self) -> EventStream {
        EventStream {
            body: self.body,
            lease: Some(self.lease),
            reader: Reader::default(),
            deadline: self.deadline,
            last_event_id: None,
        }
    }

    /// Reads the body to its end.
    pub async fn reply(self) -> Result<Reply> {
        let (status, headers) = (self.status, self.headers.clone());
        if self.is_stream() {
            let mut stream = self.events();
            let mut events = Vec::new();
            while let Some(event) = stream.next().await? {
                events.push(event);
            }
            return Ok(Reply {
                status,
                headers,
                body: Bytes::new(),
                events,
            });
        }
        let body = tokio::time::timeout(self.deadline, self.body.collect()).await;
        let body = body.map_err(|_| Failure::new(format!("no end of the body in {:?}", self.deadline)))??;
        self.lease.give_back();
        Ok(Reply {
            status,
            headers,
            body: body.to_bytes(),
            events: Vec::new(),
        })
    }
}

/// A stream of events; dropping it closes its connection.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    lease: Option<Lease>,
    reader: Reader,
    deadline: Duration,
    last_event_id: Option<String>,
}

impl EventStream {
    /// The next event; `None` when the stream has ended properly. A cut connection and a silence
    /// longer than the client's deadline are failures.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.reader.pop() {
                if event.id.is_some() {
                    self.last_event_id.clone_from(&event.id);
                }
                return Ok(Some(event));
            }
            let frame = tokio::time::timeout(self.deadline, self.body.frame()).await;
            match frame.map_err(|_| Failure::new(format!("no event in {:?}", self.deadline)))? {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.reader.push(&data);
                    }
                }
                None => {
                    if let Some(lease) = self.lease.take() {
                        lease.give_back();
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// The next message: events without data (priming, `retry`) are passed over.
    pub async fn next_message(&mut self) -> Result<Option<Value>> {
        while let Some(event) = self.next().await? {
            if !event.data.is_empty() {
                return Ok(Some(event.json()));
            }
        }
        Ok(None)
    }

    /// The next message, which must come.
    pub async fn message(&mut self) -> Result<Value> {
        self.next_message()
            .await?
            .ok_or_else(|| Failure::new("the stream ended instead of a message"))
    }

    /// The id of the last event that had one.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// How many comments (keep-alives) came so far.
    pub fn comments(&self) -> usize {
        self.reader.comments()
    }
}

/// Returns the arguments of a call that the stub notes in its journal under this marker.
pub fn marked(marker: &str) -> Value {
    json!({ "marker": marker })
}

/// Returns the first text of a tool's result; empty if there is none.
pub fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
}
