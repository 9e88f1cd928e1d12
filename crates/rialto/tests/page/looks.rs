//! How the page looks: to axe, at other widths, without scripts, to the type checker, in pictures.

use std::process::Command;

use serde_json::{Value, json};
use testkit::Result;

use crate::browser::{Script, packages, play, repository, scripts};
use crate::fixture::{client, echo, gateway};

/// Where the pictures of the documentation go, if they are to be renewed.
const UPDATE: &str = "UPDATE_PICTURES";

/// What the screens are looked at with: one destination that is ready and one that fails.
fn shown() -> Value {
    json!({ "ready": "files", "failing": "search" })
}

#[tokio::test]
async fn axe_finds_nothing_on_any_screen_in_light_and_dark() -> Result<()> {
    let rialto = gateway().await?;
    let seen = play("accessible", rialto.address(), &shown()).await?;
    assert_eq!(seen["found"], json!([]), "{:#}", seen["found"]);
    assert_eq!(seen["looked"].as_array().map(Vec::len), Some(24), "{seen}");
    Ok(())
}

#[tokio::test]
async fn no_screen_is_wider_than_320_pixels_or_at_200_percent() -> Result<()> {
    let rialto = gateway().await?;
    let seen = play("narrow", rialto.address(), &shown()).await?;
    assert_eq!(seen["wide"], json!([]));
    assert_eq!(seen["looked"], 24);
    Ok(())
}

#[tokio::test]
async fn nothing_moves_for_a_reader_that_wants_less_motion() -> Result<()> {
    let rialto = gateway().await?;
    let seen = play("motion", rialto.address(), &json!({})).await?;
    assert_eq!(seen, json!({ "no-preference": 1, "reduce": 0 }));
    Ok(())
}

#[tokio::test]
async fn state_is_a_table_where_scripts_do_not_run() -> Result<()> {
    let rialto = gateway().await?;
    let seen = play("without_scripts", rialto.address(), &json!({})).await?;
    assert_eq!(seen["tables"], 1, "{seen}");
    let text = seen["text"].as_str().unwrap_or_default();
    for word in ["files", "ready", "search", "failed", "not started"] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
    Ok(())
}

#[test]
fn types_of_the_page_fit() {
    let checked = Command::new("node")
        .arg(scripts().join("types.mjs"))
        .args([packages(), repository()])
        .output()
        .expect("node runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

#[test]
fn page_has_at_most_60_kilobytes_when_compressed() {
    const MOST: usize = 60_000;
    let sum = Command::new("node")
        .arg(scripts().join("size.mjs"))
        .arg(repository().join("crates/gateway/ui"))
        .output()
        .expect("node runs");
    let sum: usize = String::from_utf8_lossy(&sum.stdout)
        .trim()
        .parse()
        .expect("a number");
    assert!((10_000..=MOST).contains(&sum), "{sum} bytes");
}

#[test]
fn vendored_lit_html_is_the_pinned_one() {
    let pinned = packages().join("node_modules/lit-html");
    let vendored = repository().join("crates/gateway/ui");
    let read = |path: std::path::PathBuf| std::fs::read_to_string(&path).expect("it is there");
    // Its source map is not served.
    let module: Vec<String> = read(pinned.join("lit-html.js"))
        .lines()
        .filter(|line| !line.starts_with("//# sourceMappingURL"))
        .map(str::to_owned)
        .collect();
    let ours: Vec<String> = read(vendored.join("lit-html.js"))
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(module, ours);
    assert_eq!(
        read(pinned.join("LICENSE")),
        read(vendored.join("lit-html.LICENSE.txt"))
    );
}

#[tokio::test]
async fn pictures_of_the_documentation_can_be_taken() -> Result<()> {
    let rialto = gateway().await?;
    let folder = tempfile::tempdir()?;
    let into = match std::env::var_os(UPDATE) {
        Some(_) => repository().join("docs/images"),
        None => folder.path().to_owned(),
    };
    std::fs::create_dir_all(&into)?;
    let options = json!({ "ready": "files", "failing": "search", "folder": into });
    let mut script = Script::start("pictures", rialto.address(), &options)?;
    assert_eq!(script.next().await?, json!({ "open": true }));
    // Something to see: three clients, and a server that is slow to start.
    echo(&client(&rialto, "files", "Cursor").await?, 24).await?;
    echo(&client(&rialto, "guarded", "Claude Desktop").await?, 9).await?;
    echo(&client(&rialto, "old", "Zed").await?, 3).await?;
    let late = json!({ "text": "late" });
    rialto.client_of("later").await?.call(1, "echo", late).await?;
    script.tell(&json!({ "called": true }))?;
    let taken = script.end().await?;
    let taken = taken.as_array().cloned().unwrap_or_default();
    assert_eq!(taken.len(), 6, "{taken:?}");
    for picture in taken {
        let bytes = picture["bytes"].as_u64().unwrap_or_default();
        assert!((8_000..300_000).contains(&bytes), "{picture}");
    }
    Ok(())
}
