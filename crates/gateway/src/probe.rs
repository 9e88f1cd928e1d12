//! The probe of `rialto check`: starts a destination, makes the handshake, counts its tools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use protocol::aggregate::ListKind;
use protocol::exchange::{CallKey, Principal};
use protocol::message::Message;
use protocol::session::Accepts;
use protocol::version::Version;
use serde_json::Value;

use crate::endpoint::aggregate::{self, Aggregate};
use crate::endpoint::{Endpoint, SessionOpen};
use crate::escape;
use crate::gateway::Gateway;
use crate::session_handle::{Acceptance, Answered, SessionHandle};
use crate::status::Detail;

/// What a destination showed of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub destination: String,
    pub transport: &'static str,
    pub took: Duration,
    pub result: Result<Presented, String>,
    /// What the operator should know, though it is no fault.
    pub notes: Vec<String>,
}

/// A server that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    pub era: &'static str,
    pub version: String,
    pub server: String,
    /// How many tools it has; `None` if it offers none.
    pub tools: Option<usize>,
}

/// Which members of an aggregate are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Everything,
    /// Those whose servers do not wait for a call.
    Started,
}

impl Gateway {
    /// Tries every destination out, all at once, and ends what it started.
    pub async fn probe(self: Arc<Self>) -> Vec<Probe> {
        let mut probes = Vec::new();
        let running: Vec<_> = self
            .config()
            .destinations
            .values()
            .map(|destination| {
                let (gateway, destination) = (Arc::clone(&self), Arc::clone(destination));
                crate::tasks::spawn("probe", async move {
                    gateway.probe_one(&destination, Reach::Everything).await
                })
            })
            .collect();
        for probe in running {
            probes.extend(probe.await);
        }
        self.stop_all().await;
        probes
    }

    /// The principal of requests that Rialto makes itself.
    pub const OWN_PRINCIPAL: &'static str = "rialto (itself)";

    /// Tries out one destination of a gateway that serves: starts its server, if none runs, and
    /// counts its tools. Members of an aggregate that start with a call are left alone. `None`:
    /// there is no such destination, or the gateway drains.
    pub async fn try_out(&self, destination: &str) -> Option<Probe> {
        let destination = self.config().destinations.get(destination).cloned()?;
        tokio::select! {
            probe = self.probe_one(&destination, Reach::Started) => Some(probe),
            // The drain waits for calls, and no client waits for this one.
            () = self.drain_began() => None,
        }
    }

    /// Asks a destination what it has, as a client does: starts its server, if none runs, and reads
    /// its lists to their ends. Returns what it has shown, as JSON.
    pub(crate) async fn read_presented(&self, destination: &Endpoint) -> Result<Value, String> {
        if let Some(why) = destination.upstream.broken() {
            return Err(why.to_owned());
        }
        let session = OwnSession::open(destination, "rialto")?;
        let welcome = session.welcome().await?;
        let handle = &session.handle;
        let mut lists = read_lists(handle, &welcome).await?;
        let shown = |pointer: &str| welcome.pointer(pointer).cloned().unwrap_or_default();
        let mut items = |kind: ListKind| lists.remove(kind.member()).unwrap_or_default();
        Ok(serde_json::json!({
            "error": null,
            "era": handle.server_era().map_or("both", |era| era.as_str()),
            "revision": shown("/result/protocolVersion"),
            "server": shown("/result/serverInfo"),
            "instructions": shown("/result/instructions"),
            "capabilities": shown("/result/capabilities"),
            "tools": items(ListKind::Tools),
            "prompts": items(ListKind::Prompts),
            "resources": items(ListKind::Resources),
            "resource_templates": items(ListKind::Templates),
        }))
    }

    async fn probe_one(&self, destination: &Endpoint, reach: Reach) -> Probe {
        let began = self.clock.now();
        let (result, notes) = match destination.upstream.aggregate() {
            Some(aggregate) => present_aggregate(aggregate, reach).await,
            None => (present(destination).await, Vec::new()),
        };
        Probe {
            notes,
            destination: destination.name.to_string(),
            transport: destination.status(true, Detail::Sums).transport,
            took: self.clock.now().since(began),
            result,
        }
    }
}

impl Probe {
    /// Returns a destination that could not even be tried.
    pub fn hopeless(destination: String, why: String) -> Self {
        Self {
            destination,
            transport: "-",
            took: Duration::ZERO,
            result: Err(why),
            notes: Vec::new(),
        }
    }
}

