//! What Rialto declares and lists by itself, for many servers at once, in the words of either era.

use std::borrow::Cow;

use crate::backend_face::modern::SERVER_INFO;
use crate::backend_face::read_server_info;
use crate::client_face::{legacy, modern};
use crate::exchange::ServerInfo;
use crate::message::{Message, quoted};
use crate::object::Object;
use crate::version::{Era, Version};

/// Returns a tool of a server as a client of this era sees it.
pub fn tool_for<'a>(client: Era, server: Era, raw: &'a str) -> Cow<'a, str> {
    match (client, server) {
        (Era::Legacy, Era::Modern) => legacy::project_tool(raw),
        (Era::Modern, Era::Legacy) => modern::reword_tool(raw),
        (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => raw.into(),
    }
}

/// Returns a server's capabilities as a client of this era sees them: raw JSON.
pub fn capabilities_for(client: Era, server: &ServerInfo) -> String {
    let body = match client {
        Era::Legacy => legacy::lower_server_info(b"0", server, None).0,
        Era::Modern => modern::lower_server_info(b"0", server),
    };
    let result = Object::parse(&body).and_then(|body| body.get("result").map(str::to_owned));
    let capabilities = result.and_then(|result| {
        let result = Object::parse(result.as_bytes())?;
        result.get("capabilities").map(str::to_owned)
    });
    capabilities.unwrap_or_else(|| "{}".to_owned())
}

/// How long an answer may be kept, and by which clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caching {
    /// In milliseconds.
    pub ttl: u64,
    /// It is the same for every caller.
    pub public: bool,
}

impl Caching {
    const fn scope(self) -> &'static str {
        match self.public {
            true => "public",
            false => "private",
        }
    }
}

/// A list that Rialto answers with.
#[derive(Debug, Clone, Copy)]
pub struct OwnList<'a> {
    /// The member of the result that has the items.
    pub member: &'a str,
    /// The raw items, with commas between them.
    pub items: &'a str,
    /// Where the next page begins, if there is one.
    pub next_cursor: Option<&'a str>,
    /// How long it may be kept.
    pub caching: Caching,
    /// What the server calls itself: raw JSON.
    pub server: &'a str,
    /// Further members of `_meta`: names and raw values.
    pub meta: &'a [(&'a str, String)],
}

/// Returns a list as the answer to a client of this era. Its id is to be replaced.
pub fn list_answer(client: Era, list: &OwnList<'_>) -> Message {
    let mut meta = Object::default();
    let mut text = r#"{"jsonrpc":"2.0","id":0,"result":{"#.to_owned();
    if client == Era::Modern {
        text.push_str(r#""resultType":"complete","#);
        meta.set(SERVER_INFO, list.server);
    }
    for (name, raw) in list.meta {
        meta.set(name, raw.as_str());
    }
    text.extend([r#"""#, list.member, r#"":["#, list.items, "]"]);
    if let Some(cursor) = list.next_cursor {
        text.extend([r#","nextCursor":"#, &quoted(cursor)]);
    }
    if client == Era::Modern {
        let Caching { ttl, .. } = list.caching;
        text.push_str(&format!(
            r#","ttlMs":{ttl},"cacheScope":"{}""#,
            list.caching.scope()
        ));
    }
    if !meta.is_empty() {
        text.push_str(&format!(r#","_meta":{meta}"#));
    }
    text.push_str("}}");
    Message::own(text)
}

/// A result of a tool that Rialto has itself. Its id is to be replaced.
pub fn tool_answer(client: Era, result: &str) -> Message {
    let mut result = Object::parse(result.as_bytes()).unwrap_or_default();
    if client == Era::Modern {
        result.set("resultType", r#""complete""#);
    }
    Message::own(format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#))
}

/// Returns what Rialto declares as a server of the client's own era, so that nothing has to be
/// translated for it.
pub fn declaration(
    client: Era,
    info: &str,
    capabilities: &str,
    instructions: Option<&str>,
    caching: Caching,
) -> ServerInfo {
    let mut result = Object::default();
    match client {
        Era::Legacy => {
            result.set("protocolVersion", quoted(Version::NEWEST_LEGACY.as_str()));
            result.set("capabilities", capabilities);
            result.set("serverInfo", info);
        }
        Era::Modern => {
            result.set("resultType", r#""complete""#);
            let version = Version::NEWEST_MODERN.as_str();
            result.set("supportedVersions", format!(r#"["{version}"]"#));
            result.set("capabilities", capabilities);
            result.set("ttlMs", caching.ttl.to_string());
            result.set("cacheScope", quoted(caching.scope()));
            result.set("_meta", format!(r#"{{"{SERVER_INFO}":{info}}}"#));
        }
    }
    if let Some(instructions) = instructions {
        result.set("instructions", quoted(instructions));
    }
    let response = Message::own(format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#));
    read_server_info(client, response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Member;

    fn result(message: &Message) -> String {
        String::from_utf8(message.raw(Member::Result).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn list_has_the_members_of_the_clients_era() {
        let caching = Caching { ttl: 5, public: true };
        let list = OwnList {
            member: "tools",
            items: r#"{"name":"a"},{"name":"b"}"#,
            next_cursor: Some("c"),
            caching,
            server: r#"{"name":"w"}"#,
            meta: &[("x", "1".to_owned())],
        };
        assert_eq!(
            result(&list_answer(Era::Legacy, &list)),
            r#"{"tools":[{"name":"a"},{"name":"b"}],"nextCursor":"c","_meta":{"x":1}}"#
        );
        assert_eq!(
            result(&list_answer(Era::Modern, &list)),
            r#"{"resultType":"complete","tools":[{"name":"a"},{"name":"b"}],"nextCursor":"c","ttlMs":5,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"w"},"x":1}}"#
        );
    }

    #[test]
    fn declaration_is_read_by_clients_of_its_era_without_translation() {
        let caching = Caching {
            ttl: 0,
            public: false,
        };
        for era in Era::ALL {
            let capabilities =
                r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}}"#;
            let server = declaration(
                era,
                r#"{"name":"w","version":"1"}"#,
                capabilities,
                Some("i"),
                caching,
            );
            assert!(server.era == era && server.logs && server.subscriptions);
            assert_eq!(server.info.as_deref(), Some(r#"{"name":"w","version":"1"}"#));
            assert_eq!(capabilities_for(era, &server), capabilities);
            assert_eq!(
                server
                    .message
                    .object(Member::Result)
                    .text("instructions")
                    .as_deref(),
                Some("i")
            );
        }
    }

    #[test]
    fn tool_is_translated_for_a_client_of_another_era_only() {
        let raw = r#"{"name":"a","execution":{"taskSupport":"optional"}}"#;
        assert_eq!(tool_for(Era::Legacy, Era::Legacy, raw), raw);
        assert_eq!(tool_for(Era::Modern, Era::Legacy, raw), r#"{"name":"a"}"#);
        let list = r#"{"name":"a","outputSchema":{"type":"array"}}"#;
        assert_eq!(tool_for(Era::Modern, Era::Modern, list), list);
        assert!(tool_for(Era::Legacy, Era::Modern, list).contains(r#""required":["result"]"#));
    }
}
