//! `auth` and `public_url`: what they mean, and the problems that are reported about them.

use std::time::{Duration, SystemTime};

use gateway::settings::{OpenPath, ScopedUse, SignatureAlgorithm};

use super::{environment, load, load_with, problems, problems_with};
use crate::config::Environment;
use crate::flags::ServeFlags;

const HASH: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const OTHER: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
const DESTINATION: &str = "destinations: { a: { command: cat } }\n";

fn with(auth: &str) -> String {
    format!("auth: {auth}\n{DESTINATION}")
}

#[test]
fn everything_about_callers_is_read() {
    let text = format!(
        r#"public_url: https://mcp.example.com/tools/
auth:
  public: [ready]
  tokens:
    - {{ name: ci, hash: "{HASH}", destinations: [a], expires: 1970-01-02T00:00:00Z }}
    - {{ name: alice, hash: "{OTHER}" }}
  jwt:
    issuer: https://login.example.com/
    audience: api://{{destination}}
    jwks_uri: https://login.example.com/keys
    algorithms: [ES256]
    required_scopes: [mcp]
    scopes: {{ tools/call: [one, two], "tool:delete": admin }}
  proxy: {{ header: X-User, from: [10.0.0.0/8, "::1"] }}
{DESTINATION}"#
    );
    let loaded = load(&text).expect("loads");
    let (settings, auth) = (&loaded.settings, &loaded.settings.auth);
    let public = settings.public_url.as_ref().expect("a public URL");
    assert_eq!(
        (public.origin(), public.path()),
        ("https://mcp.example.com", "/tools")
    );
    assert_eq!(auth.public, [OpenPath::Ready].into());
    let [ci, alice] = auth.tokens.as_slice() else {
        panic!("two tokens, not {:?}", auth.tokens);
    };
    assert_eq!((ci.name.as_str(), ci.hash.to_string()), ("ci", HASH.to_owned()));
    assert_eq!(ci.destinations, Some(["a".to_owned()].into()));
    assert_eq!(
        ci.expires,
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(24 * 60 * 60))
    );
    assert_eq!((alice.destinations.as_ref(), alice.expires), (None, None));
    let jwt = auth.jwt.as_ref().expect("an issuer");
    assert_eq!(jwt.issuer.as_str(), "https://login.example.com/", "to the letter");
    assert_eq!(jwt.algorithms, [SignatureAlgorithm::Es256].into());
    assert_eq!(jwt.scopes_for[&ScopedUse::Method("tools/call".into())].len(), 2);
    assert_eq!(jwt.scopes_for[&ScopedUse::Tool("delete".into())].len(), 1);
    assert_eq!(auth.proxy.as_ref().expect("a proxy").from.len(), 2);
    assert!(
        loaded.notes.iter().any(|note| note.contains("`ci` has expired")),
        "{:?}",
        loaded.notes
    );
}

#[test]
fn defaults_are_no_authentication_and_a_loopback_listener() {
    let settings = load(DESTINATION).expect("loads").settings;
    assert!(!settings.auth.is_on() && settings.listen.ip().is_loopback());
}

#[test]
fn a_token_by_its_hash_needs_no_file() {
    let flags = ServeFlags {
        token_hash: vec![HASH.into(), format!("ci={OTHER}")],
        ..ServeFlags::default()
    };
    let names = |flags: &ServeFlags, environment: &Environment| -> Vec<String> {
        let loaded = load_with(DESTINATION, flags, environment).expect("loads");
        let tokens = loaded.settings.auth.tokens;
        tokens
            .iter()
            .map(|token| token.name.as_str().to_owned())
            .collect()
    };
    assert_eq!(names(&flags, &Environment::default()), ["default", "ci"]);
    let variable = environment([("RIALTO_TOKEN_HASH", &*format!("a={HASH}, b={OTHER}"))]);
    assert_eq!(names(&ServeFlags::default(), &variable), ["a", "b"]);
}

#[test]
fn an_address_that_others_can_reach_needs_authentication_or_a_word() {
    for listen in ["0.0.0.0:1", "[::]:1", "192.168.1.1:1"] {
        let open = format!("listen: '{listen}'\n{DESTINATION}");
        let [problem] = &problems(&open)[..] else {
            panic!("one problem");
        };
        assert!(
            problem.contains("field `listen`") && problem.contains("--allow-unauthenticated"),
            "{problem}"
        );
        let allowing = ServeFlags {
            allow_unauthenticated: true,
            ..ServeFlags::default()
        };
        assert!(load_with(&open, &allowing, &Environment::default()).is_ok());
        let variable = environment([("RIALTO_ALLOW_UNAUTHENTICATED", "true")]);
        assert!(load_with(&open, &ServeFlags::default(), &variable).is_ok());
        let guarded = format!("auth: {{ tokens: [{{ name: x, hash: '{HASH}' }}] }}\n{open}");
        assert!(load(&guarded).is_ok());
    }
    for listen in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", ":1", "localhost:1"] {
        assert!(
            load(&format!("listen: '{listen}'\n{DESTINATION}")).is_ok(),
            "{listen}"
        );
    }
}

