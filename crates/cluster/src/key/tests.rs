use std::error::Error as _;

use rustls::{ClientConnection, ServerConnection};
use uuid::Uuid;

use super::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name, Uuid::new_v4()).unwrap()
}

fn now() -> SystemTime {
    SystemTime::now()
}

/// Runs a handshake in memory. Returns the error of the side that refuses.
fn handshake(client: &PeerIdentity, server: &PeerIdentity, name: &NodeId) -> Result<(), rustls::Error> {
    let mut client = ClientConnection::new(client.client(), server_name(name))?;
    let mut server = ServerConnection::new(server.server())?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
    Ok(())
}

#[test]
fn key_survives_its_text() {
    let key = ClusterKey::generate().unwrap();
    let again = ClusterKey::parse(&key.to_text()).unwrap();
    assert_eq!(again.sealing_key(), key.sealing_key());
    assert_eq!(again.to_text(), key.to_text());
    let other = ClusterKey::generate().unwrap();
    assert_ne!(other.sealing_key(), key.sealing_key());
    assert_ne!(other.to_text(), key.to_text());
}

#[test]
fn debug_output_shows_no_secret() {
    let key = ClusterKey::generate().unwrap();
    assert_eq!(format!("{key:?}"), "ClusterKey([redacted])");
    let identity = key.issue(&node("a"), now()).unwrap();
    assert_eq!(format!("{identity:?}"), "PeerIdentity { .. }");
}

#[test]
fn replicas_with_the_same_key_accept_each_other() {
    let text = ClusterKey::generate().unwrap().to_text();
    let (first, second) = (node("first_replica"), node("UPPER.case-2"));
    // Each replica reads the file for itself.
    let issue = |node| ClusterKey::parse(&text).unwrap().issue(node, now()).unwrap();
    let (a, b) = (issue(&first), issue(&second));
    assert_eq!(handshake(&a, &b, &second), Ok(()));
    assert_eq!(handshake(&b, &a, &first), Ok(()));
}

#[test]
fn replica_of_another_key_is_refused_by_both_sides() {
    let (id, other_id) = (node("a"), node("b"));
    let own = ClusterKey::generate().unwrap().issue(&id, now()).unwrap();
    let other = ClusterKey::generate().unwrap().issue(&other_id, now()).unwrap();
    let refused = handshake(&own, &other, &other_id).unwrap_err();
    assert!(
        matches!(refused, rustls::Error::InvalidCertificate(_)),
        "{refused:?}"
    );
    // A client that trusts the listener's authority, and shows a certificate of its own.
    let mixed = PeerIdentity {
        server: other.server(),
        client: Arc::new({
            let mut config = (*own.client()).clone();
            config.client_auth_cert_resolver = Arc::clone(&other.client().client_auth_cert_resolver);
            config
        }),
    };
    let refused = handshake(&mixed, &own, &id).unwrap_err();
    assert!(
        matches!(refused, rustls::Error::InvalidCertificate(_)),
        "{refused:?}"
    );
}

#[test]
fn client_without_a_certificate_is_refused() {
    let id = node("a");
    let own = ClusterKey::generate().unwrap().issue(&id, now()).unwrap();
    let mut config = (*own.client()).clone();
    let silent = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.client_auth_cert_resolver = silent.client_auth_cert_resolver;
    let mixed = PeerIdentity {
        server: own.server(),
        client: Arc::new(config),
    };
    assert!(handshake(&mixed, &own, &id).is_err());
}

#[test]
fn address_of_a_replica_that_is_now_another_s_is_refused() {
    let key = ClusterKey::generate().unwrap();
    let (old, new) = (node("a"), node("a"));
    let (client, server) = (
        key.issue(&node("b"), now()).unwrap(),
        key.issue(&new, now()).unwrap(),
    );
    assert!(handshake(&client, &server, &new).is_ok());
    assert!(handshake(&client, &server, &old).is_err());
}

#[test]
fn expired_certificate_of_the_same_key_is_refused() {
    let key = ClusterKey::generate().unwrap();
    let (id, old_id) = (node("a"), node("b"));
    let current = key.issue(&id, now()).unwrap();
    let expired = key.issue(&old_id, now() - VALID_AFTER - YEAR).unwrap();
    let refused = |error: Result<(), rustls::Error>| {
        let text = error.unwrap_err().to_string();
        assert!(text.to_lowercase().contains("expired"), "{text}");
    };
    refused(handshake(&current, &expired, &old_id));
    refused(handshake(&expired, &current, &id));
}

#[test]
fn clocks_that_differ_by_days_do_not_matter() {
    let key = ClusterKey::generate().unwrap();
    let (early, late) = (node("a"), node("b"));
    let week = Duration::from_secs(7 * 24 * 3600);
    let a = key.issue(&early, now() - week).unwrap();
    let b = key.issue(&late, now() + week).unwrap();
    assert_eq!(handshake(&a, &b, &late), Ok(()));
    assert_eq!(handshake(&b, &a, &early), Ok(()));
}

