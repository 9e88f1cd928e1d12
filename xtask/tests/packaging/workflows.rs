//! The workflows of the forge, and the files of container engines.

use std::fs;

use serde_json::Value;

use crate::{passes, read, repository, tool};

fn workflows() -> Vec<std::path::PathBuf> {
    let folder = fs::read_dir(repository().join(".github/workflows")).expect("the workflows");
    let mut files: Vec<_> = folder.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

#[test]
fn workflows_keep_to_their_schema() {
    passes(
        tool("check-jsonschema")
            .args(["--builtin-schema", "vendor.github-workflows"])
            .args(workflows()),
    );
}

#[test]
fn workflows_have_no_known_weakness() {
    passes(
        tool("zizmor")
            .args(["--offline", "--no-progress", "--config"])
            .arg(repository().join(".github/zizmor.yml"))
            .args(workflows()),
    );
}

/// A token for a registry would outlive the job that uses it.
#[test]
fn release_uses_no_secret() {
    let text = read(".github/workflows/release.yml");
    assert!(!text.contains("secrets."), "a registry trusts the job itself");
    let workflow: Value = serde_saphyr::from_str(&text).expect("YAML");
    let jobs = workflow["jobs"].as_object().expect("jobs");
    assert_eq!(workflow["permissions"]["contents"], "read");
    for (name, job) in jobs {
        let publishes = ["attach", "pypi", "npm"].contains(&name.as_str());
        let only_for_tags = job["if"] == "github.ref_type == 'tag'";
        assert_eq!(publishes, only_for_tags, "{name}");
        // What may write or sign cannot be had without saying so.
        let rights = job["permissions"].as_object();
        let writes = rights.is_some_and(|rights| rights.values().any(|right| right == "write"));
        assert_eq!(writes, publishes || name == "collect", "{name}");
    }
}

/// The release is made of what was checked, and of nothing that failed.
#[test]
fn release_waits_for_the_checks_of_both_systems() {
    let workflow: Value = serde_saphyr::from_str(&read(".github/workflows/release.yml")).expect("YAML");
    let jobs = &workflow["jobs"];
    assert_eq!(jobs["checks"]["uses"], "./.github/workflows/ci.yml");
    assert_eq!(jobs["checks-macos"]["uses"], "./.github/workflows/macos.yml");
    let needs = |job: &str| -> Vec<String> {
        match &jobs[job]["needs"] {
            Value::String(one) => vec![one.clone()],
            Value::Array(all) => all
                .iter()
                .filter_map(|each| Some(each.as_str()?.to_owned()))
                .collect(),
            other => panic!("{job} needs {other}"),
        }
    };
    for wanted in ["linux", "linux-arm64", "macos", "checks", "checks-macos"] {
        assert!(needs("collect").contains(&wanted.to_owned()), "{wanted}");
    }
    assert!(needs("attach").contains(&"collect".to_owned()));
    for registry in ["pypi", "npm"] {
        assert!(needs(registry).contains(&"attach".to_owned()), "{registry}");
    }
}

#[test]
fn dockerfile_has_no_known_weakness() {
    passes(tool("hadolint").arg(repository().join("packaging/docker/Dockerfile")));
}

/// Each image that the file makes: the last stages, of which each has an entry point.
#[test]
fn images_run_as_an_ordinary_user_and_end_by_sigterm() {
    let text = read("packaging/docker/Dockerfile");
    let images: Vec<&str> = text
        .split("\nFROM ")
        .skip(1)
        .filter(|stage| stage.contains("\nENTRYPOINT "))
        .collect();
    assert_eq!(images.len(), 3);
    for image in images {
        for line in [
            "USER 10001:10001",
            "STOPSIGNAL SIGTERM",
            "ENTRYPOINT [\"/usr/local/bin/rialto\"]",
        ] {
            assert!(image.lines().any(|found| found == line), "no {line} in {image}");
        }
    }
}

#[test]
fn scripts_have_no_known_weakness() {
    for script in ["packaging/smoke.sh", "packaging/tarball.sh"] {
        passes(tool("shellcheck").arg(repository().join(script)));
    }
}

/// `cargo xtask package` writes the commit and its date in this way.
#[test]
fn every_build_of_a_release_is_marked_alike() {
    let text = read(".github/workflows/release.yml");
    let marks: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("RIALTO_BUILD="))
        .collect();
    assert_eq!(marks.len(), 3);
    for mark in marks {
        assert_eq!(
            mark,
            r#""$(git rev-parse --short=8 HEAD) $(git show --no-patch --format=%cs)""#
        );
    }
}
