//! A remote MCP server that behaves, and misbehaves when a test asks for it.
//!
//! It speaks HTTP/1.1 by hand, with one of four behaviours: Streamable HTTP with a handshake,
//! Streamable HTTP of the modern era or of both, or the old transport with two endpoints. It notes every
//! request with every header, and every tool call that it ran, so that a test can check that
//! something ran once and that a secret never arrived. A script decides about single requests; what
//! no script is about is done as usual.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::failure::{Failure, Result};
use crate::patience::{poll_until, wait_until};

mod behaviour;
mod exchange;
mod http2;
mod script;
mod tls;
mod wire;

pub use exchange::{Exchange, calls, method};
pub use http2::Http2Front;
pub use script::{Gate, Step, result};
pub use tls::{CertificateAuthority, Flaw};

use behaviour::Behaviour;
use script::Rule;
use wire::{Socket, Wire};

const PATIENCE: Duration = Duration::from_secs(30);
/// Events that a stream may be behind.
const STREAM_QUEUE: usize = 64;

/// A server that has not started yet.
#[derive(Debug)]
pub struct Launcher {
    behaviour: Behaviour,
    address: Option<SocketAddr>,
    tls: Option<Arc<ServerConfig>>,
}

/// A running one. Dropped, it is gone with all its connections.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    secure: bool,
    shared: Arc<Shared>,
    door: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    state: Mutex<State>,
    /// A posted answer has arrived.
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    exchanges: Vec<Exchange>,
    executions: Vec<Value>,
    hung_up: BTreeSet<usize>,
    rules: Vec<Rule>,
    sessions: BTreeSet<String>,
    minted: u64,
    /// By session what listens to it: GET streams, listens, or the stream of the old transport.
    streams: Vec<(String, mpsc::Sender<String>)>,
    answers: BTreeMap<String, Value>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launcher {
    fn new(behaviour: Behaviour) -> Self {
        Self {
            behaviour,
            address: None,
            tls: None,
        }
    }

    /// Issues no session ids and needs none.
    #[must_use]
    pub fn stateless(mut self) -> Self {
        self.behaviour.sessions = false;
        self
    }

    /// Answers GET with 405.
    #[must_use]
    pub fn without_get_stream(mut self) -> Self {
        self.behaviour.get_stream = false;
        self
    }

    /// Answers requests with event streams rather than with JSON.
    #[must_use]
    pub fn answering_in_events(mut self) -> Self {
        self.behaviour.events = true;
        self
    }

    /// Refuses a longer body by its head, with 413, and closes without having read any of it, as
    /// many servers do.
    #[must_use]
    pub fn refusing_beyond(mut self, bytes: usize) -> Self {
        self.behaviour.longest_body = Some(bytes);
        self
    }

    /// Listens at this address, as an upstream that was there before.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Speaks TLS with a certificate of that authority, which has that flaw.
    #[must_use]
    pub fn with_tls(mut self, authority: &CertificateAuthority, flaw: Flaw) -> Self {
        self.tls = Some(authority.configuration(flaw));
        self
    }

    pub async fn start(self) -> Result<Upstream> {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(self.address.unwrap_or(anywhere)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behaviour: self.behaviour,
            state: Mutex::default(),
            answered: Notify::new(),
        });
        let secure = self.tls.is_some();
        let tls = self.tls.map(TlsAcceptor::from);
        let door = spawn(accept_loop(listener, Arc::clone(&shared), tls));
        Ok(Upstream {
            address,
            secure,
            shared,
            door,
        })
    }
}

impl Upstream {
    /// Streamable HTTP with a handshake, sessions and a GET stream.
    pub fn legacy() -> Launcher {
        Launcher::new(Behaviour::legacy())
    }

