//! Placement: which instance of a server a client gets, and which clients share one.
//!
//! Clients whose [`InstanceKey`]s are equal share an instance. [`Rules`] make the key of a client,
//! and [`Instances::place`] finds the instance, or returns what is to be done for it. Facts about
//! running instances are collected beforehand by the caller, which also starts and stops them.

use std::collections::BTreeMap;

use crate::capability::Capabilities;
use crate::exchange::{Client, Principal, SessionKey};
use crate::negotiation::StartedFor;

/// Which clients share an instance, and so a child or a session at a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All.
    Shared,
    /// None: each session has its own.
    PerSession,
    /// Those of one principal with the same credentials.
    PerIdentity,
}

/// Which capabilities of its clients a legacy server learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredCapabilities {
    /// Exactly what the caller declared; callers that differ get different instances.
    PerClient,
    /// Everything; Rialto refuses what a caller cannot do.
    Union,
}

/// How the clients of a server share its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Which clients share one.
    pub sharing: Sharing,
    /// Which of their capabilities the server learns.
    pub capabilities: DeclaredCapabilities,
}

/// What an instance is for. The era of the server is no part of it: clients of both eras share an
/// instance and are translated. `C` is what a client's headers pass on to the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceKey<C> {
    /// Started before any client came, without credentials and capabilities: the first client that
    /// needs a new instance takes it over.
    Unclaimed,
    /// One session.
    Session(SessionKey),
    /// Clients that are alike.
    Clients {
        /// Their principal and credentials, where identities do not share.
        identity: Option<(Principal, C)>,
        /// Their capabilities, where the server learns exactly these.
        capabilities: Option<Capabilities>,
    },
}

impl<C: Eq> InstanceKey<C> {
    /// Returns the principal that alone uses instances with this key, if the key names one.
    pub fn principal(&self) -> Option<&Principal> {
        match self {
            Self::Clients { identity, .. } => identity.as_ref().map(|(principal, _)| principal),
            Self::Unclaimed | Self::Session(_) => None,
        }
    }

    fn is_of(&self, wanted: &Option<(Principal, C)>) -> bool {
        match self {
            Self::Clients { identity, .. } => identity == wanted,
            Self::Unclaimed | Self::Session(_) => false,
        }
    }
}

/// The instance that a client needs.
#[derive(Debug, Clone)]
pub struct Wanted<C> {
    key: InstanceKey<C>,
    /// The shared instance, which is used if there is no room for another one.
    shared: Option<InstanceKey<C>>,
    client: Capabilities,
    /// An instance that was started before clients came has no credentials in its environment.
    needs_credentials: bool,
}

impl Rules {
    /// Returns the key of the instance that is started before any client comes.
    pub fn key_before_clients<C>(self) -> InstanceKey<C> {
        match (self.sharing, self.capabilities) {
            (Sharing::Shared, DeclaredCapabilities::Union) => InstanceKey::Clients {
                identity: None,
                capabilities: None,
            },
            (Sharing::Shared, DeclaredCapabilities::PerClient)
            | (Sharing::PerSession | Sharing::PerIdentity, _) => InstanceKey::Unclaimed,
        }
    }

    /// Returns what a client needs: one with a session, or a modern one without.
    /// `learns_per_request`: the server is known to learn with each request what its client can do,
    /// so that clients need not be alike.
    pub fn wanted<C: Clone + Eq + Default>(
        self,
        session: Option<SessionKey>,
        client: &Client,
        credentials: C,
        learns_per_request: bool,
    ) -> Wanted<C> {
        let needs_credentials = credentials != C::default();
        let key = match (self.sharing, session) {
            (Sharing::PerSession, Some(session)) => InstanceKey::Session(session),
            // Without sessions the next smaller unit is the principal.
            (Sharing::PerIdentity, _) | (Sharing::PerSession, None) => {
                let identity = Some((client.principal.clone(), credentials));
                self.key_of(identity, client, learns_per_request)
            }
            (Sharing::Shared, _) => self.key_of(None, client, learns_per_request),
        };
        Wanted {
            key,
            shared: None,
            client: client.capabilities.clone(),
            needs_credentials,
        }
    }

