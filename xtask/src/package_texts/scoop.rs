//! A manifest for scoop: the released zip of Windows, once there is one.

use serde_json::json;

use super::Text;
use super::release::Release;

const TARGET: &str = "x86_64-pc-windows-msvc";

pub fn texts(release: &Release) -> Vec<Text> {
    let Some(download) = release.archive(TARGET, "zip") else {
        return Vec::new();
    };
    let manifest = json!({
        "version": release.version,
        "description": release.description,
        "homepage": release.repository,
        // A vertical bar separates licences of which a user may choose one.
        "license": release.licences().join("|"),
        "architecture": {
            "64bit": {
                "url": download.url,
                "hash": download.sha256,
                "extract_dir": format!("rialto-{}-{TARGET}", release.version),
            },
        },
        "bin": "rialto.exe",
        "checkver": { "url": format!("{}/releases", release.repository), "regex": "/v([\\d.]+)" },
        "autoupdate": {
            "architecture": {
                "64bit": {
                    "url": format!(
                        "{}/releases/download/v$version/rialto-$version-{TARGET}.zip",
                        release.repository
                    ),
                    "extract_dir": format!("rialto-$version-{TARGET}"),
                },
            },
            "hash": { "url": "$baseurl/SHA256SUMS" },
        },
    });
    vec![Text {
        file: "scoop/rialto.json".to_owned(),
        content: format!("{manifest:#}\n"),
    }]
}
