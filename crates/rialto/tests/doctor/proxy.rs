//! A reverse proxy that does one kind of harm.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// What the proxy does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    None,
    /// It keeps the response to a GET request until its end.
    CollectStreams,
    /// It ends the response to a GET request after its first event.
    CutStreams,
    /// It answers a request of more than a megabyte with 413.
    RefuseMegabytes,
    /// It sends another `Host` to the server.
    OtherHost,
    /// It removes `WWW-Authenticate`.
    RemoveChallenge,
}

/// The proxy; its threads end with the process of the test.
pub(crate) struct Proxy {
    address: SocketAddr,
}

impl Proxy {
    pub(crate) fn before(server: &str, harm: Harm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = server.to_owned();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = server.clone();
                // A client that leaves ends its connection, and nothing else.
                thread::spawn(move || drop(pass(client, &server, harm)));
            }
        });
        Self { address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Passes one request and its response on. The server closes the connection after it.
fn pass(mut client: TcpStream, server: &str, harm: Harm) -> io::Result<()> {
    let head = head_of(&mut client)?;
    let is_get = head.starts_with("GET ");
    let length = header(&head, "content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    if harm == Harm::RefuseMegabytes && length > 1_000_000 {
        client.write_all(
            b"HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        )?;
        client.shutdown(Shutdown::Write)?;
        // A connection that is closed with unread bytes is reset.
        return io::copy(&mut client, &mut io::sink()).map(drop);
    }
    let mut lines: Vec<String> = head
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    lines.retain(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    if harm == Harm::OtherHost {
        lines.retain(|line| !line.to_ascii_lowercase().starts_with("host:"));
        lines.push("Host: mcp.example.com".to_owned());
    }
    let mut server = TcpStream::connect(server)?;
    server.write_all(format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n")).as_bytes())?;
    io::copy(&mut (&mut client).take(length), &mut server)?;
    if is_get && harm == Harm::CollectStreams {
        let mut response = Vec::new();
        server.read_to_end(&mut response)?;
        return client.write_all(&response);
    }
    let mut response = head_of(&mut server)?;
    if harm == Harm::RemoveChallenge {
        let kept = response
            .lines()
            .filter(|line| !line.to_ascii_lowercase().starts_with("www-authenticate:"));
        response = kept.collect::<Vec<_>>().join("\r\n") + "\r\n";
    }
    client.write_all(response.as_bytes())?;
    if is_get && harm == Harm::CutStreams {
        let mut event = [0; 4096];
        let read = server.read(&mut event)?;
        client.write_all(event.get(..read).unwrap_or_default())?;
        return client.shutdown(Shutdown::Both);
    }
    let mut piece = [0; 4096];
    loop {
        match server.read(&mut piece)? {
            0 => return client.shutdown(Shutdown::Both),
            read => client.write_all(piece.get(..read).unwrap_or_default())?,
        }
    }
}

/// Reads up to the empty line, which is included.
fn head_of(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}
