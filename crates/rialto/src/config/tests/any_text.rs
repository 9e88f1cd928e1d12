//! A file with any text is read or refused with a message.

use super::*;

/// Texts that look enough like a configuration to get past the parser.
fn almost_a_configuration() -> impl proptest::strategy::Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "destinations:",
        "\n  ",
        "\n    ",
        "x:",
        "command: ",
        "cat",
        "env: ",
        "{ A: ",
        " }",
        "[",
        "]",
        "${",
        "}",
        "secret:",
        "file:",
        ":-",
        "$$",
        "listen: ",
        "audit: ",
        "sink: ",
        "'",
        "\"",
        "30s",
        "5",
        "mcpServers: ",
        "ä",
        "\t",
        "&a ",
        "*a",
        "<<: ",
        "- ",
        "process: per_session",
        "url: ",
        "type: sse",
        "null",
        ", ",
        "\\",
        "|",
        "#",
    ]);
    proptest::strategy::Strategy::prop_map(proptest::collection::vec(piece, 0..40), |pieces| pieces.concat())
}

#[test]
fn every_text_of_the_corpus_is_read_or_refused_alike_twice() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/configuration");
    let mut texts = 0;
    for entry in std::fs::read_dir(folder).expect("there is a corpus") {
        let path = entry.expect("the folder can be read").path();
        property::holds(&std::fs::read(path).expect("the file can be read"));
        texts += 1;
    }
    assert!(texts > 0, "the corpus is empty");
}

proptest::proptest! {
    #[test]
    fn any_text_like_a_configuration_is_read_or_refused_alike_twice(text in almost_a_configuration()) {
        property::holds(text.as_bytes());
    }

    #[test]
    fn any_text_as_a_configuration_is_read_or_refused_without_a_panic(text in ".*") {
        let _ = load(&text);
    }

    #[test]
    fn any_text_over_several_lines_is_read_or_refused_without_a_panic(text in "(?s).{0,200}") {
        let _ = load(&text);
    }

    #[test]
    fn almost_a_configuration_is_read_or_refused_without_a_panic(text in almost_a_configuration()) {
        if let Err(error) = load(&text) {
            proptest::prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_value_of_any_key_is_read_or_refused_without_a_panic(
        key in proptest::sample::select(vec![
            "command", "args", "env", "cwd", "process", "env_from_headers", "start", "start_timeout", "max_sessions",
            "max_children", "linger", "idle_stop", "capabilities", "era", "show", "roots", "request_timeout", "stream_timeout", "max_message_bytes", "type", "url",
            "headers", "forward_headers", "ca_file", "retry", "auth",
        ]),
        value in "\\PC{0,30}",
    ) {
        let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = load(&format!("destinations:\n  x:\n    {key}: \"{quoted}\"\n"));
    }
}
