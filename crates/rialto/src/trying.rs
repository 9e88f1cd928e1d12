//! `rialto tools` and `rialto call`: a quick try of one server, from the command line.

mod answer;
mod arguments;
mod client;
mod listing;
mod question;
pub(crate) mod target;

use std::io::{self, IsTerminal as _, Read as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config::connection::Connection;
use crate::config::{Environment, LogSettings};
use crate::flags::looking::{CallFlags, ServerFlags, ToolsFlags};
use crate::looking::{block_on, columns, has_colour, print};
use crate::terminal::text;
use crate::{exit, fail, serve, telemetry};
use client::{Client, Problem};

/// The largest arguments that are read from stdin.
const MAX_ARGUMENTS: u64 = 16 << 20;

pub(crate) fn tools(flags: &ToolsFlags, environment: &Environment) -> ExitCode {
    run(environment, async {
        let (mut client, server) = open(&flags.server, environment).await?;
        let tools = list(&mut client, &server).await;
        client.close().await;
        let tools = tools?;
        match flags.json {
            true => print(&format!("{}\n", json!({ "server": server, "tools": tools }))),
            false => {
                let columns = columns().min(100);
                print(&listing::text(&server, &tools, columns, has_colour(environment)));
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

pub(crate) fn call(flags: &CallFlags, environment: &Environment) -> ExitCode {
    run(environment, async {
        let (mut client, server) = open(&flags.server, environment).await?;
        let result = result(flags, &mut client, &server).await;
        client.close().await;
        let result = result?;
        let is_terminal = io::stdout().is_terminal();
        print(&match flags.raw {
            true => format!("{result}\n"),
            false => answer::text(&result, is_terminal),
        });
        Ok(match result["isError"] == true {
            true => ExitCode::from(exit::TOOL_ERROR),
            false => ExitCode::SUCCESS,
        })
    })
}

/// Calls the tool. Returns its result.
async fn result(flags: &CallFlags, client: &mut Client, server: &Value) -> Result<Value, Problem> {
    let tools = list(client, server).await?;
    let tool = tools.iter().find(|tool| tool["name"] == flags.tool.as_str());
    let tool = tool.ok_or_else(|| Problem::usage(unknown_tool(&flags.tool, &tools)))?;
    let arguments = match &flags.json {
        Some(text) => whole(text),
        None => arguments::read(&tool["inputSchema"], &flags.arguments),
    };
    let arguments = arguments.map_err(|message| {
        let usage = listing::usage(tool);
        Problem::usage(format!("{message}\n  the tool takes: {} {usage}", flags.tool))
    })?;
    let params = json!({ "name": flags.tool, "arguments": arguments });
    client.request("tools/call", params).await
}

/// Runs a try with the log that it needs: none, unless the user asks for one.
fn run(environment: &Environment, tried: impl Future<Output = Result<ExitCode, Problem>>) -> ExitCode {
    let directives = environment.filled("RUST_LOG").unwrap_or("off");
    let _telemetry = match telemetry::init(&LogSettings::human(Some(directives), environment)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(exit::CONFIGURATION, &format!("{error:#}")),
    };
    serve::close_to_children();
    block_on(async {
        match tried.await {
            Ok(code) => code,
            Err(problem) => fail(problem.code, &problem.text),
        }
    })
}

/// Opens a session. Returns what the server declares as well.
async fn open(flags: &ServerFlags, environment: &Environment) -> Result<(Client, Value), Problem> {
    let found = target::find(flags, environment).await?;
    let capabilities = match io::stdin().is_terminal() {
        true => json!({ "elicitation": { "form": {}, "url": {} } }),
        false => json!({}),
    };
    Client::open(&found, environment, capabilities).await
}

/// What a server showed to a client that looked around.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Its answer to `initialize`.
    pub(crate) server: Value,
    /// How long that took.
    pub(crate) opened: Duration,
    pub(crate) tools: Result<Vec<Value>, String>,
    /// How long the list took.
    pub(crate) listed: Duration,
}

/// Opens a session at a server, lists its tools, and leaves.
pub(crate) async fn look_around(
    connection: Connection,
    timeout: Duration,
    environment: &Environment,
) -> Result<Shown, String> {
    let found = target::Found { connection, timeout };
    let began = Instant::now();
    let opened = Client::open(&found, environment, json!({})).await;
    let (mut client, server) = opened.map_err(|problem| problem.text)?;
    let opened = began.elapsed();
    let began = Instant::now();
    let tools = list(&mut client, &server).await.map_err(|problem| problem.text);
    let listed = began.elapsed();
    client.close().await;
    Ok(Shown {
        server,
        opened,
        tools,
        listed,
    })
}

/// Returns all tools, page by page.
async fn list(client: &mut Client, server: &Value) -> Result<Vec<Value>, Problem> {
    const PAGES: usize = 100;
    if server["capabilities"]["tools"].is_null() {
        return Ok(Vec::new());
    }
    let mut tools = Vec::new();
    let mut params = json!({});
    for _ in 0..PAGES {
        let mut page = client.request("tools/list", params).await?;
        if let Value::Array(more) = page["tools"].take() {
            tools.extend(more);
        }
        match page["nextCursor"].take() {
            Value::Null => break,
            cursor => params = json!({ "cursor": cursor }),
        }
    }
    Ok(tools)
}

fn unknown_tool(name: &str, tools: &[Value]) -> String {
    if tools.is_empty() {
        return "the server has no tools".to_owned();
    }
    let names: Vec<String> = tools
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .map(|name| gateway::escape::one_line(name, 100))
        .collect();
    let listed = text::cut(&names.join(", "), 2000);
    format!("there is no tool `{name}`; the server has {listed}")
}

/// Reads all arguments at once.
fn whole(text: &str) -> Result<Value, String> {
    let mut read = String::new();
    let text = match text {
        "-" => {
            io::stdin()
                .lock()
                .take(MAX_ARGUMENTS)
                .read_to_string(&mut read)
                .map_err(|error| format!("cannot read stdin: {error}"))?;
            &read
        }
        text => text,
    };
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(_) => Err("--json: write an object, such as {\"path\": \"/tmp\"}".to_owned()),
        Err(error) => Err(format!("--json: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_in_one_piece_are_an_object() {
        assert_eq!(whole("{\"a\":1}"), Ok(json!({ "a": 1 })));
        assert!(whole("[1]").is_err_and(|message| message.contains("write an object")));
        assert!(whole("{a:1}").is_err_and(|message| message.starts_with("--json: ")));
    }

    #[test]
    fn unknown_tool_is_answered_with_those_that_there_are() {
        let tools = [json!({ "name": "echo" }), json!({ "name": "a\u{1b}b" })];
        let text = unknown_tool("ecko", &tools);
        assert_eq!(text, "there is no tool `ecko`; the server has echo, a\\u{1b}b");
        assert_eq!(unknown_tool("x", &[]), "the server has no tools");
    }
}
