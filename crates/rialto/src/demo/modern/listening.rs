//! One `subscriptions/listen`: what it asked for, what of that is honoured, and the tag on
//! everything it is sent.
use serde_json::{Value, json};

use crate::demo::message::{self, Object, Refusal};
use crate::demo::resources;

const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

#[derive(Debug)]
pub(super) struct Listen {
    id: Value,
    tools: bool,
    resources: Vec<String>,
}

impl Listen {
    pub(super) fn read(id: Value, params: &Object) -> Result<Listen, Refusal> {
        let invalid = |why: &str| Refusal::InvalidParams(why.to_owned());
        let filter = params.get("notifications").and_then(Value::as_object);
        let filter = filter.ok_or_else(|| invalid("notifications must be an object"))?;
        let tools = match filter.get("toolsListChanged") {
            None => false,
            Some(wanted) => wanted
                .as_bool()
                .ok_or_else(|| invalid("toolsListChanged must be a boolean"))?,
        };
        let mut honoured: Vec<String> = Vec::new();
        if let Some(uris) = filter.get("resourceSubscriptions") {
            let uris = uris
                .as_array()
                .ok_or_else(|| invalid("resourceSubscriptions must be an array"))?;
            for uri in uris {
                let uri = uri
                    .as_str()
                    .ok_or_else(|| invalid("resourceSubscriptions must hold strings"))?;
                if resources::is_subscribable(uri) && !honoured.iter().any(|known| known == uri) {
                    honoured.push(uri.to_owned());
                }
            }
        }
        Ok(Listen {
            id,
            tools,
            resources: honoured,
        })
    }

    pub(super) fn id(&self) -> &Value {
        &self.id
    }

    /// Names only what will really be sent: the other lists of this server never change.
    pub(super) fn acknowledgement(&self) -> Value {
        let mut honoured = json!({});
        if self.tools {
            honoured["toolsListChanged"] = json!(true);
        }
        if !self.resources.is_empty() {
            honoured["resourceSubscriptions"] = json!(self.resources);
        }
        self.tagged(
            "notifications/subscriptions/acknowledged",
            json!({"notifications": honoured}),
        )
    }

    pub(super) fn tools_changed(&self) -> Option<Value> {
        self.tools
            .then(|| self.tagged("notifications/tools/list_changed", json!({})))
    }

    pub(super) fn resource_updated(&self, uri: &str) -> Option<Value> {
        let wanted = self.resources.iter().any(|known| known == uri);
        wanted.then(|| self.tagged("notifications/resources/updated", json!({"uri": uri})))
    }

    pub(super) fn farewell(self) -> Value {
        let mut result = super::complete(json!({}));
        result["_meta"][SUBSCRIPTION_ID] = self.id.clone();
        message::result(self.id, result)
    }

    fn tagged(&self, method: &str, mut params: Value) -> Value {
        params["_meta"][SUBSCRIPTION_ID] = self.id.clone();
        message::notification(method, params)
    }
}
