//! The store on a real disk.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;
use crate::registration::TokenAuth;

fn client(id: &str) -> Client {
    Client {
        id: id.to_owned(),
        secret: None,
        auth: TokenAuth::None,
        registered_for: Some("http://127.0.0.1:1/callback".into()),
    }
}

fn entry(issuer: &str, client_id: &str, access: &str) -> Entry {
    let mut entry = Entry::new(
        issuer.to_owned(),
        "https://a.example/mcp".to_owned(),
        client(client_id),
    );
    entry.token = Some(Token {
        access: Secret::new(access),
        refresh: None,
        received: 100,
        expires: Some(700),
    });
    entry
}

fn store(directory: &Path) -> Store {
    let settings = StoreSettings {
        keyring: false,
        lock_timeout: Duration::from_millis(1),
        ..StoreSettings::at(directory.join("sign-in"))
    };
    Store::new(settings, Url::parse("https://a.example/mcp").unwrap())
}

async fn saved(directory: &Path, access: &str) -> Store {
    let store = store(directory);
    let lock = store.lock().await.unwrap();
    let mut record = store.load().await.unwrap();
    record.put(entry("https://i", "c", access));
    store.save(&lock, &record).await.unwrap();
    store
}

fn access(record: &Record) -> &str {
    record.current().unwrap().token.as_ref().unwrap().access.expose()
}

#[tokio::test]
async fn saved_record_is_in_a_file_for_the_owner_only() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    assert_eq!(access(&store.load().await.unwrap()), "one");
    let directory = home.path().join("sign-in");
    assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
    for file in directory.read_dir().unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn reading_creates_nothing() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(store(home.path()).load().await.unwrap().current(), None);
    assert!(list(&home.path().join("sign-in")).unwrap().is_empty());
    assert!(!home.path().join("sign-in").exists());
}

#[tokio::test]
async fn link_in_place_of_the_file_is_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    let file = home.path().join("sign-in").join(store.file());
    let elsewhere = home.path().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert!(matches!(store.load().await, Err(SignInError::Store { why, .. }) if why.contains("link")));
}

#[tokio::test]
async fn link_in_place_of_the_directory_is_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    std::fs::rename(home.path().join("sign-in"), home.path().join("elsewhere")).unwrap();
    symlink(home.path().join("elsewhere"), home.path().join("sign-in")).unwrap();
    assert!(store.load().await.is_err());
}

#[tokio::test]
async fn link_in_place_of_the_lock_is_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    let lock = home.path().join("sign-in").join(format!("{}.lock", store.stem));
    std::fs::remove_file(&lock).unwrap();
    symlink(home.path().join("victim"), &lock).unwrap();
    assert!(store.lock().await.is_err());
    assert!(!home.path().join("victim").exists());
}

#[tokio::test]
async fn file_that_others_can_read_is_refused_with_the_command_that_mends_it() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    let file = home.path().join("sign-in").join(store.file());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(store.load().await, Err(SignInError::Store { why, .. }) if why.contains("chmod 600")));
}

#[tokio::test]
async fn file_that_cannot_be_parsed_is_an_error_that_names_the_cure() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    let file = home.path().join("sign-in").join(store.file());
    for text in ["{", r#"{"version":99,"endpoint":"https://a.example/mcp"}"#] {
        std::fs::write(&file, text).unwrap();
        let error = store.load().await.unwrap_err().to_string();
        assert!(error.contains("delete it"), "{error}");
        assert!(list(&home.path().join("sign-in")).unwrap().is_empty());
    }
}

#[tokio::test]
async fn binding_of_a_secret_is_not_lost_with_a_file_that_is_too_large() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    let lock = store.lock().await.unwrap();
    let mut record = store.load().await.unwrap();
    record.bind(Binding {
        client: "robot".into(),
        issuer: "https://i".into(),
        token_origin: None,
    });
    store.save(&lock, &record).await.unwrap();
    let mut large = record.clone();
    large.entries[0].resource = "x".repeat(FILE_LIMIT as usize);
    assert!(store.save(&lock, &large).await.is_err());
    assert_eq!(
        store.load().await.unwrap().binding("robot"),
        record.binding("robot")
    );
    let file = home.path().join("sign-in").join(store.file());
    let mut text = std::fs::read(&file).unwrap();
    text.resize(FILE_LIMIT as usize + 1, b' ');
    std::fs::write(&file, text).unwrap();
    let error = store.load().await.unwrap_err().to_string();
    assert!(error.contains("delete it"), "{error}");
}

#[tokio::test]
async fn lock_has_one_holder_and_is_freed_with_it() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let held = store.lock().await.unwrap();
    assert!(matches!(store.lock().await, Err(SignInError::Busy { .. })));
    drop(held);
    assert!(store.lock().await.is_ok());
}

#[tokio::test]
async fn removed_record_is_not_listed() {
    let home = tempfile::tempdir().unwrap();
    let store = saved(home.path(), "one").await;
    let kept = list(&home.path().join("sign-in")).unwrap();
    assert_eq!(
        (kept.len(), kept[0].endpoint.as_str(), kept[0].expires),
        (1, "https://a.example/mcp", Some(700))
    );
    let lock = store.lock().await.unwrap();
    assert!(store.remove(&lock).await.unwrap());
    assert!(!store.remove(&lock).await.unwrap());
    assert!(list(&home.path().join("sign-in")).unwrap().is_empty());
}

#[test]
fn entries_are_kept_apart_by_issuer_resource_and_client() {
    let mut record = Record::new(&Url::parse("https://a.example/mcp").unwrap());
    record.put(entry("https://one", "c", "1"));
    record.put(entry("https://two", "c", "2"));
    record.put(entry("https://one", "d", "3"));
    record.put(entry("https://one", "c", "4"));
    assert_eq!((record.entries.len(), access(&record)), (3, "4"));
    assert_eq!(record.registered_at("https://two").unwrap().id, "c");
    assert_eq!(record.registered_at("https://three"), None);
    record.forget_client("https://one", "c");
    assert_eq!((record.entries.len(), access(&record)), (2, "3"));
}

#[test]
fn entries_are_limited() {
    let mut record = Record::new(&Url::parse("https://a.example/mcp").unwrap());
    for number in 0..20 {
        record.put(entry(&format!("https://{number}"), "c", "x"));
    }
    assert_eq!(record.entries.len(), ENTRIES);
    assert_eq!(record.current().unwrap().issuer, "https://19");
}

#[test]
fn token_is_fresh_until_shortly_before_it_expires() {
    let token = |received, expires| Token {
        access: Secret::new("a"),
        refresh: None,
        received,
        expires,
    };
    assert!(token(0, None).is_fresh(u64::MAX));
    assert!(token(0, Some(3600)).is_fresh(3539));
    assert!(!token(0, Some(3600)).is_fresh(3540));
    assert!(token(0, Some(10)).is_fresh(7));
    assert!(!token(0, Some(10)).is_fresh(8));
    assert!(!token(0, Some(10)).is_over(9) && token(0, Some(10)).is_over(10));
}