/// Reads every member of an aggregate. Names that several members claim are a fault; names and
/// instructions that had to be cut are not.
async fn present_aggregate(aggregate: &Aggregate, reach: Reach) -> (Result<Presented, String>, Vec<String>) {
    let failed = aggregate.read_all(reach == Reach::Everything).await;
    let (view, plan) = (aggregate.view(), aggregate.plan());
    let mut notes: Vec<String> = failed
        .iter()
        .map(|(member, why)| format!("member `{member}`: {why}; its own line has the details"))
        .collect();
    for (member, own, shown) in view.cut_names() {
        notes.push(format!(
            "member `{member}`: the name `{own}` is too long and is shown as `{shown}`; write a shorter one \
             under `members.{member}.tools.rename`"
        ));
    }
    for member in view.cut_instructions() {
        notes.push(format!(
            "member `{member}`: its instructions were cut; `instructions_limit` is {} bytes",
            plan.limits().instructions_limit
        ));
    }
    let withheld = aggregate::withheld(&view);
    let result = if !withheld.is_empty() {
        Err(format!(
            "some of what members offer is not shown:\n{}",
            withheld.join("\n")
        ))
    } else if !view.is_known() && (!failed.is_empty() || reach == Reach::Everything) {
        Err("none of its members could be read".to_owned())
    } else {
        Ok(Presented {
            era: "both",
            version: Version::NEWEST_MODERN.as_str().to_owned(),
            server: format!("{} {}", plan.name(), env!("CARGO_PKG_VERSION")),
            tools: view.is_known().then(|| view.count(ListKind::Tools)),
        })
    };
    (result, notes)
}

async fn present(destination: &Endpoint) -> Result<Presented, String> {
    if let Some(why) = destination.upstream.broken() {
        return Err(why.to_owned());
    }
    let session = OwnSession::open(destination, "rialto-check")?;
    let welcome = session.welcome().await?;
    let handle = &session.handle;
    let text = |pointer: &str| {
        welcome
            .pointer(pointer)
            .and_then(Value::as_str)
            .map_or_else(|| "?".to_owned(), shown)
    };
    let tools = match welcome.pointer("/result/capabilities/tools") {
        Some(_) => Some(count_tools(handle).await?),
        None => None,
    };
    Ok(Presented {
        era: handle.server_era().map_or("both", |era| era.as_str()),
        version: text("/result/protocolVersion"),
        server: format!(
            "{} {}",
            text("/result/serverInfo/name"),
            text("/result/serverInfo/version")
        ),
        tools,
    })
}

/// A session of Rialto's own. It is closed when this is dropped, also while an answer is awaited.
struct OwnSession<'a> {
    destination: &'a Endpoint,
    handle: Arc<SessionHandle>,
    handshake: Option<CallKey>,
}

impl<'a> OwnSession<'a> {
    /// Opens a session for the part of Rialto that has this name.
    fn open(destination: &'a Endpoint, name: &str) -> Result<Self, String> {
        let opening = SessionOpen::Initialize(message(hello(name))?, Accepts::Json);
        let principal = Principal::named(Gateway::OWN_PRINCIPAL);
        let (handle, handshake) = destination
            .open(principal, &HeaderMap::new(), opening)
            .map_err(|refusal| refusal.text())?;
        Ok(Self {
            destination,
            handle,
            handshake,
        })
    }

    /// Returns the server's answer to `initialize`, and ends the handshake.
    async fn welcome(&self) -> Result<Value, String> {
        let call = self.handshake.ok_or("the handshake could not begin")?;
        let welcome = answer_of(self.handle.answer(call).await)?;
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        // If the session has ended meanwhile, the next request tells why.
        let _ = self
            .handle
            .take(message(initialized.to_owned())?, Accepts::Json, None);
        Ok(welcome)
    }
}

impl Drop for OwnSession<'_> {
    fn drop(&mut self) {
        self.destination.close(&self.handle);
    }
}

/// Returns the first message of a session.
fn hello(name: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"{}","capabilities":{{}},"clientInfo":{{"name":"{name}","version":"{}"}}}}}}"#,
        Version::NEWEST_LEGACY.as_str(),
        env!("CARGO_PKG_VERSION"),
    )
}

async fn count_tools(handle: &Arc<SessionHandle>) -> Result<usize, String> {
    read_list(handle, ListKind::Tools).await.map(|tools| tools.len())
}

