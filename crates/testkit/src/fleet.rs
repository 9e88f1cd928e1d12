//! Several replicas of Rialto with one engine, and a balancer in front that knows no session.
//!
//! Each replica reaches the engine through a link of its own, and the other replicas reach it
//! through another one, so that a test can delay or cut each link alone. All servers behind all
//! replicas write one journal: a tool that ran twice is there twice.

use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::failure::{Failure, Result};
use crate::journal::Journal;
use crate::patience::{PATIENCE, poll_until, wait_until};
use crate::processes::send_signal;
use crate::redis::{Redis, Sentinel};
use crate::rialto::{Launcher, Rialto, binary};

mod balancer;
mod link;
mod nginx;
pub mod program;
mod served;
mod service;

pub use balancer::{Balancer, LOST, NONE_READY};
pub use link::Link;
pub use nginx::Nginx;
pub use served::{Front, Served};

/// What every replica of a fleet is started with.
#[derive(Debug, Clone)]
pub struct FleetConfig {
    replicas: usize,
    destinations: String,
    more: String,
    program: Option<PathBuf>,
    engine: Vec<String>,
    has_sentinel: bool,
    has_peer_links: bool,
}

impl FleetConfig {
    /// Returns the configuration of three replicas with this text below `destinations:`.
    ///
    /// `{stub}` stands for the stub server, `{base}` for a folder of the whole fleet.
    pub fn new(destinations: &str) -> Self {
        Self {
            replicas: 3,
            destinations: destinations.to_owned(),
            more: String::new(),
            program: None,
            engine: Vec::new(),
            has_sentinel: false,
            has_peer_links: false,
        }
    }

    /// Returns the configuration with the stub as the destination `one`, with these settings of it
    /// in YAML's flow style.
    pub fn of_stub(settings: &str) -> Self {
        let comma = if settings.is_empty() { "" } else { ", " };
        let command = "'{stub} --journal {base}/journal'";
        Self::new(&format!("  one: {{ command: {command}{comma}{settings} }}\n"))
    }

    /// Sets the number of replicas.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Adds lines at the top level of the configuration.
    #[must_use]
    pub fn more(mut self, lines: &str) -> Self {
        self.more.push_str(lines);
        self.more.push('\n');
        self
    }

    /// Puts a link before the peer listener of each replica, which a test can cut.
    #[must_use]
    pub fn with_peer_links(mut self) -> Self {
        self.has_peer_links = true;
        self
    }

    /// Starts the engine with settings of its own.
    #[must_use]
    pub fn engine(mut self, settings: &[&str]) -> Self {
        self.engine = settings.iter().map(|text| (*text).to_owned()).collect();
        self
    }

    /// Lets replicas find the engine by a Sentinel, which has a copy of it to choose. Then they have no
    /// links to it.
    #[must_use]
    pub fn with_sentinel(mut self) -> Self {
        self.has_sentinel = true;
        self
    }

    /// Starts the engine, all replicas and the balancer.
    pub async fn start(self) -> Result<Fleet> {
        Fleet::start(self).await
    }
}

/// Replicas, engine and balancer. All of it ends with this value.
#[derive(Debug)]
pub struct Fleet {
    // First the balancer, then the replicas, then what they need.
    balancer: Balancer,
    replicas: Vec<Replica>,
    engine: Redis,
    watched: Option<(Redis, Sentinel)>,
    config: FleetConfig,
    base: TempDir,
}

/// One replica of a fleet, by its number. Its Rialto may be down, or be started again.
#[derive(Debug)]
pub struct Replica {
    name: String,
    rialto: Option<Rialto>,
    is_paused: bool,
    engine_link: Link,
    peer_link: Option<Link>,
    /// Variables that its Rialto is started with, such as those of a wrong wall clock.
    env: Vec<(String, String)>,
}

