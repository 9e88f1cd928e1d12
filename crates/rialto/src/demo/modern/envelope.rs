//! The `_meta` of a modern request: the client, its revision and its capabilities. Nothing is
//! remembered from one request to the next.
use protocol::method::LogLevel;
use protocol::version::Version;
use serde_json::Value;

use crate::demo::message::{self, Object, Refusal};

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) capabilities: Value,
    pub(super) log_level: Option<LogLevel>,
    pub(super) progress_token: Option<Value>,
}

/// Returns the version that a request names, known or not.
pub(super) fn version(params: &Object) -> Option<&Value> {
    params.get("_meta")?.get(VERSION)
}

impl Envelope {
    pub(super) fn read(params: &Object) -> Result<Envelope, Refusal> {
        let invalid = |why: String| Refusal::InvalidParams(why);
        let version = version(params).filter(|version| version.is_string());
        let version = version.ok_or_else(|| invalid(format!("_meta must hold the string {VERSION}")))?;
        let meta = |key: &str| params.get("_meta").and_then(|meta| meta.get(key));
        let capabilities = meta(CAPABILITIES).filter(|capabilities| capabilities.is_object());
        let capabilities =
            capabilities.ok_or_else(|| invalid(format!("_meta must hold the object {CAPABILITIES}")))?;
        if version != Version::NEWEST_MODERN.as_str() {
            return Err(Refusal::UnsupportedVersion {
                requested: version.clone(),
            });
        }
        let log_level = match meta(LOG_LEVEL) {
            None => None,
            Some(level) => {
                let known = level.as_str().and_then(LogLevel::parse);
                Some(known.ok_or_else(|| invalid(format!("{LOG_LEVEL} is no log level")))?)
            }
        };
        Ok(Envelope {
            capabilities: capabilities.clone(),
            log_level,
            progress_token: message::progress_token(params)?,
        })
    }
}
