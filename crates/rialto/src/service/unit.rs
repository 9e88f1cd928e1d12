//! The texts of the service: a unit of systemd, and a property list of launchd.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub(super) const SYSTEMD_NAME: &str = "rialto.service";
pub(super) const LAUNCHD_LABEL: &str = "dev.rialto.serve";

/// How many files the service may have open. launchd gives 256, and each child and each connection
/// takes some. macOS refuses more than 10240 to a process.
const LAUNCHD_FILES: u32 = 8192;

/// What runs.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) program: PathBuf,
    pub(super) config: PathBuf,
    /// The `PATH` in which the commands of servers are found.
    pub(super) path: Option<String>,
    /// Where launchd writes the log.
    pub(super) log: Option<PathBuf>,
}

impl Unit {
    fn words(&self) -> [String; 5] {
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        [
            shown(&self.program),
            "serve".to_owned(),
            "--config".to_owned(),
            shown(&self.config),
            "--watch".to_owned(),
        ]
    }

    /// Returns the unit for `systemd --user`.
    pub(super) fn systemd(&self) -> String {
        let words: Vec<String> = self.words().iter().map(|word| quoted(word, true)).collect();
        let mut text = format!(
            "[Unit]\n\
             Description=Rialto, one copy of each MCP server for all hosts\n\
             \n\
             [Service]\n\
             Type=notify\n\
             Type=notify-reload\n\
             ExecStart={}\n\
             KillMode=mixed\n\
             Restart=on-failure\n\
             RestartSec=2\n",
            words.join(" ")
        );
        if let Some(path) = &self.path {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "Environment={}", quoted(&format!("PATH={path}"), false));
        }
        text.push_str("\n[Install]\nWantedBy=default.target\n");
        text
    }

    /// Returns the property list for launchd.
    pub(super) fn launchd(&self) -> String {
        let string = |text: &str| format!("<string>{}</string>", escaped(text));
        let words: String = self
            .words()
            .iter()
            .map(|word| format!("    {}\n", string(word)))
            .collect();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
             \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <plist version=\"1.0\">\n<dict>\n  <key>Label</key>\n  {}\n  <key>ProgramArguments</key>\n  <array>\n\
             {words}  </array>\n  <key>RunAtLoad</key>\n  <true/>\n  <key>KeepAlive</key>\n  <dict>\n    \
             <key>SuccessfulExit</key>\n    <false/>\n  </dict>\n",
            string(LAUNCHD_LABEL)
        );
        if let Some(path) = &self.path {
            let _ = write!(
                text,
                "  <key>EnvironmentVariables</key>\n  <dict>\n    <key>PATH</key>\n    {}\n  </dict>\n",
                string(path)
            );
        }
        let _ = write!(
            text,
            "  <key>SoftResourceLimits</key>\n  <dict>\n    <key>NumberOfFiles</key>\n    \
             <integer>{LAUNCHD_FILES}</integer>\n  </dict>\n"
        );
        if let Some(log) = &self.log {
            let log = string(&log.to_string_lossy());
            let _ = write!(text, "  <key>StandardErrorPath</key>\n  {log}\n");
        }
        text.push_str("</dict>\n</plist>\n");
        text
    }
}

/// Returns a word for a line of a unit. In a command line a dollar sign is escaped as well.
fn quoted(word: &str, in_command: bool) -> String {
    let mut out = String::from("\"");
    for character in word.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '%' => out.push_str("%%"),
            '$' if in_command => out.push_str("$$"),
            '\n' => out.push_str("\\n"),
            character => out.push(character),
        }
    }
    out.push('"');
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit {
            program: "/opt/a b/rialto".into(),
            config: "/home/u/100%$x/destinations.yml".into(),
            path: Some("/usr/bin:/home/u/<n>&$x".to_owned()),
            log: Some("/home/u/log".into()),
        }
    }

    #[test]
    fn unit_of_systemd_names_program_file_and_path() {
        let text = unit().systemd();
        let line = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .unwrap_or_else(|| panic!("no {key} in {text}"))
                .to_owned()
        };
        assert_eq!(
            line("ExecStart="),
            "\"/opt/a b/rialto\" \"serve\" \"--config\" \"/home/u/100%%$$x/destinations.yml\" \"--watch\""
        );
        assert_eq!(line("Environment="), "\"PATH=/usr/bin:/home/u/<n>&$x\"");
        // A systemd that does not know the second one keeps to the first.
        assert!(text.contains("Type=notify\nType=notify-reload\n"), "{text}");
        assert_eq!(line("WantedBy="), "default.target");
    }

    #[test]
    fn property_list_of_launchd_is_escaped() {
        let text = unit().launchd();
        for part in [
            "<string>/opt/a b/rialto</string>",
            "<string>--watch</string>",
            "<key>NumberOfFiles</key>\n    <integer>8192</integer>",
            "<string>/usr/bin:/home/u/&lt;n&gt;&amp;$x</string>",
            "<string>dev.rialto.serve</string>",
            "<key>StandardErrorPath</key>\n  <string>/home/u/log</string>",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(text.matches("<dict>").count(), text.matches("</dict>").count());
    }
}
