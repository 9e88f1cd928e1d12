//! One Rialto or a fleet of them, for tests that must not notice the difference.

use std::process::ExitStatus;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Fleet, FleetConfig, Nginx};
use crate::failure::Result;
use crate::rialto::Rialto;

/// Names what stands before a fleet: `balancer` or `nginx`. If it is set, matrices of clients play
/// through a fleet of three replicas.
const FRONT: &str = "TESTKIT_FLEET";

/// What stands before a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    Balancer,
    Nginx,
}

/// What serves the clients of a matrix.
#[derive(Debug)]
pub enum Served {
    One(Rialto),
    Many {
        // First nginx, then the replicas.
        nginx: Option<Nginx>,
        fleet: Box<Fleet>,
    },
}

impl Served {
    /// Starts Rialto with one destination, or a fleet if the environment asks for it.
    pub async fn start(name: &str, destination: &Value) -> Result<Self> {
        let front = std::env::var_os(FRONT);
        let front = match front.as_ref().map(|front| front.to_string_lossy()).as_deref() {
            None => {
                // JSON is YAML too, and quotes any character of a path.
                let file = json!({"destinations": {name: destination}}).to_string();
                return Ok(Self::One(Rialto::with_config(&file).await?));
            }
            Some("nginx") => Front::Nginx,
            Some(_) => Front::Balancer,
        };
        Self::fleet(FleetConfig::new(&format!("  {name}: {destination}\n")), front).await
    }

    /// Starts Rialto with these destinations and aggregates.
    pub async fn with(destinations: &Value, aggregates: &Value) -> Result<Self> {
        let file = json!({"destinations": destinations, "aggregates": aggregates}).to_string();
        Ok(Self::One(Rialto::with_config(&file).await?))
    }

    /// Starts a fleet.
    pub async fn fleet(config: FleetConfig, front: Front) -> Result<Self> {
        let fleet = Box::new(config.start().await?);
        let nginx = match front {
            Front::Balancer => None,
            Front::Nginx => {
                let addresses = (0..fleet.size()).map(|number| fleet.replica(number).rialto().address());
                let addresses: Vec<String> = addresses.map(str::to_owned).collect();
                Some(Nginx::before(&addresses)?)
            }
        };
        Ok(Self::Many { nginx, fleet })
    }

    /// Returns the URL of a destination.
    pub fn url_of(&self, destination: &str) -> String {
        match self {
            Self::One(rialto) => rialto.url_of(destination),
            Self::Many { nginx: None, fleet } => fleet.url_of(destination),
            Self::Many {
                nginx: Some(nginx), ..
            } => format!("http://{}/{destination}/mcp", nginx.address()),
        }
    }

    /// Returns whether a server runs.
    pub fn has_children(&self) -> bool {
        match self {
            Self::One(rialto) => !rialto.children().is_empty(),
            Self::Many { fleet, .. } => {
                (0..fleet.size()).any(|number| !fleet.replica(number).rialto().children().is_empty())
            }
        }
    }

    /// Ends it by SIGTERM.
    pub async fn end(self, deadline: Duration) -> Result<Vec<ExitStatus>> {
        match self {
            Self::One(rialto) => {
                rialto.sigterm();
                Ok(vec![rialto.wait(deadline).await])
            }
            Self::Many { fleet, .. } => fleet.end(deadline).await,
        }
    }
}
