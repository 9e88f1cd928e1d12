use super::*;

const PLAIN: Look = Look {
    has_colour: false,
    may_rewrite: true,
};
const WANTED: Wanted = Wanted {
    calls: true,
    output: true,
    inside: false,
};
const CLOCK: &str = "10:04:23";

fn destination(name: &str, state: State) -> Destination {
    Destination {
        name: name.to_owned(),
        url: format!("http://127.0.0.1:3000/{name}/mcp"),
        state,
    }
}

fn starting(server: &str) -> State {
    State::Starting {
        server: server.to_owned(),
    }
}

fn banner(destinations: Vec<Destination>) -> Happening {
    Happening::Began(Banner {
        version: "0.1.0".to_owned(),
        address: "http://127.0.0.1:3000".to_owned(),
        destinations,
        page: None,
        root: None,
        needs_token: false,
    })
}

/// What a person sees: the lines that stay, then the region, after each of the happenings.
fn seen(look: Look, columns: usize, happenings: Vec<(u64, Happening)>) -> String {
    let mut view = View::new(look, WANTED);
    let mut screen: Vec<String> = Vec::new();
    for (second, happening) in happenings {
        let now = Duration::from_secs(second);
        view.handle(happening, now, CLOCK, columns);
        view.handle_time(now, CLOCK, columns);
        draw(&mut screen, &view.take_output(columns), columns);
    }
    screen.join("\n")
}

/// Writes to a screen as a terminal does, which breaks lines that are too wide.
fn draw(screen: &mut Vec<String>, output: &str, columns: usize) {
    let mut rest = output;
    if let Some(after) = rest.strip_prefix("\x1b[") {
        let (up, after) = after.split_once('A').expect("up");
        let kept = screen.len() - up.parse::<usize>().expect("a number");
        screen.truncate(kept);
        rest = after.strip_prefix("\r\x1b[J").expect("cleared");
    }
    for line in rest.lines() {
        // Colours take no room, and no line that is broken has some.
        let plain: Vec<char> = line.chars().collect();
        match line.contains('\x1b') || plain.is_empty() {
            true => screen.push(line.to_owned()),
            false => screen.extend(plain.chunks(columns).map(|part| part.iter().collect::<String>())),
        }
    }
}

fn call(tool: &str) -> Call {
    Call {
        destination: Some("everything".to_owned()),
        client: Some("claude-code#1".to_owned()),
        method: Some("tools/call".to_owned()),
        tool: Some(tool.to_owned()),
        end: End::Ok,
        latency: Duration::from_millis(3),
        bytes: 1234,
    }
}

fn refusal() -> Call {
    Call {
        client: None,
        method: None,
        tool: None,
        end: End::Refused {
            status: 503,
            reason: "sessions_at_limit".to_owned(),
            limit: Some("max_sessions".to_owned()),
            path: None,
        },
        ..call("")
    }
}

fn ready(tools: usize) -> State {
    State::Ready {
        tools: Some(tools),
        took: Duration::from_millis(2_140),
    }
}

