//! Servers of several hosts as destinations: equal ones become one, and each has its own name.

use std::collections::BTreeMap;

use super::carry::{self, Purpose, Rendered, SecretsTo, Target};
use super::plain::Plain;

/// A server of one host.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// What the host calls it.
    pub(crate) name: String,
    /// What tells it apart from another of this name: its host or its project.
    pub(crate) qualifier: String,
    /// Where it is from, for people.
    pub(crate) origin: String,
    pub(crate) target: Target,
}

/// The destinations that are there already, and the values of their secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) destinations: BTreeMap<String, Plain>,
    pub(crate) secrets: BTreeMap<String, String>,
}

/// A destination for one or several servers of hosts.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) origins: Vec<String>,
    pub(crate) rendered: Rendered,
    /// Whether it is in the file already.
    pub(crate) is_known: bool,
    target: Target,
}

/// Returns the destinations, and for each server the index of its own.
pub(crate) fn all(
    wanted: &[Wanted],
    known: &Known,
    purpose: Purpose,
    to: SecretsTo,
) -> (Vec<Draft>, Vec<usize>) {
    let mut drafts: Vec<Draft> = Vec::new();
    let mut indices = Vec::new();
    for server in wanted {
        let equal = drafts.iter().position(|draft| draft.target.same(&server.target));
        let index = match equal {
            Some(index) => index,
            None => {
                drafts.push(named(server, &drafts, known, purpose, to));
                drafts.len() - 1
            }
        };
        if let Some(draft) = drafts.get_mut(index)
            && !draft.origins.contains(&server.origin)
        {
            draft.origins.push(server.origin.clone());
        }
        indices.push(index);
    }
    (drafts, indices)
}

/// Returns the destination of a server under the first name that is free, or that it has already.
fn named(server: &Wanted, drafts: &[Draft], known: &Known, purpose: Purpose, to: SecretsTo) -> Draft {
    let plain = carry::destination_name(&server.name);
    let qualified = carry::destination_name(&format!("{plain}-{}", server.qualifier));
    let numbered = (2..).map(|number| carry::destination_name(&cut(&qualified, number)));
    let mut names = [plain, qualified.clone()].into_iter().chain(numbered);
    loop {
        // There are fewer drafts and destinations than numbers.
        let name = names.next().unwrap_or_default();
        if drafts.iter().any(|draft| draft.name == name) {
            continue;
        }
        let rendered = server.target.rendered(&name, purpose, to);
        let is_known = match known.destinations.get(&name) {
            Some(entry) if is_same(entry, &rendered, known) => true,
            Some(_) => continue,
            None => false,
        };
        return Draft {
            name,
            origins: Vec::new(),
            rendered,
            is_known,
            target: server.target.clone(),
        };
    }
}

/// Returns a name with a number, within the length that a name may have.
fn cut(name: &str, number: usize) -> String {
    let suffix = format!("-{number}");
    let room = 63usize.saturating_sub(suffix.len());
    let head: String = name.chars().take(room).collect();
    head + &suffix
}

/// Returns whether a destination of the file starts or reaches the same server.
fn is_same(entry: &Plain, rendered: &Rendered, known: &Known) -> bool {
    let of_server = |plain: &Plain| {
        let Plain::Map(entries) = plain else {
            return Plain::Null;
        };
        let keys = ["command", "env", "cwd", "url", "headers", "type", "auth"];
        let kept = entries.iter().filter(|(key, _)| keys.contains(&key.as_str()));
        Plain::Map(kept.cloned().collect())
    };
    let has_secrets = rendered
        .secrets
        .iter()
        .all(|secret| known.secrets.get(&secret.name) == Some(&secret.value));
    has_secrets && of_server(entry).same(&of_server(&rendered.entry))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::tree;
    use crate::hosts::entry::{self, Entry};
    use crate::hosts::reference::Carry;
    use crate::hosts::table::References;

    fn wanted(name: &str, host: &str, text: &str) -> Wanted {
        let Entry::Stdio(found) = entry::read(&tree::load(text).expect(text), References::Dollar) else {
            panic!("{text}");
        };
        let carry = Carry {
            project: None,
            home: Some(Path::new("/home/me")),
        };
        Wanted {
            name: name.to_owned(),
            qualifier: host.to_owned(),
            origin: host.to_owned(),
            target: carry::stdio(&found, carry, Purpose::Import).expect(text),
        }
    }

    fn names(wanted: &[Wanted], known: &Known) -> (Vec<String>, Vec<usize>) {
        let (drafts, indices) = all(wanted, known, Purpose::Import, SecretsTo::File);
        (drafts.into_iter().map(|draft| draft.name).collect(), indices)
    }

    #[test]
    fn equal_servers_of_several_hosts_become_one() {
        let servers = [
            wanted("files", "cursor", r#"{"command": "npx", "args": ["files"]}"#),
            wanted(
                "filesystem",
                "vscode",
                r#"{"type": "stdio", "command": "npx", "args": ["files"]}"#,
            ),
            wanted(
                "files",
                "claude-code",
                r#"{"command": "npx", "args": ["files", "/srv"]}"#,
            ),
        ];
        assert_eq!(
            names(&servers, &Known::default()),
            (vec!["files".into(), "files-claude-code".into()], vec![0, 0, 1])
        );
        let (drafts, _) = all(&servers, &Known::default(), Purpose::Import, SecretsTo::File);
        assert_eq!(drafts[0].origins, ["cursor", "vscode"]);
    }

    #[test]
    fn names_are_made_fit_and_stay_different() {
        let servers: Vec<Wanted> = (0..4)
            .map(|number| wanted("My Server!", "cursor", &format!(r#"{{"command": "x{number}"}}"#)))
            .collect();
        let (names, _) = names(&servers, &Known::default());
        assert_eq!(
            names,
            [
                "my-server",
                "my-server-cursor",
                "my-server-cursor-2",
                "my-server-cursor-3"
            ]
        );
    }

    #[test]
    fn a_destination_that_is_there_already_is_used_and_no_other_is_overwritten() {
        let mut known = Known::default();
        let entry = |text: &str| Plain::of(&tree::load(text).expect(text));
        known.destinations.insert(
            "a".into(),
            entry(r#"{"command": ["x", "--token=${secret:a.TOKEN}"], "start": "lazy"}"#),
        );
        known
            .destinations
            .insert("b".into(), entry(r#"{"command": "mine"}"#));
        known.secrets.insert("a.TOKEN".into(), "s".into());
        let a = wanted("a", "cursor", r#"{"command": "x", "args": ["--token=s"]}"#);
        let other = wanted("a", "cursor", r#"{"command": "x", "args": ["--token=t"]}"#);
        let b = wanted("b", "cursor", r#"{"command": "theirs"}"#);
        let (drafts, _) = all(&[a, other, b], &known, Purpose::Import, SecretsTo::File);
        let found: Vec<(&str, bool)> = drafts
            .iter()
            .map(|draft| (draft.name.as_str(), draft.is_known))
            .collect();
        assert_eq!(found, [("a", true), ("a-cursor", false), ("b-cursor", false)]);
    }
}
