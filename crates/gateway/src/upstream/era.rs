//! Which eras the instances of an upstream are introduced in. What a server speaks is learnt by its own
//! instance ([`protocol::negotiation`]); here is only what is configured and what servers have shown before.

use protocol::negotiation::EraPlan;
use protocol::version::Era;

use super::Upstream;
use crate::settings::{EraChoice, Transport};

impl Upstream {
    /// Returns the eras that a new instance is introduced in. Without anything that speaks against it, `preferred`
    /// is tried first.
    pub(super) fn era_plan(&self, preferred: Era) -> EraPlan {
        match self.settings.era {
            EraChoice::Legacy => EraPlan::Only(Era::Legacy),
            EraChoice::Modern => EraPlan::Only(Era::Modern),
            EraChoice::Auto if self.is_old_transport() => EraPlan::Only(Era::Legacy),
            EraChoice::Auto => EraPlan::First(self.eras.shown().first(preferred)),
        }
    }

    /// The old transport is older than the modern era.
    fn is_old_transport(&self) -> bool {
        let server = self.remote();
        server.is_some_and(|server| server.transport() == Transport::Sse)
    }

    /// The server is known to speak the modern era: it is told with every request what its client can do, and no
    /// call is ever parked here.
    pub(crate) fn is_known_modern(&self) -> bool {
        match self.settings.era {
            EraChoice::Legacy => false,
            EraChoice::Modern => true,
            EraChoice::Auto => self.eras.shown().speaks(Era::Modern) == Some(true),
        }
    }
}
