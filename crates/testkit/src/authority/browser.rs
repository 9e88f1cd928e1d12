//! A person with a browser who signs in wherever they are sent: fetches a page and follows where it leads.

use std::io::{Error, Read as _, Result, Write as _};
use std::net::TcpStream;
use std::time::Duration;

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
