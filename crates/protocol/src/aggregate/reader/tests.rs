use super::*;
use crate::backend_face::read_server_info;
use crate::exchange::{Principal, QuestionKey};
use crate::version::Era;
use bytes::Bytes;

const SESSION: SessionKey = SessionKey(9);
const START: Moment = Moment::START;

fn message(text: &str) -> Message {
    Message::scan(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn reader(limits: AggregateLimits) -> OfferReader {
    reader_that_knows(None, limits)
}

fn reader_that_knows(known: Option<&Offer>, limits: AggregateLimits) -> OfferReader {
    let client = Client::declaring(Principal::anonymous(), None, None);
    OfferReader::new(SESSION, Arc::new(client), &limits, known)
}

fn opened(reader: &mut OfferReader, capabilities: &str) {
    let Some(ReaderOutput::Ask(Ask::Open { call, .. })) = reader.poll_output() else {
        panic!("it opens first");
    };
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":0,"result":{{"protocolVersion":"2025-11-25","capabilities":{capabilities}}}}}"#
    );
    let server_info = Arc::new(read_server_info(Era::Legacy, message(&text)));
    reader.handle_tell(
        START,
        Tell::Opened {
            session: SESSION,
            call,
            server_info,
        },
    );
}

/// Returns the next request: its key, method and params.
fn asked(reader: &mut OfferReader) -> (CallKey, String) {
    match reader.poll_output() {
        Some(ReaderOutput::Ask(Ask::Call(call))) => {
            let params = String::from_utf8_lossy(call.message.raw(Member::Params).unwrap()).into_owned();
            (
                call.call,
                format!("{} {params}", call.message.method_name().unwrap()),
            )
        }
        other => panic!("{other:?}"),
    }
}

fn answer(reader: &mut OfferReader, call: CallKey, response: &str) {
    answer_at(reader, START, call, response);
}

fn answer_at(reader: &mut OfferReader, now: Moment, call: CallKey, response: &str) {
    let message = message(&format!(r#"{{"jsonrpc":"2.0","id":0,{response}}}"#));
    reader.handle_tell(
        now,
        Tell::Reply {
            session: SESSION,
            call,
            message,
            era: Era::Legacy,
        },
    );
}

fn offered(reader: &mut OfferReader) -> Arc<Offer> {
    match reader.poll_output() {
        Some(ReaderOutput::Offered(offer)) => offer,
        other => panic!("{other:?}"),
    }
}

fn read_tools(reader: &mut OfferReader, response: &str) {
    let (call, request) = asked(reader);
    assert!(request.starts_with("tools/list"), "{request}");
    answer(reader, call, response);
}

#[test]
fn list_is_read_past_its_first_page() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    read_tools(
        &mut reader,
        r#""result":{"tools":[{"name":"a"}],"nextCursor":"p2","ttlMs":9,"cacheScope":"public"}"#,
    );
    let (call, request) = asked(&mut reader);
    assert_eq!(request, r#"tools/list {"cursor":"p2"}"#);
    answer(
        &mut reader,
        call,
        r#""result":{"tools":[{"name":"b"}],"nextCursor":"","ttlMs":5,"cacheScope":"private"}"#,
    );
    let offer = offered(&mut reader);
    let tools = offer.list(ListKind::Tools);
    assert_eq!(
        tools.items().collect::<Vec<_>>(),
        [r#"{"name":"a"}"#, r#"{"name":"b"}"#]
    );
    assert_eq!(
        (tools.ttl, tools.public),
        (5, false),
        "a later page can only be stricter"
    );
    assert!(
        reader.poll_output().is_none(),
        "lists that are not declared are not read"
    );
}

#[test]
fn list_beyond_a_limit_is_withheld_with_the_reason_and_not_cut() {
    for (limits, reason) in [
        (
            AggregateLimits {
                items: 1,
                ..Default::default()
            },
            "more than 1 items",
        ),
        (
            AggregateLimits {
                bytes: 20,
                ..Default::default()
            },
            "more than 20 bytes",
        ),
        (
            AggregateLimits {
                pages: 1,
                ..Default::default()
            },
            "more than 1 pages",
        ),
    ] {
        let mut reader = reader(limits);
        opened(&mut reader, r#"{"tools":{}}"#);
        read_tools(
            &mut reader,
            r#""result":{"tools":[{"name":"a"},{"name":"b"}],"nextCursor":"c"}"#,
        );
        let offer = offered(&mut reader);
        let tools = offer.list(ListKind::Tools);
        assert!(tools.withheld().unwrap().ends_with(reason), "{tools:?}");
        assert_eq!(tools.items().count(), 0);
    }
}

#[test]
fn list_that_cannot_be_read_is_withheld_and_a_missing_method_is_an_empty_list() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{},"resources":{}}"#);
    read_tools(&mut reader, r#""error":{"code":-32603,"message":"out of order"}"#);
    let (call, _) = asked(&mut reader);
    answer(&mut reader, call, r#""result":{"resources":7}"#);
    let (call, request) = asked(&mut reader);
    assert!(request.starts_with("resources/templates/list"));
    answer(
        &mut reader,
        call,
        r#""error":{"code":-32601,"message":"no such method"}"#,
    );
    let offer = offered(&mut reader);
    let reason = |kind| offer.list(kind).withheld().map(str::to_owned);
    assert_eq!(
        reason(ListKind::Tools).unwrap(),
        "the server answers `tools/list` with an error: out of order"
    );
    assert_eq!(
        reason(ListKind::Resources).unwrap(),
        "the server's answer to `resources/list` is no list"
    );
    assert_eq!(reason(ListKind::Templates), None);
}

const OUT_OF_ORDER: &str = r#""error":{"code":-32603,"message":"out of order"}"#;

#[test]
fn list_that_is_refused_later_is_kept_and_asked_for_again_at_growing_intervals() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    read_tools(&mut reader, r#""result":{"tools":[{"name":"a"}]}"#);
    offered(&mut reader);
    reader.handle_changed(Some(ListKind::Tools));
    read_tools(&mut reader, OUT_OF_ORDER);
    let offer = offered(&mut reader);
    let tools = offer.list(ListKind::Tools);
    assert_eq!(tools.items().collect::<Vec<_>>(), [r#"{"name":"a"}"#]);
    assert_eq!(
        tools.withheld(),
        Some("the server answers `tools/list` with an error: out of order; what it listed before is shown")
    );
    let mut now = START;
    for seconds in [1, 2, 4, 8, 16, 32, 32] {
        let due = now.after(Duration::from_secs(seconds));
        assert_eq!(reader.next_deadline(), Some(due));
        now = due;
        reader.handle_deadline(now);
        let (call, _) = asked(&mut reader);
        answer_at(&mut reader, now, call, OUT_OF_ORDER);
        assert!(reader.poll_output().is_none(), "nothing has changed");
    }
    reader.handle_deadline(reader.next_deadline().unwrap());
    read_tools(&mut reader, r#""result":{"tools":[{"name":"b"}]}"#);
    let tools = offered(&mut reader).list(ListKind::Tools).clone();
    assert_eq!(tools.items().collect::<Vec<_>>(), [r#"{"name":"b"}"#]);
    assert_eq!((tools.withheld(), reader.next_deadline()), (None, None));
}

#[test]
fn list_that_is_refused_at_first_is_that_of_the_last_offer() {
    let mut before = reader(AggregateLimits::default());
    opened(&mut before, r#"{"tools":{}}"#);
    read_tools(&mut before, r#""result":{"tools":[{"name":"a"}]}"#);
    let known = offered(&mut before);
    let mut reader = reader_that_knows(Some(&known), AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    read_tools(&mut reader, OUT_OF_ORDER);
    assert_eq!(offered(&mut reader).count(ListKind::Tools), 1);
    let mut reader = reader_that_knows(Some(&known), AggregateLimits::default());
    opened(&mut reader, r#"{"resources":{}}"#);
    read_resources(&mut reader);
    assert_eq!(
        offered(&mut reader).count(ListKind::Tools),
        0,
        "the server has no tools any more"
    );
}

/// Answers the lists of resources.
fn read_resources(reader: &mut OfferReader) {
    for empty in [
        r#""result":{"resources":[]}"#,
        r#""result":{"resourceTemplates":[]}"#,
    ] {
        let (call, _) = asked(reader);
        answer(reader, call, empty);
    }
}

#[test]
fn changed_list_is_read_again_and_an_equal_one_is_not_given_out() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{"listChanged":true}}"#);
    read_tools(&mut reader, r#""result":{"tools":[]}"#);
    offered(&mut reader);
    let changed = || Tell::Notice {
        session: SESSION,
        message: message(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
    };
    let pause = AggregateLimits::default().coalesce;
    let then = START.after(pause);
    reader.handle_tell(then, changed());
    // It changes again while it is read, so it is read once more.
    reader.handle_tell(then, changed());
    read_tools(&mut reader, r#""result":{"tools":[]}"#);
    reader.handle_deadline(then.after(pause));
    read_tools(&mut reader, r#""result":{"tools":[]}"#);
    assert!(reader.poll_output().is_none(), "nothing has changed");
    reader.handle_changed(Some(ListKind::Tools));
    read_tools(&mut reader, r#""result":{"tools":[{"name":"a"}]}"#);
    assert_eq!(offered(&mut reader).count(ListKind::Tools), 1);
}

#[test]
fn lost_instance_is_reported_and_opened_again_when_wanted() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    let (call, _) = asked(&mut reader);
    reader.handle_lost_instance(&Failure::Retired);
    assert!(matches!(
        reader.poll_output(),
        Some(ReaderOutput::Failed(ReadFailure::Failed(Failure::Retired)))
    ));
    answer(&mut reader, call, r#""result":{"tools":[]}"#);
    assert!(
        reader.poll_output().is_none(),
        "an answer of the lost instance is none"
    );
    reader.handle_changed(None);
    opened(&mut reader, r#"{}"#);
    assert_eq!(offered(&mut reader).count(ListKind::Tools), 0);
}

#[test]
fn failures_and_refusals_end_the_reading() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    let (call, _) = asked(&mut reader);
    let failure = Failure::Cancelled;
    reader.handle_tell(
        START,
        Tell::Failed {
            session: SESSION,
            call,
            failure,
        },
    );
    assert!(matches!(reader.poll_output(), Some(ReaderOutput::Failed(_))));
    let mut reader = self::reader(AggregateLimits::default());
    let Some(ReaderOutput::Ask(Ask::Open { call, .. })) = reader.poll_output() else {
        panic!("it opens first");
    };
    answer(
        &mut reader,
        call,
        r#""error":{"code":-32000,"message":"not you"}"#,
    );
    assert!(
        matches!(reader.poll_output(), Some(ReaderOutput::Failed(ReadFailure::Refused(why))) if why == "not you")
    );
}

#[test]
fn server_that_announces_a_change_at_each_reading_is_read_with_a_pause_between() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{"listChanged":true}}"#);
    let pause = AggregateLimits::default().coalesce;
    let mut now = START;
    for round in 0..3 {
        reader.handle_tell(
            now,
            Tell::Notice {
                session: SESSION,
                message: message(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#),
            },
        );
        read_tools(
            &mut reader,
            &format!(r#""result":{{"tools":[{{"name":"t{round}"}}]}}"#),
        );
        offered(&mut reader);
        reader.handle_deadline(now);
        assert!(reader.poll_output().is_none(), "it waits in round {round}");
        now = now.after(pause);
        assert_eq!(reader.next_deadline(), Some(now));
        reader.handle_deadline(now);
    }
}

#[test]
fn question_of_the_server_has_no_answer_here() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, "{}");
    offered(&mut reader);
    reader.handle_tell(
        START,
        Tell::Question {
            session: SESSION,
            call: None,
            question: QuestionKey(3),
            message: message(r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#),
        },
    );
    let output = reader.poll_output();
    assert!(matches!(
        output,
        Some(ReaderOutput::Ask(Ask::Unanswerable {
            question: QuestionKey(3),
            ..
        }))
    ));
    assert!(matches!(reader.close(), Ask::Close { session: SESSION }));
}

#[test]
fn offer_names_the_aggregates_that_its_lists_have_come_through() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    let through = |ids: &str| format!(r#""result":{{"tools":[],"_meta":{{"rialto/via":{ids}}}}}"#);
    read_tools(&mut reader, &through(r#"["p/work","q/all"]"#));
    let first = offered(&mut reader);
    assert!(first.has_come_through("p/work") && first.has_come_through("q/all"));
    assert!(!first.has_come_through("p/all"));
    reader.handle_changed(Some(ListKind::Tools));
    read_tools(&mut reader, &through(r#"["r/x"]"#));
    let then = offered(&mut reader);
    assert!(then.has_come_through("r/x"), "another road is another offer");
    reader.handle_changed(Some(ListKind::Tools));
    read_tools(&mut reader, &through("7"));
    assert!(
        reader.poll_output().is_none(),
        "what is no list of names changes nothing"
    );
}

#[test]
fn list_that_asks_a_question_is_withheld_and_never_asked_for_again() {
    let mut reader = reader(AggregateLimits::default());
    opened(&mut reader, r#"{"tools":{}}"#);
    read_tools(
        &mut reader,
        r#""result":{"resultType":"input_required","inputRequests":{"q":{"method":"roots/list"}},"requestState":"s"}"#,
    );
    let offer = offered(&mut reader);
    assert_eq!(
        offer.list(ListKind::Tools).withheld(),
        Some("the server's answer to `tools/list` is no list")
    );
    assert!(reader.poll_output().is_none());
}
