//! Archives whose bytes depend on their content and one point in time alone.
//!
//! Entries are sorted; users have numbers and no names; each entry has the time of the commit.

use std::io::{Cursor, Write as _};

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::tree::{Content, Tree};

/// Returns a tar archive.
pub fn tar(tree: &Tree, epoch: u64) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, entry) in tree.entries() {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.owner);
        header.set_gid(entry.owner);
        header.set_mtime(epoch);
        header.set_size(0);
        let added = match &entry.content {
            Content::File(bytes) => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, &path, &**bytes)
            }
            Content::Directory => {
                header.set_entry_type(EntryType::Directory);
                archive.append_data(&mut header, format!("{path}/"), std::io::empty())
            }
        };
        added.with_context(|| format!("cannot put {path} into the archive"))?;
    }
    archive.into_inner().context("the archive is in memory")
}

/// Returns the bytes compressed, without a name or a time.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
    compressed.write_all(bytes).context("the archive is in memory")?;
    compressed.finish().context("the archive is in memory")
}

pub fn tar_gz(tree: &Tree, epoch: u64) -> anyhow::Result<Vec<u8>> {
    gzip(&tar(tree, epoch)?)
}

/// Returns a zip archive. It has files alone: wheels have no entries of directories.
pub fn zip(tree: &Tree, epoch: u64) -> anyhow::Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let time = time(epoch)?;
    for (path, entry) in tree.entries() {
        let Content::File(bytes) = &entry.content else {
            continue;
        };
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(time)
            .unix_permissions(entry.mode);
        archive.start_file(path, options)?;
        archive.write_all(bytes).context("the archive is in memory")?;
    }
    Ok(archive.finish()?.into_inner())
}

/// Returns a point in time as zip writes it: in UTC, by two seconds.
fn time(epoch: u64) -> anyhow::Result<DateTime> {
    let (year, month, day) = day(epoch / 86_400);
    let second = epoch % 86_400;
    let [hour, minute, second] = [second / 3600, second / 60 % 60, second % 60].map(|part| part as u8);
    DateTime::from_date_and_time(year, month, day, hour, minute, second)
        .map_err(|_| anyhow::anyhow!("zip has no date before 1980: {epoch}"))
}

/// Returns a point in time as OCI and CycloneDX write it.
pub fn rfc3339(epoch: u64) -> String {
    let (year, month, day) = day(epoch / 86_400);
    let second = epoch % 86_400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the year, month and day of a day since 1970.
fn day(mut days: u64) -> (u16, u8, u8) {
    let is_leap =
        |year: u16| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days as u8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: [&str; 3]) -> Tree {
        let mut tree = Tree::default();
        for name in names {
            tree.program(name, name.as_bytes());
        }
        tree
    }

    #[test]
    fn archives_do_not_depend_on_the_order_or_the_day_of_packing() {
        let (one, other) = (tree(["b/x", "a", "c"]), tree(["c", "b/x", "a"]));
        assert_eq!(tar_gz(&one, 1000).unwrap(), tar_gz(&other, 1000).unwrap());
        let time = 1_795_000_000;
        assert_eq!(zip(&one, time).unwrap(), zip(&other, time).unwrap());
        assert_ne!(tar_gz(&one, 1000).unwrap(), tar_gz(&one, 2000).unwrap());
        assert_ne!(zip(&one, time).unwrap(), zip(&one, time + 2).unwrap());
    }

    #[test]
    fn entries_of_an_archive_have_their_mode_and_no_user_of_this_machine() {
        let mut tree = tree(["b/x", "a", "c"]);
        tree.directory("home", 0o700, 65532);
        let bytes = tar(&tree, 1000).unwrap();
        let mut archive = tar::Archive::new(&*bytes);
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let path = entry.path().unwrap().display().to_string();
                let header = entry.header();
                assert_eq!(header.mtime().unwrap(), 1000);
                assert_eq!(header.username().unwrap().unwrap_or_default(), "");
                (path, header.mode().unwrap(), header.uid().unwrap())
            })
            .collect();
        let expected = [
            ("a", 0o755, 0),
            ("b/", 0o755, 0),
            ("b/x", 0o755, 0),
            ("c", 0o755, 0),
            ("home/", 0o700, 65532),
        ];
        assert_eq!(
            found,
            expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner))
        );
    }

    #[test]
    fn points_in_time_are_written_in_utc() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_046_399), "2026-11-18T23:59:59Z");
        assert!(time(0).is_err(), "zip begins in 1980");
    }
}
