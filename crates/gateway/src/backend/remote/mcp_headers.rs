//! The MCP headers of a message to a modern server.
//!
//! A modern server receives parts of the body in headers, too (2026-07-28, "Standard headers").
//! They are made from the validated body that is sent, so a proxy cannot see one thing and the
//! server another.

use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::message::{Member, Message};
use protocol::method::Method;
use protocol::wire::header::encode;
use std::borrow::Cow;

use super::server::PROTOCOL_VERSION;
use crate::instance::Instance;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Returns the headers of a modern request.
pub(super) fn mirrored(instance: &Instance, message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    if let Some(version) = message.text(Member::MetaProtocolVersion) {
        put(PROTOCOL_VERSION, &version);
    }
    if let Some(method) = message.method_name() {
        put(METHOD, &encode(&method));
    }
    let name = match message.method() {
        Method::ToolsCall | Method::PromptsGet => message.text(Member::Name),
        Method::ResourcesRead => message.text(Member::Uri),
        // The tasks extension, "Routing Headers".
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel => {
            protocol::task::named(message).map(Cow::Owned)
        }
        _ => None,
    };
    if let Some(name) = name {
        put(NAME, &encode(&name));
        if message.method() == Method::ToolsCall {
            for (header, value) in instance.mirrored_arguments(message) {
                if let Ok(header) = HeaderName::from_bytes(header.as_bytes()) {
                    put(header, &value);
                }
            }
        }
    }
    headers
}
