//! A user with a browser that signs in: it fetches a page and follows where it leads.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Error, Read as _, Result, Write as _};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

/// The variable that names the file in which `testkit-browser` notes what it did: `opened` for each
/// start, then a line for each page. Without it the browser fails on a page whose status is not
/// 200.
pub const NOTES: &str = "RIALTO_TEST_NOTES";
/// The variable that names what the person does: `signs-in`, which is the default, `leaves` the
/// page as it is, or `meddles` with the callback listener before signing in.
pub const PERSON: &str = "RIALTO_TEST_PERSON";

/// The program `testkit-browser`: opens the page that is its last argument.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    match open(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "testkit-browser: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(arguments: impl Iterator<Item = String>) -> Result<()> {
    let url = arguments.last().ok_or_else(|| Error::other("no page to open"))?;
    let person = std::env::var_os(PERSON).unwrap_or_else(|| "signs-in".into());
    let notes = std::env::var_os(NOTES);
    let mut notes = notes
        .map(|path| OpenOptions::new().append(true).create(true).open(path))
        .transpose()?;
    if let Some(notes) = &mut notes {
        writeln!(notes, "opened")?;
    }
    if person == OsStr::new("leaves") {
        return Ok(());
    }
    let slow = match (&mut notes, person == OsStr::new("meddles")) {
        (Some(notes), true) => meddle(&url, notes)?,
        _ => Vec::new(),
    };
    let page = visit(&url)?;
    drop(slow);
    match &mut notes {
        Some(notes) => writeln!(notes, "{} {}", page.status, page.url),
        None if page.status == 200 => Ok(()),
        None => Err(Error::other(format!("status {}: {}", page.status, page.body))),
    }
}

/// Sends the callback listener what it must refuse, and notes how it answers. Two connections that
/// never finish stay open and are returned: others must not wait for them.
fn meddle(url: &str, notes: &mut File) -> Result<Vec<TcpStream>> {
    let listener = callback(url)?;
    let silent = TcpStream::connect(&listener)?;
    let mut slow = TcpStream::connect(&listener)?;
    slow.write_all(b"GET /callback HTTP/1.1\r\nHost: ")?;
    for (path, method, host) in [
        ("/callback?state=x", "GET", Some("evil.example")),
        ("/other", "GET", None),
        ("/callback?state=x", "POST", None),
        ("/callback?state=x&code=y", "GET", None),
    ] {
        let status = fetch(&format!("http://{listener}{path}"), method, host)?.status;
        writeln!(notes, "{status}")?;
    }
    Ok(vec![silent, slow])
}

/// Returns where the page leads back to: an address of this machine and no other.
fn callback(url: &str) -> Result<String> {
    let listener = url
        .split_once("redirect_uri=http%3A%2F%2F")
        .and_then(|(_, rest)| rest.split_once("%2Fcallback"))
        .map(|(listener, _)| listener.replace("%3A", ":"));
    listener
        .filter(|listener| listener.starts_with("127.0.0.1:"))
        .ok_or_else(|| Error::other(format!("{url} does not lead back to this machine")))
}

/// The last page that was shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub status: u16,
    pub url: String,
    pub head: String,
    pub body: String,
}

/// Fetches `http` pages on this machine, following up to five redirects. Blocks.
pub fn visit(url: &str) -> Result<Page> {
    let mut url = url.to_owned();
    for _ in 0..5 {
        let page = fetch(&url, "GET", None)?;
        let fields = page.head.lines().filter_map(|line| line.split_once(": "));
        let mut locations = fields.filter(|(name, _)| name.eq_ignore_ascii_case("location"));
        match locations.next().map(|(_, value)| value) {
            Some(next) if (300..400).contains(&page.status) => url = next.to_owned(),
            _ => return Ok(page),
        }
    }
    Err(Error::other("too many redirects"))
}

/// One request, under another host name if wanted.
pub fn fetch(url: &str, method: &str, host: Option<&str>) -> Result<Page> {
    let (authority, path) = url
        .strip_prefix("http://")
        .map(|rest| rest.split_at(rest.find('/').unwrap_or(rest.len())))
        .ok_or_else(|| Error::other(format!("{url} is not for this browser")))?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let host = host.unwrap_or(authority);
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| Error::other("no answer"))?;
    Ok(Page {
        status,
        url: url.to_owned(),
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