/// Reads every list that the server declares, by the names of their members.
async fn read_lists(
    handle: &Arc<SessionHandle>,
    welcome: &Value,
) -> Result<BTreeMap<&'static str, Vec<Value>>, String> {
    let mut lists = BTreeMap::new();
    for kind in ListKind::ALL {
        let declared = format!("/result/capabilities/{}", kind.capability());
        if welcome.pointer(&declared).is_none() {
            continue;
        }
        let list = match (read_list(handle, kind).await, kind) {
            (Ok(list), _) => list,
            // Many servers have resources and no templates.
            (Err(_), ListKind::Templates) => Vec::new(),
            (Err(why), ListKind::Tools | ListKind::Prompts | ListKind::Resources) => return Err(why),
        };
        lists.insert(kind.member(), list);
    }
    Ok(lists)
}

/// Reads a list, page by page, up to a limit of pages.
async fn read_list(handle: &Arc<SessionHandle>, kind: ListKind) -> Result<Vec<Value>, String> {
    const PAGES: usize = 100;
    let mut items = Vec::new();
    let method = kind.method().name().unwrap_or_default();
    let mut params = "{}".to_owned();
    for _ in 0..PAGES {
        let request = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"{method}","params":{params}}}"#);
        let call = match handle.take(message(request)?, Accepts::Json, None) {
            Ok(Acceptance::Call(call)) => call,
            Ok(Acceptance::Noted | Acceptance::Answered(_)) | Err(_) => {
                return Err("the session ended".into());
            }
        };
        let mut list = answer_of(handle.answer(call).await)?;
        let page = list.pointer_mut(&format!("/result/{}", kind.member()));
        if let Some(Value::Array(page)) = page.map(Value::take) {
            items.extend(page);
        }
        match list.pointer("/result/nextCursor") {
            Some(Value::Null) | None => return Ok(items),
            Some(cursor) => params = serde_json::json!({ "cursor": cursor }).to_string(),
        }
    }
    Ok(items)
}

fn message(text: String) -> Result<Message, String> {
    Message::scan(Bytes::from(text)).map_err(|error| error.to_string())
}

/// Returns a text of a server, escaped for a terminal.
fn shown(text: &str) -> String {
    escape::one_line(text, escape::MAX_VALUE_BYTES)
}

fn answer_of(answered: Answered) -> Result<Value, String> {
    let Answered::Complete { body, .. } = answered else {
        return Err("unexpected stream".into());
    };
    let value: Value = serde_json::from_slice(&body.into_bytes()).map_err(|error| error.to_string())?;
    let Some(error) = value.get("error") else {
        return Ok(value);
    };
    let mut text = error
        .get("message")
        .and_then(Value::as_str)
        .map_or_else(|| "error".to_owned(), shown);
    if let Some(lines) = error.pointer("/data/stderr").and_then(Value::as_array) {
        for line in lines.iter().filter_map(Value::as_str) {
            text.push_str("\n  stderr: ");
            text.push_str(&shown(line));
        }
    }
    Err(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::settings::{BackendSpec, Outages, Settings};

    fn gateway(outages: Outages) -> Arc<Gateway> {
        let mut settings: Settings = fixture::settings();
        for destination in &mut settings.destinations {
            if let BackendSpec::Remote(remote) = &mut destination.backend {
                remote.outages = outages;
            }
        }
        fixture::gateway(&settings)
    }

    fn sessions(gateway: &Gateway) -> usize {
        let config = gateway.config();
        let all = config.destinations.values();
        all.map(|destination| destination.status(true, Detail::Sums).sessions)
            .sum()
    }

    #[tokio::test]
    async fn failed_try_out_leaves_no_session() {
        let gateway = gateway(Outages::Refuse);
        let probe = gateway.try_out("demo").await.expect("a destination");
        assert!(probe.result.is_err(), "nothing listens");
        assert_eq!(sessions(&gateway), 0);
    }

    #[tokio::test]
    async fn try_out_ends_when_the_gateway_drains() {
        let gateway = gateway(Outages::Wait);
        let trial = {
            let gateway = Arc::clone(&gateway);
            crate::tasks::spawn("try-out", async move { gateway.try_out("demo").await })
        };
        while sessions(&gateway) == 0 {
            tokio::task::yield_now().await;
        }
        gateway.drain().await;
        assert!(matches!(trial.await, Ok(None)), "it came to no end");
        assert_eq!(sessions(&gateway), 0);
    }
}
