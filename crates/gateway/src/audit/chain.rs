//! The hash chain over audit records: how a record gets its link, and how links are verified.
//!
//! A chained record ends with `,"seq":N,"hash":"H"}`, where `N` counts from 1 and `H` is the
//! SHA-256, in hexadecimal, of the hash before it (32 zero bytes before the first) and the bytes of
//! the line up to `,"hash":`. A record that is changed, removed, inserted or moved breaks a link.
//! Without a key it shows accidents, and tampering only to a reader that knows the last hash from
//! elsewhere: a writer of the file can compute all links anew. With a key (`audit.chain_key`) the
//! hash is an HMAC-SHA256 over the same bytes, and the links cannot be computed without the key.
//! That records are missing at the very end neither can show.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::hmac;

use crate::settings::Secret;

const HASH_BYTES: usize = 32;
const SEQ: &[u8] = b",\"seq\":";
const HASH: &[u8] = b",\"hash\":\"";
const END: &[u8] = b"\"}";
/// A record with two bodies of the largest size, all of it escaped, is shorter than this.
const LONGEST_RECORD: u64 = 1 << 20;

type Hash = [u8; HASH_BYTES];

/// The key of a chain: without it no link can be made.
#[derive(Clone)]
pub struct ChainKey(hmac::Key);

impl std::fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

impl ChainKey {
    pub fn new(secret: &Secret) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes()))
    }
}

/// The place after the newest record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chain {
    seq: u64,
    hash: Hash,
}

impl Chain {
    /// Returns the chain that goes on where a file ends. A record that was begun and never
    /// finished, because the writer died in it, is cut off: no call waited for it, and it would
    /// look like damage ever after.
    pub(super) fn continuing(path: &Path) -> io::Result<Self> {
        let mut file = match File::options().read(true).write(true).open(path) {
            Ok(file) if file.metadata()?.is_file() => file,
            Ok(_) => return Ok(Self::default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LONGEST_RECORD);
        file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        file.take(LONGEST_RECORD).read_to_end(&mut tail)?;
        let whole = memchr::memrchr(b'\n', &tail).map_or(0, |end| end + 1);
        if whole < tail.len() {
            let cut = tail.len() - whole;
            File::options()
                .write(true)
                .open(path)?
                .set_len(from + whole as u64)?;
            tracing::warn!(
                bytes = cut,
                "the audit file ended in an unfinished record, which was cut off"
            );
        }
        let last = tail[..whole].strip_suffix(b"\n").unwrap_or_default();
        let begin = memchr::memrchr(b'\n', last).map_or(0, |end| end + 1);
        Ok(
            ChainLink::read(&last[begin..]).map_or_else(Self::default, |link| Self {
                seq: link.seq,
                hash: link.hash,
            }),
        )
    }

    /// Links a record to the chain, and ends its line; the record is written up to its last brace,
    /// which it has not.
    pub(super) fn link(&mut self, line: &mut String, key: Option<&ChainKey>) {
        use std::fmt::Write as _;
        let seq = self.seq + 1;
        // Writing to a `String` cannot fail.
        let _ = write!(line, ",\"seq\":{seq}");
        let hash = hash_after(key, &self.hash, line.as_bytes());
        line.push_str(",\"hash\":\"");
        for byte in hash {
            let _ = write!(line, "{byte:02x}");
        }
        line.push_str("\"}\n");
        *self = Self { seq, hash };
    }
}

fn hash_after(key: Option<&ChainKey>, before: &Hash, record: &[u8]) -> Hash {
    let mut hash = Hash::default();
    match key {
        None => {
            let mut context = digest::Context::new(&SHA256);
            context.update(before);
            context.update(record);
            hash.copy_from_slice(context.finish().as_ref());
        }
        Some(ChainKey(key)) => {
            let mut context = hmac::Context::with_key(key);
            context.update(before);
            context.update(record);
            hash.copy_from_slice(context.sign().as_ref());
        }
    }
    hash
}

/// The chain fields of a record.
struct ChainLink<'a> {
    seq: u64,
    hash: Hash,
    /// What the hash is about.
    record: &'a [u8],
}

impl<'a> ChainLink<'a> {
    fn read(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_suffix(END)?;
        let (record, digits) = rest.split_at_checked(rest.len().checked_sub(2 * HASH_BYTES)?)?;
        let record = record.strip_suffix(HASH)?;
        let seq_at = memchr::memmem::rfind(record, SEQ)? + SEQ.len();
        let seq = str::from_utf8(&record[seq_at..]).ok()?.parse().ok()?;
        // As it was written, and in no other spelling of the same number.
        if !digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        {
            return None;
        }
        let mut hash = Hash::default();
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self { seq, hash, record })
    }
}

