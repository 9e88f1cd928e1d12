//! The address that clients use, as they see it: through proxies, from outside.

use std::time::Duration;

use crate::doctor::finding::{Cure, Finding, Group, Report, Weight};
use crate::terminal::text::{size, span};

/// An event must arrive within this time, or something collects the stream.
pub(crate) const EVENT_WITHIN: Duration = Duration::from_secs(1);

/// What was observed of an address.
#[derive(Debug, Clone, Default)]
pub(crate) struct WayInSeen {
    pub(crate) url: String,
    /// The host of the address.
    pub(crate) host: String,
    /// The gateway behind it is ours, so that its settings are known.
    pub(crate) is_ours: bool,
    /// Whether the metadata of the resource are published, as with an issuer of tokens.
    pub(crate) has_metadata: bool,
    /// Why no connection comes about, and whether it may later.
    pub(crate) failure: Option<(String, Weight)>,
    /// The answer to a first request.
    pub(crate) opening: Option<Opening>,
    pub(crate) is_http2: bool,
    pub(crate) is_https: bool,
    /// The status for a request of a foreign web page.
    pub(crate) foreign_origin: Option<u16>,
    /// The status for a request to a foreign name.
    pub(crate) foreign_host: Option<u16>,
    pub(crate) stream: StreamSeen,
    /// Each size that was sent, and its status.
    pub(crate) bodies: Vec<(usize, u16)>,
    pub(crate) max_message_bytes: usize,
}

/// The answer to `initialize`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opening {
    pub(crate) status: u16,
    /// The `WWW-Authenticate` headers.
    pub(crate) challenges: Vec<String>,
    /// The metadata that a challenge names, or why they cannot be read.
    pub(crate) metadata: Option<Result<(), String>>,
    /// The text of an answer that is no success.
    pub(crate) text: String,
    pub(crate) server: Option<String>,
}

/// What became of an event stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum StreamSeen {
    /// None was opened.
    #[default]
    Untried,
    /// The server has no such stream.
    NotOffered(u16),
    /// Nothing arrived in time.
    Collected,
    /// The first event arrived, and the stream was held for a while.
    Arrived { first: Duration, end: HoldSeen },
}

/// How holding a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HoldSeen {
    /// It was not held.
    Unheld,
    Held(Duration),
    Cut {
        after: Duration,
        wanted: Duration,
    },
}

/// Judges an address.
pub(crate) fn judge(seen: &WayInSeen) -> Report {
    let mut report = Report::default();
    let at = (Group::WayIn, seen.url.as_str());
    if let Some((why, weight)) = &seen.failure {
        report.find(Finding::new(
            at,
            ("way_in_closed", *weight),
            format!("cannot be reached: {why}"),
            "clients see the same",
            match seen.is_ours {
                true => Cure::Run("rialto serve    # or: rialto service install".into()),
                false => Cure::Run(format!("curl -i {}", seen.url)),
            },
        ));
        return report;
    }
    if let Some(opening) = &seen.opening {
        judge_opening(seen, opening, &mut report);
    }
    let version = match (seen.is_http2, seen.is_https) {
        (true, _) => "HTTP/2",
        (false, true) => "HTTP/1.1 (a browser then has six streams at once)",
        (false, false) => "HTTP/1.1 without TLS",
    };
    report.fact(Group::WayIn, &seen.url, format!("answers with {version}"));
    judge_guards(seen, &mut report);
    judge_stream(seen, &mut report);
    judge_bodies(seen, &mut report);
    report
}

fn judge_opening(seen: &WayInSeen, opening: &Opening, report: &mut Report) {
    let at = (Group::WayIn, seen.url.as_str());
    let names_metadata = opening
        .challenges
        .iter()
        .any(|challenge| challenge.contains("resource_metadata"));
    match opening.status {
        401 if opening.challenges.is_empty() => report.find(Finding::new(
            at,
            ("no_challenge", Weight::Act),
            "answers 401 without `WWW-Authenticate`",
            "clients learn from that header how to sign in; a proxy may have removed it",
            pass_header("WWW-Authenticate"),
        )),
        401 if seen.has_metadata && !names_metadata => report.find(Finding::new(
            at,
            ("challenge_without_metadata", Weight::Act),
            "answers 401 without `resource_metadata`, although the gateway has an issuer",
            "clients find the authorization server by it; a proxy may have replaced the header",
            pass_header("WWW-Authenticate"),
        )),
        401 => match &opening.metadata {
            Some(Err(why)) => report.find(Finding::new(
                at,
                ("metadata_unreachable", Weight::Act),
                format!("names metadata that cannot be read: {why}"),
                "the proxy must pass /.well-known/ on as well",
                Cure::Write {
                    file: "the proxy (nginx)".into(),
                    line: "location /.well-known/ { proxy_pass http://127.0.0.1:3000; }".into(),
                },
            )),
            Some(Ok(())) => report.fact(
                Group::WayIn,
                &seen.url,
                "asks for a token, and names its metadata",
            ),
            None => report.fact(
                Group::WayIn,
                &seen.url,
                "asks for a token; with --header 'Authorization: Bearer TOKEN' more is looked at",
            ),
        },
        403 if opening.text.contains("Host") => report.find(Finding::new(
            at,
            ("host_refused", Weight::Act),
            format!("refuses the name {}: {}", seen.host, opening.text),
            "the gateway answers only to names that it knows, against DNS rebinding",
            Cure::Write {
                file: "destinations.yml".into(),
                line: format!("allowed_hosts: [{}]", seen.host),
            },
        )),
        200..=299 => {
            let server = opening.server.as_deref().unwrap_or("a server");
            report.fact(Group::WayIn, &seen.url, format!("{server} answers"));
        }
        status @ (502..=504 | 429) => report.find(Finding::new(
            at,
            ("way_in_unavailable", Weight::Later),
            format!("answers with HTTP status {status}: {}", opening.text),
            "a proxy answers so when it does not reach the gateway, the gateway when a server does not run",
            Cure::Run("rialto ps".into()),
        )),
        status => report.find(Finding::new(
            at,
            ("way_in_refuses", Weight::Act),
            format!("answers with HTTP status {status}: {}", opening.text),
            "clients get the same; the path may be wrong",
            Cure::Run(format!("rialto tools {}", seen.url)),
        )),
    }
}

