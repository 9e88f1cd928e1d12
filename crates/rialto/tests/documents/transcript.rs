//! Console blocks: commands after `$ `, and under each what it printed.

use testkit::RawHttp;

/// A command as a document shows it.
pub(crate) struct Shown {
    pub(crate) command: String,
    pub(crate) output: String,
}

/// What a curl command asks for.
pub(crate) struct Curl {
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    shows_head: bool,
}

pub(crate) fn commands(block: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            shown.push(Shown {
                command: command.to_owned(),
                output: String::new(),
            });
        } else if let Some(last) = shown.last_mut() {
            last.output.push_str(line);
            last.output.push('\n');
        }
    }
    shown
}

impl Shown {
    /// The call, if it is one. An option that is not known here panics: it would not be tried.
    pub(crate) fn curl(&self) -> Option<Curl> {
        let words = words(&self.command);
        let (program, rest) = words.split_first()?;
        if program != "curl" {
            return None;
        }
        let mut curl = Curl {
            path: String::new(),
            headers: Vec::new(),
            body: None,
            shows_head: false,
        };
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "-s" | "-sN" => {}
                "-si" => curl.shows_head = true,
                "-H" => {
                    let header = rest.next().expect("-H has a header");
                    let (name, value) = header.split_once(':').expect("a header has a colon");
                    curl.headers.push((name.to_owned(), value.trim().to_owned()));
                }
                "-d" => curl.body = Some(rest.next().expect("-d has a body").clone()),
                url => {
                    let path = url.strip_prefix("http://127.0.0.1:3000");
                    curl.path = path.unwrap_or_else(|| panic!("not known here: {url}")).to_owned();
                }
            }
        }
        Some(curl)
    }
}

/// The states that a server seals are other ones in every run: what a document shows, and what was
/// received in its place.
#[derive(Default)]
pub(crate) struct States(Vec<(String, String)>);

impl States {
    /// Takes note of a state in an answer.
    pub(crate) fn note(&mut self, shown: &str, heard: &str) {
        if let (Some(shown), Some(heard)) = (state_in(shown), state_in(heard)) {
            self.0.push((shown.to_owned(), heard.to_owned()));
        }
    }

    /// Puts what was received in the place of what is shown.
    pub(crate) fn fill_in(&self, curl: &mut Curl) {
        for (shown, heard) in &self.0 {
            curl.body = curl.body.take().map(|body| body.replace(shown, heard));
        }
    }
}

fn state_in(text: &str) -> Option<&str> {
    text.split_once(r#""requestState":""#)?.1.split('"').next()
}

impl Curl {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Sends it as curl does, and gives what curl would print.
    pub(crate) async fn send(&self, address: &str) -> testkit::Result<String> {
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let body = self.body.as_deref().unwrap_or_default();
        let mut request = format!("{method} {} HTTP/1.1\r\nHost: {address}\r\n", self.path);
        if !self
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("accept"))
        {
            request.push_str("Accept: */*\r\n");
        }
        for (name, value) in &self.headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let response = RawHttp::connect(address).await?.exchange(request).await?;
        let mut printed = String::new();
        if self.shows_head {
            printed.push_str(&format!("HTTP/1.1 {} OK\n", response.status));
            for (name, value) in &response.headers {
                printed.push_str(&format!("{name}: {value}\n"));
            }
            printed.push('\n');
        } else {
            assert_eq!(response.status, 200, "{}", response.body_text());
        }
        printed.push_str(&response.body_text());
        Ok(printed)
    }
}

/// The same text from one run to the next: session ids, dates, sealed states and the numbers of
/// streams differ.
pub(crate) fn normalised(output: &str) -> String {
    let lines = output.trim_end().lines().map(|line| {
        if line.starts_with("mcp-session-id: ") && line.len() == "mcp-session-id: ".len() + 36 {
            "mcp-session-id: UUID".to_owned()
        } else if line.starts_with("date: ") && line.ends_with(" GMT") {
            "date: DATE".to_owned()
        } else if let Some((_, event)) = line.strip_prefix("id: ").and_then(|id| id.split_once('-')) {
            format!("id: STREAM-{event}")
        } else if let Some(state) = state_in(line) {
            line.replace(state, "STATE")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The table of `check` with single blanks and without what it measured.
pub(crate) fn without_times(output: &str) -> String {
    let lines = output.trim_end().lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let measured = words.iter().position(|word| *word == "ms");
        let kept = words.iter().enumerate();
        kept.filter(|(index, _)| measured.is_none_or(|ms| *index != ms && *index + 1 != ms))
            .map(|(_, word)| *word)
            .collect::<Vec<_>>()
            .join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Words of a shell, as far as blanks and single quotes go.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, piece) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(piece.to_owned());
        } else {
            words.extend(piece.split_whitespace().map(str::to_owned));
        }
    }
    words
}
