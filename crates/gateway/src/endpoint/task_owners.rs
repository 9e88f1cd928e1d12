//! Which replica of a fleet knows a task: the one whose server began it.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use cluster::NodeId;
use protocol::exchange::Principal;
use protocol::message::Message;
use protocol::task;
use protocol::version::TaskStyle;

use super::Endpoint;
use crate::reply::Refusal;

/// How long a task is known whose server set no time, and the longest for any.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Endpoint {
    /// Notes that this replica knows the task which an answer gives to a caller, if it gives one.
    /// The answer is shown afterwards: until then no request can name the task.
    pub(crate) async fn note_task(&self, answer: &Bytes, principal: &Principal) {
        let Some(fleet) = self.fleet().filter(|fleet| fleet.has_peers()) else {
            return;
        };
        if memchr::memmem::find(answer, b"taskId").is_none() {
            return;
        }
        let message = Message::scan(answer.clone()).ok();
        let Some(created) = message.and_then(|message| task::created(&message, TaskStyle::Extension)) else {
            return;
        };
        let ttl = created.ttl.map_or(LONGEST, |ttl| ttl.min(LONGEST));
        let name = self.task_name(&created.id, principal);
        if let Err(error) = fleet.hold(&name, ttl).await {
            // The client reaches its task through this replica alone.
            tracing::warn!(destination = %self.name, %error, "the owner of a task cannot be written");
        }
    }

    /// Returns the other replica that knows the task which a request of this caller names.
    pub(crate) async fn other_task_owner(
        &self,
        message: &Message,
        principal: &Principal,
    ) -> Result<Option<NodeId>, Refusal> {
        let (Some(fleet), Some(task)) = (self.fleet(), task::named(message)) else {
            return Ok(None);
        };
        let holder = fleet.holder(&self.task_name(&task, principal)).await;
        let holder = holder.map_err(|error| {
            tracing::warn!(destination = %self.name, %error, "the owner of a task cannot be read");
            Refusal::RegistryUnavailable
        })?;
        Ok(holder.filter(|holder| *holder != fleet.node().id))
    }

    /// Returns the name of a task among those of all callers. Parts that a caller chooses are
    /// hashed, so that no name is long or looks like another.
    fn task_name(&self, task: &str, principal: &Principal) -> String {
        let mut text = Vec::new();
        for part in [&*self.name, principal.as_str(), task] {
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        format!("task:{}", URL_SAFE_NO_PAD.encode(digest(&SHA256, &text)))
    }
}
