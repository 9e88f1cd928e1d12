//! What `rialto attach` hands over to the gateway that runs the server in its place: the directory
//! of its project, and variables that its host has set.
//!
//! It travels in a header of each request on the admin socket. The listener removes that header, so
//! that no other caller can choose where a server runs, or with which variables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};

use crate::settings::Secret;

/// The header that carries it.
pub const ATTACHED: HeaderName = HeaderName::from_static("rialto-attached");

/// The most that the variables of one host may have, so that every head of a request has room for
/// them.
pub const MAX_BYTES: usize = 32 << 10;

/// What is handed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment {
    /// The working directory of the host's entry.
    pub directory: Option<PathBuf>,
    pub env: BTreeMap<String, Secret>,
}

/// What does not fit into a header, or is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    #[error("the variables of this entry are too long to be handed over: at most {MAX_BYTES} bytes")]
    TooLong,
    #[error("the header `{ATTACHED}` cannot be read: run the same Rialto everywhere")]
    Unreadable,
}

impl Attachment {
    /// Returns the value of the header.
    pub fn header(&self) -> Result<Secret, AttachmentError> {
        let env: BTreeMap<&str, &str> = self
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        let directory = self.directory.as_ref().map(|path| path.to_string_lossy());
        let text = json!({ "directory": directory, "env": env }).to_string();
        if text.len() > MAX_BYTES {
            return Err(AttachmentError::TooLong);
        }
        Ok(Secret::new(URL_SAFE_NO_PAD.encode(text)))
    }

    /// Returns what a request carries, if it carries something.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Option<Self>, AttachmentError> {
        let Some(value) = headers.get(ATTACHED) else {
            return Ok(None);
        };
        let read = || -> Option<Self> {
            let text = URL_SAFE_NO_PAD.decode(value.as_bytes()).ok()?;
            let value: Value = serde_json::from_slice(&text).ok()?;
            let env = value.get("env")?.as_object()?;
            let env: Option<BTreeMap<String, Secret>> = env
                .iter()
                .map(|(name, value)| Some((name.clone(), Secret::new(value.as_str()?))))
                .collect();
            let directory = match value.get("directory")? {
                Value::Null => None,
                Value::String(path) => Some(PathBuf::from(path)).filter(|path| path.is_absolute()),
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => return None,
            };
            Some(Self { directory, env: env? })
        };
        read().map(Some).ok_or(AttachmentError::Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn sent(attachment: &Attachment) -> HeaderMap {
        let value = attachment.header().expect("it is short");
        let mut headers = HeaderMap::new();
        headers.insert(ATTACHED, HeaderValue::from_str(value.expose()).expect("a value"));
        headers
    }

    #[test]
    fn what_is_handed_over_arrives() {
        let attachment = Attachment {
            directory: Some(PathBuf::from("/home/ü/a \"project\"")),
            env: [("KEY".to_owned(), Secret::new("a\nb\u{7f}"))].into(),
        };
        assert_eq!(Attachment::of(&sent(&attachment)), Ok(Some(attachment)));
        let nothing = Attachment::default();
        assert_eq!(Attachment::of(&sent(&nothing)), Ok(Some(nothing)));
        assert_eq!(Attachment::of(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn what_is_too_long_or_unreadable_is_refused() {
        let long = Attachment {
            directory: None,
            env: [("KEY".to_owned(), Secret::new("x".repeat(MAX_BYTES)))].into(),
        };
        assert_eq!(long.header(), Err(AttachmentError::TooLong));
        let mut headers = HeaderMap::new();
        headers.insert(ATTACHED, HeaderValue::from_static("bm9uc2Vuc2U"));
        assert_eq!(Attachment::of(&headers), Err(AttachmentError::Unreadable));
    }

    #[test]
    fn directory_that_is_not_absolute_is_none() {
        let attachment = Attachment {
            directory: Some(PathBuf::from("project")),
            env: BTreeMap::new(),
        };
        let read = Attachment::of(&sent(&attachment))
            .expect("readable")
            .expect("there");
        assert_eq!(read.directory, None);
    }
}
