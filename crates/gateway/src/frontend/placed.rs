//! Requests for a destination with `placement: one`: the replica answers that runs its one server.

use http::Method;
use http::Response;
use protocol::message::Message;

use super::body::Body;
use super::forwarding::{ForwardOutcome, Outgoing, refused};
use super::head::Head;
use super::http::RequestContext;
use crate::endpoint::{ParkedCall, SessionUse};
use crate::fleet::{ServerRoute, Undelivered};
use crate::peer::Target;
use crate::reply::Refusal;
use crate::seal;

/// Whether a request needs what is open here, or opens something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// It needs a session, a call or a stream that this replica has.
    OpenHere,
    /// It needs the server alone, wherever that runs: it opens something.
    Anything,
}

impl RequestContext<'_> {
    /// Lets the replica answer that runs the one server of this destination. `None`: it is this
    /// one, or every replica has its own server.
    pub(super) async fn forward_placed(
        &self,
        needs: Needs,
        mut request: Outgoing<'_>,
    ) -> Result<Option<Response<Body>>, Refusal> {
        let (Some(server), Some(fleet)) = (self.destination.placed_server(), self.destination.fleet()) else {
            return Ok(None);
        };
        // While this replica drains, the server goes on for what is open.
        let may_serve = needs == Needs::OpenHere || !self.gateway.is_draining();
        if may_serve && server.lease().is_held(self.gateway.clock.now()) {
            return Ok(None);
        }
        if self.forwarded.is_some() {
            return match server.find_for_peer().await {
                ServerRoute::Here => Ok(None),
                ServerRoute::There(_) | ServerRoute::Vacant | ServerRoute::NotHere => Err(Refusal::NotOwner),
                ServerRoute::Refused(refusal) => Err(refused(refusal)),
            };
        }
        let mut placed = server.find().await;
        let mut attempts = 0;
        loop {
            let node = match placed {
                ServerRoute::Here => return Ok(None),
                ServerRoute::There(node) => node,
                ServerRoute::Vacant => fleet.successor().await.ok_or(Refusal::Draining)?,
                ServerRoute::NotHere => return Err(Refusal::OwnerUnreached),
                ServerRoute::Refused(refusal) => return Err(refused(refusal)),
            };
            attempts += 1;
            let undelivered = match self.forward(fleet, &node, Target::Placed, &mut request).await? {
                ForwardOutcome::Answered(response) => return Ok(Some(response)),
                ForwardOutcome::Undelivered => Undelivered::NotSent(&node.id),
                ForwardOutcome::NotOwner => Undelivered::NotOwner,
            };
            placed = server.find_again(&node.id, undelivered, attempts).await;
        }
    }

    /// The same for a GET or DELETE of Streamable HTTP.
    pub(super) async fn forward_placed_head(
        &self,
        method: &Method,
        head: &Head<'_>,
    ) -> Result<Option<Response<Body>>, Refusal> {
        let request = Outgoing {
            method,
            uri: None,
            headers: head.headers(),
            message: None,
            permit: &mut None,
        };
        self.forward_placed(self.needs(head, None), request).await
    }

    /// Returns whether a request needs what is open here.
    pub(super) fn needs(&self, head: &Head<'_>, message: Option<&Message>) -> Needs {
        let principal = &self.caller.principal;
        let has_session = || {
            let id = head.session_id().ok().flatten();
            let find = |id| self.destination.session_for(SessionUse::FollowUp, id, principal);
            id.and_then(find).is_some()
        };
        let has_call = |message: &Message| {
            let params = message.object(protocol::message::Member::Params);
            let state = params.text("requestState");
            let state = state.as_ref().filter(|state| seal::is_ours(state));
            state.is_some_and(|state| {
                let parked = self.destination.parked(state, principal);
                matches!(parked, ParkedCall::Waiting(..))
            })
        };
        let names_task = |message: &Message| message.method().names_a_task();
        let is_open =
            has_session() || message.is_some_and(|message| names_task(message) || has_call(message));
        match is_open {
            true => Needs::OpenHere,
            false => Needs::Anything,
        }
    }
}
