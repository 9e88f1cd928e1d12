//! The handler over stdio: one thread, large reads, one write for everything that a read brought.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use memchr::memchr;

use crate::handler::{Era, Work, write_notice, write_progress};

/// What one read may bring, and about how much is gathered before it is written.
const CHUNK: usize = 256 << 10;

/// What a server does beside its usual work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Habits {
    /// How long it takes for the bytes of one read.
    pub delay: Option<Duration>,
    /// How many more tools it lists.
    pub tools: Option<usize>,
}

/// Serves one era until stdin ends.
pub fn run(era: Era, habits: Habits) -> io::Result<()> {
    // The standard library's handles buffer in small pieces and under a lock.
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    serve(&mut input, &mut output, era, habits)
}

fn serve(input: &mut impl Read, output: &mut impl Write, era: Era, habits: Habits) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut filled = 0;
    let mut out = Vec::with_capacity(CHUNK);
    loop {
        if buffer.len() - filled < CHUNK / 2 {
            // A long line grows the buffer by halves, so that it is copied only a few times.
            buffer.resize(buffer.len() * 2, 0);
        }
        let read = match input.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if let Some(delay) = habits.delay {
            std::thread::sleep(delay);
        }
        let (mut start, mut search) = (0, filled);
        filled += read;
        while let Some(found) = memchr(b'\n', &buffer[search..filled]) {
            let end = search + found;
            answer(&buffer[start..end], era, habits, &mut out, output)?;
            start = end + 1;
            search = start;
        }
        if !out.is_empty() {
            output.write_all(&out)?;
            out.clear();
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
}

fn answer(
    line: &[u8],
    era: Era,
    habits: Habits,
    out: &mut Vec<u8>,
    output: &mut impl Write,
) -> io::Result<()> {
    let work = Work::of(line);
    if let Some(tools) = habits.tools
        && work.write_long_list(era, tools, out)
    {
        out.push(b'\n');
        return spill(out, output);
    }
    match work {
        Work::Progress {
            token: Some(token),
            count,
            ..
        } => {
            for step in 1..=count {
                write_progress(out, token, step, count);
                out.push(b'\n');
                spill(out, output)?;
            }
        }
        Work::Notify { count, .. } => {
            for notice in 1..=count {
                write_notice(out, notice);
                out.push(b'\n');
                spill(out, output)?;
            }
        }
        Work::Nothing
        | Work::Initialize { .. }
        | Work::Discover { .. }
        | Work::List { .. }
        | Work::Ping { .. }
        | Work::Echo { .. }
        | Work::Progress { token: None, .. }
        | Work::Unknown { .. } => {}
    }
    if work.write_response(era, out) {
        out.push(b'\n');
    }
    spill(out, output)
}

fn spill(out: &mut Vec<u8>, output: &mut impl Write) -> io::Result<()> {
    if out.len() >= CHUNK {
        output.write_all(out)?;
        out.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_answered_even_if_it_comes_in_pieces() {
        let text = "x".repeat(3 * CHUNK);
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"echo\",\"arguments\":{{\"text\":\"{text}\"}}}}}}\n"
        );
        let input = [line.as_bytes(), line.as_bytes()].concat();
        let mut output = Vec::new();
        serve(&mut &input[..], &mut output, Era::Legacy, Habits::default()).expect("memory");
        let lines: Vec<_> = output.split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 3, "two lines and the end of the last one");
        assert_eq!(lines[0], lines[1]);
        assert!(lines[0].len() > text.len());
    }

    #[test]
    fn notices_come_before_the_answer() {
        let input = br#"{"id":1,"method":"tools/call","params":{"name":"notify","arguments":{"count":2}}}"#;
        let mut output = Vec::new();
        let lines = [&input[..], b"\n"].concat();
        serve(&mut &lines[..], &mut output, Era::Legacy, Habits::default()).expect("memory");
        let text = String::from_utf8(output).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].contains("\"notice\":1") && lines[1].contains("\"notice\":2"),
            "{text}"
        );
        assert!(lines[2].contains("\"id\":1"), "{text}");
    }
}
