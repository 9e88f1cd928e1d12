//! The clients of an aggregate: their conversations, the instances that these are given, and the
//! tools that they call.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use protocol::aggregate::{CursorSeal, SEARCH_TOOLS, ToolsMode, View, tool_within};
use protocol::exchange::{BackendError, Client, Failure, Principal, SessionKey};
use protocol::message::{Member, Message};
use protocol::method::Method;
use protocol::time::Moment;

use super::catalogue::CatalogueHandle;
use super::{Aggregate, Caller, RETRY, Scope, shares_instances};
use crate::conversation_handle::{ConversationHandle, ConversationSpec};
use crate::endpoint::Endpoint;
use crate::instance::Reservation;
use crate::reply::{self, Refusal};
use crate::seal::Sealer;
use crate::upstream::WantedFor;

/// How often clients cause a look at all members.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// What a client has come for, as far as an aggregate treats it differently.
#[derive(Debug, Clone, Copy)]
pub(in crate::endpoint) struct ClientIntent {
    /// How its URL wants tools to be listed.
    pub(in crate::endpoint) tools: Option<ToolsMode>,
    /// It wants a list and nothing else.
    pub(in crate::endpoint) is_list: bool,
}

impl Aggregate {
    /// Opens a conversation for a client.
    pub(in crate::endpoint) fn open_conversation(
        &self,
        (key, wanted_for): (SessionKey, WantedFor),
        client: &Client,
        headers: &HeaderMap,
        intent: ClientIntent,
    ) -> Result<Arc<ConversationHandle>, Refusal> {
        let members = self.members();
        let (mut credentials, mut kept) = (BTreeMap::new(), HeaderMap::new());
        for (name, endpoint) in &members.given_headers {
            let Some(upstream) = endpoint.upstream.one() else {
                continue;
            };
            credentials.insert(name.clone(), upstream.passed_on(headers)?);
            for header in upstream.wanted_headers() {
                if let Some((header, value)) = HeaderName::try_from(header).ok().zip(headers.get(header)) {
                    kept.insert(header, value.clone());
                }
            }
        }
        let scope = members.has_callers.then(|| {
            Arc::new(Caller {
                principal: client.principal.clone(),
                credentials,
            })
        });
        let catalogue = self.catalogue_for(scope.clone(), &kept);
        let now = self.shared.clock.now();
        if self.is_time_to_look(now) {
            self.refresh(&members);
            self.read_unread(&None, &members);
        }
        if members.has_callers && !intent.is_list {
            // A list alone starts no server that is a caller's own.
            self.read_unread(&scope, &members);
        }
        let cursors = Cursors {
            sealer: Arc::clone(&self.shared.sealer),
            bound_to: format!("{}/{}", self.name, client.principal.as_str()),
        };
        Ok(catalogue.open_conversation(|view| ConversationSpec {
            key,
            wanted_for,
            destination: Arc::clone(&self.name),
            clock: self.shared.clock,
            metrics: Arc::clone(&self.metrics),
            members: Arc::clone(&catalogue) as _,
            headers: kept,
            open_calls: Arc::clone(&self.open_calls),
            tools: intent.tools.unwrap_or_else(|| view.plan().tools_mode()),
            view,
            cursors: Arc::new(cursors),
        }))
    }

    /// Returns whether clients have not caused a look at all members a moment ago: with many
    /// members each look takes its time.
    fn is_time_to_look(&self, now: Moment) -> bool {
        let mut looked_at = self.looked_at.lock();
        let is_time = looked_at.is_none_or(|at| now.since(at) >= LOOK_PAUSE);
        if is_time {
            *looked_at = Some(now);
        }
        is_time
    }

    /// Returns whether a request has every header that a server of a member is given.
    pub(in crate::endpoint) fn has_credentials(&self, headers: &HeaderMap) -> bool {
        let members = self.members();
        let mut given = members.given_headers.iter();
        given.all(|(_, endpoint)| endpoint.upstream.has_credentials(headers))
    }

