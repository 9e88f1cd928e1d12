//! What holds for any bytes: the twins of the fuzz targets, on the stable toolchain.
//!
//! A property is one function in `properties/`, and `fuzz/fuzz_targets` calls the very same one.
//! Here it is given random bytes, bytes that resemble what it is about, and the corpus of
//! `fuzz/corpus`. The conversations' twin is in `simulation`, the configuration's in
//! `crates/rialto/src/config/tests.rs`.
#![expect(clippy::disallowed_methods, reason = "a test reads its corpus")]

mod corpus;
mod envelope;
mod event_ids;
mod events;
mod far_side;
mod headers;
mod lines;
mod modern_requests;
mod peers;

use proptest::collection::vec;
use proptest::prelude::*;

/// Random bytes, and texts put together from these words.
fn input(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        8 => proptest::sample::select(words).prop_map(|word| word.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..4),
    ];
    prop_oneof![
        1 => vec(any::<u8>(), 0..200),
        4 => vec(word, 0..40).prop_map(|words| words.concat()),
    ]
}

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\",
    "\n",
    "\r",
    " ",
    "\"id\":",
    "\"method\":",
    "\"params\":",
    "\"_meta\":",
    "\"progressToken\":",
    "\"result\":",
    "\"error\":",
    "\"jsonrpc\":\"2.0\",",
    "\"name\":",
    "\"uri\":",
    "1",
    "-1.5e3",
    "null",
    "\"a\"",
    "\"\\u00e9\"",
    "\"\\ud800\"",
    "\"i\\u0064\":",
    "\"tools/call\"",
    "\"ping\"",
    "{}",
    "[]",
    "é",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\",",
];
const EVENTS: &[&str] = &[
    "data",
    "data: ",
    "data:",
    "id: ",
    "id",
    "event: ",
    "retry: ",
    ":",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\u{feff}",
    "1",
    "200",
    "\0",
    " ",
    "message",
    "error",
    "é",
    "{\"jsonrpc\":\"2.0\"}",
];
const HEADERS: &[&str] = &[
    "MCP-Protocol-Version: ",
    "mcp-method: ",
    "Mcp-Name: ",
    "Mcp-Param-Region: ",
    "Mcp-Param-N: ",
    "Mcp-Param-Deep: ",
    "\n",
    "\n\n",
    "2026-07-28",
    "tools/call",
    "=?base64?",
    "?=",
    "w7w=",
    "YQ==",
    "=",
    " ",
    "\t",
    "é",
    "42",
    "42.0",
    "true",
    "null",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\",\"arguments\":{",
    "\"region\":\"",
    "\"region\":",
    "\"n\":",
    "\"a\":{\"b\":",
    "}",
    "\"",
    ",",
    "1e2",
    "-0",
    "\\ud800",
    "}}}",
];
const PEERS: &[&str] = &[
    "\n",
    "o",
    "o1",
    "o2",
    "i1",
    "u",
    "d",
    "x",
    "w",
    "t0",
    "tz",
    "r0",
    "R0",
    "R1",
    "h0",
    "a0",
    "e0",
    "l",
    "c0",
    "c1",
    "s",
    "s{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{}}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":3,\"error\":{\"code\":1,\"message\":\"\"}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"elicitation/create\",\"params\":{}}\n",
    "s{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":2,\"progress\":1}}\n",
    "s{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n",
    "c0{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\",\"_meta\":{\"progressToken\":7}}}\n",
    "c1{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/subscribe\",\"params\":{\"uri\":\"u:a\"}}\n",
    "c0{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n",
    "c0{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}\n",
    "c0{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n",
    "w\n",
    "m\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"resultType\":\"complete\",\"content\":[]}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"resultType\":\"input_required\",\"inputRequests\":{\"k\":{\"method\":\"elicitation/create\",\"params\":{}}},\"requestState\":\"s\"}}\n",
    "u\n",
    "o\n",
    "tz\n",
    "r0\n",
];
const MODERN_REQUESTS: &[&str] = &[
    "\n",
    "u\n",
    "m\n",
    "M\n",
    "d\n",
    "w\n",
    "w\n",
    "tz\n",
    "t0\n",
    "h0\n",
    "h1\n",
    "g0\n",
    "D0\n",
    "C",
    "E",
    "J",
    "c",
    "s",
    "Ctools/call \"name\":\"x\"\n",
    "Ctools/call \"name\":\"x\"\n",
    "Jtools/list\n",
    "Ctasks/get \"taskId\":\"t\"\n",
    "Ctasks/update \"taskId\":\"t\",\"inputResponses\":{\"k1\":{\"action\":\"decline\"}}\n",
    "Ctasks/cancel \"taskId\":\"t\"\n",
    "Esubscriptions/listen \"notifications\":{\"taskIds\":[\"t\"],\"toolsListChanged\":true,\"resourceSubscriptions\":[\"x:/a\"]}\n",
    "Ctools/call \"name\":\"x\",\"requestState\":\"0.0\",\"inputResponses\":{\"k1\":{\"action\":\"accept\",\"roots\":[]}}\n",
    "Ctools/call \"name\":\"x\",\"requestState\":\"1.0\",\"inputResponses\":{\"k1\":{\"action\":\"accept\",\"roots\":[]}}\n",
    "Ctools/call \"name\":\"x\",\"requestState\":\"0.1\",\"inputResponses\":{}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{\"resources\":{\"subscribe\":true},\"tasks\":{\"requests\":{\"tools\":{\"call\":{}}}}}}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"supportedVersions\":[\"2026-07-28\"],\"capabilities\":{\"extensions\":{\"io.modelcontextprotocol/tasks\":{}}}}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"tools\":[{\"name\":\"x\",\"execution\":{\"taskSupport\":\"required\"}}]}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"task\":{\"taskId\":\"t\",\"status\":\"working\"}}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{\"taskId\":\"t\",\"status\":\"input_required\"}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{\"taskId\":\"t\",\"status\":\"completed\"}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"resultType\":\"task\",\"taskId\":\"t\",\"status\":\"working\"}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"roots/list\"}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":\"e\",\"method\":\"elicitation/create\",\"params\":{\"_meta\":{\"io.modelcontextprotocol/related-task\":{\"taskId\":\"t\"}}}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":\"f\",\"method\":\"elicitation/create\",\"params\":{}}\n",
    "s{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks/status\",\"params\":{\"taskId\":\"t\",\"status\":\"working\"}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\":-32020,\"message\":\"\"}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":3,\"error\":{\"code\":-32042,\"message\":\"\",\"data\":{\"elicitations\":[{\"url\":\"x:/\"}]}}}\n",
    "s{\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}\n",
];

