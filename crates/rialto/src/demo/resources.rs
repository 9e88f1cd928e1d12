//! The resources: a text, a picture, a counter that changes when touched, and a template.
use serde_json::{Value, json};

use super::message::Refusal;
use super::tools::DemoState;

pub(super) const README: &str = "demo://readme";
pub(super) const COUNTER: &str = "demo://counter";
pub(super) const LOGO: &str = "demo://logo";
pub(super) const GREETING_TEMPLATE: &str = "demo://greeting/{name}";
const GREETING_PREFIX: &str = "demo://greeting/";

/// A picture of a bridge, 16 by 16 pixels: PNG in base64.
pub(super) const LOGO_PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAgMAAABinRfyAAAACVBMVEXr8/qwfFQ6eKj+er7kAAAAMElEQVR42mNgwAlYA4BEaCiQERoaAGQAmaGsAaEMIYwOogwBDA6sQIKBlWEVECAIAA8PDd716LjDAAAAAElFTkSuQmCC";

pub(super) const README_TEXT: &str = "# Rialto demo server\n\nEvery feature of MCP, once. Call `ask` to be asked a question, \
`count` to watch progress, `touch` to change `demo://counter`, `toggle_tool` to change the list of tools.\n";

pub(super) fn list() -> Value {
    json!({"resources": [
        {"uri": README, "name": "readme", "title": "Read me", "description": "What this server is for",
         "mimeType": "text/markdown"},
        {"uri": COUNTER, "name": "counter", "title": "Counter", "description": "Changes whenever the tool touch is called",
         "mimeType": "text/plain"},
        {"uri": LOGO, "name": "logo", "title": "Logo", "description": "A small bridge", "mimeType": "image/png"},
    ]})
}

pub(super) fn templates() -> Value {
    json!({"resourceTemplates": [
        {"uriTemplate": GREETING_TEMPLATE, "name": "greeting", "title": "Greeting", "description": "A greeting for anybody",
         "mimeType": "text/plain"},
    ]})
}

/// Returns whether a client may subscribe to it. A closed list also bounds what a client can make
/// us remember.
pub(super) fn is_subscribable(uri: &str) -> bool {
    [README, COUNTER, LOGO].contains(&uri)
}

pub(super) fn read(uri: &str, state: &DemoState) -> Result<Value, Refusal> {
    let content = match uri {
        README => json!({"uri": uri, "mimeType": "text/markdown", "text": README_TEXT}),
        COUNTER => json!({"uri": uri, "mimeType": "text/plain", "text": state.counter.to_string()}),
        LOGO => json!({"uri": uri, "mimeType": "image/png", "blob": LOGO_PNG}),
        _ => {
            let name = uri.strip_prefix(GREETING_PREFIX).and_then(percent_decoded);
            let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
            let name = name.ok_or_else(|| Refusal::UnknownResource(uri.to_owned()))?;
            json!({"uri": uri, "mimeType": "text/plain", "text": format!("Hello, {name}!")})
        }
    };
    Ok(json!({"contents": [content]}))
}

/// Undoes what template expansion does to a variable (RFC 6570): most names need it as soon as they
/// hold a blank or an accent.
fn percent_decoded(encoded: &str) -> Option<String> {
    let mut bytes = encoded.bytes();
    let mut decoded = Vec::with_capacity(encoded.len());
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => u8::try_from(digit(bytes.next())? * 16 + digit(bytes.next())?).ok()?,
            plain => plain,
        });
    }
    String::from_utf8(decoded).ok()
}
