//! The state as a table of HTML, for browsers that run no scripts.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns the destinations of a snapshot as a table.
pub(super) fn table(snapshot: &Value) -> String {
    let mut html = String::from(
        "<table><caption>Destinations</caption><thead><tr><th>Name</th><th>State</th><th>Sessions</th>\
         <th>Calls in flight</th><th>Error</th></tr></thead><tbody>",
    );
    let destinations = snapshot["destinations"].as_array().map(Vec::as_slice);
    for one in destinations.unwrap_or_default() {
        let state = one["resting"].as_str().or_else(|| one["state"].as_str());
        let cells = [
            one["name"].as_str().unwrap_or_default().to_owned(),
            state.unwrap_or_default().to_owned(),
            one["sessions"].to_string(),
            one["calls"]["in_flight"].to_string(),
            one["error"].as_str().unwrap_or("–").to_owned(),
        ];
        html.push_str("<tr>");
        for cell in cells {
            // Writing to a `String` cannot fail.
            let _ = write!(html, "<td>{}</td>", escaped(&cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table>");
    html
}

/// Returns a text as it stands in HTML, between tags or in a quoted attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_of_servers_make_no_tags() {
        let html = table(&json!({ "destinations": [{
            "name": "files",
            "state": "failed",
            "resting": null,
            "sessions": 0,
            "calls": { "in_flight": 1 },
            "error": "</td><script>alert('x')</script>",
        }] }));
        assert!(!html.contains("<script"), "{html}");
        assert!(
            html.contains("<td>files</td><td>failed</td><td>0</td><td>1</td>"),
            "{html}"
        );
    }
}
