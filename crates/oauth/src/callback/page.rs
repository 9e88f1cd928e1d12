//! The page at the end of a sign-in.

use std::fmt::Write as _;

/// The texts of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page<'a> {
    pub(super) title: &'a str,
    pub(super) text: &'a str,
}

impl Page<'_> {
    /// Returns the page without scripts, links or loaded parts, with every text escaped.
    pub(super) fn html(self) -> String {
        let (title, text) = (escaped(self.title), escaped(self.text));
        format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Rialto: {title}</title>\n\
             <style>body{{font:1.1em/1.5 system-ui,sans-serif;max-width:34em;margin:15vh auto;padding:0 1em}}</style>\n\
             <h1>{title}</h1>\n<p>{text}</p>\n</html>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' | '<' | '>' | '"' | '\'' | '`' => {
                let _ = write!(html, "&#{};", u32::from(character));
            }
            _ if character.is_control() => html.push(' '),
            _ => html.push(character),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_escapes_every_text() {
        let html = Page {
            title: "<b>",
            text: "\"><script>alert('1')</script>\u{0}",
        }
        .html();
        assert!(
            !html.contains("<script>") && !html.contains("<b>") && !html.contains('\0'),
            "{html}"
        );
    }
}
