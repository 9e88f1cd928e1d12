//! Modern clients that listen. They must receive what they asked for, marked as theirs, after an
//! acknowledgement.

use protocol::client_face::modern::Classified;
use serde_json::Value;

use crate::history::Fact;
use crate::run::SimulationRun;
use crate::server::URIS;

/// What a client listens for.
#[derive(Debug)]
pub(crate) struct Listen {
    id: Value,
    lists: bool,
    uris: Vec<&'static str>,
    acknowledged: bool,
}

impl SimulationRun {
    pub(crate) fn modern_client_listens(&mut self, seat: usize) {
        let lists = self.dice.percent(60);
        let uris: Vec<&'static str> = URIS.into_iter().filter(|_| self.dice.percent(40)).collect();
        let named: Vec<String> = uris.iter().map(|uri| format!(r#""{uri}""#)).collect();
        let extra = format!(
            r#""notifications":{{"toolsListChanged":{lists},"resourceSubscriptions":[{}]}},"#,
            named.join(",")
        );
        let (at, id) = self.start_for(seat, "subscriptions/listen", &extra, Classified::Listen, None);
        self.modern_calls[at].listen = Some(Listen {
            id: serde_json::from_str(&id).unwrap_or_default(),
            lists,
            uris,
            acknowledged: false,
        });
    }

    /// Ends every listen, as a gateway does that is shut down.
    pub(crate) fn dismiss_listens(&mut self) {
        for at in 0..self.modern_calls.len() {
            if self.modern_calls[at].listen.is_some() {
                self.modern_calls[at].dismiss();
                self.serve_modern_request(at);
            }
        }
    }

    /// Judges an event of a listen.
    pub(crate) fn listen_received(&mut self, at: usize, value: &Value) {
        let Some(listen) = &mut self.modern_calls[at].listen else {
            return;
        };
        let params = &value["params"];
        let mark = &params["_meta"]["io.modelcontextprotocol/subscriptionId"];
        let asked_for = match value["method"].as_str() {
            Some("notifications/subscriptions/acknowledged") => {
                !std::mem::replace(&mut listen.acknowledged, true)
            }
            Some("notifications/tools/list_changed") => listen.acknowledged && listen.lists,
            Some("notifications/resources/updated") => {
                let uri = params["uri"].as_str().unwrap_or_default();
                listen.acknowledged && listen.uris.iter().any(|asked| uri.starts_with(asked))
            }
            _ => false,
        };
        if !asked_for || *mark != listen.id {
            let what = format!("a listen {:?} received {value}", listen.id);
            self.note(Fact::Wrong { what });
        }
    }
}
