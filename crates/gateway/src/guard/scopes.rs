//! Which scopes a use needs, by the method and the tool that the validated body names.

use std::collections::{BTreeMap, BTreeSet};

use crate::settings::{JwtSettings, Scope, ScopedUse};

/// What a caller was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Granted {
    /// A caller whose credential has no scopes may do everything.
    Everything,
    Scopes(BTreeSet<String>),
}

impl Granted {
    fn covers(&self, needed: &[&str]) -> bool {
        match self {
            Self::Everything => true,
            Self::Scopes(scopes) => needed.iter().all(|scope| scopes.contains(*scope)),
        }
    }
}

/// The rules of the configuration.
#[derive(Debug, Default)]
pub(crate) struct ScopeRules {
    always: Vec<Scope>,
    uses: BTreeMap<ScopedUse, Vec<Scope>>,
}

impl ScopeRules {
    pub(crate) fn new(settings: &JwtSettings) -> Self {
        Self {
            always: settings.scopes.clone(),
            uses: settings.scopes_for.clone(),
        }
    }

    /// Returns whether no scope is ever needed.
    pub(super) fn is_empty(&self) -> bool {
        self.always.is_empty() && self.uses.is_empty()
    }

    /// Returns whether any tool needs a scope of its own.
    pub(super) fn has_tools(&self) -> bool {
        self.uses
            .keys()
            .any(|scoped| matches!(scoped, ScopedUse::Tool(_)))
    }

    /// Returns all that a use needs, each scope once: a challenge names everything, or a client
    /// would have to sign in several times (2025-11-25, authorization, scope challenge handling).
    fn needed(&self, method: Option<&str>, tool: Option<&str>) -> Vec<&str> {
        let of_use = |scoped: ScopedUse| self.uses.get(&scoped).into_iter().flatten();
        let of_method = method.map(|method| of_use(ScopedUse::Method(method.to_owned())));
        let of_tool = tool.map(|tool| of_use(ScopedUse::Tool(tool.to_owned())));
        let mut needed: Vec<&str> = Vec::new();
        let scopes = self
            .always
            .iter()
            .chain(of_method.into_iter().flatten())
            .chain(of_tool.into_iter().flatten());
        for scope in scopes.map(Scope::as_str) {
            if !needed.contains(&scope) {
                needed.push(scope);
            }
        }
        needed
    }

    /// Returns the scopes that every request needs, which a client should request first.
    pub(crate) fn least(&self) -> Vec<&str> {
        self.needed(None, None)
    }

    /// Checks whether a caller may; otherwise all that the use needs.
    pub(crate) fn check(
        &self,
        granted: &Granted,
        method: Option<&str>,
        tool: Option<&str>,
    ) -> Result<(), Vec<&str>> {
        if *granted == Granted::Everything || self.is_empty() {
            return Ok(());
        }
        let needed = self.needed(method, tool);
        if granted.covers(&needed) {
            Ok(())
        } else {
            Err(needed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> ScopeRules {
        let scopes = |words: &[&str]| {
            words
                .iter()
                .map(|word| Scope::parse(word).unwrap())
                .collect::<Vec<_>>()
        };
        ScopeRules {
            always: scopes(&["mcp"]),
            uses: [
                (
                    ScopedUse::Method("tools/call".into()),
                    scopes(&["mcp:call", "mcp"]),
                ),
                (ScopedUse::Tool("delete".into()), scopes(&["mcp:admin"])),
            ]
            .into(),
        }
    }

    fn granted(words: &[&str]) -> Granted {
        Granted::Scopes(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_use_needs_what_its_method_and_its_tool_need() {
        let rules = rules();
        let check = |words: &[&str], method, tool| rules.check(&granted(words), method, tool);
        assert_eq!(check(&["mcp"], Some("tools/list"), None), Ok(()));
        assert_eq!(check(&[], Some("tools/list"), None), Err(vec!["mcp"]));
        assert_eq!(
            check(&["mcp"], Some("tools/call"), Some("echo")),
            Err(vec!["mcp", "mcp:call"])
        );
        assert_eq!(
            check(&["mcp", "mcp:call"], Some("tools/call"), Some("echo")),
            Ok(())
        );
        assert_eq!(
            check(&["mcp", "mcp:call"], Some("tools/call"), Some("delete")),
            Err(vec!["mcp", "mcp:call", "mcp:admin"])
        );
        assert_eq!(check(&["mcp"], None, None), Ok(()), "a stream, or an answer");
    }

    #[test]
    fn caller_without_scopes_may_do_everything() {
        assert_eq!(
            rules().check(&Granted::Everything, Some("tools/call"), Some("delete")),
            Ok(())
        );
        assert_eq!(rules().least(), ["mcp"]);
    }
}
