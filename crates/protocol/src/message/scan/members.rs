//! The members that are looked at, and where they stand.

use crate::message::Member;

/// The objects whose members are looked at.
#[derive(Clone, Copy)]
pub(super) enum Container {
    Envelope,
    Params,
    Meta,
}

macro_rules! members {
    ($($container:ident { $($member:ident = $text:literal,)+ })+) => {
        /// Returns the member that a key names in this place, if it is one of ours.
        #[inline]
        #[allow(non_upper_case_globals, reason = "a name as a pattern is a constant; it is called as its member")]
        pub(super) fn find(container: Container, key: &[u8]) -> Option<Member> {
            $($(const $member: &[u8] = $text.as_bytes();)+)+
            // Bytes as patterns become a tree of comparisons, without a call for each name.
            match container {
                $(Container::$container => match key {
                    $($member => Some(Member::$member),)+
                    _ => None,
                },)+
            }
        }

        pub(super) const fn name(member: Member) -> &'static str {
            match member { $($(Member::$member => $text,)+)+ }
        }
    };
}

members! {
    Envelope {
        JsonRpc = "jsonrpc",
        Id = "id",
        Method = "method",
        Params = "params",
        Result = "result",
        Error = "error",
    }
    Params {
        Name = "name",
        Uri = "uri",
        Meta = "_meta",
        ProgressToken = "progressToken",
        RequestId = "requestId",
        Level = "level",
        ProtocolVersion = "protocolVersion",
        Capabilities = "capabilities",
        ClientInfo = "clientInfo",
    }
    Meta {
        MetaProgressToken = "progressToken",
        MetaProtocolVersion = "io.modelcontextprotocol/protocolVersion",
        MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities",
        MetaClientInfo = "io.modelcontextprotocol/clientInfo",
        MetaLogLevel = "io.modelcontextprotocol/logLevel",
        MetaSubscriptionId = "io.modelcontextprotocol/subscriptionId",
    }
}
