//! The container image, made without an engine: an OCI layout in a tar archive.
//!
//! It has the static program, certificates, a user without rights and nothing else: no shell and
//! no libraries.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::program::Program;
use super::tree::Tree;
use super::{Artefact, Sources, archive, checksum};

/// The user of the process; the number that images without root use.
const USER: u64 = 65532;

const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

pub fn build(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Artefact> {
    let epoch = sources.version.epoch;
    let layer = archive::tar(&root(sources, program)?, epoch)?;
    let mut layout = Layout::default();
    let packed = layout.blob(
        "application/vnd.oci.image.layer.v1.tar+gzip",
        archive::gzip(&layer)?,
    );
    // The image names its layer as it is unpacked.
    let config = config(sources, &checksum::sha256(&layer));
    let config = layout.blob("application/vnd.oci.image.config.v1+json", config.to_string());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [packed],
    });
    let mut manifest = layout.blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string());
    manifest["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": sources.version.semver() });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    layout.0.text("index.json", &index.to_string());
    layout.0.text(
        "oci-layout",
        &json!({ "imageLayoutVersion": "1.0.0" }).to_string(),
    );
    let name = format!("rialto-{}-oci.tar", sources.version.semver());
    Ok(Artefact::new(name, archive::tar(&layout.0, epoch)?))
}

/// The files of a layout.
#[derive(Debug, Default)]
struct Layout(Tree);

impl Layout {
    /// Adds a file under its checksum, and returns what refers to it.
    fn blob(&mut self, media_type: &str, bytes: impl Into<Vec<u8>>) -> Value {
        let bytes = bytes.into();
        let sum = checksum::sha256(&bytes);
        let size = bytes.len();
        self.0.file(format!("blobs/sha256/{sum}"), bytes);
        json!({ "mediaType": media_type, "digest": format!("sha256:{sum}"), "size": size })
    }
}

/// Returns the files of the image.
fn root(sources: &Sources<'_>, program: &Program) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    tree.program("usr/local/bin/rialto", Arc::clone(&program.bytes));
    tree.text(CERTIFICATES, &certificates());
    tree.text(
        "etc/passwd",
        &format!(
            "root:x:0:0:root:/:/nonexistent\nrialto:x:{USER}:{USER}:Rialto:/var/lib/rialto:/nonexistent\n"
        ),
    );
    tree.text("etc/group", &format!("root:x:0:\nrialto:x:{USER}:\n"));
    // Without it glibc has no name for the loopback address if there is no DNS.
    tree.text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
    tree.directory("etc/rialto", 0o755, 0);
    tree.directory("var/lib/rialto", 0o700, USER);
    tree.directory("tmp", 0o1777, 0);
    tree.add("usr/share/licenses/rialto/", &sources.licences(program)?);
    Ok(tree)
}

/// Returns the certificates of Mozilla's authorities, as OpenSSL and rustls read them.
fn certificates() -> String {
    let certificates = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    certificates
        .map(|certificate| {
            let text = BASE64_STANDARD.encode(certificate);
            let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
            let lines = lines.collect::<Vec<_>>().join("\n");
            format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
        })
        .collect()
}

fn config(sources: &Sources<'_>, layer: &str) -> Value {
    let created = archive::rfc3339(sources.version.epoch);
    let mut labels = json!({
        "org.opencontainers.image.title": "rialto",
        "org.opencontainers.image.description": "Any MCP client, any MCP server: one native binary in between",
        "org.opencontainers.image.version": sources.version.semver(),
        "org.opencontainers.image.revision": sources.version.build(),
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    });
    if let Some(repository) = &sources.repository_url {
        labels["org.opencontainers.image.source"] = json!(repository);
    }
    json!({
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": { "3000/tcp": {} },
            "Env": [
                "PATH=/usr/local/bin:/usr/bin:/bin",
                "HOME=/var/lib/rialto",
                "RIALTO_STATE_DIR=/var/lib/rialto/state",
                format!("SSL_CERT_FILE=/{CERTIFICATES}"),
            ],
            "Entrypoint": ["/usr/local/bin/rialto"],
            "Cmd": [
                "serve", "--listen", "0.0.0.0:3000",
                "--config", "/etc/rialto/destinations.yml", "--log-format", "json",
            ],
            "WorkingDir": "/var/lib/rialto",
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        "history": [{ "created": created, "created_by": "cargo xtask package oci" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::version::Version;

    #[test]
    fn image_runs_as_a_user_without_rights_and_stops_on_sigterm() {
        let repository = crate::repository().unwrap();
        let version = Version::of_test(true, true);
        let config = config(&Sources::of_test(&repository, &version), "abc");
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["StopSignal"], "SIGTERM");
        assert_eq!(config["rootfs"]["diff_ids"][0], "sha256:abc");
        assert_eq!(config["created"], "2026-11-18T11:06:40Z");
    }

    #[test]
    fn blobs_are_named_after_their_content() {
        let mut layout = Layout::default();
        let reference = layout.blob("text/plain", "abc");
        let sum = checksum::sha256(b"abc");
        assert_eq!(reference["digest"], format!("sha256:{sum}"));
        assert_eq!(reference["size"], 3);
        let files: Vec<_> = layout.0.files().map(|(path, _)| path.to_owned()).collect();
        assert_eq!(files, [format!("blobs/sha256/{sum}")]);
    }

    #[test]
    fn certificates_are_many_and_in_lines_that_openssl_reads() {
        let text = certificates();
        assert!(text.matches("-----BEGIN CERTIFICATE-----\n").count() > 100);
        assert!(text.lines().all(|line| line.len() <= 64));
    }
}
