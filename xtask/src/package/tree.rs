//! The files of a package before they are in an archive: sorted by path, each with its mode.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tree(BTreeMap<String, Entry>);

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    pub mode: u32,
    /// The number of the user and of the group that own it. Only an image has another than 0.
    pub owner: u64,
    pub content: Content,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Content {
    File(Arc<[u8]>),
    Directory,
}

impl Tree {
    pub fn file(&mut self, path: impl Into<String>, bytes: impl Into<Arc<[u8]>>) {
        self.put(path, 0o644, 0, Content::File(bytes.into()));
    }

    pub fn text(&mut self, path: impl Into<String>, text: &str) {
        self.file(path, text.as_bytes());
    }

    pub fn program(&mut self, path: impl Into<String>, bytes: impl Into<Arc<[u8]>>) {
        self.put(path, 0o755, 0, Content::File(bytes.into()));
    }

    pub fn directory(&mut self, path: impl Into<String>, mode: u32, owner: u64) {
        self.put(path, mode, owner, Content::Directory);
    }

    fn put(&mut self, path: impl Into<String>, mode: u32, owner: u64, content: Content) {
        let entry = Entry { mode, owner, content };
        self.0.insert(path.into(), entry);
    }

    /// Adds another tree below a directory.
    pub fn add(&mut self, below: &str, other: &Tree) {
        let entries = other.0.iter();
        self.0
            .extend(entries.map(|(path, entry)| (format!("{below}{path}"), entry.clone())));
    }

    /// Returns every entry, a directory before what is in it, also directories that were not added.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        let mut entries = BTreeMap::new();
        for (path, entry) in &self.0 {
            for (end, _) in path.match_indices('/') {
                let above = path[..end].to_owned();
                let directory = Entry {
                    mode: 0o755,
                    owner: 0,
                    content: Content::Directory,
                };
                entries.entry(above).or_insert(directory);
            }
            entries.insert(path.clone(), entry.clone());
        }
        entries
    }

    /// Returns the files with their content.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Arc<[u8]>)> {
        self.0.iter().filter_map(|(path, entry)| match &entry.content {
            Content::File(bytes) => Some((path.as_str(), bytes)),
            Content::Directory => None,
        })
    }

    /// Writes the entries below a directory, for tools that read one. Owners are left to the tool.
    pub fn write(&self, directory: &Path) -> anyhow::Result<()> {
        for (path, entry) in self.entries() {
            let place = directory.join(&path);
            let written = match &entry.content {
                Content::File(bytes) => fs::write(&place, bytes),
                Content::Directory => fs::create_dir_all(&place),
            };
            written.with_context(|| format!("cannot write {}", place.display()))?;
            fs::set_permissions(&place, Permissions::from_mode(entry.mode))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_is_in_them_and_keep_their_mode() {
        let mut tree = Tree::default();
        tree.text("usr/share/doc/a", "a");
        tree.directory("usr/share", 0o700, 7);
        let entries: Vec<_> = tree
            .entries()
            .into_iter()
            .map(|(path, entry)| (path, entry.mode, entry.owner))
            .collect();
        let expected = [
            ("usr", 0o755, 0),
            ("usr/share", 0o700, 7),
            ("usr/share/doc", 0o755, 0),
            ("usr/share/doc/a", 0o644, 0),
        ];
        assert_eq!(
            entries,
            expected.map(|(path, mode, owner)| (path.to_owned(), mode, owner))
        );
    }
}
