use super::*;
use http::HeaderMap;

#[test]
fn refusals_say_what_to_do_and_limits_say_when_to_come_back() {
    let response = Refusal::TooManySessions { limit: 10 }.respond(Some(b"7"));
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    let response = Refusal::WrongMethod {
        allow: "GET, POST, DELETE",
    }
    .respond(None);
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()[header::ALLOW].to_str().unwrap()
        ),
        (405, "GET, POST, DELETE")
    );
    assert_eq!(
        Refusal::Gone {
            destination: "a".into()
        }
        .respond(None)
        .status(),
        410
    );
    assert_eq!(
        Refusal::BodyTooLarge { limit: 1 }.respond(None).headers()[header::CONNECTION],
        "close"
    );
}

#[test]
fn retry_after_is_rounded_up() {
    let failure = Failure::Unavailable {
        trouble: Default::default(),
        retry_after: Duration::from_millis(28_100),
    };
    assert_eq!(
        failed(HeaderMap::new(), Bytes::new(), &failure, false).headers()[header::RETRY_AFTER],
        "29"
    );
}