proptest! {
    #[test]
    fn envelopes_are_read_as_serde_reads_them_and_spliced_without_loss(data in input(JSON)) {
        envelope::holds(&data);
    }

    #[test]
    fn lines_are_cut_alike_however_the_bytes_arrive(data in input(JSON)) {
        lines::holds(&data);
    }

    #[test]
    fn events_are_read_alike_however_they_arrive_and_come_back_when_written(data in input(EVENTS)) {
        events::holds(&data);
    }

    #[test]
    fn headers_are_judged_and_honest_ones_pass(data in input(HEADERS)) {
        headers::holds(&data);
    }

    #[test]
    fn event_ids_come_back_and_logs_keep_their_order(data in input(&["1", "-", "0", "12345", "a", " ", "99999999999999999999"])) {
        event_ids::holds(&data);
    }

    #[test]
    fn machines_stay_sound_for_any_bytes_of_two_peers(data in input(PEERS)) {
        peers::holds(&data);
    }

    #[test]
    fn machines_stay_sound_for_any_bytes_of_modern_clients_and_their_server(data in input(MODERN_REQUESTS)) {
        modern_requests::holds(&data);
    }
}

#[test]
fn every_property_holds_for_its_corpus() {
    corpus::each("envelope", envelope::holds);
    corpus::each("lines", lines::holds);
    corpus::each("events", events::holds);
    corpus::each("headers", headers::holds);
    corpus::each("event_ids", event_ids::holds);
    corpus::each("peers", peers::holds);
    corpus::each("modern_requests", modern_requests::holds);
}
