//! A formula for Homebrew: the released tarballs of macOS and Linux.

use std::fmt::Write as _;

use super::Text;
use super::release::{Download, Release};

/// The first request of a client, which the formula sends to the demo server.
const HANDSHAKE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
    r#""capabilities":{},"clientInfo":{"name":"brew","version":"1"}}}"#
);

pub fn texts(release: &Release) -> Vec<Text> {
    let macos = release.archive("universal-apple-darwin", "tar.gz");
    let intel = release.archive("x86_64-unknown-linux-gnu", "tar.gz");
    let arm = release.archive("aarch64-unknown-linux-gnu", "tar.gz");
    if macos.is_none() && intel.is_none() && arm.is_none() {
        return Vec::new();
    }
    let mut out = format!(
        "class Rialto < Formula\n  desc {}\n  homepage {}\n  version {}\n  license any_of: [{}]\n",
        quoted(&release.description),
        quoted(&release.repository),
        quoted(&release.version),
        release
            .licences()
            .iter()
            .map(|licence| quoted(licence))
            .collect::<Vec<_>>()
            .join(", ")
    );
    if let Some(download) = &macos {
        let _ = write!(out, "\n  on_macos do\n{}  end\n", source(download, 4));
    }
    if intel.is_some() || arm.is_some() {
        out.push_str("\n  on_linux do\n");
        for (block, download) in [("on_intel", &intel), ("on_arm", &arm)] {
            if let Some(download) = download {
                let _ = write!(out, "    {block} do\n{}    end\n", source(download, 6));
            }
        }
        out.push_str("  end\n");
    }
    let _ = write!(
        out,
        r##"
  def install
    bin.install "rialto"
    bash_completion.install "completions/rialto.bash" => "rialto"
    zsh_completion.install "completions/_rialto"
    fish_completion.install "completions/rialto.fish"
    man1.install Dir["man/man1/*.1"]
  end

  service do
    run [opt_bin/"rialto", "serve", "--config", etc/"rialto/destinations.yml"]
    keep_alive successful_exit: false
    log_path var/"log/rialto.log"
    error_log_path var/"log/rialto.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/rialto --version")
    request = {handshake}
    assert_match "serverInfo", pipe_output("#{{bin}}/rialto demo-server", "#{{request}}\n")
  end
end
"##,
        handshake = quoted(HANDSHAKE)
    );
    vec![Text {
        file: "homebrew/rialto.rb".to_owned(),
        content: out,
    }]
}

fn source(download: &Download<'_>, indent: usize) -> String {
    let space = " ".repeat(indent);
    format!(
        "{space}url {}\n{space}sha256 {}\n",
        quoted(&download.url),
        quoted(download.sha256)
    )
}

/// Returns a Ruby string in which nothing is interpolated.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        if matches!(character, '"' | '\\' | '#') {
            out.push('\\');
        }
        out.push(character);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(names: &[&str]) -> String {
        names
            .iter()
            .map(|name| format!("{}  rialto-1.2.3-{name}.tar.gz\n", "cd".repeat(32)))
            .collect()
    }

    #[test]
    fn formula_has_the_systems_of_the_release_and_no_other() {
        let all = sums(&[
            "universal-apple-darwin",
            "x86_64-unknown-linux-gnu",
            "aarch64-unknown-linux-gnu",
        ]);
        let formula = &texts(&Release::example(&all))[0].content;
        for part in [
            "on_macos do",
            "on_linux do",
            "on_intel do",
            "on_arm do",
            "version \"1.2.3\"",
        ] {
            assert!(formula.contains(part), "no {part} in {formula}");
        }
        let linux = sums(&["x86_64-unknown-linux-gnu"]);
        let formula = &texts(&Release::example(&linux))[0].content;
        assert!(
            !formula.contains("on_macos") && !formula.contains("on_arm"),
            "{formula}"
        );
        assert_eq!(formula.matches("sha256").count(), 1);
    }

    #[test]
    fn strings_are_not_interpolated() {
        assert_eq!(quoted(r#"a "b" #{c} \d"#), r#""a \"b\" \#{c} \\d""#);
    }
}