impl Fleet {
    async fn start(config: FleetConfig) -> Result<Self> {
        let base = tempfile::tempdir()?;
        write_key(&base.path().join("cluster.key"))?;
        let settings: Vec<&str> = config.engine.iter().map(String::as_str).collect();
        let engine = Redis::start_with(&settings)?;
        let watched = config.has_sentinel.then(|| watch(&engine)).transpose()?;
        let mut fleet = Self {
            balancer: Balancer::start()?,
            replicas: Vec::new(),
            engine,
            watched,
            config,
            base,
        };
        for number in 0..fleet.config.replicas {
            let replica = fleet.place(number)?;
            fleet.replicas.push(replica);
        }
        let mut starting = JoinSet::new();
        for number in 0..fleet.config.replicas {
            let launcher = fleet.launcher(number);
            starting.spawn(async move { (number, launcher.start().await) });
        }
        let mut addresses = Vec::new();
        while let Some(started) = starting.join_next().await {
            let (number, rialto) = started.map_err(|error| Failure::new(error.to_string()))?;
            addresses.push(fleet.take_in(number, rialto?).await?);
        }
        for address in addresses {
            fleet.wait_for_balancer(address).await;
        }
        Ok(fleet)
    }

    /// Returns a replica whose Rialto is not started.
    fn place(&self, number: usize) -> Result<Replica> {
        let engine = SocketAddr::from(([127, 0, 0, 1], self.engine.port()));
        let peer_link = self.config.has_peer_links.then(Link::start).transpose()?;
        Ok(Replica {
            name: format!("replica-{number}"),
            rialto: None,
            is_paused: false,
            engine_link: Link::to(engine)?,
            peer_link,
            env: Vec::new(),
        })
    }

    /// Starts the Rialto of a place and waits until the balancer uses it.
    pub async fn up(&mut self, number: usize) -> Result<()> {
        let rialto = self.launcher(number).start().await?;
        let address = self.take_in(number, rialto).await?;
        self.wait_for_balancer(address).await;
        Ok(())
    }

    /// Puts a Rialto that serves into its place, and adds it to the balancer.
    async fn take_in(&mut self, number: usize, rialto: Rialto) -> Result<SocketAddr> {
        let address = address_of(&rialto)?;
        let replica = self.replica_mut(number)?;
        if let Some(link) = &replica.peer_link {
            link.set_target(peer_address(&rialto).await?);
        }
        replica.rialto = Some(rialto);
        self.balancer.add(address);
        Ok(address)
    }

    async fn wait_for_balancer(&self, address: SocketAddr) {
        let balancer = &self.balancer;
        // Under load the first answer takes its time.
        wait_until("the balancer uses the replica", PATIENCE * 3, || {
            balancer.uses(address).then_some(())
        })
        .await;
    }

    /// Returns what the Rialto of a place is started with.
    fn launcher(&self, number: usize) -> Launcher {
        let replica = self.replicas.get(number);
        let launcher = Rialto::launcher().config(&self.text(number));
        let launcher = match &self.config.program {
            Some(program) => launcher.program(program),
            None => launcher,
        };
        let env = replica.map(|replica| replica.env.as_slice()).unwrap_or_default();
        env.iter()
            .fold(launcher, |launcher, (name, value)| launcher.env(name, value))
    }

    /// Returns the configuration of a replica.
    pub fn text(&self, number: usize) -> String {
        let base = self.base.path().display().to_string();
        let replica = self.replicas.get(number);
        let engine = match (&self.watched, replica) {
            (Some((_, sentinel)), _) => sentinel.url(),
            (None, Some(replica)) => replica.engine_link.url(),
            (None, None) => self.engine.url(),
        };
        let advertise = replica
            .and_then(|replica| replica.peer_link.as_ref())
            .map(|link| format!(", advertise: '{}'", link.address()))
            .unwrap_or_default();
        let cluster = format!(
            "cluster: {{ url: '{engine}', key_file: '{base}/cluster.key', listen: '127.0.0.1:0'{advertise}, name: replica-{number} }}"
        );
        let (more, destinations) = (&self.config.more, &self.config.destinations);
        format!("{cluster}\n{more}destinations:\n{destinations}").replace("{base}", &base)
    }

