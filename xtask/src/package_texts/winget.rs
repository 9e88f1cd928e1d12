//! Manifests for winget: the released zip of Windows, once there is one. winget wants three files.

use serde_json::Value;

use super::Text;
use super::release::Release;

const TARGET: &str = "x86_64-pc-windows-msvc";
const IDENTIFIER: &str = "Rialto.Rialto";
const PUBLISHER: &str = "Rialto contributors";
const SCHEMA: &str = "1.12.0";
const LOCALE: &str = "en-US";

pub fn texts(release: &Release) -> Vec<Text> {
    let Some(download) = release.archive(TARGET, "zip") else {
        return Vec::new();
    };
    let head = [
        ("PackageIdentifier", IDENTIFIER),
        ("PackageVersion", &release.version),
    ];
    let version = file("", "version", &head, &format!("DefaultLocale: {LOCALE}\n"));
    let installer = format!(
        "InstallerType: zip\n\
         NestedInstallerType: portable\n\
         NestedInstallerFiles:\n\
         - RelativeFilePath: {path}\n  PortableCommandAlias: rialto\n\
         Commands:\n- rialto\n\
         Installers:\n\
         - Architecture: x64\n  InstallerUrl: {url}\n  InstallerSha256: {hash}\n",
        path = quoted(&format!("rialto-{}-{TARGET}\\rialto.exe", release.version)),
        url = quoted(&download.url),
        hash = quoted(&download.sha256.to_ascii_uppercase()),
    );
    let installer = file(".installer", "installer", &head, &installer);
    let mut tags = String::new();
    for keyword in &release.keywords {
        tags += &format!("- {}\n", quoted(keyword));
    }
    let locale = format!(
        "PackageLocale: {LOCALE}\n\
         Publisher: {PUBLISHER}\n\
         PackageName: Rialto\n\
         PackageUrl: {url}\n\
         License: {license}\n\
         ShortDescription: {description}\n\
         Moniker: rialto\n\
         Tags:\n{tags}",
        url = quoted(&release.repository),
        license = quoted(&release.license),
        description = quoted(&release.description),
    );
    let locale = file(&format!(".locale.{LOCALE}"), "defaultLocale", &head, &locale);
    vec![version, installer, locale]
}

fn file(suffix: &str, kind: &str, head: &[(&str, &str)], body: &str) -> Text {
    let mut content = String::new();
    for (key, value) in head {
        content += &format!("{key}: {}\n", quoted(value));
    }
    content += body;
    content += &format!("ManifestType: {kind}\nManifestVersion: {SCHEMA}\n");
    Text {
        file: format!("winget/{IDENTIFIER}{suffix}.yaml"),
        content,
    }
}

/// Returns a YAML string in double quotes, which JSON's strings are.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