/// What is wrong at a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("this line is no record of the chain")]
    NoRecord,
    #[error("the line is unfinished: something was cut off here")]
    Unfinished,
    #[error("record {seq} was changed, or one before it")]
    Changed { seq: u64 },
    #[error("records {from} to {to} are missing before this one")]
    Missing { from: u64, to: u64 },
    #[error("record {seq} is repeated or out of order: {expected} was due")]
    OutOfOrder { seq: u64, expected: u64 },
}

/// Verifies records in their order, from one file or from several that follow each other.
#[derive(Debug, Default)]
pub struct Verifier {
    key: Option<ChainKey>,
    /// The newest record; `None` before the first.
    newest: Option<Chain>,
    first: u64,
    records: u64,
    unchained: u64,
}

/// What a chain without flaws shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub records: u64,
    /// The number of the first record: if it is not 1, there were others before it.
    pub first: u64,
    pub last: u64,
    /// The last hash, to be compared with what was noted elsewhere.
    pub hash: String,
    /// Records from before the chain began, which it does not cover.
    pub unchained: u64,
}

impl Verifier {
    /// Returns a verifier for a chain with this key, or without one.
    pub fn with_key(key: Option<ChainKey>) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }

    /// Takes the next line, with its line break.
    pub fn handle_line(&mut self, line: &[u8]) -> Result<(), Flaw> {
        let line = line.strip_suffix(b"\n").ok_or(Flaw::Unfinished)?;
        let Some(link) = ChainLink::read(line) else {
            if self.newest.is_none() && line.starts_with(b"{") && line.ends_with(b"}") {
                self.unchained += 1;
                return Ok(());
            }
            return Err(Flaw::NoRecord);
        };
        self.records += 1;
        let here = Chain {
            seq: link.seq,
            hash: link.hash,
        };
        // After a flaw the record itself is where the chain goes on, so that one flaw is reported
        // once.
        let before = self.newest.replace(here);
        let Some(before) = before.or_else(|| (link.seq == 1).then(Chain::default)) else {
            // The file before this one is not at hand: this record is believed, those after it are
            // verified.
            self.first = link.seq;
            return Ok(());
        };
        if self.first == 0 {
            self.first = link.seq;
        }
        let expected = before.seq + 1;
        if link.seq > expected {
            return Err(Flaw::Missing {
                from: expected,
                to: link.seq - 1,
            });
        }
        if link.seq < expected {
            return Err(Flaw::OutOfOrder {
                seq: link.seq,
                expected,
            });
        }
        if hash_after(self.key.as_ref(), &before.hash, link.record) != link.hash {
            return Err(Flaw::Changed { seq: link.seq });
        }
        Ok(())
    }

    /// Returns what was verified; `None` if there was no record of a chain.
    pub fn finish(self) -> Option<Verified> {
        let newest = self.newest?;
        Some(Verified {
            records: self.records,
            first: self.first,
            last: newest.seq,
            hash: newest.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            unchained: self.unchained,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn records(chain: &mut Chain, count: usize) -> Vec<Vec<u8>> {
        (0..count)
            .map(|number| {
                let mut line = format!("{{\"ts\":\"x\",\"n\":{number},\"nested\":{{}}");
                chain.link(&mut line, None);
                line.into_bytes()
            })
            .collect()
    }

    fn verify(lines: &[Vec<u8>]) -> (Vec<Flaw>, Option<Verified>) {
        let mut verifier = Verifier::default();
        let flaws = lines
            .iter()
            .filter_map(|line| verifier.handle_line(line).err())
            .collect();
        (flaws, verifier.finish())
    }

    #[test]
    fn a_whole_chain_has_no_flaw_and_its_records_are_json() {
        let lines = records(&mut Chain::default(), 5);
        let (flaws, verified) = verify(&lines);
        assert_eq!(flaws, []);
        let verified = verified.unwrap();
        assert_eq!((verified.records, verified.first, verified.last), (5, 1, 5));
        for line in &lines {
            let value: serde_json::Value = serde_json::from_slice(line).unwrap();
            assert_eq!(value["nested"], serde_json::json!({}));
        }
    }

    #[test]
    fn links_with_a_key_cannot_be_made_without_it() {
        let key = ChainKey::new(&Secret::new("a key that only the operator has"));
        let mut chain = Chain::default();
        let mut record = || {
            let mut line = "{\"principal\":\"alice\"".to_owned();
            chain.link(&mut line, Some(&key));
            line.into_bytes()
        };
        let lines: Vec<Vec<u8>> = (0..3).map(|_| record()).collect();
        let flaws_with = |key: Option<ChainKey>, lines: &[Vec<u8>]| -> usize {
            let mut verifier = Verifier::with_key(key);
            lines
                .iter()
                .filter(|line| verifier.handle_line(line).is_err())
                .count()
        };
        assert_eq!(flaws_with(Some(key.clone()), &lines), 0);
        assert_eq!(flaws_with(None, &lines), 3);
        let wrong = ChainKey::new(&Secret::new("another"));
        assert_eq!(flaws_with(Some(wrong), &lines), 3);
        // The whole chain computed anew, as a writer of the file can without a key.
        let forged = records(&mut Chain::default(), 3);
        assert_eq!(
            (flaws_with(None, &forged), flaws_with(Some(key), &forged)),
            (0, 3)
        );
    }

    #[test]
    fn each_flaw_of_a_chain_is_named() {
        let lines = records(&mut Chain::default(), 6);
        let mut changed = lines.clone();
        changed[2] = String::from_utf8(lines[2].clone())
            .unwrap()
            .replace("\"n\":2", "\"n\":7")
            .into_bytes();
        assert_eq!(verify(&changed).0, [Flaw::Changed { seq: 3 }]);
        let mut removed = lines.clone();
        removed.drain(2..4);
        assert_eq!(verify(&removed).0, [Flaw::Missing { from: 3, to: 4 }]);
        let mut swapped = lines.clone();
        swapped.swap(2, 3);
        assert!(!verify(&swapped).0.is_empty());
        let mut cut = lines.clone();
        cut[2].truncate(20);
        assert_eq!(verify(&cut).0[0], Flaw::Unfinished);
        let mut joined = lines.clone();
        joined[2].truncate(20);
        joined[2].push(b'\n');
        assert_eq!(
            verify(&joined).0,
            [Flaw::NoRecord, Flaw::Missing { from: 3, to: 3 }]
        );
        let mut repeated = lines.clone();
        repeated.insert(3, lines[2].clone());
        assert_eq!(verify(&repeated).0[0], Flaw::OutOfOrder { seq: 3, expected: 4 });
    }

    #[test]
    fn rotated_files_are_one_chain_and_a_later_one_alone_begins_in_its_middle() {
        let lines = records(&mut Chain::default(), 6);
        let (flaws, verified) = verify(&lines[3..]);
        assert_eq!(flaws, []);
        assert_eq!(
            verified.map(|verified| (verified.first, verified.last)),
            Some((4, 6))
        );
        let plain = vec![b"{\"ts\":\"before the chain\"}\n".to_vec()];
        let (flaws, verified) = verify(&[plain, lines].concat());
        assert_eq!(flaws, []);
        assert_eq!(verified.map(|verified| verified.unchained), Some(1));
    }

    #[test]
    fn a_file_is_continued_after_its_last_whole_record() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        assert_eq!(Chain::continuing(&path).unwrap(), Chain::default());
        let mut chain = Chain::default();
        let mut bytes = records(&mut chain, 3).concat();
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Chain::continuing(&path).unwrap(), chain);
        bytes.extend_from_slice(b"{\"ts\":\"begun and");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Chain::continuing(&path).unwrap(), chain);
        assert!(std::fs::read(&path).unwrap().ends_with(b"\"}\n"));
        std::fs::write(&path, "{\"plain\":1}\n").unwrap();
        assert_eq!(Chain::continuing(&path).unwrap(), Chain::default());
    }

    #[test]
    fn the_digits_of_a_hash_have_one_spelling() {
        let lines = records(&mut Chain::default(), 6);
        let text = str::from_utf8(&lines[2]).unwrap();
        let (record, hash) = text.rsplit_once(":\"").unwrap();
        for other in [hash.to_uppercase(), hash.replacen('0', "+", 1)] {
            assert_ne!(other, hash);
            let mut changed = lines.clone();
            changed[2] = format!("{record}:\"{other}").into_bytes();
            assert_eq!(verify(&changed).0[0], Flaw::NoRecord, "{other}");
        }
    }

    proptest! {
        /// A change of any single byte is noticed.
        #[test]
        fn any_changed_byte_is_noticed(at in 0..900_usize, by in 1..255_u8) {
            let mut bytes = records(&mut Chain::default(), 6).concat();
            let at = at % bytes.len();
            bytes[at] = bytes[at].wrapping_add(by);
            let lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            let (flaws, verified) = verify(&lines);
            // A change of the very last hash is seen only by a reader that knows it; every other
            // change of its line is seen.
            let whole = verify(&records(&mut Chain::default(), 6)).1;
            prop_assert!(!flaws.is_empty() || verified != whole);
        }
    }
}
