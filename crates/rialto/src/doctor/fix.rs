//! What `--fix` does: modes of files, and the name of a key. Nothing else is safe without a person.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use super::finding::{Fix, Report};
use crate::hosts::{edit, safe_file};

/// Applies what is safe, and notes in each finding whether it is cured.
pub(crate) fn apply(report: &mut Report) -> Vec<String> {
    let mut problems = Vec::new();
    for finding in &mut report.findings {
        let done = match &finding.fix {
            None => continue,
            Some(Fix::Close(path)) => close(path).map_err(|why| (path, why)),
            Some(Fix::RenameKey { file, from, to }) => rename_key(file, from, to).map_err(|why| (file, why)),
        };
        match done {
            Ok(()) => finding.is_fixed = true,
            Err((path, why)) => problems.push(format!("{} {why}", path.display())),
        }
    }
    problems
}

/// Takes all rights from other users. A link is left alone: its target may be meant for others.
fn close(path: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot be closed to others: {error}");
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    if metadata.is_symlink() {
        return Err("is a link: close its target to others".to_owned());
    }
    let mode = metadata.mode() & 0o700;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)
}

fn rename_key(path: &Path, from: &str, to: &str) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let renamed = edit::with_key_renamed(&text, from, to).ok_or("was changed meanwhile")?;
    safe_file::replace(path, text.as_bytes(), renamed.as_bytes()).map_err(|refusal| refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::{Cure, Finding, Group, Weight};

    #[test]
    fn fixes_are_applied_and_what_is_refused_stays() {
        let folder = tempfile::tempdir().expect("a directory");
        let (open, link) = (folder.path().join("open"), folder.path().join("link"));
        fs::write(&open, "x").expect("written");
        fs::set_permissions(&open, Permissions::from_mode(0o644)).expect("set");
        std::os::unix::fs::symlink(&open, &link).expect("linked");
        let mut report = Report::default();
        for path in [&open, &link] {
            let cure = Cure::Do("x".into());
            let finding = Finding::new((Group::Hosts, "x"), ("x", Weight::Act), "x", "x", cure);
            report.find(finding.fixed_by(Fix::Close(path.clone())));
        }
        let problems = apply(&mut report);
        assert_eq!(fs::metadata(&open).expect("there").mode() & 0o777, 0o600);
        assert!(report.findings[0].is_fixed && !report.findings[1].is_fixed);
        assert!(problems[0].contains("is a link"), "{problems:?}");
        assert_eq!(report.exit_code(), 11);
    }

    #[test]
    fn key_is_renamed_and_everything_else_stays() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("mcp.json");
        let text = "{ // mine\n  \"mcpServers\" : { \"mcpServers\": {}, },\n}\n";
        fs::write(&file, text).expect("written");
        rename_key(&file, "mcpServers", "servers").expect("renamed");
        let after = fs::read_to_string(&file).expect("read");
        assert_eq!(after, "{ // mine\n  \"servers\" : { \"mcpServers\": {}, },\n}\n");
        assert!(rename_key(&file, "mcpServers", "servers").is_err());
    }
}
