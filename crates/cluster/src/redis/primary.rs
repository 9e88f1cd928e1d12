//! Finds the primary of the engine: at a fixed address, by asking Sentinels, or in a cluster.
//!
//! Each new connection begins here, so a primary that moved is found with the first connection after
//! it. Several Sentinels, or several nodes of a cluster, are asked at once: the first that leads to a
//! primary decides, and one that does not answer costs no time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo as _,
    ProtocolVersion, RedisError, ServerErrorKind, TlsCertificates,
};

use super::RedisSettings;

/// The port of a Sentinel whose URL names none.
const SENTINEL_PORT: u16 = 26379;
/// How many nodes of a cluster may send a client on to the next one.
const MAX_MOVES: usize = 3;

/// Where the engine is, as its URL has it.
#[derive(Debug)]
pub(super) enum EngineUrl {
    /// One server at one address.
    Fixed(Server),
    /// The server that Sentinels call the primary of a name.
    Sentinel {
        sentinels: Vec<Server>,
        name: String,
        /// How the primary is reached, at any address.
        primary: Server,
    },
    /// The node of a cluster that has the slot of a key.
    Cluster { nodes: Vec<Server> },
}

/// An address, and how a connection to it begins.
#[derive(Clone)]
pub(super) struct Server {
    info: ConnectionInfo,
    authorities: Option<Vec<u8>>,
}

impl std::fmt::Debug for Server {
    /// Leaves out the credentials.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Server").field(&self.address()).finish()
    }
}

/// A connection to the primary.
pub(super) struct Found {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: String,
}

/// Why there is no connection to a primary.
#[derive(Debug)]
pub(super) struct NotFound {
    /// Where the search ended.
    pub(super) address: String,
    /// A Sentinel gave the error, and not the engine.
    pub(super) is_of_sentinel: bool,
    pub(super) error: RedisError,
}

type Search<'a> = Pin<Box<dyn Future<Output = Result<Found, NotFound>> + Send + 'a>>;

impl EngineUrl {
    /// Reads the URL. The error names no part of it that may be a password.
    pub(super) fn of(settings: &RedisSettings) -> Result<Self, String> {
        let url = settings.url.as_str();
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (kind, tls) = match scheme {
            "redis+sentinel" => (Kind::Sentinel, "redis"),
            "rediss+sentinel" => (Kind::Sentinel, "rediss"),
            "redis+cluster" => (Kind::Cluster, "redis"),
            "rediss+cluster" => (Kind::Cluster, "rediss"),
            _ => return Server::of(url, settings).map(Self::Fixed),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (rest, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = match rest.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), rest),
        };
        match kind {
            Kind::Cluster if !path.is_empty() || !query.is_empty() => Err(
                "a cluster has one database and no further settings: end the URL after the nodes".to_owned(),
            ),
            Kind::Cluster => {
                let node = |host: &str| Server::of(&format!("{tls}://{credentials}{host}"), settings);
                let nodes = hosts.split(',').map(node).collect::<Result<_, _>>()?;
                Ok(Self::Cluster { nodes })
            }
            Kind::Sentinel => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
                if name.is_empty() || !name.bytes().all(is_plain) {
                    return Err("the name of the primary is missing behind the Sentinels".to_owned());
                }
                let own_credentials = sentinel_credentials(query)?;
                let sentinel = |host: &str| {
                    let host = match has_port(host) {
                        true => host.to_owned(),
                        false => format!("{host}:{SENTINEL_PORT}"),
                    };
                    Server::of(&format!("{tls}://{own_credentials}{host}"), settings)
                };
                let sentinels = hosts.split(',').map(sentinel).collect::<Result<_, _>>()?;
                Ok(Self::Sentinel {
                    sentinels,
                    name: name.to_owned(),
                    // The Sentinels tell the host.
                    primary: Server::of(&format!("{tls}://{credentials}localhost/{database}"), settings)?,
                })
            }
        }
    }

    /// Returns whether the engine is a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// Returns the addresses of the URL.
    pub(super) fn addresses(&self) -> String {
        let of = |servers: &[Server]| {
            let addresses: Vec<String> = servers.iter().map(Server::address).collect();
            addresses.join(", ")
        };
        match self {
            Self::Fixed(server) => server.address(),
            Self::Sentinel { sentinels, .. } => of(sentinels),
            Self::Cluster { nodes } => of(nodes),
        }
    }

    /// Returns whether the engine is reached over TLS.
    pub(super) fn is_tls(&self) -> bool {
        let server = match self {
            Self::Fixed(server) | Self::Sentinel { primary: server, .. } => Some(server),
            Self::Cluster { nodes } => nodes.first(),
        };
        server.is_some_and(Server::is_tls)
    }

    /// Connects to the primary. In a cluster it is the one that has this key.
    pub(super) async fn find(&self, config: &AsyncConnectionConfig, key: &str) -> Result<Found, NotFound> {
        match self {
            Self::Fixed(server) => server.found(config).await,
            Self::Sentinel {
                sentinels,
                name,
                primary,
            } => {
                let search =
                    |sentinel| -> Search<'_> { Box::pin(ask_sentinel(sentinel, name, primary, config)) };
                first(sentinels.iter().map(search).collect()).await
            }
            Self::Cluster { nodes } => {
                let search = |node| -> Search<'_> { Box::pin(ask_node(node, config, key)) };
                first(nodes.iter().map(search).collect()).await
            }
        }
    }
}