#[test]
fn destinations_start_below_and_stay_above_the_calls() {
    let names = vec![
        destination("everything", starting("npx")),
        destination("search", starting("npx")),
    ];
    let failed = State::Failed {
        lines: vec![
            "exit 1: BRAVE_API_KEY environment variable is required".to_owned(),
            "BRAVE_API_KEY is set here but not passed on: add  --env BRAVE_API_KEY".to_owned(),
        ],
    };
    let output = |line: &str| Happening::Output {
        destination: "everything".to_owned(),
        line: line.to_owned(),
    };
    let before = vec![(0, banner(names)), (11, output("Downloading…"))];
    let screen = seen(PLAIN, 120, before.clone());
    assert!(screen.contains("npx, 11 s: \"Downloading…\""), "{screen}");
    let settled = |name: &str, state| Happening::Settled {
        name: name.to_owned(),
        state,
    };
    let mut after = before;
    after.extend([
        (12, settled("everything", ready(13))),
        (13, settled("search", failed)),
        (14, Happening::Call(call("echo"))),
    ]);
    let expected = "
  rialto 0.1.0   http://127.0.0.1:3000        Ctrl-C stops

  ✔ everything   http://127.0.0.1:3000/everything/mcp   13 tools   2.1 s
  ✘ search       exit 1: BRAVE_API_KEY environment variable is required
                 BRAVE_API_KEY is set here but not passed on: add  --env BRAVE_API_KEY

  claude mcp add --transport http everything http://127.0.0.1:3000/everything/mcp
  other clients: {\"mcpServers\":{\"everything\":{\"type\":\"http\",\"url\":\"http://127.0.0.1:3000/everything/mcp\"}}}

10:04:23  everything  claude-code#1   tools/call echo                                     ok              3 ms   1.2 kB";
    let screen = seen(PLAIN, 120, after);
    assert!(screen.contains("│ Downloading…"), "{screen}");
    let screen: Vec<&str> = screen.lines().filter(|line| !line.contains('│')).collect();
    assert_eq!(screen.join("\n"), expected);
}

#[test]
fn no_line_but_one_to_copy_is_wider_than_the_terminal() {
    for columns in [60, 80, 90, 120] {
        let mut long = call("a_tool_with_quite_a_long_name_that_goes_on_and_on");
        long.end = End::Failed {
            outcome: "timeout".to_owned(),
            reason: Some("request_timeout".to_owned()),
        };
        let happenings = vec![
            (
                0,
                banner(vec![
                    destination("everything", ready(13)),
                    destination("x", State::Waiting),
                ]),
            ),
            (1, Happening::Call(long)),
            (2, Happening::Call(refusal())),
            (
                3,
                Happening::Output {
                    destination: "everything".to_owned(),
                    line: "word ".repeat(60),
                },
            ),
        ];
        let screen = seen(PLAIN, columns, happenings);
        for line in screen.lines().filter(|line| !line.contains("http://")) {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        assert_eq!(
            screen.matches("word").count(),
            60,
            "nothing of it is cut: {screen}"
        );
    }
}

#[test]
fn region_with_a_line_that_the_terminal_breaks_is_taken_away_as_a_whole() {
    let names = vec![
        destination("everything", starting("npx")),
        destination("x", starting("npx")),
    ];
    let happenings = vec![
        (0, banner(names)),
        (1, Happening::Lost(1)),
        (2, Happening::Lost(2)),
    ];
    let screen = seen(PLAIN, 80, happenings);
    assert_eq!(screen.matches("npx").count(), 2, "one line for each: {screen}");
    assert_eq!(screen.matches("mcpServers").count(), 1, "{screen}");
    assert_eq!(screen.matches("lines were dropped").count(), 2, "{screen}");
}

#[test]
fn refusals_of_one_kind_are_counted_and_of_another_kind_shown() {
    let mut happenings = vec![(0, banner(vec![destination("everything", ready(1))]))];
    happenings.extend((0..100).map(|_| (1, Happening::Call(refusal()))));
    let other = Call {
        end: End::Refused {
            status: 401,
            reason: "unauthorized".to_owned(),
            limit: None,
            path: None,
        },
        destination: None,
        ..refusal()
    };
    happenings.push((1, Happening::Call(other)));
    happenings.push((9, Happening::Lost(1)));
    let screen = seen(PLAIN, 120, happenings);
    assert_eq!(
        screen
            .matches("refused 503: sessions at limit (max_sessions)")
            .count(),
        2,
        "{screen}"
    );
    assert!(screen.contains(", 100 in all since the last line"), "{screen}");
    assert_eq!(screen.matches("refused 401: unauthorized").count(), 1, "{screen}");
}

#[test]
fn log_of_a_server_that_does_not_start_is_one_summary() {
    let log = |destination: Option<&str>, text: &str| {
        Happening::Log(LogLine {
            level: Level::Warn,
            destination: destination.map(str::to_owned),
            text: text.to_owned(),
        })
    };
    let output = |line: &str| Happening::Output {
        destination: "broken".to_owned(),
        line: line.to_owned(),
    };
    let happenings = vec![
        (0, banner(vec![destination("broken", starting("node"))])),
        (1, log(Some("broken"), "server exited; restarting")),
        (1, output("Error: no key")),
        (1, output("    at internal")),
        (1, log(None, "another matter")),
        (
            2,
            Happening::Settled {
                name: "broken".to_owned(),
                state: State::Failed {
                    lines: vec!["exit 1".to_owned()],
                },
            },
        ),
        (3, log(Some("broken"), "started again")),
    ];
    let screen = seen(PLAIN, 100, happenings);
    assert!(
        screen.contains("✘ broken   exit 1\n             Error: no key"),
        "{screen}"
    );
    assert!(
        !screen.contains("restarting") && !screen.contains("at internal"),
        "{screen}"
    );
    assert!(
        screen.contains("another matter") && screen.contains("started again"),
        "{screen}"
    );
    assert!(!screen.contains("claude mcp add"), "nothing works: {screen}");
}

#[test]
fn terminal_that_cannot_rewrite_gets_lines_alone() {
    let look = Look {
        may_rewrite: false,
        ..PLAIN
    };
    let mut view = View::new(look, WANTED);
    view.handle(
        banner(vec![destination("files", starting("npx"))]),
        Duration::ZERO,
        CLOCK,
        80,
    );
    let settled = Happening::Settled {
        name: "files".to_owned(),
        state: ready(2),
    };
    view.handle(settled, Duration::from_secs(1), CLOCK, 80);
    let output = view.take_output(80);
    assert!(!output.contains('\x1b'), "{output:?}");
    assert!(output.contains("10:04:23  files  2 tools"), "{output}");
    assert!(!view.is_moving());
}

#[test]
fn colours_are_written_where_they_are_allowed_and_take_no_room() {
    let look = Look {
        has_colour: true,
        ..PLAIN
    };
    let happenings = || {
        vec![
            (0, banner(vec![destination("everything", ready(1))])),
            (1, Happening::Call(call("echo"))),
        ]
    };
    let coloured = seen(look, 100, happenings());
    assert!(coloured.contains("\x1b[32m"), "{coloured:?}");
    let mut stripped = String::new();
    let mut characters = coloured.chars();
    while let Some(character) = characters.next() {
        match character {
            '\x1b' => drop(characters.by_ref().find(char::is_ascii_alphabetic)),
            other => stripped.push(other),
        }
    }
    assert_eq!(stripped, seen(PLAIN, 100, happenings()));
}

#[test]
fn view_without_calls_shows_none() {
    let mut view = View::new(
        PLAIN,
        Wanted {
            calls: false,
            output: false,
            inside: false,
        },
    );
    view.handle(Happening::Call(call("echo")), Duration::ZERO, CLOCK, 80);
    view.handle(
        Happening::Output {
            destination: "everything".to_owned(),
            line: "noise".to_owned(),
        },
        Duration::ZERO,
        CLOCK,
        80,
    );
    assert_eq!(view.take_output(80), "");
}

#[test]
fn line_that_a_server_wrote_at_each_start_is_shown_once() {
    let output = || Happening::Output {
        destination: "search".to_owned(),
        line: "Error: API_KEY is required".to_owned(),
    };
    let failed = State::Failed {
        lines: vec!["exit status 1".to_owned()],
    };
    let happenings = vec![
        (0, banner(vec![destination("search", starting("npx"))])),
        (1, output()),
        (2, output()),
        (3, output()),
        (
            4,
            Happening::Settled {
                name: "search".to_owned(),
                state: failed,
            },
        ),
    ];
    let screen = seen(PLAIN, 80, happenings);
    assert_eq!(screen.matches("API_KEY is required").count(), 1, "{screen}");
}

#[test]
fn reason_of_a_failure_is_wrapped_and_not_cut() {
    let failed = State::Failed {
        lines: vec![format!(
            "program `uvx` was not found in {}: install it",
            "/a/long/path ".repeat(8)
        )],
    };
    let screen = seen(PLAIN, 80, vec![(0, banner(vec![destination("search", failed)]))]);
    assert!(screen.contains("install it") && !screen.contains('…'), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
}

#[test]
fn names_before_the_destinations_are_known_are_not_cut() {
    let early = Happening::Log(LogLine {
        level: Level::Error,
        destination: Some("search".to_owned()),
        text: "cannot start".to_owned(),
    });
    let screen = seen(PLAIN, 80, vec![(0, early)]);
    assert!(screen.contains("  search  cannot start"), "{screen}");
}

#[test]
fn refusal_of_an_unknown_path_shows_the_path() {
    let refused = Call {
        end: End::Refused {
            status: 404,
            reason: "unknown_path".to_owned(),
            limit: None,
            path: Some("/flies/mcp".to_owned()),
        },
        destination: None,
        ..refusal()
    };
    let happenings = vec![
        (0, banner(vec![destination("files", ready(1))])),
        (1, Happening::Call(refused)),
    ];
    let screen = seen(PLAIN, 120, happenings);
    assert!(
        screen.contains("refused 404: unknown path /flies/mcp"),
        "{screen}"
    );
}