#[test]
fn certificate_names_one_run_of_one_replica() {
    let key = ClusterKey::generate().unwrap();
    let id = node("a");
    let mut anchor = CertificateParams::new([dns_name(&id)]).unwrap();
    anchor.distinguished_name = named(id.as_str());
    let certificate = anchor.self_signed(&key.authority).unwrap();
    assert!(certifies(certificate.der(), &id));
    assert!(!certifies(certificate.der(), &node("a")));
    assert!(!certifies(&CertificateDer::from(vec![1, 2, 3]), &id));
}

#[test]
fn every_cut_of_the_text_is_an_error() {
    let text = ClusterKey::generate().unwrap().to_text();
    assert!(ClusterKey::parse(text.trim_end()).is_ok());
    for end in 0..text.trim_end().len() {
        let cut = &text[..end];
        let error = ClusterKey::parse(cut).unwrap_err();
        let is_in_the_title = end < format!("{TITLE} {VERSION}").len();
        let fits = match error {
            ParseError::NoKey | ParseError::Version(_) => is_in_the_title,
            // A cut within the name of a part leaves a line that the format does not have.
            ParseError::CutOff(_) | ParseError::Line(_) => !is_in_the_title,
            ParseError::Two(_) | ParseError::Damaged => false,
        };
        assert!(fits, "{error} for the first {end} bytes");
    }
}

#[test]
fn every_changed_character_of_a_part_is_noticed() {
    let text = ClusterKey::generate().unwrap().to_text();
    let parts = text.find(AUTHORITY).unwrap();
    for at in parts..text.trim_end().len() {
        let (before, rest) = text.split_at(at);
        let (old, after) = rest.split_at(1);
        let new = if old == "x" { "y" } else { "x" };
        let changed = format!("{before}{new}{after}");
        assert!(ClusterKey::parse(&changed).is_err(), "byte {at}");
    }
}

#[test]
fn texts_that_are_no_key_are_errors_that_name_the_fix() {
    let key = ClusterKey::generate().unwrap().to_text();
    let other = ClusterKey::generate().unwrap().to_text();
    let error = |text: &str| ClusterKey::parse(text).unwrap_err();
    for text in [
        "",
        "\n",
        "hello\n",
        "-----BEGIN PRIVATE KEY-----\n",
        "rialto-cluster-keys 1\n",
    ] {
        assert_eq!(error(text), ParseError::NoKey, "{text:?}");
    }
    assert_eq!(
        error(&key.replace("key 1", "key 2")),
        ParseError::Version("2".to_owned())
    );
    assert_eq!(error(&format!("{key}{other}")), ParseError::Two(AUTHORITY));
    assert_eq!(error(&format!("{key}more: of it\n")), ParseError::Line(7));
    for error in [
        error(""),
        error(&key.replace("key 1", "key 2")),
        ParseError::CutOff(SEALING),
        ParseError::Two(SEALING),
        ParseError::Line(3),
        ParseError::Damaged,
    ] {
        let text = error.to_string();
        let names_the_fix = ["make ", "copy ", "keep "].iter().any(|verb| text.contains(verb));
        assert!(names_the_fix, "{text}");
    }
    // The same key twice is one key, however it came about.
    assert!(ClusterKey::parse(&format!("{key}{key}")).is_ok());
}

#[cfg(unix)]
mod files {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn written(text: &[u8], mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.key");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    fn message(error: &KeyError) -> String {
        match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        }
    }

    #[test]
    fn key_file_is_read() {
        let key = ClusterKey::generate().unwrap();
        for mode in [0o600, 0o400, 0o440] {
            let (_folder, path) = written(key.to_text().as_bytes(), mode);
            assert_eq!(ClusterKey::read(&path).unwrap().sealing_key(), key.sealing_key());
        }
    }

    #[test]
    fn missing_file_is_an_error_that_names_the_command() {
        let error = ClusterKey::read(Path::new("/nowhere/cluster.key")).unwrap_err();
        assert!(matches!(error, KeyError::Missing { .. }));
        let text = message(&error);
        assert!(
            text.contains("rialto cluster key > /nowhere/cluster.key"),
            "{text}"
        );
    }

    #[test]
    fn file_that_others_can_read_or_change_is_an_error_that_names_the_mode() {
        let key = ClusterKey::generate().unwrap().to_text();
        for mode in [0o644, 0o604, 0o602, 0o620, 0o660, 0o666] {
            let (_folder, path) = written(key.as_bytes(), mode);
            let error = ClusterKey::read(&path).unwrap_err();
            assert!(matches!(error, KeyError::Exposed { .. }), "{mode:o}");
            let text = message(&error);
            assert!(
                text.contains(&format!("{mode:04o}")) && text.contains("chmod 600"),
                "{text}"
            );
        }
    }

    #[test]
    fn folder_or_other_bytes_in_place_of_the_file_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let error = ClusterKey::read(folder.path()).unwrap_err();
        assert!(matches!(error, KeyError::Unreadable { .. }), "{error:?}");
        for bytes in [&b"\xff\xfe"[..], &[0; 100_000]] {
            let (_folder, path) = written(bytes, 0o600);
            let error = ClusterKey::read(&path).unwrap_err();
            let source = ParseError::NoKey;
            assert!(matches!(&error, KeyError::File { source: found, .. } if *found == source));
        }
    }
}
