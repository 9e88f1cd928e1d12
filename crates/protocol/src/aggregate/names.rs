//! The names that clients see: a pure function of the configuration, the member and its own name.
//!
//! A shown name is never parsed back. The view has an exact table of them, so nothing here reads a
//! name that a client sent.

/// What stands between a prefix and a name.
pub(crate) const SEPARATOR: &str = "__";
/// The characters of the hash in a name that was cut, and the `_` before them.
const SUFFIX: usize = 7;
/// The shortest limit under which a prefix, a hash and a few letters fit.
pub(crate) const LEAST_LIMIT: usize = 24;

/// A name as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShownName {
    pub(crate) text: String,
    /// The name was too long and was cut.
    pub(crate) is_cut: bool,
}

/// Returns the name under which clients see a tool or a prompt. `part` is the member's own name, or
/// the one that the configuration has for it.
pub(crate) fn shown(member: &str, prefix: &str, own: &str, part: &str, limit: usize) -> ShownName {
    let mut text = String::with_capacity(prefix.len() + SEPARATOR.len() + part.len());
    if !prefix.is_empty() {
        text.push_str(prefix);
        text.push_str(SEPARATOR);
    }
    // APIs of models take no other characters, though the protocol does.
    text.extend(part.chars().map(|char| if is_plain(char) { char } else { '_' }));
    let is_cut = text.len() > limit;
    if is_cut {
        // Every character is one byte now.
        text.truncate(limit.saturating_sub(SUFFIX));
        text.push('_');
        text.push_str(&short_hash(member, own));
    }
    ShownName { text, is_cut }
}

/// Returns whether a character may stand in a shown name.
pub(crate) const fn is_plain(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '-')
}

/// Returns six characters that stand for a member and its own name.
fn short_hash(member: &str, own: &str) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut fingerprint = Fingerprint::default();
    fingerprint.add(member);
    fingerprint.add(own);
    let mut rest = fingerprint.value();
    let mut text = String::with_capacity(SUFFIX - 1);
    for _ in 1..SUFFIX {
        let digit = DIGITS.get((rest % 36) as usize).copied().unwrap_or(b'0');
        text.push(char::from(digit));
        rest /= 36;
    }
    text
}

/// A fingerprint of texts in order (FNV-1a). It is the same in every process and every release,
/// since names and stored catalogues depend on it. It is no protection against forgery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Adds a text and its end.
    pub(crate) fn add(&mut self, text: &str) {
        // No text of JSON has this byte, so that two texts cannot be mistaken for one.
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds a number.
    pub(crate) fn add_number(&mut self, number: u64) {
        self.add(itoa::Buffer::new().format(number));
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(prefix: &str, own: &str) -> ShownName {
        shown("github", prefix, own, own, 51)
    }

    #[test]
    fn name_has_its_prefix_or_none() {
        assert_eq!(name("gh", "create_issue").text, "gh__create_issue");
        assert_eq!(name("", "create_issue").text, "create_issue");
        assert_eq!(name("gh", "repo.read file").text, "gh__repo_read_file");
    }

    #[test]
    fn tool_name_over_64_characters_is_cut_with_a_hash_of_its_own() {
        let long = "a_tool_with_a_name_that_goes_on_and_on_for_more_than_sixty_four_characters";
        let (one, other) = (name("gh", long), name("gh", &format!("{long}_too")));
        assert!(one.is_cut && one.text.len() == 51, "{one:?}");
        assert_eq!(one, name("gh", long), "the name is a pure function");
        assert_ne!(one.text, other.text);
        assert_eq!(one.text.get(..44), other.text.get(..44));
        assert_eq!(
            one.text, "gh__a_tool_with_a_name_that_goes_on_and_on_f_icnyow",
            "the hash is the same in every release"
        );
        let exact = name("gh", &"x".repeat(47));
        assert!(!exact.is_cut && exact.text.len() == 51);
    }

    #[test]
    fn fingerprint_tells_where_a_text_ends() {
        let of = |texts: &[&str]| {
            let mut fingerprint = Fingerprint::default();
            texts.iter().for_each(|text| fingerprint.add(text));
            fingerprint.value()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["", "a"]), of(&["a", ""]));
        assert_eq!(of(&["a"]), of(&["a"]));
    }

    proptest! {
        #[test]
        fn every_shown_name_suits_the_api_of_a_model(own in "\\PC{1,80}", prefix in "[a-z]{0,10}") {
            let shown = name(&prefix, &own);
            prop_assert!(shown.text.len() <= 51);
            prop_assert!(shown.text.chars().all(is_plain));
        }
    }
}