/// What a URL of several addresses leads to.
#[derive(Clone, Copy)]
enum Kind {
    Sentinel,
    Cluster,
}

impl Server {
    fn of(url: &str, settings: &RedisSettings) -> Result<Self, String> {
        let info = url.into_connection_info().map_err(|error| error.to_string())?;
        let redis = info.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        let server = Self {
            info: info.set_redis_settings(redis),
            authorities: settings.authorities.clone(),
        };
        // Certificates that cannot be read are found here.
        server.client().map_err(|error| error.to_string())?;
        Ok(server)
    }

    fn client(&self) -> Result<Client, RedisError> {
        let info = self.info.clone();
        match &self.authorities {
            Some(authorities) => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(authorities.clone()),
                };
                Client::build_with_tls(info, certificates)
            }
            None => Client::open(info),
        }
    }

    fn address(&self) -> String {
        self.info.addr().to_string()
    }

    fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Returns the same at another address.
    fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let address = if let ConnectionAddr::TcpTls {
            insecure, tls_params, ..
        } = self.info.addr()
        {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        Self {
            info: self.info.clone().set_addr(address),
            authorities: self.authorities.clone(),
        }
    }

    async fn connect(&self, config: &AsyncConnectionConfig) -> Result<MultiplexedConnection, RedisError> {
        let client = self.client()?;
        client.get_multiplexed_async_connection_with_config(config).await
    }

    async fn found(&self, config: &AsyncConnectionConfig) -> Result<Found, NotFound> {
        match self.connect(config).await {
            Ok(connection) => Ok(Found {
                connection,
                address: self.address(),
            }),
            Err(error) => Err(self.not_found(error)),
        }
    }

    fn not_found(&self, error: RedisError) -> NotFound {
        NotFound {
            address: self.address(),
            is_of_sentinel: false,
            error,
        }
    }
}

/// Asks a Sentinel for the primary, and connects to it.
async fn ask_sentinel(
    sentinel: &Server,
    name: &str,
    primary: &Server,
    config: &AsyncConnectionConfig,
) -> Result<Found, NotFound> {
    let of_sentinel = |error| NotFound {
        is_of_sentinel: true,
        ..sentinel.not_found(error)
    };
    let mut connection = sentinel.connect(config).await.map_err(of_sentinel)?;
    let mut question = ::redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer: Option<(String, u16)> = question.query_async(&mut connection).await.map_err(of_sentinel)?;
    let Some((host, port)) = answer else {
        let kind = ErrorKind::MasterNameNotFoundBySentinel;
        return Err(of_sentinel((kind, "no primary of this name").into()));
    };
    let server = primary.at(&host, port);
    let mut found = server.found(config).await?;
    // During a fail-over a Sentinel may still name the primary of before.
    let mut question = ::redis::cmd("INFO");
    let replication: String = question
        .arg("replication")
        .query_async(&mut found.connection)
        .await
        .map_err(|error| server.not_found(error))?;
    match replication.lines().any(|line| line.trim() == "role:master") {
        true => Ok(found),
        false => {
            let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
            Err(server.not_found((kind, "the Sentinel names a server that is no primary").into()))
        }
    }
}

