//! Starts and loads a server of the operator's choice instead of netpolicy's own.

use std::fmt;
use std::process::Command;
use std::str::FromStr;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use linux::lab::SERVER_ADDRESS;
use model::{
    Arrivals, Asks, ExchangeWorkload, ForeignWorkload, KeySize, MemcachedWorkload, Nanoseconds, OfferedLoad,
    Pace, ValueSize, Waiting, Workload,
};

/// Number of keys that requests to redis and memcached use.
const KEYS: u32 = 10_000;

/// The length of the values of these keys, in bytes.
const VALUE_BYTES: u32 = 100;

/// The share of requests that set a key.
const SET_SHARE: f64 = 0.1;

/// The maximum number of outstanding requests per connection in open loop. With more than one, the client can
/// catch up after the server pauses.
const DEPTH: u32 = 32;

/// A server of the operator's choice, and its load.
#[derive(Clone, Debug, Args)]
pub struct Foreign {
    /// A shell command that starts a server to use instead of netpolicy's own. The server must listen on
    /// `{address}` and `{port}`, which are replaced in the command, and stay in the foreground. Its working
    /// directory is empty, and is removed when the bench ends.
    #[arg(
        long,
        value_name = "CMD",
        group = "foreign",
        requires = "port",
        requires = "protocol",
        value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["simulated", "at_once", "mix", "block", "depth", "server_threads", "short", "server"],
    )]
    pub start: Option<String>,
    /// A service that runs on the other machine, to use instead of netpolicy's own server: its name, or its
    /// port.
    #[arg(
        long,
        value_name = "NAME|PORT",
        group = "foreign",
        requires = "server",
        requires = "protocol",
        conflicts_with_all = ["at_once", "mix", "block", "depth", "server_threads", "short"],
    )]
    pub service: Option<String>,
    /// The port on which the server listens [default: that of the --service, if it has only one].
    #[arg(long, value_name = "N", requires = "foreign", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The protocol: redis, http, echo or memcached.
    #[arg(long, value_name = "NAME", requires = "foreign")]
    pub protocol: Option<Protocol>,
    /// Requests per second, or max for closed loop. With several rates, each is measured in turn [default:
    /// 20K].
    #[arg(long, value_name = "RATE,...", requires = "foreign", value_delimiter = ',')]
    pub rate: Vec<OfferedLoad>,
    /// Number of connections. With several numbers, each is measured in turn [default: 128].
    #[arg(long, value_name = "N,...", requires = "foreign", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub connections: Vec<u32>,
    /// The path to request by HTTP.
    #[arg(long, value_name = "PATH", requires = "foreign", default_value = "/")]
    pub path: String,
    /// Make the clients poll shortly before a request is due, so that response times are exact. The CPU time
    /// of the polling then hides what a policy saves.
    #[arg(long, requires = "foreign")]
    pub punctual: bool,
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `GET` and `SET` of keys, in RESP.
    Redis,
    /// `GET` of a path, by HTTP/1.1 on persistent connections.
    Http,
    /// Sends back the bytes that it receives.
    Echo,
    /// `get` and `set` of keys, in the ASCII protocol.
    Memcached,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 4] = [Self::Redis, Self::Http, Self::Echo, Self::Memcached];

    /// The protocol's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Http => "http",
            Self::Echo => "echo",
            Self::Memcached => "memcached",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The error for a text that is not a protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a supported protocol: use redis, http, echo or memcached")]
pub struct NotAProtocol(String);

impl FromStr for Protocol {
    type Err = NotAProtocol;

    fn from_str(text: &str) -> Result<Self, NotAProtocol> {
        let found = Self::ALL.into_iter().find(|protocol| protocol.as_str() == text);
        found.ok_or_else(|| NotAProtocol(text.to_owned()))
    }
}

/// A server of the operator's choice that the bench starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignServer {
    /// The shell command, with the address filled in.
    pub(crate) command: String,
    /// The port on which the server listens.
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
}

impl ForeignServer {
    /// Returns the command that starts the server. The shell execs the server.
    pub(crate) fn start(&self) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("exec {}", self.command)]);
        command
    }
}

impl Foreign {
    /// Returns the server to start, if one is given.
    pub(crate) fn server(&self) -> Option<ForeignServer> {
        let (command, port, protocol) = (self.start.as_ref()?, self.port?, self.protocol?);
        let command =
            command.replace("{address}", &SERVER_ADDRESS.to_string()).replace("{port}", &port.to_string());
        Some(ForeignServer { command, port, protocol })
    }

    pub(crate) fn loads(&self) -> Vec<OfferedLoad> {
        match self.rate.is_empty() {
            true => vec![OfferedLoad::PerSecond(20_000.0)],
            false => self.rate.clone(),
        }
    }

    /// Returns the numbers of connections to measure.
    pub(crate) fn connections(&self) -> Vec<u32> {
        if self.connections.is_empty() { vec![128] } else { self.connections.clone() }
    }

    /// Returns the workload over this many connections.
    pub(crate) fn workload(
        &self,
        protocol: Protocol,
        flows: u32,
        (warmup, window): (Nanoseconds, Nanoseconds),
        (request, answer): (u32, u32),
    ) -> Workload {
        let waiting = if self.punctual { Waiting::Sleep } else { Waiting::Block };
        // In closed loop, each connection has one outstanding request.
        let depth = if self.loads().contains(&OfferedLoad::Max) { 1 } else { DEPTH };
        let pace = Pace {
            threads: 1,
            flows,
            depth,
            arrivals: Arrivals::Exponential,
            warmup,
            window,
            drain: Nanoseconds::from_millis(500),
            seed: 1,
            waiting,
        };
        match protocol {
            Protocol::Redis => {
                let asks = Asks::Redis { keys: KEYS, set_share: SET_SHARE, value_bytes: VALUE_BYTES };
                Workload::Foreign(ForeignWorkload { pace, asks })
            }
            Protocol::Http => {
                Workload::Foreign(ForeignWorkload { pace, asks: Asks::Http { path: self.path.clone() } })
            }
            Protocol::Echo => Workload::TcpRr(ExchangeWorkload {
                pace,
                request_bytes: request,
                answer_bytes: answer.max(request),
            }),
            Protocol::Memcached => Workload::Memcached(MemcachedWorkload {
                threads: pace.threads,
                connections_per_thread: pace.flows,
                depth: pace.depth,
                arrivals: pace.arrivals,
                set_share: SET_SHARE,
                keys: KEYS,
                key_size: KeySize::Fixed(30),
                value_size: ValueSize::Fixed(VALUE_BYTES),
                preload: true,
                warmup: pace.warmup,
                window: pace.window,
                drain: pace.drain,
                seed: pace.seed,
                waiting: pace.waiting,
            }),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_protocol_survives_its_name() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
        }
        let error = "smtp".parse::<Protocol>().expect_err("is none").to_string();
        for protocol in Protocol::ALL {
            assert!(error.contains(protocol.as_str()), "{error}");
        }
    }
}
