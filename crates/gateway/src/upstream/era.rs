//! Which eras the instances of an upstream try in the handshake. Each instance negotiates with its
//! own server ([`protocol::negotiation`]). This file knows the configuration, and what earlier
//! instances have learnt.

use protocol::negotiation::{EraPlan, StartedFor};
use protocol::version::{CapabilityStyle, Era, QuestionStyle};

use super::Upstream;
use crate::settings::Transport;

impl Upstream {
    /// Returns the eras that a new instance tries in the handshake.
    pub(super) fn era_plan(&self, started_for: StartedFor) -> EraPlan {
        let plan = EraPlan::for_instance(self.settings.era, self.eras.shown(), started_for);
        match self.remote().map(|server| server.transport()) {
            Some(Transport::Sse) => plan.over_old_transport(),
            Some(Transport::Auto | Transport::StreamableHttp) | None => plan,
        }
    }

    /// Returns the era used towards the server, as far as it is known.
    fn expected_era(&self) -> Era {
        self.settings.era.expected_era(self.eras.shown())
    }

    /// Returns whether the server is known to learn with each request what its client can do.
    pub(super) fn learns_capabilities_per_request(&self) -> bool {
        self.expected_era().capabilities() == CapabilityStyle::PerRequest
    }

    /// Returns whether the server is known to ask by its results. It keeps states of its own then,
    /// and no call waits here for its client.
    pub(crate) fn asks_by_results(&self) -> bool {
        self.expected_era().questions() == QuestionStyle::Results
    }
}