    /// Returns what a client needs that leaves a shared instance for one of its principal alone.
    pub fn wanted_alone<C: Default>(self, client: &Client, learns_per_request: bool) -> Wanted<C> {
        let identity = Some((client.principal.clone(), C::default()));
        Wanted {
            key: self.key_of(identity, client, learns_per_request),
            shared: None,
            client: client.capabilities.clone(),
            // It never takes over an unclaimed one.
            needs_credentials: true,
        }
    }

    fn key_of<C>(
        self,
        identity: Option<(Principal, C)>,
        client: &Client,
        learns_per_request: bool,
    ) -> InstanceKey<C> {
        let capabilities = match self.capabilities {
            DeclaredCapabilities::PerClient if !learns_per_request => Some(client.capabilities.clone()),
            DeclaredCapabilities::PerClient | DeclaredCapabilities::Union => None,
        };
        InstanceKey::Clients {
            identity,
            capabilities,
        }
    }
}

impl<C: Clone + Eq + Default> Wanted<C> {
    /// Returns what the instance is for.
    pub fn key(&self) -> &InstanceKey<C> {
        &self.key
    }

    /// Returns whether clients of all principals share the instance.
    pub fn is_for_all(&self) -> bool {
        self.key.is_of(&None)
    }

    /// Returns which clients an instance would be started for.
    pub fn started_for(&self) -> StartedFor {
        match self.key {
            InstanceKey::Session(_) => StartedFor::Session,
            InstanceKey::Unclaimed | InstanceKey::Clients { .. } => StartedFor::AnyClient,
        }
    }

    /// Asks for an instance of the principal's own in the place of the shared one, which has asked
    /// another principal: neither is to wait for the other's answers. Where there is no room, the
    /// shared one is used all the same.
    pub fn unshared(mut self, principal: &Principal) -> Self {
        if let InstanceKey::Clients {
            identity: None,
            capabilities,
        } = &self.key
        {
            let own = InstanceKey::Clients {
                identity: Some((principal.clone(), C::default())),
                capabilities: capabilities.clone(),
            };
            self.shared = Some(std::mem::replace(&mut self.key, own));
        }
        self
    }

    /// Returns whether an instance with another key serves as well once its server has turned out
    /// to learn with each request what its client can do: it was started for clients of one kind,
    /// and one for every kind is needed.
    pub fn may_take_over(&self, other: &InstanceKey<C>) -> bool {
        match &self.key {
            InstanceKey::Clients {
                identity,
                capabilities: None,
            } => other.is_of(identity),
            InstanceKey::Clients {
                capabilities: Some(_),
                ..
            }
            | InstanceKey::Session(_)
            | InstanceKey::Unclaimed => false,
        }
    }
}

/// What is to be done for a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Placement<I> {
    /// It gets this instance.
    Found(I),
    /// It gets this instance, which was started before clients came.
    Claimed(I),
    /// An instance is to be started and added with the wanted key.
    Start,
    /// There is room, but so many instances are being ended that none may be started.
    TooManyEnding,
    /// Another instance must end first.
    Full,
}

/// How many instances there may be.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Instances at once.
    pub limit: usize,
    /// Those that run or are being ended.
    pub running: usize,
}

impl Room {
    /// Returns whether so many instances are being ended that none may be started. A storm of
    /// sessions must not pile them up.
    fn has_too_many_running(self) -> bool {
        self.running >= self.limit.saturating_mul(2).max(16)
    }
}

/// The instances of a server, by what they are for.
#[derive(Debug, Clone)]
pub struct Instances<C, I>(BTreeMap<InstanceKey<C>, I>);

