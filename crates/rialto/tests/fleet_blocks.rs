//! The files of a fleet that other programs read: Compose, Kubernetes, nginx. Each is parsed, and
//! the configuration of Rialto in it is checked by Rialto, with a real engine.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::Value;
use testkit::interop::test_deps;
use testkit::redis::Redis;
use testkit::{Failure, PATIENCE, Result, Rialto};

const COMPOSE: &str = include_str!("../../../packaging/fleet/compose.yml");
const DESTINATIONS: &str = include_str!("../../../packaging/fleet/destinations.yml");
const NGINX: &str = include_str!("../../../packaging/fleet/nginx.conf");
const KUBERNETES: &str = include_str!("../../../packaging/fleet/kubernetes.yml");
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");
/// What children get to end beyond the drain.
const CHILDREN_SECONDS: u64 = 5;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("it is YAML")
}

fn manifests() -> Vec<Value> {
    KUBERNETES.split("\n---\n").map(yaml).collect()
}

fn manifest(kind: &str) -> Value {
    let mut all = manifests().into_iter();
    all.find(|manifest| manifest["kind"] == kind)
        .unwrap_or_else(|| panic!("there is a {kind}"))
}

/// The configuration that Kubernetes mounts.
fn mounted() -> String {
    let map = manifest("ConfigMap");
    map["data"]["destinations.yml"]
        .as_str()
        .expect("a text")
        .to_owned()
}

fn seconds(text: &str) -> u64 {
    text.trim_end_matches('s').parse().expect("seconds")
}

/// How long a replica with this configuration may take to end.
fn end_seconds(config: &str) -> u64 {
    let config = yaml(config);
    seconds(config["drain_timeout"].as_str().expect("a text")) + CHILDREN_SECONDS
}

fn assert_documented(variable: &str) {
    let quoted = format!("`{variable}`");
    assert!(CONFIGURATION.contains(&quoted), "{variable} is documented");
}

/// Lets Rialto check a configuration, with the engine, the key and the addresses of a test.
async fn assert_accepted(config: &str) -> Result<()> {
    let redis = Redis::start()?;
    let config = config.replace("rialto demo-server", "'{stub}'");
    let launcher = Rialto::launcher().verb(&["check"]).config(&config);
    let key = launcher.dir().join("cluster.key");
    let made = cluster::ClusterKey::generate().map_err(|error| Failure::new(error.to_string()))?;
    std::fs::write(&key, made.to_text())?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o440))?;
    let hash = format!("sha256:{}", "0".repeat(64));
    let checked = launcher
        .env("RIALTO_CLUSTER_URL", &redis.url())
        .env("RIALTO_CLUSTER_KEY_FILE", &key.to_string_lossy())
        .env("RIALTO_CLUSTER_LISTEN", "127.0.0.1:0")
        .env("POD_IP", "10.1.2.3")
        .env("RIALTO_TOKEN_HASH", &hash)
        .run(PATIENCE)
        .await?;
    assert_eq!(checked.code(), Some(0), "{}", checked.stderr_text());
    Ok(())
}

#[tokio::test]
async fn configurations_of_the_fleet_are_accepted() -> Result<()> {
    assert_accepted(DESTINATIONS).await?;
    assert_accepted(&mounted()).await
}

#[test]
fn compose_has_three_replicas_that_nginx_and_the_engine_know() {
    let compose = yaml(COMPOSE);
    let services = compose["services"].as_object().expect("a map");
    let replicas: Vec<(&String, &Value)> = services
        .iter()
        .filter(|(_, service)| service["image"] == "rialto")
        .collect();
    assert_eq!(replicas.len(), 3);
    for (name, service) in replicas {
        let upstream = format!("server {name}:3000 ");
        assert!(NGINX.contains(&upstream), "{upstream}");
        let environment = service["environment"].as_object().expect("a map");
        environment
            .keys()
            .for_each(|variable| assert_documented(variable));
        assert_eq!(environment["RIALTO_CLUSTER_NAME"], name.as_str());
        assert_eq!(environment["RIALTO_CLUSTER_ADVERTISE"], format!("{name}:3001"));
        let grace = seconds(service["stop_grace_period"].as_str().expect("a text"));
        assert!(grace > end_seconds(DESTINATIONS), "{grace}");
        let config = yaml(DESTINATIONS);
        let key = config["cluster"]["key_file"].as_str().expect("a path");
        let mounts = service["volumes"].to_string();
        assert!(mounts.contains(&format!(":{key}:ro")), "{mounts}");
    }
    let engine = services["valkey"]["command"].to_string();
    assert!(engine.contains("noeviction"), "{engine}");
    assert!(DESTINATIONS.contains("redis://valkey:6379"));
}

