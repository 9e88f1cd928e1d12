//! One rmcp client with its transport, and everything that could be seen on the way.
#![expect(
    deprecated,
    reason = "roots, sampling and logging are exactly what is tested here"
)]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, Implementation, ListRootsResult, LoggingMessageNotificationParam,
    ProgressNotificationParam, ProtocolVersion, ResourceUpdatedNotificationParam,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext, RunningService,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::FixedInterval;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ErrorData, RoleClient};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::watched_http::{Exchange, WatchedHttp};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How the client finds its era.
#[derive(Clone, Copy)]
pub(crate) enum Era {
    /// By `initialize`, without a look for anything newer.
    Legacy,
    /// By asking `server/discover` first.
    Auto,
}

/// What the client can do and how it answers; the same words as on the wire.
pub(crate) struct Manner {
    pub(crate) capabilities: Value,
    pub(crate) answer: Box<dyn Fn(&Value) -> Value + Send + Sync>,
    /// Break the first stream with progress, and come back after this long.
    pub(crate) breaks_for: Option<Duration>,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            capabilities: json!({}),
            answer: Box::new(|_| Value::Null),
            breaks_for: None,
        }
    }
}

pub(crate) struct Witness {
    pub(crate) client: RunningService<RoleClient, Handler>,
    pub(crate) http: WatchedHttp,
}

/// Notes the notifications of the server, and answers its questions.
pub(crate) struct Handler {
    config: ClientConfig,
    manner: Manner,
    notifications: watch::Sender<Vec<Value>>,
}

impl Witness {
    pub(crate) async fn open(era: Era, url: &str, manner: Manner) -> Result<Self> {
        let capabilities: ClientCapabilities = serde_json::from_value(manner.capabilities.clone())?;
        let http = WatchedHttp::new(manner.breaks_for.is_some());
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        if let Some(pause) = manner.breaks_for {
            let mut retry = FixedInterval::default();
            retry.duration = pause;
            config.retry_config = Arc::new(retry);
        }
        let handler = Handler {
            config: ClientConfig::new(capabilities, Implementation::new("rialto-interop-rmcp", "1.0.0")),
            manner,
            notifications: watch::Sender::default(),
        };
        let lifecycle = match era {
            Era::Legacy => ClientLifecycleMode::Initialize,
            Era::Auto => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: None,
            },
        };
        let transport = StreamableHttpClientTransport::with_client(http.clone(), config);
        let client = handler.serve_with_lifecycle(transport, lifecycle).await?;
        Ok(Self { client, http })
    }

    /// Returns when the server has accepted the stream on which it speaks unasked.
    pub(crate) async fn listening(&self) -> Result<()> {
        let mut exchanges = self.http.exchanges().subscribe();
        exchanges
            .wait_for(|seen| seen.contains(&Exchange::Listen))
            .await?;
        Ok(())
    }

    /// Every session that the server has named, in order.
    pub(crate) fn session_ids(&self) -> Vec<String> {
        let exchanges = self.http.exchanges().borrow();
        let ids = exchanges.iter().filter_map(|exchange| match exchange {
            Exchange::Post { session_id } => session_id.clone(),
            Exchange::Listen | Exchange::Resume | Exchange::Delete => None,
        });
        let mut ids: Vec<String> = ids.collect();
        ids.dedup();
        ids
    }

    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Result<Value> {
        let result = self.client.call_tool(call_params(name, arguments)?).await?;
        Ok(serde_json::to_value(result)?)
    }

    pub(crate) async fn text(&self, name: &str, arguments: Value) -> Result<String> {
        let result = self.call(name, arguments).await?;
        let parts = result["content"].as_array().cloned().unwrap_or_default();
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        Ok(texts.join("\n"))
    }

    /// Every notification of this method so far, by its params.
    pub(crate) fn heard(&self, method: &str) -> Vec<Value> {
        let notifications = self.client.service().notifications.borrow();
        let of_method = notifications.iter().filter(|seen| seen["method"] == method);
        of_method.map(|seen| seen["params"].clone()).collect()
    }

    /// Returns when a notification that fits has come, now or earlier.
    pub(crate) async fn receives(&self, fits: impl Fn(&Value) -> bool) -> Result<()> {
        let mut notifications = self.client.service().notifications.subscribe();
        notifications.wait_for(|seen| seen.iter().any(&fits)).await?;
        Ok(())
    }
}

pub(crate) fn call_params(name: &str, arguments: Value) -> Result<CallToolRequestParams> {
    Ok(serde_json::from_value(
        json!({"name": name, "arguments": arguments}),
    )?)
}

impl Handler {
    fn note(&self, method: &str, params: Value) {
        self.notifications
            .send_modify(|seen| seen.push(json!({"method": method, "params": params})));
    }

    fn answer<T: serde::de::DeserializeOwned>(
        &self,
        params: impl serde::Serialize,
    ) -> std::result::Result<T, ErrorData> {
        let asked = serde_json::to_value(params).expect("the SDK's types are JSON");
        serde_json::from_value((self.manner.answer)(&asked))
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> std::result::Result<CreateMessageResult, ErrorData> {
        self.answer(params)
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> std::result::Result<ElicitResult, ErrorData> {
        self.answer(params)
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> std::result::Result<ListRootsResult, ErrorData> {
        self.answer(())
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.note("notifications/progress", json!(params));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.note("notifications/message", json!(params));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.note("notifications/resources/updated", json!(params));
    }

    async fn on_resource_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.note("notifications/resources/list_changed", Value::Null);
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.note("notifications/tools/list_changed", Value::Null);
    }
}