impl<C, I> Default for Instances<C, I> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<C: Clone + Ord + Default, I: Clone> Instances<C, I> {
    /// Returns the instances, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&InstanceKey<C>, &I)> {
        self.0.iter()
    }

    /// Returns the instance with this key.
    pub fn get(&self, key: &InstanceKey<C>) -> Option<&I> {
        self.0.get(key)
    }

    /// Adds an instance.
    pub fn insert(&mut self, key: InstanceKey<C>, instance: I) {
        self.0.insert(key, instance);
    }

    /// Takes an instance out, so that no new client gets it.
    pub fn remove(&mut self, key: &InstanceKey<C>) -> Option<I> {
        self.0.remove(key)
    }

    /// Takes out those that principals have to themselves.
    pub fn remove_of(&mut self, leaves: impl Fn(&str) -> bool) -> Vec<I> {
        let is_theirs = |key: &InstanceKey<C>| key.principal().is_some_and(|of| leaves(of.as_str()));
        let removed = self.0.extract_if(.., |key, _| is_theirs(key));
        removed.map(|(_, instance)| instance).collect()
    }

    /// Takes all out.
    pub fn remove_all(&mut self) -> Vec<I> {
        std::mem::take(&mut self.0).into_values().collect()
    }

    /// Finds an instance for a client. `equivalent` is the key of one that
    /// [`Wanted::may_take_over`], if there is one.
    pub fn place(
        &mut self,
        wanted: &Wanted<C>,
        equivalent: Option<&InstanceKey<C>>,
        room: Room,
    ) -> Placement<I> {
        if let Some(instance) = self.0.get(&wanted.key) {
            return Placement::Found(instance.clone());
        }
        if let Some(instance) = equivalent.and_then(|key| self.0.remove(key)) {
            self.0.insert(wanted.key.clone(), instance.clone());
            return Placement::Found(instance);
        }
        if !wanted.needs_credentials
            && let Some(instance) = self.0.remove(&InstanceKey::Unclaimed)
        {
            self.0.insert(wanted.key.clone(), instance.clone());
            return Placement::Claimed(instance);
        }
        if self.0.len() >= room.limit {
            Placement::Full
        } else if room.has_too_many_running() {
            Placement::TooManyEnding
        } else {
            Placement::Start
        }
    }

    /// Returns the instance that a client joins where there is no room for the one it needs: the
    /// shared one, or that of its identity which suits its capabilities best.
    pub fn instead(&self, wanted: &Wanted<C>) -> Option<&I> {
        let shared = wanted.shared.as_ref().and_then(|key| self.0.get(key));
        shared.or_else(|| self.best_fit(wanted))
    }

    fn best_fit(&self, wanted: &Wanted<C>) -> Option<&I> {
        let InstanceKey::Clients { identity, .. } = &wanted.key else {
            return None;
        };
        let fitness = |key: &InstanceKey<C>| match key {
            InstanceKey::Clients { capabilities, .. } => {
                let received = capabilities.as_ref();
                (
                    received.is_none(),
                    received.map(|received| received.fitness(&wanted.client)),
                )
            }
            InstanceKey::Unclaimed | InstanceKey::Session(_) => (false, None),
        };
        self.0
            .iter()
            .filter(|(key, _)| key.is_of(identity))
            .max_by_key(|(key, _)| fitness(key))
            .map(|(_, instance)| instance)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    type Credentials = &'static str;

    const ROOM: Room = Room { limit: 2, running: 0 };

    fn rules(sharing: Sharing, capabilities: DeclaredCapabilities) -> Rules {
        Rules {
            sharing,
            capabilities,
        }
    }

    fn client(principal: &str, capabilities: &'static str) -> Client {
        let declared = Some(Bytes::from_static(capabilities.as_bytes()));
        Client::declaring(Principal::named(principal), declared, None)
    }

    fn instances(of: &[(&Wanted<Credentials>, &'static str)]) -> Instances<Credentials, &'static str> {
        let mut instances = Instances::default();
        for (wanted, instance) in of {
            instances.insert(wanted.key().clone(), *instance);
        }
        instances
    }

    #[test]
    fn clients_share_by_session_by_identity_or_all() {
        let key = |sharing, session, principal, credentials: Credentials| {
            let rules = rules(sharing, DeclaredCapabilities::Union);
            let wanted = rules.wanted(session, &client(principal, "{}"), credentials, false);
            wanted.key().clone()
        };
        let (one, two) = (Some(SessionKey(1)), Some(SessionKey(2)));
        use Sharing::{PerIdentity, PerSession, Shared};
        assert_eq!(key(Shared, one, "a", ""), key(Shared, two, "b", ""));
        assert_eq!(key(Shared, one, "a", ""), key(Shared, None, "b", ""));
        assert_ne!(key(PerSession, one, "a", ""), key(PerSession, two, "a", ""));
        assert_eq!(key(PerSession, None, "a", ""), key(PerSession, None, "a", ""));
        assert_ne!(key(PerSession, None, "a", ""), key(PerSession, None, "b", ""));
        assert_eq!(key(PerIdentity, one, "a", "x"), key(PerIdentity, None, "a", "x"));
        assert_ne!(key(PerIdentity, one, "a", "x"), key(PerIdentity, one, "a", "y"));
        assert_ne!(key(PerIdentity, one, "a", "x"), key(PerIdentity, one, "b", "x"));
    }

    #[test]
    fn server_that_learns_capabilities_once_is_shared_by_clients_that_are_alike() {
        let key = |declared, capabilities, learns| {
            let rules = rules(Sharing::Shared, declared);
            let wanted = rules.wanted::<Credentials>(None, &client("a", capabilities), "", learns);
            wanted.key().clone()
        };
        use DeclaredCapabilities::{PerClient, Union};
        let (plain, roots) = ("{}", r#"{"roots":{}}"#);
        assert_ne!(key(PerClient, plain, false), key(PerClient, roots, false));
        assert_eq!(key(PerClient, roots, false), key(PerClient, roots, false));
        assert_eq!(key(PerClient, plain, true), key(PerClient, roots, true));
        assert_eq!(key(Union, plain, false), key(Union, roots, false));
    }

    #[test]
    fn instance_of_a_session_is_started_in_the_words_of_its_client() {
        let rules = rules(Sharing::PerSession, DeclaredCapabilities::Union);
        let client = client("a", "{}");
        let session: Wanted<Credentials> = rules.wanted(Some(SessionKey(1)), &client, "", false);
        assert_eq!(session.started_for(), StartedFor::Session);
        let modern: Wanted<Credentials> = rules.wanted(None, &client, "", false);
        assert_eq!(modern.started_for(), StartedFor::AnyClient);
    }

    #[test]
    fn eager_instance_is_for_all_or_waits_for_the_first_client() {
        use DeclaredCapabilities::{PerClient, Union};
        let key = |sharing, capabilities| rules(sharing, capabilities).key_before_clients::<Credentials>();
        let all = rules(Sharing::Shared, Union).wanted(None, &client("a", "{}"), "", false);
        assert_eq!(key(Sharing::Shared, Union), *all.key());
        assert_eq!(key(Sharing::Shared, PerClient), InstanceKey::Unclaimed);
        assert_eq!(key(Sharing::PerSession, Union), InstanceKey::Unclaimed);
        assert_eq!(key(Sharing::PerIdentity, Union), InstanceKey::Unclaimed);
    }

    #[test]
    fn client_gets_its_instance_an_equivalent_an_unclaimed_or_a_new_one() {
        let rules = rules(Sharing::PerIdentity, DeclaredCapabilities::PerClient);
        let unlike = rules.wanted(None, &client("a", r#"{"roots":{}}"#), "", false);
        let wanted = rules.wanted(None, &client("a", "{}"), "", true);
        let other = rules.wanted(None, &client("b", "{}"), "", true);
        assert!(wanted.may_take_over(unlike.key()) && !wanted.may_take_over(other.key()));
        assert!(
            !unlike.may_take_over(wanted.key()),
            "its server learns capabilities once"
        );

        let mut known = instances(&[(&wanted, "own"), (&unlike, "unlike")]);
        assert_eq!(
            known.place(&wanted, Some(unlike.key()), ROOM),
            Placement::Found("own")
        );
        let mut known = instances(&[(&unlike, "unlike")]);
        known.insert(InstanceKey::Unclaimed, "unclaimed");
        assert_eq!(
            known.place(&wanted, Some(unlike.key()), ROOM),
            Placement::Found("unlike")
        );
        assert_eq!(known.get(unlike.key()), None, "it has the wanted key now");
        assert_eq!(known.place(&other, None, ROOM), Placement::Claimed("unclaimed"));
        assert_eq!(known.get(other.key()), Some(&"unclaimed"));
        assert_eq!(known.iter().count(), 2);
        assert_eq!(instances(&[]).place(&wanted, None, ROOM), Placement::Start);
    }

    #[test]
    fn unclaimed_instance_is_not_for_a_client_with_credentials_nor_for_one_that_leaves_another() {
        let rules = rules(Sharing::PerIdentity, DeclaredCapabilities::Union);
        let client = client("a", "{}");
        let mut known = instances(&[]);
        known.insert(InstanceKey::Unclaimed, "unclaimed");
        let with_credentials = rules.wanted(None, &client, "secret", false);
        assert_eq!(known.place(&with_credentials, None, ROOM), Placement::Start);
        assert_eq!(
            known.place(&rules.wanted_alone(&client, false), None, ROOM),
            Placement::Start
        );
    }

    #[test]
    fn no_instance_is_started_beyond_the_limit_or_while_too_many_end() {
        let rules = rules(Sharing::PerIdentity, DeclaredCapabilities::Union);
        let wanted = |principal| rules.wanted(None, &client(principal, "{}"), "", false);
        let mut known = instances(&[(&wanted("a"), "a")]);
        let room = |running| Room { running, ..ROOM };
        assert_eq!(known.place(&wanted("c"), None, room(15)), Placement::Start);
        assert_eq!(
            known.place(&wanted("c"), None, room(16)),
            Placement::TooManyEnding
        );
        let large = Room {
            limit: 100,
            running: 199,
        };
        assert_eq!(known.place(&wanted("c"), None, large), Placement::Start);
        known.insert(wanted("b").key().clone(), "b");
        assert_eq!(known.place(&wanted("c"), None, room(0)), Placement::Full);
    }

    #[test]
    fn client_without_room_joins_the_shared_instance_or_the_best_of_its_identity() {
        let shared = rules(Sharing::Shared, DeclaredCapabilities::PerClient);
        let wanted = |capabilities| shared.wanted(None, &client("a", capabilities), "", false);
        let (plain, roots) = (wanted("{}"), wanted(r#"{"roots":{}}"#));
        let known = instances(&[(&plain, "plain"), (&roots, "roots")]);
        let needy = wanted(r#"{"roots":{},"sampling":{}}"#);
        assert_eq!(known.instead(&needy), Some(&"roots"));
        let own = plain.clone().unshared(&Principal::named("a"));
        assert!(plain.is_for_all() && !own.is_for_all());
        assert_eq!(own.key().principal(), Some(&Principal::named("a")));
        assert_eq!(known.instead(&own), Some(&"plain"));
        let per_session = rules(Sharing::PerSession, DeclaredCapabilities::Union);
        let session = per_session.wanted(Some(SessionKey(1)), &client("a", "{}"), "", false);
        assert_eq!(known.instead(&session), None);
    }

    #[test]
    fn principals_that_leave_take_their_own_instances_along() {
        let rules = rules(Sharing::PerIdentity, DeclaredCapabilities::Union);
        let wanted = |principal| rules.wanted(None, &client(principal, "{}"), "", false);
        let mut known = instances(&[(&wanted("a"), "a"), (&wanted("b"), "b")]);
        known.insert(InstanceKey::Unclaimed, "unclaimed");
        assert_eq!(known.remove_of(|principal| principal == "a"), ["a"]);
        assert_eq!(known.remove_all().len(), 2);
        assert_eq!(known.iter().count(), 0);
    }
}
