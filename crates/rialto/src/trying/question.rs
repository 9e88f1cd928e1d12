//! Questions of a server, asked on the terminal: elicitation by form, and by URL.

use std::io::{self, BufRead, Write};

use gateway::escape;
use serde_json::{Map, Value, json};

use super::arguments;

/// Answers a request of the server: its result, or an error.
pub(super) async fn answer(method: &str, params: &Value) -> Result<Value, Value> {
    match method {
        "ping" => Ok(json!({})),
        "elicitation/create" => {
            let params = params.clone();
            // The gateway of this process goes on while the person thinks.
            let asked = tokio::task::spawn_blocking(move || {
                ask(&params, &mut io::stdin().lock(), &mut io::stderr().lock())
            });
            match asked.await {
                Ok(Ok(result)) => Ok(result),
                Ok(Err(_)) | Err(_) => Ok(json!({ "action": "cancel" })),
            }
        }
        _ => Err(json!({ "code": -32601, "message": "rialto call does not answer this" })),
    }
}

/// Asks the person. An error of the terminal cancels.
fn ask(params: &Value, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<Value> {
    let shown = |text: &str| escape::one_line(text, 2000);
    writeln!(
        output,
        "\nThe server asks: {}",
        shown(params["message"].as_str().unwrap_or_default())
    )?;
    if let Some(url) = params["url"].as_str() {
        writeln!(output, "  open this address: {}", shown(url))?;
        let action = choice(input, output, "done, decline or cancel?", "done")?;
        return Ok(json!({ "action": action }));
    }
    let schema = &params["requestedSchema"];
    let properties = schema["properties"].as_object();
    let fields: Vec<(&String, &Value)> = properties.into_iter().flatten().collect();
    if fields.is_empty() {
        let action = choice(input, output, "accept, decline or cancel?", "accept")?;
        return Ok(json!({ "action": action, "content": {} }));
    }
    writeln!(
        output,
        "  an empty line takes the default; !decline and !cancel end"
    )?;
    let mut content = Map::new();
    for (name, field) in fields {
        match value(schema, name, field, input, output)? {
            Answered::Value(value) => drop(content.insert(name.clone(), value)),
            Answered::Left => {}
            Answered::Ended(action) => return Ok(json!({ "action": action })),
        }
    }
    Ok(json!({ "action": "accept", "content": content }))
}

enum Answered {
    Value(Value),
    Left,
    Ended(&'static str),
}

/// Asks for one field until its value fits.
fn value(
    schema: &Value,
    name: &str,
    field: &Value,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> io::Result<Answered> {
    let required = schema["required"].as_array();
    let is_required = required.is_some_and(|names| names.iter().any(|known| known == name));
    let label = field["title"].as_str().unwrap_or(name);
    let mut prompt = escape::one_line(label, 200);
    if let Some(description) = field["description"].as_str() {
        prompt = format!("{prompt} ({})", escape::one_line(description, 500));
    }
    if let Some(allowed) = field["enum"].as_array() {
        let words: Vec<String> = allowed
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        prompt = format!("{prompt} [{}]", escape::one_line(&words.join("|"), 500));
    }
    let default = &field["default"];
    if !default.is_null() {
        prompt = format!(
            "{prompt} [default {}]",
            escape::one_line(&default.to_string(), 200)
        );
    } else if !is_required {
        prompt = format!("{prompt} [optional]");
    }
    loop {
        write!(output, "  {prompt}: ")?;
        output.flush()?;
        let Some(line) = line(input)? else {
            return Ok(Answered::Ended("cancel"));
        };
        match line.trim() {
            "!decline" => return Ok(Answered::Ended("decline")),
            "!cancel" => return Ok(Answered::Ended("cancel")),
            "" if !default.is_null() => return Ok(Answered::Value(default.clone())),
            "" if !is_required => return Ok(Answered::Left),
            "" => continue,
            _ => {}
        }
        // The same rules as for arguments.
        let alone = json!({ "properties": { name: field } });
        match arguments::read(&alone, &[format!("{name}={line}")]) {
            Ok(mut read) => return Ok(Answered::Value(read[name].take())),
            Err(message) => writeln!(output, "  {message}")?,
        }
    }
}

/// Asks for one of three words.
fn choice(
    input: &mut impl BufRead,
    output: &mut impl Write,
    prompt: &str,
    yes: &str,
) -> io::Result<&'static str> {
    loop {
        write!(output, "  {prompt} ")?;
        output.flush()?;
        let Some(line) = line(input)? else {
            return Ok("cancel");
        };
        match line.trim().to_ascii_lowercase().as_str() {
            "decline" | "no" | "n" | "!decline" => return Ok("decline"),
            "cancel" | "c" | "!cancel" => return Ok("cancel"),
            "yes" | "y" => return Ok("accept"),
            word if word == yes => return Ok("accept"),
            _ => {}
        }
    }
}

/// Returns the next line; `None` at the end.
fn line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = input.read_line(&mut line)?;
    let line = line.trim_end_matches(['\r', '\n']).to_owned();
    Ok((read > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(params: &Value, typed: &str) -> (Value, String) {
        let mut shown = Vec::new();
        let result = ask(params, &mut typed.as_bytes(), &mut shown).expect("no error of a terminal");
        (result, String::from_utf8(shown).expect("text"))
    }

    fn form() -> Value {
        json!({
            "message": "Which \u{1b}one?",
            "requestedSchema": {
                "required": ["name"],
                "properties": {
                    "age": { "type": "integer" },
                    "colour": { "type": "string", "enum": ["red", "blue"], "default": "red" },
                    "name": { "type": "string", "title": "Your name" }
                }
            }
        })
    }

    #[test]
    fn fields_are_asked_for_until_they_fit() {
        let (result, shown) = asked(&form(), "old\n7\n\n\nAnn\n");
        let expected = json!({
            "action": "accept", "content": { "age": 7, "colour": "red", "name": "Ann" }
        });
        assert_eq!(result, expected);
        assert!(shown.contains("`age`: `old` is no integer"), "{shown}");
        assert!(shown.contains("Your name: "), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }

    #[test]
    fn person_may_decline_cancel_or_leave_out() {
        assert_eq!(asked(&form(), "!decline\n").0, json!({ "action": "decline" }));
        assert_eq!(asked(&form(), "7\n").0, json!({ "action": "cancel" }));
        let (result, _) = asked(&form(), "\nblue\nAnn\n");
        assert_eq!(result["content"], json!({ "colour": "blue", "name": "Ann" }));
        let confirmation = json!({ "message": "Sure?", "requestedSchema": { "properties": {} } });
        assert_eq!(asked(&confirmation, "what\nyes\n").0["action"], "accept");
        assert_eq!(asked(&confirmation, "no\n").0["action"], "decline");
    }

    #[test]
    fn address_is_shown_and_the_person_tells_when_it_is_done() {
        let params = json!({ "mode": "url", "message": "Sign in", "url": "https://x/\u{7}" });
        let (result, shown) = asked(&params, "done\n");
        assert_eq!(result, json!({ "action": "accept" }));
        assert!(shown.contains("https://x/\\u{7}"), "{shown}");
    }
}