fn pass_header(name: &str) -> Cure {
    Cure::Write {
        file: "the proxy (nginx)".into(),
        line: format!("proxy_pass_header {name};"),
    }
}

fn judge_guards(seen: &WayInSeen, report: &mut Report) {
    let at = (Group::WayIn, seen.url.as_str());
    let is_success = |status: Option<u16>| status.is_some_and(|status| (200..300).contains(&status));
    // A server of others may have web pages as clients.
    if seen.is_ours && is_success(seen.foreign_origin) {
        report.find(Finding::new(
            at,
            ("origin_open", Weight::Act),
            "serves a request whose Origin is a foreign web page",
            "any page that a user opens can call the tools",
            Cure::Write {
                file: "destinations.yml".into(),
                line: "allowed_origins: []    # and no `Origin` that the proxy sets".into(),
            },
        ));
    }
    if seen.is_ours && is_success(seen.foreign_host) {
        report.find(Finding::new(
            at,
            ("host_open", Weight::Note),
            "serves a request whose Host is a foreign name",
            "the proxy replaces the header, so that the gateway cannot refuse other names",
            Cure::Write {
                file: "the proxy (nginx)".into(),
                line: "proxy_set_header Host $host;".into(),
            },
        ));
    }
}

fn judge_stream(seen: &WayInSeen, report: &mut Report) {
    let at = (Group::WayIn, seen.url.as_str());
    match &seen.stream {
        StreamSeen::Untried => {}
        StreamSeen::NotOffered(405) => {
            report.fact(Group::WayIn, &seen.url, "offers no stream by GET");
        }
        StreamSeen::NotOffered(status) => report.find(Finding::new(
            at,
            ("stream_refused", Weight::Act),
            format!("refuses an event stream with HTTP status {status}"),
            "questions, progress and changes reach clients over it",
            Cure::Do("let the proxy pass GET requests for this path on".into()),
        )),
        StreamSeen::Collected => report.find(Finding::new(
            at,
            ("stream_buffered", Weight::Act),
            format!(
                "delivered no event within {}, although the server sends one at once",
                span(EVENT_WITHIN)
            ),
            "a proxy collects the stream, so that questions and progress come late or never",
            Cure::Write {
                file: "the proxy (nginx; docs/operations.md has Caddy)".into(),
                line: "proxy_buffering off; proxy_cache off;".into(),
            },
        )),
        StreamSeen::Arrived { first, end } => {
            report.fact(
                Group::WayIn,
                &seen.url,
                format!("the first event came after {}", span(*first)),
            );
            match end {
                HoldSeen::Unheld => {}
                HoldSeen::Held(time) => {
                    report.fact(
                        Group::WayIn,
                        &seen.url,
                        format!("a stream was held for {}", span(*time)),
                    );
                }
                HoldSeen::Cut { after, wanted } => report.find(Finding::new(
                    at,
                    ("stream_cut", Weight::Act),
                    format!(
                        "cut an open stream after {}, and {} were wanted",
                        span(*after),
                        span(*wanted)
                    ),
                    "a proxy with a limit for streams ends calls that take longer",
                    Cure::Write {
                        file: "the proxy (nginx)".into(),
                        line: "proxy_read_timeout 1h; proxy_send_timeout 1h;".into(),
                    },
                )),
            }
        }
    }
}