/// Asks a node of a cluster for a key, and follows it to the primary that has the key's slot.
async fn ask_node(node: &Server, config: &AsyncConnectionConfig, key: &str) -> Result<Found, NotFound> {
    let mut server = node.clone();
    for _ in 0..MAX_MOVES {
        let mut found = server.found(config).await?;
        let mut question = ::redis::cmd("EXISTS");
        let asked: Result<u64, RedisError> = question.arg(key).query_async(&mut found.connection).await;
        let Err(error) = asked else {
            return Ok(found);
        };
        let is_moved = error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
        let next = error.redirect_node().filter(|_| is_moved);
        let next = next.and_then(|(address, _)| address.rsplit_once(':'));
        let Some((host, Ok(port))) = next.map(|(host, port)| (host, port.parse::<u16>())) else {
            return Err(server.not_found(error));
        };
        server = match (host, server.info.addr()) {
            // A node without a name of its own means the host that was asked.
            ("", ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => server.at(host, port),
            (host, _) => server.at(host, port),
        };
    }
    let kind = ErrorKind::Server(ServerErrorKind::TryAgain);
    Err(server.not_found((kind, "the nodes do not agree which of them has the registry").into()))
}

/// Runs all searches at once, and returns what the first finds. If none does, an answer tells more than
/// a connection that failed.
async fn first(mut searches: Vec<Search<'_>>) -> Result<Found, NotFound> {
    let mut failed: Option<NotFound> = None;
    poll_fn(move |context| {
        let mut at = 0;
        while let Some(search) = searches.get_mut(at) {
            match search.as_mut().poll(context) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(found)) => return Poll::Ready(Ok(found)),
                Poll::Ready(Err(error)) => {
                    drop(searches.swap_remove(at));
                    let is_answer = |error: &NotFound| !error.error.is_io_error();
                    if failed
                        .as_ref()
                        .is_none_or(|before| !is_answer(before) && is_answer(&error))
                    {
                        failed = Some(error);
                    }
                }
            }
        }
        match (searches.is_empty(), failed.take()) {
            (true, Some(error)) => Poll::Ready(Err(error)),
            (_, before) => {
                failed = before;
                Poll::Pending
            }
        }
    })
    .await
}

/// Returns `USER:PASSWORD@` for the Sentinels, or nothing.
fn sentinel_credentials(query: &str) -> Result<String, String> {
    let (mut user, mut password) = ("", None);
    for member in query.split('&').filter(|member| !member.is_empty()) {
        match member.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_password", value)) => password = Some(value),
            _ => {
                return Err(
                    "behind `?` there may be sentinel_user=… and sentinel_password=… alone".to_owned(),
                );
            }
        }
    }
    match password {
        Some(password) => Ok(format!("{user}:{password}@")),
        None if user.is_empty() => Ok(String::new()),
        None => Err("sentinel_user needs a sentinel_password".to_owned()),
    }
}

fn has_port(host: &str) -> bool {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<EngineUrl, String> {
        EngineUrl::of(&RedisSettings::new(url))
    }

    #[test]
    fn sentinels_have_their_own_port_and_credentials() {
        let url = "redis+sentinel://ann:secret@one,two:5000,[fd00::1]/mine/3?sentinel_password=other";
        let Ok(EngineUrl::Sentinel {
            sentinels,
            name,
            primary,
        }) = read(url)
        else {
            panic!("a URL of Sentinels");
        };
        assert_eq!(name, "mine");
        let addresses: Vec<String> = sentinels.iter().map(Server::address).collect();
        let [one, two, third] = &addresses[..] else {
            panic!("{addresses:?}");
        };
        assert_eq!([one.as_str(), two.as_str()], ["one:26379", "two:5000"]);
        assert!(third.ends_with(":26379"), "{addresses:?}");
        for sentinel in &sentinels {
            let redis = sentinel.info.redis_settings();
            assert_eq!((redis.username(), redis.password()), (None, Some("other")));
        }
        let primary = primary.at("10.0.0.1", 7000);
        assert_eq!(primary.address(), "10.0.0.1:7000");
        let redis = primary.info.redis_settings();
        assert_eq!(
            (redis.username(), redis.password()),
            (Some("ann"), Some("secret"))
        );
        assert_eq!(redis.db(), 3);
    }

    #[test]
    fn each_node_of_a_cluster_has_the_credentials_and_tls_of_the_url() {
        let Ok(EngineUrl::Cluster { nodes }) = read("rediss+cluster://:secret@one:7000,two:7001") else {
            panic!("a URL of a cluster");
        };
        for node in &nodes {
            assert!(node.is_tls() && node.at("three", 1).is_tls());
            assert_eq!(node.info.redis_settings().password(), Some("secret"));
        }
        assert_eq!(EngineUrl::Cluster { nodes }.addresses(), "one:7000, two:7001");
    }

    #[test]
    fn urls_that_lack_a_part_are_refused_without_their_passwords() {
        for url in [
            "redis+sentinel://:secret@one",
            "redis+sentinel://:secret@one/",
            "redis+sentinel://:secret@one/na me",
            "redis+sentinel://one/mine?sentinel_user=secret",
            "redis+sentinel://one/mine?password=secret",
            "redis+sentinel://:secret@/mine",
            "redis+sentinel://:secret@one/mine/zero",
            "redis+cluster://:secret@one/1",
            "redis+cluster://:secret@one,",
            "redis+cluster://",
            "rediss+cluster://one?x=secret",
        ] {
            let error = read(url).unwrap_err();
            assert!(!error.is_empty() && !error.contains("secret"), "{url}: {error}");
        }
    }
}
