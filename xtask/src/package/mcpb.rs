//! The bundle "Rialto Connect": a host that opens it asks for a URL, and has a remote server.

use std::sync::Arc;

use anyhow::Context;
use serde_json::{Value, json};

use super::program::Program;
use super::tree::Tree;
use super::{Artefact, Sources, archive};

pub fn build(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Artefact> {
    let mut tree = Tree::default();
    let manifest = manifest(sources)?;
    tree.text("manifest.json", &format!("{manifest:#}\n"));
    tree.program("server/rialto", Arc::clone(&program.bytes));
    tree.add("", &sources.licences(program)?);
    let name = format!("rialto-connect-{}-linux-x64.mcpb", sources.version.semver());
    Ok(Artefact::new(name, archive::zip(&tree, sources.version.epoch)?))
}

fn manifest(sources: &Sources<'_>) -> anyhow::Result<Value> {
    let text = sources.text("packaging/mcpb/manifest.json")?;
    let mut manifest: Value = serde_json::from_str(&text).context("the manifest is JSON")?;
    manifest["version"] = json!(sources.version.semver());
    if let Some(repository) = &sources.repository_url {
        manifest["repository"] = json!({ "type": "git", "url": repository });
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::version::Version;

    #[test]
    fn every_setting_that_is_used_has_a_value_in_every_host() {
        let repository = crate::repository().unwrap();
        let version = Version::of_test(true, true);
        let manifest = manifest(&Sources::of_test(&repository, &version)).unwrap();
        assert_eq!(manifest["version"], "0.1.0");
        // A host leaves `${user_config.…}` as it is for a setting without value and default, and
        // the server would be sent that text as a token.
        let settings = manifest["user_config"].as_object().unwrap();
        for (name, setting) in settings {
            let is_set = setting["required"] == true || setting["default"].is_string();
            assert!(is_set, "{name}");
            let used = manifest["server"].to_string();
            assert!(used.contains(&format!("${{user_config.{name}}}")), "{name}");
        }
    }
}
