//! HTTP+SSE of 2024-11-05: one stream for everything the server sends, one endpoint for what it
//! receives.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::super::exchange::Exchange;
use super::super::wire::Wire;
use super::super::{STREAM_QUEUE, Shared, spawn};
use super::{answer, asked, execute, forget, initialize_result, mint, note_answer, posted, question, result};
use crate::failure::Result;

pub(super) async fn usual(shared: &Arc<Shared>, mut wire: Wire, exchange: &Exchange) -> Result<Option<Wire>> {
    let (path, query) = exchange.path.split_once('?').unwrap_or((&exchange.path, ""));
    match (exchange.http_method.as_str(), path) {
        ("GET", "/sse") => listen(shared, wire).await,
        ("POST", "/message") => {
            let session = query.strip_prefix("session=").unwrap_or_default();
            let stream = {
                let state = shared.state();
                let mut streams = state.streams.iter();
                streams
                    .find(|(known, _)| known == session)
                    .map(|(_, stream)| stream.clone())
            };
            let Some(stream) = stream else {
                wire.respond(404, &[], "no such session").await?;
                return Ok(Some(wire));
            };
            wire.respond(202, &[], "").await?;
            let (shared, exchange) = (Arc::clone(shared), exchange.clone());
            // What it asks in return may arrive on this very connection.
            spawn(async move { speak(&shared, &exchange, &stream).await });
            Ok(Some(wire))
        }
        ("POST" | "DELETE", "/sse") => {
            wire.respond(405, &[("allow".to_owned(), "GET".to_owned())], "")
                .await?;
            Ok(Some(wire))
        }
        _ => {
            wire.respond(404, &[], "").await?;
            Ok(Some(wire))
        }
    }
}

async fn listen(shared: &Shared, mut wire: Wire) -> Result<Option<Wire>> {
    let session = mint(shared);
    let (sender, mut said) = mpsc::channel::<String>(STREAM_QUEUE);
    shared.state().streams.push((session.clone(), sender));
    wire.open_stream(&[]).await?;
    let endpoint = format!("event: endpoint\ndata: /message?session={session}\n\n");
    wire.chunk(endpoint.as_bytes()).await?;
    loop {
        let message = tokio::select! {
            message = said.recv() => message,
            () = wire.hung_up() => {
                // The stream is the session.
                forget(shared, &session);
                return Err(crate::Failure::new("the session has ended"));
            }
        };
        let Some(message) = message else { break };
        wire.chunk(format!("event: message\ndata: {message}\n\n").as_bytes())
            .await?;
    }
    wire.end_stream().await?;
    Ok(Some(wire))
}

/// Sends the answer to a message on the stream.
async fn speak(shared: &Shared, exchange: &Exchange, stream: &mpsc::Sender<String>) {
    if exchange.body.get("id").is_none() || exchange.method().is_empty() {
        return note_answer(shared, exchange);
    }
    let said = match (exchange.method(), exchange.tool()) {
        ("initialize", _) => result(exchange, initialize_result(&"2024-11-05".into())),
        (_, "ask") => {
            execute(shared, exchange);
            let (key, question) = question(shared, exchange);
            let _ = stream.send(question).await;
            asked(exchange, &posted(shared, &key).await)
        }
        _ => answer(shared, exchange),
    };
    // A stream whose reader has gone takes nothing.
    let _ = stream.send(said).await;
}
