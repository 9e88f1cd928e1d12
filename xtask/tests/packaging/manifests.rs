//! Version and words of the project are in one place, and manifests that repeat them agree.

use std::process::Command;

use serde_json::Value;

use crate::{read, repository, run};

fn package() -> Value {
    let output = run(Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(repository()));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let found = packages.iter().find(|package| package["name"] == "rialto");
    found.expect("the package `rialto`").clone()
}

#[test]
fn package_says_what_registries_show() {
    let package = package();
    for key in ["description", "license", "repository", "homepage"] {
        assert!(package[key].is_string(), "{key}");
    }
    for key in ["keywords", "categories"] {
        assert!(!package[key].as_array().expect("a list").is_empty(), "{key}");
    }
}

#[test]
fn chart_has_the_version_and_the_words_of_the_program() {
    let package = package();
    let chart: Value = serde_saphyr::from_str(&read("packaging/helm/rialto/Chart.yaml")).expect("YAML");
    assert_eq!(chart["version"], package["version"]);
    assert_eq!(chart["appVersion"], package["version"]);
    assert_eq!(chart["description"], package["description"]);
    assert_eq!(chart["home"], package["homepage"]);
    assert_eq!(chart["sources"][0], package["repository"]);
    assert_eq!(chart["keywords"], package["keywords"]);
}

#[test]
fn values_of_the_chart_stay_readable() {
    let lines = read("packaging/helm/rialto/values.yaml").lines().count();
    assert!(lines < 250, "{lines} lines");
}

/// An image is built by the compiler that the project is built by.
#[test]
fn image_has_the_compiler_of_the_project() {
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = \""))
        .and_then(|rest| rest.strip_suffix('"'))
        .expect("a channel");
    let minor = channel.rsplit_once('.').expect("three numbers").0;
    let image = format!("FROM rust:{minor}-bookworm AS source");
    assert!(read("packaging/docker/Dockerfile").contains(&image), "{image}");
}
