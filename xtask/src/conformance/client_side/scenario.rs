//! The scenarios that the suite has for clients, and which of them are not for a bridge.

/// One scenario of the suite's `client` command.
#[derive(Debug, PartialEq)]
pub struct Scenario {
    pub name: &'static str,
    /// As `list --client` shows them. `extension` stands for an extension of the protocol, in any
    /// revision.
    pub revisions: &'static [&'static str],
    /// Why it is not played; `None` if it is.
    pub left_out: Option<&'static str>,
}

pub const EXTENSION: &str = "extension";

const OLDEST: &[&str] = &["2025-03-26"];
const LEGACY: &[&str] = &["2025-06-18", "2025-11-25"];
const LAST_LEGACY: &[&str] = &["2025-11-25"];
const MODERN: &[&str] = &["2026-07-28"];
const BOTH: &[&str] = &["2025-11-25", "2026-07-28"];
const ALL: &[&str] = &["2025-06-18", "2025-11-25", "2026-07-28"];
const EXTENSIONS: &[&str] = &[EXTENSION];

const SKILLS: &str = "tests what a host does with skills that it received; nothing of it is on the transport";
const PROOF_OF_POSSESSION: &str =
    "an extension: tokens that are bound to a key of the client, which Rialto does not have";
const OTHER_GRANTS: &str =
    "an extension: tokens for assertions of another identity provider, which Rialto does not request";

const fn played(name: &'static str, revisions: &'static [&'static str]) -> Scenario {
    Scenario {
        name,
        revisions,
        left_out: None,
    }
}

const fn left_out(name: &'static str, reason: &'static str) -> Scenario {
    Scenario {
        name,
        revisions: EXTENSIONS,
        left_out: Some(reason),
    }
}

/// All of them, in the order of the suite.
pub const SCENARIOS: &[Scenario] = &[
    played("initialize", LEGACY),
    played("tools_call", ALL),
    played("elicitation-sep1034-client-defaults", LAST_LEGACY),
    played("sse-retry", LAST_LEGACY),
    played("request-metadata", MODERN),
    played("auth/metadata-default", BOTH),
    played("auth/metadata-var1", BOTH),
    played("auth/metadata-var2", BOTH),
    played("auth/metadata-var3", BOTH),
    played("auth/basic-cimd", BOTH),
    played("auth/scope-from-www-authenticate", BOTH),
    played("auth/scope-from-scopes-supported", BOTH),
    played("auth/scope-omitted-when-undefined", BOTH),
    played("auth/scope-step-up", BOTH),
    played("auth/scope-retry-limit", BOTH),
    played("auth/token-endpoint-auth-basic", ALL),
    played("auth/token-endpoint-auth-post", ALL),
    played("auth/token-endpoint-auth-none", ALL),
    played("auth/pre-registration", BOTH),
    played("auth/2025-03-26-oauth-metadata-backcompat", OLDEST),
    played("auth/2025-03-26-oauth-endpoint-fallback", OLDEST),
    played("auth/resource-mismatch", MODERN),
    played("auth/offline-access-scope", MODERN),
    played("auth/offline-access-not-supported", MODERN),
    played("auth/authorization-server-migration", MODERN),
    played("auth/iss-supported", MODERN),
    played("auth/iss-not-advertised", MODERN),
    played("auth/iss-supported-missing", MODERN),
    played("auth/iss-wrong-issuer", MODERN),
    played("auth/iss-unexpected", MODERN),
    played("auth/iss-normalized", MODERN),
    played("auth/metadata-issuer-mismatch", MODERN),
    played("auth/client-credentials-jwt", EXTENSIONS),
    played("auth/client-credentials-basic", EXTENSIONS),
    left_out("auth/enterprise-managed-authorization", OTHER_GRANTS),
    left_out("auth/dpop", PROOF_OF_POSSESSION),
    left_out("auth/dpop-nonce", PROOF_OF_POSSESSION),
    left_out("auth/wif-jwt-bearer", OTHER_GRANTS),
    played("sep-2322-client-request-state", MODERN),
    played("http-standard-headers", MODERN),
    played("http-custom-headers", MODERN),
    played("http-invalid-tool-headers", MODERN),
    played("json-schema-ref-no-deref", MODERN),
    played("json-schema-2020-12-preservation", BOTH),
    left_out("sep-2640-client-no-prefetch", SKILLS),
    left_out("sep-2640-client-verify-digest", SKILLS),
    left_out("sep-2640-client-verify-size", SKILLS),
    left_out("sep-2640-client-verify-frontmatter", SKILLS),
];

/// What `list --client` prints, as names and revisions.
pub fn read_list(printed: &str) -> Vec<(&str, Vec<&str>)> {
    let lines = printed.lines().filter_map(|line| line.trim().strip_prefix("- "));
    lines
        .filter_map(|line| {
            let (name, revisions) = line.strip_suffix(']')?.split_once(" [")?;
            Some((name, revisions.split(',').collect()))
        })
        .collect()
}

/// How the suite's own list differs from the one above: what it has and we do not know, and the
/// reverse.
pub fn differences(printed: &str) -> Vec<String> {
    let theirs = read_list(printed);
    let known = |(name, revisions): &(&str, Vec<&str>)| {
        SCENARIOS
            .iter()
            .any(|scenario| scenario.name == *name && scenario.revisions == *revisions)
    };
    let news = theirs.iter().filter(|entry| !known(entry));
    let news = news.map(|(name, revisions)| format!("the suite has {name} {revisions:?}"));
    let gone = SCENARIOS
        .iter()
        .filter(|scenario| !theirs.iter().any(|(name, _)| *name == scenario.name));
    news.chain(gone.map(|scenario| format!("the suite does not have {}", scenario.name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_the_suite_is_read_and_compared() {
        let printed = "Client scenarios (test against a client):\n  - initialize [2025-06-18,2025-11-25]\n  - new [2026-07-28]\n";
        assert_eq!(
            read_list(printed),
            [
                ("initialize", vec!["2025-06-18", "2025-11-25"]),
                ("new", vec!["2026-07-28"])
            ]
        );
        let differences = differences(printed);
        assert!(differences[0].contains("the suite has new"), "{differences:?}");
        assert_eq!(differences.len(), SCENARIOS.len());
    }

    #[test]
    fn each_scenario_stands_there_once() {
        for scenario in SCENARIOS {
            let same = SCENARIOS.iter().filter(|other| other.name == scenario.name);
            assert_eq!(same.count(), 1, "{}", scenario.name);
        }
    }
}