    /// Returns an instance of a member for a client.
    pub(super) fn instance_for(
        &self,
        scope: &Scope,
        member: &str,
        wanted_for: WantedFor,
        client: &Client,
        headers: &HeaderMap,
    ) -> Result<(Reservation, Arc<Endpoint>), Failure> {
        let members = self.members();
        let (name, endpoint) = members.endpoints.get_key_value(member).ok_or(Failure::Retired)?;
        if let Some(upstream) = endpoint.upstream.one() {
            upstream.wake();
        }
        endpoint.check_open().map_err(|refusal| failure_of(&refusal))?;
        let find = || endpoint.instance_for(wanted_for, client, headers);
        let found = match find() {
            // A session here may hold an instance that it no longer uses.
            Err(refusal @ Refusal::TooManyChildren { .. }) => {
                let owner = self.owner.get().and_then(Weak::upgrade);
                let freed = owner.map(|owner| owner.end_one_session(&client.principal));
                match freed {
                    Some(Ok(())) => find(),
                    Some(Err(_)) | None => Err(refusal),
                }
            }
            found => found,
        };
        let found = found.map_err(|refusal| failure_of(&refusal))?;
        // A server that runs now can confirm what is known of it.
        if !self.is_confirmed(scope, name) && shares_instances(endpoint) {
            self.read_wanted(scope, name);
        }
        Ok((found, Arc::clone(endpoint)))
    }

    /// Returns the own names of the tools that a message of this caller may call: by its name, and
    /// through a tool that calls others. Returns a name that no member is known to have as an
    /// error.
    pub(in crate::endpoint) fn called_tools(
        &self,
        principal: &Principal,
        message: &Message,
    ) -> Result<Vec<String>, String> {
        if message.method() != Method::ToolsCall {
            return Ok(Vec::new());
        }
        let own: Vec<Arc<CatalogueHandle>> = {
            let catalogues = self.catalogues.lock();
            let is_own = |scope: &Scope| scope.as_ref().is_none_or(|caller| caller.principal == *principal);
            let own = catalogues.iter().filter(|(scope, _)| is_own(scope));
            own.map(|(_, catalogue)| Arc::clone(catalogue)).collect()
        };
        let views: Vec<Arc<View>> = own.iter().map(|catalogue| catalogue.view()).collect();
        let own_of = |shown: &str| -> Vec<String> {
            let found = views.iter().filter_map(|view| view.tool(shown));
            found.map(|(_, own)| own.to_owned()).collect()
        };
        let name = message.text(Member::Name).unwrap_or_default();
        let mut called = own_of(&name);
        if SEARCH_TOOLS.contains(&&*name) {
            if let Some(inner) = tool_within(message) {
                let found = own_of(&inner);
                if found.is_empty() {
                    return Err(inner);
                }
                called.extend(found);
            }
        } else if called.is_empty() {
            // It may be a tool of a member of which nothing is known yet.
            return Err(name.into_owned());
        }
        Ok(called)
    }
}

/// Returns how a call fails whose member gives no instance.
pub(super) fn failure_of(refusal: &Refusal) -> Failure {
    match refusal {
        Refusal::Retired | Refusal::Draining | Refusal::UnknownPath => Failure::Retired,
        Refusal::TooManyChildren { .. } => Failure::Overloaded {
            limit: "max_children",
        },
        Refusal::NotOwner => Failure::OwnerLost,
        other => {
            let what = match other {
                Refusal::BrokenDestination => reply::CANNOT_RUN.to_owned(),
                other => other.text(),
            };
            Failure::Unavailable {
                backend_error: Arc::new(BackendError {
                    what,
                    ..BackendError::default()
                }),
                retry_after: RETRY,
            }
        }
    }
}

/// Seals the cursors of lists for one caller.
#[derive(Debug)]
struct Cursors {
    sealer: Arc<Sealer>,
    bound_to: String,
}

impl CursorSeal for Cursors {
    fn seal(&self, cursor: &str) -> Option<String> {
        self.sealer.seal_cursor(cursor, &self.bound_to)
    }

    fn open(&self, sealed: &str) -> Option<String> {
        self.sealer.open_cursor(sealed, &self.bound_to)
    }
}