#[test]
fn manifest_names_ports_times_and_a_key_that_rialto_accepts() {
    let spec = &manifest("Deployment")["spec"];
    assert_eq!(spec["replicas"], 3);
    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    let stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        .as_u64()
        .expect("seconds");
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    assert!(grace > stop + end_seconds(&mounted()), "{grace}");
    let config = yaml(&mounted());
    for (index, address) in [&config["listen"], &config["cluster"]["listen"]]
        .into_iter()
        .enumerate()
    {
        let port = container["ports"][index]["containerPort"].to_string();
        assert!(
            address
                .as_str()
                .is_some_and(|text| text.ends_with(&format!(":{port}")))
        );
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        match variable["name"].as_str() {
            Some("POD_IP") => assert!(mounted().contains("${POD_IP}:3001")),
            name => assert_documented(name.expect("a name")),
        }
    }
    let volumes = pod["volumes"].as_array().expect("a list");
    let key = &volumes[1]["secret"];
    let mode = key["defaultMode"].as_u64().expect("a number");
    assert_eq!(mode & 0o027, 0, "other users cannot read the key");
    let folder = &container["volumeMounts"][1]["mountPath"];
    let file = format!("{}/{}", folder.as_str().unwrap_or_default(), "cluster.key");
    assert_eq!(config["cluster"]["key_file"], file.as_str());
    assert_eq!(key["items"][0]["path"], "cluster.key");
    for (probe, path) in [("livenessProbe", "/health"), ("readinessProbe", "/ready")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
    }
    assert_eq!(config["auth"]["public"][0], "ready", "probes have no token");
    let service = manifest("Service");
    assert!(service["spec"]["sessionAffinity"].is_null());
    assert_eq!(
        service["spec"]["selector"], spec["selector"]["matchLabels"],
        "the service finds the pods"
    );
}

#[test]
fn nginx_accepts_its_file_and_repeats_no_post() -> Result<()> {
    assert!(!NGINX.contains("non_idempotent;"));
    assert!(NGINX.contains("proxy_next_upstream error;"));
    let files = tempfile::tempdir()?;
    let folder = files.path().display();
    let text = (1..=3).fold(NGINX.to_owned(), |text, number| {
        text.replace(&format!("rialto-{number}:3000"), "127.0.0.1:3000")
    });
    assert_eq!(text.matches("127.0.0.1:3000").count(), 3);
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("    {name}_temp_path {folder}/{name};\n"))
        .collect();
    let text = text.replacen(
        "events {}",
        &format!("pid {folder}/pid;\nerror_log stderr;\nevents {{}}"),
        1,
    );
    let text = text.replacen("http {\n", &format!("http {{\n    access_log off;\n{paths}"), 1);
    let text = text.replace("listen 80;", "listen 127.0.0.1:8080;");
    let config = files.path().join("nginx.conf");
    std::fs::write(&config, text)?;
    let program = test_deps().join("nginx/usr/sbin/nginx");
    let tested = Command::new(&program)
        .args(["-t", "-e", "stderr", "-c"])
        .arg(&config)
        .arg("-p")
        .arg(files.path())
        .output()
        .map_err(|error| {
            let program = program.display();
            Failure::new(format!("{program} (cargo xtask setup installs it): {error}"))
        })?;
    let report = String::from_utf8_lossy(&tested.stderr).into_owned();
    assert!(tested.status.success(), "{report}");
    Ok(())
}