    /// Starts a legacy upstream at the address of an earlier one, whose connections may still be
    /// closing.
    ///
    /// # Panics
    /// When the address does not become free.
    pub async fn restarted(address: SocketAddr) -> Self {
        let started = poll_until("the address is free again", PATIENCE, async || {
            Ok::<_, Failure>(Self::legacy().at(address).start().await.ok())
        });
        started.await.expect("a look does not fail")
    }

    /// Streamable HTTP of 2026-07-28.
    pub fn modern() -> Launcher {
        Launcher::new(Behaviour::modern())
    }

    /// Streamable HTTP of both eras, each request in its own.
    pub fn dual() -> Launcher {
        Launcher::new(Behaviour::dual())
    }

    /// HTTP+SSE of 2024-11-05, at `/sse` and `/message`.
    pub fn old_sse() -> Launcher {
        Launcher::new(Behaviour::old_sse())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`; by name where it speaks TLS, for a certificate is about names.
    pub fn origin(&self) -> String {
        match self.secure {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// The endpoint: `/sse` of the old transport, `/mcp` otherwise.
    pub fn url(&self) -> String {
        format!("{}{}", self.origin(), self.shared.behaviour.path())
    }

    /// The next request that fits is treated like this.
    pub fn once(&self, condition: impl Fn(&Exchange) -> bool + Send + Sync + 'static, steps: Vec<Step>) {
        self.times(1, condition, steps);
    }

    /// The next so many are.
    pub fn times(
        &self,
        times: usize,
        condition: impl Fn(&Exchange) -> bool + Send + Sync + 'static,
        steps: Vec<Step>,
    ) {
        let condition = Arc::new(condition);
        self.shared.state().rules.push(Rule {
            condition,
            times,
            steps,
        });
    }

    /// All of them are.
    pub fn always(&self, condition: impl Fn(&Exchange) -> bool + Send + Sync + 'static, steps: Vec<Step>) {
        self.times(usize::MAX, condition, steps);
    }

    /// From now on it does everything as usual.
    pub fn behave(&self) {
        self.shared.state().rules.clear();
    }

    /// As a server does that was restarted: no session is known any more, and no stream is open.
    pub fn forget_sessions(&self) {
        let mut state = self.shared.state();
        state.sessions.clear();
        state.streams.clear();
    }

    /// Sends this on every stream that is open for notifications and requests of the server.
    pub async fn push(&self, message: &str) {
        let streams = self.shared.state().streams.clone();
        for (_, stream) in streams {
            // A stream whose reader has gone takes nothing.
            let _ = stream.send(message.to_owned()).await;
        }
    }

    /// Waits until there are so many streams for [`push`](Self::push).
    pub async fn wait_for_streams(&self, count: usize) {
        let what = format!("{count} streams are open");
        wait_until(&what, PATIENCE, || {
            let streams = &self.shared.state().streams;
            let open = streams.iter().filter(|(_, stream)| !stream.is_closed()).count();
            (open >= count).then_some(())
        })
        .await;
    }

    /// Every request so far.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state().exchanges.clone()
    }

    /// Those that fit.
    pub fn seen(&self, condition: impl Fn(&Exchange) -> bool) -> Vec<Exchange> {
        self.exchanges()
            .into_iter()
            .filter(|seen| condition(seen))
            .collect()
    }

    /// Waits for the first that fits, those of the past included.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&Exchange) -> bool) -> Exchange {
        wait_until(what, PATIENCE, || self.seen(&condition).into_iter().next()).await
    }

    /// Waits until the peer has hung up during that request.
    pub async fn wait_for_hang_up(&self, exchange: &Exchange) {
        wait_until("the peer hangs up", PATIENCE, || {
            self.shared
                .state()
                .hung_up
                .contains(&exchange.number)
                .then_some(())
        })
        .await;
    }

    /// How often a tool was run.
    pub fn executions(&self, tool: &str) -> usize {
        let state = self.shared.state();
        state
            .executions
            .iter()
            .filter(|call| call["name"] == tool)
            .count()
    }

    /// The `params` of every tool call that was run.
    pub fn executed(&self) -> Vec<Value> {
        self.shared.state().executions.clone()
    }

    /// Sessions that were opened and not ended.
    pub fn open_sessions(&self) -> usize {
        self.shared.state().sessions.len()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.door.abort();
    }
}

/// Accepts connections. They end with this task.
async fn accept_loop(listener: TcpListener, shared: Arc<Shared>, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        connections.spawn(attend(stream, Arc::clone(&shared), tls.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn attend(stream: TcpStream, shared: Arc<Shared>, tls: Option<TlsAcceptor>) {
    let _ = stream.set_nodelay(true);
    let socket = match tls {
        None => Socket::Plain(stream),
        Some(acceptor) => match acceptor.accept(stream).await {
            Ok(stream) => Socket::Tls(Box::new(stream)),
            // The peer did not like the certificate, which is what the test is about.
            Err(_) => return,
        },
    };
    let mut wire = Wire::new(socket, shared.behaviour.longest_body);
    // A peer that breaks off is noted where it matters; there is no further reader of the error.
    while let Ok(Some(mut exchange)) = wire.request().await {
        let steps = {
            let mut state = shared.state();
            exchange.number = state.exchanges.len();
            state.exchanges.push(exchange.clone());
            let rule = state
                .rules
                .iter_mut()
                .find(|rule| rule.times > 0 && (rule.condition)(&exchange));
            rule.map(|rule| {
                rule.times = rule.times.saturating_sub(1);
                rule.steps.clone()
            })
        };
        let steps = steps.unwrap_or_else(|| vec![Step::AsUsual]);
        match perform(&shared, wire, &exchange, steps).await {
            Ok(Some(kept)) => wire = kept,
            Ok(None) => return,
            Err(_) => {
                shared.state().hung_up.insert(exchange.number);
                return;
            }
        }
    }
}

/// Carries out a script; the connection comes back if it can be used again.
async fn perform(
    shared: &Arc<Shared>,
    mut wire: Wire,
    exchange: &Exchange,
    steps: Vec<Step>,
) -> Result<Option<Wire>> {
    let gone = || {
        shared.state().hung_up.insert(exchange.number);
    };
    for step in steps {
        match step {
            Step::Execute => shared.state().executions.push(exchange.body["params"].clone()),
            Step::Respond {
                status,
                headers,
                body,
            } => {
                let body = exchange.filled_into(&body);
                wire.respond(status, &headers, &body).await?;
            }
            Step::OpenStream => wire.open_stream(&[]).await?,
            Step::Piece(bytes) => wire.chunk(&exchange.filled_into_bytes(bytes)).await?,
            Step::Event(data) => wire.event(&exchange.filled_into(&data)).await?,
            Step::EndStream => wire.end_stream().await?,
            Step::Raw(bytes) => wire.write(&exchange.filled_into_bytes(bytes)).await?,
            Step::Wait(gate) => {
                let opened = tokio::select! {
                    () = gate.passed() => true,
                    () = wire.hung_up() => false,
                };
                if !opened {
                    gone();
                    return Ok(None);
                }
            }
            Step::Stall => {
                wire.hung_up().await;
                gone();
                return Ok(None);
            }
            Step::Flood { piece, bytes } => {
                let mut sent = 0;
                while sent < bytes {
                    wire.write(&piece).await?;
                    sent += piece.len() as u64;
                }
            }
            Step::Reset => {
                wire.reset()?;
                return Ok(None);
            }
            Step::Close => {
                wire.close().await;
                return Ok(None);
            }
            Step::AsUsual => match behaviour::usual(shared, wire, exchange).await? {
                Some(kept) => wire = kept,
                None => return Ok(None),
            },
        }
    }
    Ok(Some(wire))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the testkit may not use the product's tasks"
)]
fn spawn(future: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tokio::spawn(future).abort_handle()
}
