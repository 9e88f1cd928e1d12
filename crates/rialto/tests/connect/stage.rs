//! `rialto connect` in front of the demo server, which runs beside it or behind another Rialto on
//! HTTP.

use serde_json::{Value, json};
use testkit::rialto::binary;
use testkit::{Host, Result, Rialto};

/// Room for the largest message of these tests.
const ROOM: &str = "16MiB";

/// Where the server is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behind {
    /// A program that `connect` starts.
    Program,
    /// Another Rialto, on HTTP, with the server behind it.
    Remote,
}

/// Which revisions the server speaks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

impl Era {
    fn word(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// A client's process and what stands behind it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) host: Host,
    /// Dropped after the host, which ends its session there.
    pub(crate) remote: Option<Rialto>,
}

impl Stage {
    pub(crate) async fn set(behind: Behind, era: Era) -> Result<Self> {
        let rialto = binary("rialto");
        let rialto = rialto.to_str().expect("the path of the binary is text");
        match behind {
            Behind::Program => Ok(Self {
                host: Host::start(
                    &["connect", "--", rialto, "demo-server", "--era", era.word()],
                    &[],
                )?,
                remote: None,
            }),
            Behind::Remote => {
                let remote = Rialto::serve(&[
                    "--max-message-bytes",
                    ROOM,
                    "--",
                    rialto,
                    "demo-server",
                    "--era",
                    era.word(),
                ])
                .await?;
                Ok(Self {
                    host: Host::start(&["connect", &remote.url()], &[])?,
                    remote: Some(remote),
                })
            }
        }
    }
}

pub(crate) fn call(tool: &str, arguments: Value) -> Value {
    json!({"name": tool, "arguments": arguments})
}

/// What a client that can do everything declares.
pub(crate) fn able() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}