fn judge_bodies(seen: &WayInSeen, report: &mut Report) {
    let at = (Group::WayIn, seen.url.as_str());
    let refused = seen.bodies.iter().find(|(_, status)| *status == 413);
    let most = seen
        .bodies
        .iter()
        .filter(|(_, status)| *status != 413)
        .map(|(bytes, _)| *bytes)
        .max();
    match (refused, most) {
        // Where the limit is not known, a server may have one of its own.
        (Some((bytes, _)), _) if seen.is_ours => {
            let line = format!(
                "client_max_body_size {}m;",
                seen.max_message_bytes.div_ceil(1 << 20)
            );
            report.find(Finding::new(
                at,
                ("body_limit", Weight::Act),
                format!(
                    "refuses a request of {} with 413, and the gateway takes {}",
                    size(*bytes as u64),
                    size(seen.max_message_bytes as u64)
                ),
                "pictures and files in calls are larger than a proxy allows by default",
                Cure::Write {
                    file: "the proxy (nginx)".into(),
                    line,
                },
            ));
        }
        (Some((bytes, _)), _) => {
            report.fact(
                Group::WayIn,
                &seen.url,
                format!("refuses requests of {}", size(*bytes as u64)),
            );
        }
        (None, Some(bytes)) => {
            report.fact(
                Group::WayIn,
                &seen.url,
                format!("takes requests of {}", size(bytes as u64)),
            );
        }
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> WayInSeen {
        WayInSeen {
            url: "https://mcp.example.com/a/mcp".into(),
            host: "mcp.example.com".into(),
            is_ours: true,
            is_https: true,
            is_http2: true,
            opening: Some(Opening {
                status: 200,
                server: Some("a 1".into()),
                ..Opening::default()
            }),
            foreign_origin: Some(403),
            foreign_host: Some(403),
            stream: StreamSeen::Arrived {
                first: Duration::from_millis(5),
                end: HoldSeen::Held(Duration::from_secs(70)),
            },
            bodies: vec![(1_200_000, 200), (15_000_000, 200)],
            max_message_bytes: 16 << 20,
            ..WayInSeen::default()
        }
    }

    fn ids(seen: &WayInSeen) -> Vec<&'static str> {
        judge(seen)
            .findings
            .into_iter()
            .map(|finding| finding.id)
            .collect()
    }

    fn opening(status: u16, challenges: &[&str], text: &str) -> WayInSeen {
        WayInSeen {
            opening: Some(Opening {
                status,
                challenges: challenges.iter().map(|text| (*text).to_owned()).collect(),
                text: text.into(),
                ..Opening::default()
            }),
            ..good()
        }
    }

    #[test]
    fn good_way_in_has_facts_only() {
        assert!(ids(&good()).is_empty());
        assert!(ids(&opening(401, &["Bearer"], "")).is_empty());
    }

    #[test]
    fn answers_to_the_first_request_are_told_apart() {
        assert_eq!(ids(&opening(401, &[], "")), ["no_challenge"]);
        let with_issuer = WayInSeen {
            has_metadata: true,
            ..opening(401, &["Bearer"], "")
        };
        assert_eq!(ids(&with_issuer), ["challenge_without_metadata"]);
        let host = "the Host header names another host";
        assert_eq!(ids(&opening(403, &[], host)), ["host_refused"]);
        assert_eq!(ids(&opening(502, &[], "Bad Gateway")), ["way_in_unavailable"]);
        assert_eq!(ids(&opening(404, &[], "Not Found")), ["way_in_refuses"]);
        let closed = WayInSeen {
            failure: Some(("Connection refused".into(), Weight::Later)),
            ..good()
        };
        assert_eq!(ids(&closed), ["way_in_closed"]);
    }

    #[test]
    fn what_proxies_do_to_streams_and_bodies_is_named() {
        let with = |stream| WayInSeen { stream, ..good() };
        assert_eq!(ids(&with(StreamSeen::Collected)), ["stream_buffered"]);
        assert_eq!(ids(&with(StreamSeen::NotOffered(404))), ["stream_refused"]);
        assert!(ids(&with(StreamSeen::NotOffered(405))).is_empty());
        let cut = StreamSeen::Arrived {
            first: Duration::ZERO,
            end: HoldSeen::Cut {
                after: Duration::from_secs(60),
                wanted: Duration::from_secs(70),
            },
        };
        assert_eq!(ids(&with(cut)), ["stream_cut"]);
        let small = WayInSeen {
            bodies: vec![(1_200_000, 413)],
            ..good()
        };
        let found = judge(&small).findings.remove(0);
        assert_eq!(found.id, "body_limit");
        let Cure::Write { line, .. } = found.cure else {
            panic!("a line was expected");
        };
        assert_eq!(line, "client_max_body_size 16m;");
    }

    #[test]
    fn foreign_pages_and_names_must_be_refused_by_a_gateway_of_ours() {
        let open = WayInSeen {
            foreign_origin: Some(200),
            foreign_host: Some(200),
            ..good()
        };
        assert_eq!(ids(&open), ["origin_open", "host_open"]);
        let of_others = WayInSeen {
            is_ours: false,
            ..open
        };
        assert!(ids(&of_others).is_empty());
    }
}