#[test]
fn tokens_for_an_unknown_address_need_a_public_url() {
    let jwt = "auth: { jwt: { issuer: https://login.example.com } }\n";
    let open = format!("listen: 0.0.0.0:1\n{jwt}{DESTINATION}");
    let problem = problems(&open).join("\n");
    assert!(problem.contains("`public_url`"), "{problem}");
    assert!(load(&format!("public_url: https://x\n{open}")).is_ok());
    assert!(
        load(&format!("{jwt}{DESTINATION}")).is_ok(),
        "on loopback the address is known"
    );
}

#[test]
fn problem_is_reported_at_its_place() {
    for (auth, place, words) in [
        ("yes", "field `auth`", "must be a map"),
        ("{ tokens: { a: b } }", "field `auth.tokens`", "must be a list"),
        ("{ tokens: [{ name: x }] }", "auth.tokens", "`hash` is missing"),
        (
            "{ tokens: [{ hash: 'HASH' }] }",
            "auth.tokens",
            "`name` is missing",
        ),
        (
            "{ tokens: [{ name: anonymous, hash: 'HASH' }] }",
            "field `auth.tokens.name`",
            "another name",
        ),
        (
            "{ tokens: [{ name: x, hash: 'HASH', expires: soon }] }",
            "field `auth.tokens.expires`",
            "point in time",
        ),
        (
            "{ tokens: [{ name: x, hash: 'HASH', expire: 1 }] }",
            "auth.tokens.expire",
            "did you mean `auth.tokens.expires`",
        ),
        (
            "{ tokens: [{ name: x, hash: 'HASH' }, { name: y, hash: 'HASH' }] }",
            "",
            "the same hash",
        ),
        ("{ jwt: { audience: x } }", "auth.jwt", "`issuer` is missing"),
        (
            "{ jwt: { issuer: 'http://login.example.com' } }",
            "field `auth.jwt.issuer`",
            "https",
        ),
        (
            "{ jwt: { issuer: 'https://x', algorithms: [HS256] } }",
            "field `auth.jwt.algorithms[0]`",
            "RS256",
        ),
        (
            "{ jwt: { issuer: 'https://x', algorithms: [none] } }",
            "field `auth.jwt.algorithms[0]`",
            "RS256",
        ),
        (
            "{ jwt: { issuer: 'https://x', required_scopes: ['a b'] } }",
            "field `auth.jwt.required_scopes[0]`",
            "one word",
        ),
        (
            "{ jwt: { issuer: 'https://x', scopes: { 'tool:': [a] } } }",
            "field `auth.jwt.scopes.tool:`",
            "tool:",
        ),
        ("{ proxy: { header: X-User } }", "auth.proxy", "`from` is missing"),
        (
            "{ proxy: { header: Authorization, from: ['::1'] } }",
            "field `auth.proxy.header`",
            "only the proxy sets",
        ),
        (
            "{ proxy: { from: [example.com] } }",
            "field `auth.proxy.from[0]`",
            "range of addresses",
        ),
        ("{ public: [health] }", "field `auth.public[0]`", "ready"),
        (
            "{ token: [] }",
            "field `auth.token`",
            "did you mean `auth.tokens`",
        ),
    ] {
        let found = problems(&with(&auth.replace("HASH", HASH))).join("\n");
        assert!(found.contains(place) && found.contains(words), "{auth}\n{found}");
    }
}

#[test]
fn a_token_that_stands_in_place_of_its_hash_is_never_shown() {
    let token = "rialto_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";
    for auth in [
        format!("{{ tokens: [{{ name: x, hash: {token} }}] }}"),
        format!("{{ tokens: [{token}] }}"),
        format!("{{ tokens: {token} }}"),
    ] {
        let found = problems(&with(&auth)).join("\n");
        assert!(
            found.contains("rialto token") && !found.contains(token),
            "{found}"
        );
    }
    let flags = ServeFlags {
        token_hash: vec![token.into()],
        ..ServeFlags::default()
    };
    let found = problems_with(DESTINATION, &flags, &Environment::default()).join("\n");
    assert!(
        found.contains("--token-hash") && !found.contains(token),
        "{found}"
    );
}

#[test]
fn passing_the_tokens_of_callers_on_is_noted() {
    let text = format!(
        "auth: {{ tokens: [{{ name: x, hash: '{HASH}', destinations: [b] }}] }}\ndestinations:\n  a: {{ command: cat, process: per_identity, env_from_headers: {{ T: authorization }} }}\n"
    );
    let notes = load(&text).expect("loads").notes.join("\n");
    assert!(
        notes.contains("`env_from_headers` passes on the tokens"),
        "{notes}"
    );
    assert!(notes.contains("there is no destination of that name"), "{notes}");
}
