//! The members that are looked at, and where they stand.

use crate::message::Member;

/// The objects whose members are looked at.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Envelope,
    Params,
    Meta,
}

/// In the order of `Member`, so that a member is found by its own number.
const MEMBERS: [(Place, &str, Member); Member::COUNT] = [
    (Place::Envelope, "jsonrpc", Member::JsonRpc),
    (Place::Envelope, "id", Member::Id),
    (Place::Envelope, "method", Member::Method),
    (Place::Envelope, "params", Member::Params),
    (Place::Envelope, "result", Member::Result),
    (Place::Envelope, "error", Member::Error),
    (Place::Params, "name", Member::Name),
    (Place::Params, "uri", Member::Uri),
    (Place::Params, "_meta", Member::Meta),
    (Place::Params, "progressToken", Member::ProgressToken),
    (Place::Params, "requestId", Member::RequestId),
    (Place::Params, "level", Member::Level),
    (Place::Params, "protocolVersion", Member::ProtocolVersion),
    (Place::Params, "capabilities", Member::Capabilities),
    (Place::Params, "clientInfo", Member::ClientInfo),
    (Place::Meta, "progressToken", Member::MetaProgressToken),
    (
        Place::Meta,
        "io.modelcontextprotocol/protocolVersion",
        Member::MetaProtocolVersion,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/clientCapabilities",
        Member::MetaClientCapabilities,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/clientInfo",
        Member::MetaClientInfo,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/logLevel",
        Member::MetaLogLevel,
    ),
    (
        Place::Meta,
        "io.modelcontextprotocol/subscriptionId",
        Member::MetaSubscriptionId,
    ),
];

/// The member that a key names in this place, if it is one of ours.
pub(super) fn find(place: Place, key: &[u8]) -> Option<Member> {
    let range = match place {
        Place::Envelope => &MEMBERS[..6],
        Place::Params => &MEMBERS[6..15],
        Place::Meta => &MEMBERS[15..],
    };
    range
        .iter()
        .find(|(_, text, _)| text.as_bytes() == key)
        .map(|(_, _, member)| *member)
}

pub(super) fn name(member: Member) -> &'static str {
    MEMBERS[member as usize].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_listed_at_its_own_index() {
        for (index, (place, _, member)) in MEMBERS.iter().enumerate() {
            assert_eq!(index, *member as usize);
            let slice = match place {
                Place::Envelope => 0..6,
                Place::Params => 6..15,
                Place::Meta => 15..Member::COUNT,
            };
            assert!(slice.contains(&index));
        }
    }
}
