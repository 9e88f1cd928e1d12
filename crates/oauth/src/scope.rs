//! Which scopes are requested.
//!
//! Least first: what the challenge names; else what the operator chose; else what the resource
//! lists; else nothing. A challenge is authoritative (2025-11-25, "Scope Selection Strategy"), so
//! it is never left out; after one, the union with what was granted before is asked for, lest a
//! step up takes away what an earlier call needed (2026-07-28, "Step-Up Authorization").

/// How often one set of permissions is asked for in vain.
const TRIES: u8 = 2;
/// How many sets are remembered; the oldest goes.
const SETS: usize = 16;
/// The largest number of scopes in one list. A peer chooses the list, and each scope is compared
/// with all others.
const SCOPES: usize = 256;
/// The scope that asks for a refresh token.
const OFFLINE_ACCESS: &str = "offline_access";

/// Returns a space-separated list as it stands in a challenge, cleaned of anything the grammar does
/// not allow (RFC 6749, section 3.3).
pub(crate) fn parse(list: &str) -> Vec<String> {
    let fits = |scope: &&str| {
        scope
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
    };
    let mut scopes = Vec::new();
    add(
        &mut scopes,
        list.split_ascii_whitespace()
            .filter(fits)
            .take(SCOPES)
            .map(str::to_owned),
    );
    scopes
}

pub(crate) fn add(scopes: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for scope in more {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
}

/// What is known when the permissions are chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) challenged: &'a [String],
    pub(crate) configured: &'a [String],
    /// `scopes_supported` of the resource, not of the authorization server: that one's list is for
    /// all its resources.
    pub(crate) resource: &'a [String],
    /// What an earlier sign-in was granted, if this one is to widen it.
    pub(crate) granted: &'a [String],
    /// `scopes_supported` of the authorization server.
    pub(crate) authority: &'a [String],
}

pub(crate) fn choose(known: Known<'_>) -> Vec<String> {
    let mut scopes = Vec::new();
    add(&mut scopes, known.granted.iter().cloned());
    add(&mut scopes, known.configured.iter().cloned());
    add(&mut scopes, known.challenged.iter().cloned());
    if scopes.is_empty() {
        add(&mut scopes, known.resource.iter().cloned());
    }
    if !known.authority.iter().any(|scope| scope == OFFLINE_ACCESS) {
        scopes.retain(|scope| scope != OFFLINE_ACCESS || known.configured.contains(scope));
    }
    with_offline_access(&scopes, known.authority)
}

/// Adds `offline_access` if the authorization server lists it, and only then: others refuse the
/// whole request.
///
/// It is not a permission at the resource, so it does not turn an unscoped request into a scoped
/// one.
pub(crate) fn with_offline_access(scopes: &[String], authority: &[String]) -> Vec<String> {
    let mut scopes = scopes.to_vec();
    if !scopes.is_empty() && authority.iter().any(|scope| scope == OFFLINE_ACCESS) {
        add(&mut scopes, [OFFLINE_ACCESS.to_owned()]);
    }
    scopes
}

/// Counts how often each set of permissions was asked for by a 403.
#[derive(Debug, Default)]
pub(crate) struct StepUps(Vec<(Vec<String>, u8)>);

impl StepUps {
    /// Returns whether one more sign-in for these permissions is worth a browser window.
    pub(crate) fn another(&mut self, challenged: &[String]) -> bool {
        let mut key = challenged.to_vec();
        key.sort_unstable();
        if let Some((_, tries)) = self.0.iter_mut().find(|(known, _)| *known == key) {
            *tries = tries.saturating_add(1);
            return *tries <= TRIES;
        }
        if self.0.len() == SETS {
            self.0.remove(0);
        }
        self.0.push((key, 1));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(scopes: &str) -> Vec<String> {
        parse(scopes)
    }

    fn chosen(challenged: &str, configured: &str, resource: &str, granted: &str, authority: &str) -> String {
        let [challenged, configured, resource, granted, authority] =
            [challenged, configured, resource, granted, authority].map(list);
        choose(Known {
            challenged: &challenged,
            configured: &configured,
            resource: &resource,
            granted: &granted,
            authority: &authority,
        })
        .join(" ")
    }

    #[test]
    fn challenge_beats_the_list_of_the_resource() {
        assert_eq!(chosen("read", "", "read write admin", "", ""), "read");
        assert_eq!(chosen("", "", "read write", "", ""), "read write");
        assert_eq!(chosen("", "", "", "", "everything"), "");
    }

    #[test]
    fn configured_scopes_go_along_with_the_challenge() {
        assert_eq!(chosen("", "mail", "read write", "", ""), "mail");
        assert_eq!(chosen("read", "mail", "read write", "", ""), "mail read");
    }

    #[test]
    fn step_up_keeps_the_granted_scopes() {
        assert_eq!(chosen("write", "", "", "read", ""), "read write");
    }

    #[test]
    fn offline_access_is_requested_only_where_it_is_listed() {
        assert_eq!(
            chosen("read", "", "", "", "read offline_access"),
            "read offline_access"
        );
        assert_eq!(chosen("read", "", "", "", "read"), "read");
        assert_eq!(chosen("", "", "read offline_access", "", "read"), "read");
        assert_eq!(chosen("", "", "", "", "offline_access"), "");
    }

    #[test]
    fn scopes_of_one_list_are_limited() {
        let long: Vec<String> = (0..1000).map(|number| format!("s{number}")).collect();
        assert_eq!(parse(&long.join(" ")), long[..SCOPES]);
    }

    #[test]
    fn scopes_with_invalid_characters_are_left_out() {
        assert_eq!(parse("read  re\"ad b\\c read wri\u{7f}te"), ["read"]);
    }

    #[test]
    fn step_up_for_the_same_scopes_is_tried_twice() {
        let mut ups = StepUps::default();
        let write = list("write read");
        assert!(ups.another(&write));
        assert!(ups.another(&list("read write")));
        assert!(!ups.another(&write));
        assert!(ups.another(&list("admin")));
    }
}
