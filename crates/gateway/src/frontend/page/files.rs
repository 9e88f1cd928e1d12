//! The files of the page, which are part of this program.

use std::sync::OnceLock;

use aws_lc_rs::digest;
use http::HeaderValue;

/// Where the server puts the state, for browsers without scripts.
pub(super) const STATE_MARK: &str = "<!-- rialto:state -->";

/// One file.
#[derive(Debug)]
pub(super) struct File {
    /// Below `/ui/`.
    pub(super) path: &'static str,
    pub(super) content: &'static [u8],
}

macro_rules! file {
    ($path:literal) => {
        File {
            path: $path,
            content: include_bytes!(concat!("../../../ui/", $path)),
        }
    };
}

/// Every file of `crates/gateway/ui`, in the order of their paths.
pub(super) const FILES: &[File] = &[
    file!("api.js"),
    file!("app.js"),
    file!("calls.js"),
    file!("chart.js"),
    file!("confirm.js"),
    file!("destination.js"),
    file!("export.js"),
    file!("format.js"),
    file!("icon.svg"),
    file!("icons.js"),
    file!("index.html"),
    file!("limits.js"),
    file!("lit-html.LICENSE.txt"),
    file!("lit-html.js"),
    file!("mcp-client.js"),
    file!("overview.js"),
    file!("remembered.js"),
    file!("schema-form.js"),
    file!("sessions.js"),
    file!("setup.js"),
    file!("store.js"),
    file!("style.css"),
    file!("try.js"),
    file!("use-from.js"),
    file!("words.js"),
];

impl File {
    /// Returns the file at a path below `/ui/`.
    pub(super) fn at(path: &str) -> Option<&'static Self> {
        let path = if path.is_empty() { "index.html" } else { path };
        FILES.iter().find(|file| file.path == path)
    }

    /// Returns its type, by the ending of its name.
    pub(super) fn content_type(&self) -> HeaderValue {
        let ending = self.path.rsplit('.').next().unwrap_or_default();
        HeaderValue::from_static(match ending {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" | "mjs" => "text/javascript; charset=utf-8",
            "json" => "application/json",
            "svg" => "image/svg+xml",
            "png" => "image/png",
            "ico" => "image/x-icon",
            "woff2" => "font/woff2",
            _ => "text/plain; charset=utf-8",
        })
    }

    /// Returns what distinguishes this content from that of another version.
    pub(super) fn etag(&self) -> String {
        static TAGS: OnceLock<Vec<String>> = OnceLock::new();
        let tags = TAGS.get_or_init(|| {
            let of_file = |file: &File| {
                let hash = digest::digest(&digest::SHA256, file.content);
                let digits = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}"));
                format!("\"{}\"", digits.collect::<String>())
            };
            FILES.iter().map(of_file).collect()
        });
        let at = FILES.iter().position(|file| std::ptr::eq(file, self));
        at.and_then(|at| tags.get(at)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn below(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("the folder is there");
        let paths = entries.map(|entry| entry.expect("it can be read").path());
        paths
            .flat_map(|path| match path.is_dir() {
                true => below(&path),
                false => vec![path],
            })
            .collect()
    }

    #[test]
    fn every_file_of_the_page_is_in_the_table() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut there: Vec<String> = below(&folder)
            .iter()
            .map(|path| {
                path.strip_prefix(&folder)
                    .expect("it is below")
                    .display()
                    .to_string()
            })
            .collect();
        there.sort();
        let mut listed: Vec<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
        listed.sort();
        assert_eq!(there, listed);
    }

    #[test]
    fn shell_has_one_place_for_the_state() {
        let shell = File::at("").expect("the shell is there");
        let text = std::str::from_utf8(shell.content).expect("it is text");
        assert_eq!(text.matches(STATE_MARK).count(), 1);
        assert_ne!(shell.etag(), File::at("style.css").expect("it is there").etag());
    }
}
