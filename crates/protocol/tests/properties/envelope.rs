//! Reading an envelope and writing it again, held against serde_json and against the seeker of
//! over-long lines.

use bytes::Bytes;
use protocol::client_face::legacy;
use protocol::message::{Kind, Member, Message, ScanError};
use protocol::wire::line::EnvelopeSeeker;
use serde_json::value::RawValue;

const MEMBERS: [Member; 21] = [
    Member::JsonRpc,
    Member::Id,
    Member::Method,
    Member::Params,
    Member::Result,
    Member::Error,
    Member::Name,
    Member::Uri,
    Member::Meta,
    Member::ProgressToken,
    Member::RequestId,
    Member::Level,
    Member::ProtocolVersion,
    Member::Capabilities,
    Member::ClientInfo,
    Member::MetaProgressToken,
    Member::MetaProtocolVersion,
    Member::MetaClientCapabilities,
    Member::MetaClientInfo,
    Member::MetaLogLevel,
    Member::MetaSubscriptionId,
];

/// # Panics
/// If the scan and serde_json disagree, or if a splice changes what it should not.
pub(crate) fn holds(data: &[u8]) {
    let theirs = std::str::from_utf8(data).is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok());
    match Message::scan(Bytes::copy_from_slice(data)) {
        Ok(message) => {
            assert!(theirs, "read, yet it is no JSON");
            members(&message);
            splice(&message);
            seek(&message);
            let _ = legacy::lift(&message);
        }
        Err(ScanError::NotJson { .. } | ScanError::NotUtf8) => assert!(!theirs, "it is JSON"),
        Err(ScanError::Batch | ScanError::NotObject | ScanError::NotJsonRpc) => {
            assert!(theirs, "it is no JSON")
        }
        // The scan gives up at the first of these, so that nothing is known about the rest.
        Err(ScanError::TooDeep | ScanError::Duplicate(_) | ScanError::TooLarge) => {}
    }
}

/// A member as it is on one line.
fn on_one_line(raw: Option<&[u8]>) -> Option<Vec<u8>> {
    raw.map(|raw| {
        raw.iter()
            .map(|byte| {
                if matches!(byte, b'\n' | b'\r') {
                    b' '
                } else {
                    *byte
                }
            })
            .collect()
    })
}

fn members(message: &Message) {
    for member in MEMBERS {
        if let Some(raw) = message.raw(member) {
            let text = std::str::from_utf8(raw).expect("a message is UTF-8");
            let value = serde_json::from_str::<&RawValue>(text).expect("a member is JSON");
            assert_eq!(value.get(), text, "{member:?} has blanks around it");
            assert_eq!(message.raw_copy(member).as_deref(), Some(raw));
        }
    }
    let has = |member| message.raw(member).is_some();
    match message.kind() {
        Kind::Request => assert!(has(Member::Method) && has(Member::Id)),
        Kind::Notification => assert!(has(Member::Method) && !has(Member::Id)),
        Kind::Result => assert!(has(Member::Result) && has(Member::Id) && !has(Member::Method)),
        Kind::Error => assert!(has(Member::Error) && !has(Member::Method)),
    }
    let _ = (
        message.level(),
        message.has_valid_id(),
        message.number(Member::Id),
    );
}

fn splice(message: &Message) {
    let same = message.spliced(&[]);
    assert_eq!(Some(same.to_vec()), on_one_line(Some(message.bytes())));
    let changed = message.spliced(&[(Member::Id, b"\"x\""), (Member::MetaProgressToken, b"41")]);
    assert!(
        !changed.iter().any(|byte| matches!(byte, b'\n' | b'\r')),
        "a second line"
    );
    let changed = Message::scan(changed).expect("a spliced message is a message");
    assert_eq!(
        (changed.kind(), changed.method()),
        (message.kind(), message.method())
    );
    for member in MEMBERS {
        let (before, after) = (message.raw(member), changed.raw(member));
        match member {
            Member::Id => assert_eq!(after, before.map(|_| &b"\"x\""[..])),
            Member::MetaProgressToken => assert_eq!(after, before.map(|_| &b"41"[..])),
            // These hold the token.
            Member::Params | Member::Meta if message.raw(Member::MetaProgressToken).is_some() => {}
            _ => assert_eq!(after.map(<[u8]>::to_vec), on_one_line(before), "{member:?}"),
        }
    }
}

/// Of a line too long to keep, the seeker must find what the scan would have found.
fn seek(message: &Message) {
    let mut seeker = EnvelopeSeeker::default();
    for chunk in message.bytes().chunks(7) {
        seeker.feed(chunk);
    }
    let (id, method) = seeker.finish();
    let wanted = message
        .raw(Member::Id)
        .filter(|raw| raw.len() <= 256 && matches!(raw.first(), Some(b'"' | b'-' | b'0'..=b'9')));
    assert_eq!(id.as_deref(), wanted);
    assert_eq!(method, message.raw(Member::Method).is_some());
}