    /// Returns the address of the balancer: `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.balancer.address().to_string()
    }

    /// Returns the URL of a destination at the balancer.
    pub fn url_of(&self, destination: &str) -> String {
        format!("http://{}/{destination}/mcp", self.balancer.address())
    }

    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    pub fn engine(&self) -> &Redis {
        &self.engine
    }

    pub fn engine_mut(&mut self) -> &mut Redis {
        &mut self.engine
    }

    /// Returns the copy of the engine that its Sentinel may choose, when it has every key.
    ///
    /// # Panics
    /// When the fleet was started without a Sentinel.
    pub async fn whole_copy(&self) -> Result<&Redis> {
        let (copy, _) = self.watched.as_ref().expect("the fleet has a Sentinel");
        poll_until("the copy has every key", PATIENCE, async || {
            let (own, wanted) = (copy.command(&["DBSIZE"])?, self.engine.command(&["DBSIZE"])?);
            Ok((own == wanted).then_some(copy))
        })
        .await
    }

    /// Returns how many places the fleet has.
    pub fn size(&self) -> usize {
        self.replicas.len()
    }

    /// Returns the folder that `{base}` stands for.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    /// Returns the journal of all servers behind all replicas.
    pub fn journal(&self) -> Journal {
        Journal::at(self.base.path().join("journal"))
    }

    /// Returns a replica.
    ///
    /// # Panics
    /// When the fleet has no such place.
    pub fn replica(&self, number: usize) -> &Replica {
        self.replicas.get(number).expect("the fleet has this place")
    }

    fn replica_mut(&mut self, number: usize) -> Result<&mut Replica> {
        let replica = self.replicas.get_mut(number);
        replica.ok_or_else(|| Failure::new(format!("the fleet has no place {number}")))
    }

    /// Sets variables with which the Rialto of a place is started from now on.
    pub fn set_env(&mut self, number: usize, env: &[(&str, String)]) -> Result<()> {
        let owned = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        self.replica_mut(number)?.env = owned.collect();
        Ok(())
    }

    /// Kills a replica, and waits until it and its servers have ended.
    pub async fn kill(&mut self, number: usize) -> Result<()> {
        let replica = self.replica_mut(number)?;
        let rialto = replica.rialto.take().ok_or_else(|| is_down(number))?;
        rialto.sigkill();
        replica.is_paused = false;
        rialto.wait(PATIENCE).await;
        rialto.wait_for_no_children(PATIENCE).await;
        self.balancer.remove(address_of(&rialto)?);
        Ok(())
    }

    /// Lets the balancer send nothing more to a replica, which goes on.
    pub fn take_out(&self, number: usize) -> Result<()> {
        self.balancer.remove(address_of(self.replica(number).rialto())?);
        Ok(())
    }

    /// Sends SIGTERM to a replica, and waits for its end.
    pub async fn terminate(&mut self, number: usize, deadline: Duration) -> Result<ExitStatus> {
        let rialto = self.replica_mut(number)?.rialto.take();
        let rialto = rialto.ok_or_else(|| is_down(number))?;
        rialto.sigterm();
        let status = rialto.wait(deadline).await;
        rialto.wait_for_no_children(PATIENCE).await;
        self.balancer.remove(address_of(&rialto)?);
        Ok(status)
    }

    /// Sends SIGTERM to all replicas at once, and waits for their ends.
    pub async fn end(mut self, deadline: Duration) -> Result<Vec<ExitStatus>> {
        for replica in &self.replicas {
            replica.rialto().sigterm();
        }
        let mut ended = Vec::new();
        for replica in &mut self.replicas {
            let Some(rialto) = replica.rialto.take() else {
                continue;
            };
            ended.push(rialto.wait(deadline).await);
            rialto.wait_for_no_children(PATIENCE).await;
        }
        Ok(ended)
    }

    /// Stops a replica without ending it, as a machine that hangs.
    pub fn pause(&mut self, number: usize) -> Result<()> {
        let replica = self.replica_mut(number)?;
        send_signal(replica.rialto().pid(), Signal::STOP);
        replica.is_paused = true;
        Ok(())
    }

    /// Lets a paused replica go on.
    pub fn resume(&mut self, number: usize) -> Result<()> {
        let replica = self.replica_mut(number)?;
        send_signal(replica.rialto().pid(), Signal::CONT);
        replica.is_paused = false;
        Ok(())
    }

    /// Returns the number of the replica that owns a session, as the engine has it; `None` if no
    /// replica does.
    pub fn owner_of(&self, session: &str) -> Result<Option<usize>> {
        let owner = self.field_of(session, "o")?;
        let name = owner.split('/').next().unwrap_or_default();
        Ok(self.replicas.iter().position(|replica| replica.name == name))
    }

    /// Returns the epoch of a session, as the engine has it; `None` if it has no record.
    pub fn epoch_of(&self, session: &str) -> Result<Option<u64>> {
        Ok(self.field_of(session, "e")?.parse().ok())
    }

    /// Returns a member of a record (the table in the cluster crate's `redis.rs` names them).
    fn field_of(&self, session: &str, field: &str) -> Result<String> {
        let key = format!("rialto:session:{{{session}}}");
        self.engine.command(&["HGET", &key, field])
    }

    /// Returns whether the engine knows a living replica of this place.
    pub fn has_lease(&self, number: usize) -> Result<bool> {
        let pattern = format!("rialto:node:replica-{number}/*");
        Ok(!self.engine.command(&["KEYS", &pattern])?.is_empty())
    }

    /// Waits until the lease of a place has ended.
    pub async fn wait_for_end_of_lease(&self, number: usize) -> Result<()> {
        poll_until("the lease has ended", PATIENCE, async || {
            Ok((!self.has_lease(number)?).then_some(()))
        })
        .await
    }
}

