//! What a message says in its headers.
//!
//! A modern server is told in headers what the body says (2026-07-28, "Standard headers"). They are made from the body
//! that is sent, after it was validated, so that nobody on the way can be shown one thing and the server another.

use std::sync::PoisonError;

use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::message::{Member, Message};
use protocol::method::Method;
use protocol::tool_schema::arguments_of;
use protocol::wire::header::encode;

use super::server::{PROTOCOL_VERSION, Server};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The headers of a modern request.
pub(super) fn mirrored(server: &Server, message: &Message) -> HeaderMap {
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
        _ => None,
    };
    if let Some(name) = name {
        put(NAME, &encode(&name));
        if message.method() == Method::ToolsCall {
            for (header, value) in parameters(server, &name, message) {
                if let Ok(header) = HeaderName::from_bytes(header.as_bytes()) {
                    put(header, &value);
                }
            }
        }
    }
    headers
}

/// The arguments that the tool's schema wants mirrored, as far as the tool is known.
fn parameters(server: &Server, tool: &str, message: &Message) -> Vec<(String, String)> {
    let catalogue = server.catalogue.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(tool) = catalogue.find(tool) else {
        return Vec::new();
    };
    let Ok(arguments) = arguments_of(message) else {
        return Vec::new();
    };
    tool.headers.values_of_raw(arguments).unwrap_or_default()
}
