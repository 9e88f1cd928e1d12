//! The files of Rialto in a system, for deb and rpm: the program, its units and its configuration.

use std::sync::Arc;

use anyhow::bail;

use super::Sources;
use super::program::Program;
use super::tree::Tree;

/// The configuration of the service, which administrators change.
pub const CONFIGURATION: &str = "etc/rialto/destinations.yml";

/// Returns everything but the documentation, below `/`. Distributions do not agree on the folder in
/// which zsh looks.
pub fn files(sources: &Sources<'_>, program: &Program, zsh: &str) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.program("usr/bin/rialto", Arc::clone(&program.bytes));
    tree.add("usr/", &program.system_files()?);
    tree.file(format!("{zsh}/_rialto"), Arc::clone(&program.shell.zsh));
    let unit = |name: &str| sources.text(&format!("packaging/systemd/{name}"));
    tree.text(
        "usr/lib/systemd/system/rialto.service",
        &with_own_user(&unit("rialto.service")?)?,
    );
    tree.text("usr/lib/systemd/system/rialto.socket", &unit("rialto.socket")?);
    tree.text(
        "usr/lib/systemd/user/rialto.service",
        &unit("rialto-user.service")?,
    );
    tree.text(CONFIGURATION, &sources.text("packaging/deb/destinations.yml")?);
    Ok(tree)
}

/// Returns the unit for a user that the package makes. The configuration may have secrets, and only
/// a user that exists before the service starts can be given the right to read it.
fn with_own_user(unit: &str) -> anyhow::Result<String> {
    const DYNAMIC: &str = "DynamicUser=yes\n";
    if unit.matches(DYNAMIC).count() != 1 {
        bail!("rialto.service has not exactly one line DynamicUser=yes");
    }
    // DynamicUser= means the last line too.
    Ok(unit.replace(DYNAMIC, "User=rialto\nGroup=rialto\nRemoveIPC=yes\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_of_a_package_has_the_user_of_the_package() {
        let repository = crate::repository().unwrap();
        let unit = std::fs::read_to_string(repository.join("packaging/systemd/rialto.service")).unwrap();
        let packaged = with_own_user(&unit).unwrap();
        assert!(packaged.contains("\nUser=rialto\nGroup=rialto\n"), "{packaged}");
        assert!(!packaged.contains("DynamicUser"), "{packaged}");
        assert!(with_own_user(&packaged).is_err());
    }

    #[test]
    fn user_unit_is_what_service_install_writes() {
        let repository = crate::repository().unwrap();
        let unit = std::fs::read_to_string(repository.join("packaging/systemd/rialto-user.service")).unwrap();
        for line in ["KillMode=mixed", "Type=notify-reload", "WantedBy=default.target"] {
            assert!(unit.lines().any(|found| found == line), "{line}");
        }
    }
}
