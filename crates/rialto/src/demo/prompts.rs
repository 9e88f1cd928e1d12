//! The two prompts, and completion of the one argument that can be completed.
use serde_json::{Value, json};

use super::message::{Object, Refusal, text};
use super::resources::GREETING_TEMPLATE;

const NAMES: [&str; 7] = ["Ada", "Alan", "Barbara", "Edsger", "Grace", "Linus", "Margaret"];

pub(super) fn list() -> Value {
    json!({"prompts": [
        {"name": "greet", "title": "Greet somebody", "description": "Asks the model for a short greeting",
         "arguments": [{"name": "name", "title": "Name", "description": "Who is greeted (can be completed)", "required": true}]},
        {"name": "review", "title": "Review code", "description": "Asks the model to review a piece of code",
         "arguments": [{"name": "code", "title": "Code", "description": "The code to review", "required": true}]},
    ]})
}

pub(super) fn fetch(params: &Object) -> Result<Value, Refusal> {
    let name = text(params, "name")?;
    let argument = |wanted: &str| {
        let value = params
            .get("arguments")
            .and_then(|arguments| arguments.get(wanted))
            .and_then(Value::as_str);
        value.ok_or_else(|| {
            Refusal::InvalidParams(format!("prompt {name} needs the string argument \"{wanted}\""))
        })
    };
    let (description, request) = match name {
        "greet" => (
            "A greeting",
            format!("Greet {} in one friendly sentence.", argument("name")?),
        ),
        "review" => (
            "A code review",
            format!(
                "Review this code and name its worst flaw:\n\n{}",
                argument("code")?
            ),
        ),
        _ => return Err(Refusal::InvalidParams(format!("unknown prompt {name}"))),
    };
    Ok(json!({"description": description,
        "messages": [{"role": "user", "content": {"type": "text", "text": request}}]}))
}

pub(super) fn complete(params: &Object) -> Result<Value, Refusal> {
    let invalid = |why: &str| Refusal::InvalidParams(why.to_owned());
    let reference = params
        .get("ref")
        .and_then(Value::as_object)
        .ok_or_else(|| invalid("ref must be an object"))?;
    let argument = params
        .get("argument")
        .and_then(Value::as_object)
        .ok_or_else(|| invalid("argument must be an object"))?;
    let (name, typed) = (text(argument, "name")?, text(argument, "value")?);
    let names = match text(reference, "type")? {
        "ref/prompt" => match (text(reference, "name")?, name) {
            ("greet", "name") => true,
            ("review", "code") => false,
            ("greet" | "review", _) => return Err(invalid("that prompt has no such argument")),
            _ => return Err(invalid("unknown prompt")),
        },
        "ref/resource" => match (text(reference, "uri")?, name) {
            (GREETING_TEMPLATE, "name") => true,
            (GREETING_TEMPLATE, _) => return Err(invalid("that template has no such variable")),
            _ => return Err(invalid("unknown resource template")),
        },
        _ => return Err(invalid("ref.type must be ref/prompt or ref/resource")),
    };
    let typed = typed.to_lowercase();
    let values: Vec<&str> = NAMES
        .into_iter()
        .filter(|known| names && known.to_lowercase().starts_with(&typed))
        .collect();
    Ok(json!({"completion": {"total": values.len(), "hasMore": false, "values": values}}))
}