impl Replica {
    /// Returns its Rialto.
    ///
    /// # Panics
    /// When it is down.
    pub fn rialto(&self) -> &Rialto {
        let name = &self.name;
        self.rialto.as_ref().unwrap_or_else(|| panic!("{name} is down"))
    }

    /// Returns whether its Rialto was started and neither killed nor terminated by the test.
    pub fn is_up(&self) -> bool {
        self.rialto.is_some()
    }

    /// Returns the road to the engine.
    pub fn engine_link(&self) -> &Link {
        &self.engine_link
    }

    /// Returns the road on which the other replicas reach this one.
    ///
    /// # Panics
    /// When the fleet was started without such links.
    pub fn peer_link(&self) -> &Link {
        self.peer_link
            .as_ref()
            .expect("the fleet has links between replicas")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // A paused process could not end by SIGTERM.
        if let Some(rialto) = self.rialto.as_ref().filter(|_| self.is_paused) {
            send_signal(rialto.pid(), Signal::CONT);
        }
    }
}

/// Starts a copy of the engine, and a Sentinel that knows both.
fn watch(engine: &Redis) -> Result<(Redis, Sentinel)> {
    let copy = Redis::start_with(&["--replicaof", &format!("127.0.0.1 {}", engine.port())])?;
    let sentinel = Sentinel::start(engine, "")?;
    sentinel.wait_for_copy(&copy)?;
    Ok((copy, sentinel))
}

fn is_down(number: usize) -> Failure {
    Failure::new(format!("replica {number} is down"))
}

fn address_of(rialto: &Rialto) -> Result<SocketAddr> {
    let address = rialto.address();
    let parsed = address.parse();
    parsed.map_err(|error| Failure::new(format!("{address}: {error}")))
}

/// Returns where the replica listens for other replicas, from the log line that announces it.
async fn peer_address(rialto: &Rialto) -> Result<SocketAddr> {
    let found =
        |log: &Value| log.get("peer_listening").is_some() || log["fields"].get("peer_listening").is_some();
    let log = rialto
        .wait_for_log("rialto listens for its peers", PATIENCE, found)
        .await;
    let address = log
        .get("peer_listening")
        .or_else(|| log["fields"].get("peer_listening"))
        .and_then(Value::as_str)
        .and_then(|address| address.parse().ok());
    address.ok_or_else(|| Failure::new(format!("no address of the peer listener in {log}")))
}

/// Makes a cluster key with the program under test.
pub fn write_key(path: &Path) -> Result<()> {
    let made = std::process::Command::new(binary("rialto"))
        .args(["cluster", "key"])
        .output()?;
    if !made.status.success() {
        return Err(Failure::new(String::from_utf8_lossy(&made.stderr)).during("rialto cluster key"));
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    std::io::Write::write_all(&mut file, &made.stdout)?;
    Ok(())
}
