//! The workload of a run: its options, and the distributions of arrivals and sizes.
//!
//! The distributions are inverse cumulative distribution functions: they map a uniform number in (0, 1] to a
//! gap or a size. They have neither state nor a source of random numbers: the load generator and the
//! simulator call them with seeded random numbers.
//!
//! Source of the Facebook distributions: Atikoglu, Xu, Frachtenberg, Jiang, Paleczny, "Workload Analysis of a
//! Large-Scale Key-Value Store", SIGMETRICS 2012, section 5 and table 5 (the pool ETC). The parameters are
//! those of the tool mutilate, which calls them `fb_ia`, `fb_key` and `fb_value`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exchange::{ExchangeWorkload, ForeignWorkload, StorageWorkload};
use crate::pace::{Arrivals, GeneralizedPareto, NotADistribution, OutOfRange, Pace, Waiting, span, within};
use crate::units::Nanoseconds;

/// The workload of a run. Stored in the evidence, so that the run can be repeated.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Requests to a key-value server in the memcached ASCII protocol.
    Memcached(MemcachedWorkload),
    /// Requests and answers of fixed sizes.
    TcpRr(ExchangeWorkload),
    /// Blocks that are sent in one direction, as fast as possible.
    TcpStream(ExchangeWorkload),
    /// Requests and answers of fixed sizes, each in a UDP datagram.
    UdpRr(ExchangeWorkload),
    /// UDP datagrams that are sent in one direction, as fast as possible.
    UdpStream(ExchangeWorkload),
    /// Operations on the server's storage.
    Storage(StorageWorkload),
    /// Requests to a foreign server, whose protocol shows where an answer ends.
    Foreign(ForeignWorkload),
}

impl Workload {
    /// Returns the seed of all random numbers of the run.
    pub fn seed(&self) -> u64 {
        match self {
            Self::Memcached(memcached) => memcached.seed,
            Self::TcpRr(exchange)
            | Self::TcpStream(exchange)
            | Self::UdpRr(exchange)
            | Self::UdpStream(exchange) => exchange.pace.seed,
            Self::Storage(storage) => storage.pace.seed,
            Self::Foreign(foreign) => foreign.pace.seed,
        }
    }

    /// Returns the workload with another seed: runs are comparable if their workloads are equal apart from
    /// the seed.
    #[must_use]
    pub fn with_seed(&self, seed: u64) -> Self {
        let mut workload = self.clone();
        match &mut workload {
            Self::Memcached(memcached) => memcached.seed = seed,
            Self::TcpRr(exchange)
            | Self::TcpStream(exchange)
            | Self::UdpRr(exchange)
            | Self::UdpStream(exchange) => exchange.pace.seed = seed,
            Self::Storage(storage) => storage.pace.seed = seed,
            Self::Foreign(foreign) => foreign.pace.seed = seed,
        }
        workload
    }

    /// Changes how client threads wait.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        match self {
            Self::Memcached(memcached) => memcached.waiting = waiting,
            Self::TcpRr(exchange)
            | Self::TcpStream(exchange)
            | Self::UdpRr(exchange)
            | Self::UdpStream(exchange) => exchange.pace.waiting = waiting,
            Self::Storage(storage) => storage.pace.waiting = waiting,
            Self::Foreign(foreign) => foreign.pace.waiting = waiting,
        }
    }

    /// Whether requests are UDP datagrams.
    pub const fn is_udp(&self) -> bool {
        matches!(self, Self::UdpRr(_) | Self::UdpStream(_))
    }

    /// Returns when requests are sent, and over which connections.
    pub fn pace(&self) -> Pace {
        match self {
            Self::Memcached(memcached) => memcached.pace(),
            Self::TcpRr(exchange)
            | Self::TcpStream(exchange)
            | Self::UdpRr(exchange)
            | Self::UdpStream(exchange) => exchange.pace.clone(),
            Self::Storage(storage) => storage.pace.clone(),
            Self::Foreign(foreign) => foreign.pace.clone(),
        }
    }

    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        match self {
            Self::Memcached(memcached) => memcached.check(),
            Self::TcpRr(exchange) | Self::TcpStream(exchange) => exchange.check(),
            Self::UdpRr(exchange) | Self::UdpStream(exchange) => exchange.check_datagrams(),
            Self::Storage(storage) => storage.check(),
            Self::Foreign(foreign) => foreign.check(),
        }
    }
}

/// The options of a memcached run.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemcachedWorkload {
    /// The number of client threads, each with a separate epoll. Range 1 to 256.
    pub threads: u32,
    /// The number of TCP connections of each thread. Range 1 to 16 384.
    pub connections_per_thread: u32,
    /// The maximum number of outstanding requests per connection. Range 1 to 1024.
    pub depth: u32,
    /// The distribution of the gaps between the requests of a connection. In a closed loop there are no gaps.
    pub arrivals: Arrivals,
    /// The share of requests that are `set`; the rest are `get`. Range 0..=1.
    pub set_share: f64,
    /// The number of keys; requests choose among them uniformly. Range 1 to 10 000 000.
    pub keys: u32,
    /// The distribution of key sizes.
    pub key_size: KeySize,
    /// The distribution of value sizes.
    pub value_size: ValueSize,
    /// Whether every key is set and verified before the first request.
    pub preload: bool,
    /// How long the client sends requests before the window opens.
    pub warmup: Nanoseconds,
    /// The length of the measurement window: requests that are *due* in it count.
    pub window: Nanoseconds,
    /// How long the client waits for answers after the window.
    pub drain: Nanoseconds,
    /// The seed of all random numbers.
    pub seed: u64,
    /// How a client thread waits.
    pub waiting: Waiting,
}

impl MemcachedWorkload {
    /// The maximum number of keys.
    pub const KEYS_MAX: u32 = 10_000_000;
    /// The maximum size of a key in the protocol, in bytes. Source: memcached, doc/protocol.txt, "Keys".
    pub const KEY_BYTES_MAX: u32 = 250;
    /// The maximum size of a value, in bytes; memcached's default item limit is 1 MiB including overhead.
    pub const VALUE_BYTES_MAX: u32 = 1_000_000;

    /// Returns the number of connections of all threads.
    pub fn connections(&self) -> u64 {
        u64::from(self.threads) * u64::from(self.connections_per_thread)
    }

    /// Returns when requests are sent, and over which connections. Counts saturate at `u32::MAX` connections,
    /// more than any host has.
    pub fn pace(&self) -> Pace {
        Pace {
            threads: self.threads,
            flows: u32::try_from(self.connections()).unwrap_or(u32::MAX),
            depth: self.depth,
            arrivals: self.arrivals,
            warmup: self.warmup,
            window: self.window,
            drain: self.drain,
            seed: self.seed,
            waiting: self.waiting,
        }
    }

    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        within("threads", self.threads, 1, Pace::THREADS_MAX)?;
        within("connections-per-thread", self.connections_per_thread, 1, Pace::CONNECTIONS_MAX)?;
        within("depth", self.depth, 1, Pace::DEPTH_MAX)?;
        within("keys", self.keys, 1, Self::KEYS_MAX)?;
        if let KeySize::Fixed(bytes) = self.key_size {
            within("key-size", bytes, 1, Self::KEY_BYTES_MAX)?;
        }
        if let ValueSize::Fixed(bytes) = self.value_size {
            within("value-size", bytes, 0, Self::VALUE_BYTES_MAX)?;
        }
        if !(0.0..=1.0).contains(&self.set_share) {
            let value = self.set_share.to_string();
            return Err(OutOfRange { option: "set-share", value, range: "0..=1".to_owned() });
        }
        span("warmup", self.warmup, Nanoseconds::ZERO)?;
        span("window", self.window, Nanoseconds::from_millis(1))?;
        span("drain", self.drain, Nanoseconds::ZERO)
    }
}

/// The offered load.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OfferedLoad {
    /// Open loop: sends this many requests per second, whether or not the server keeps up. With 0,
    /// connections are open and idle.
    PerSecond(f64),
    /// Closed loop: each answer triggers the next request. The IRQ suspension document calls this load `MAX`.
    Max,
}

impl OfferedLoad {
    /// The highest rate that can be requested, in requests per second.
    pub const PER_SECOND_MAX: f64 = 100_000_000.0;
    /// No request.
    pub const IDLE: Self = Self::PerSecond(0.0);
}

impl fmt::Display for OfferedLoad {
    /// Formats the load as the IRQ suspension document does: `200K`, `MAX`; rates below 1000 and rates that
    /// are not multiples of 100 are written in full.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.pad("MAX"),
            Self::PerSecond(rate) if *rate >= 1000.0 && rate % 100.0 == 0.0 => {
                f.pad(&format!("{}K", rate / 1000.0))
            }
            Self::PerSecond(rate) => f.pad(&rate.to_string()),
        }
    }
}

/// The error for text that is not a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotALoad(pub String);

impl fmt::Display for NotALoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a load: write requests per second up to {}K, as in 50K or 50000, or `max`",
            self.0,
            OfferedLoad::PER_SECOND_MAX / 1000.0
        )
    }
}

impl std::error::Error for NotALoad {}

impl FromStr for OfferedLoad {
    type Err = NotALoad;

    fn from_str(text: &str) -> Result<Self, NotALoad> {
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        let (number, factor) = match trimmed.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&trimmed[..at], 1e3),
            Some((at, 'M')) => (&trimmed[..at], 1e6),
            Some(_) | None => (trimmed, 1.0),
        };
        match number.parse::<f64>() {
            Ok(n) if n >= 0.0 && n * factor <= Self::PER_SECOND_MAX => Ok(Self::PerSecond(n * factor)),
            _ => Err(NotALoad(text.to_owned())),
        }
    }
}

/// The distribution of key sizes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySize {
    /// All keys have the same size.
    Fixed(u32),
    /// Facebook's distribution of key sizes: generalized extreme value with location 30.7984, scale 8.20449,
    /// shape 0.078688.
    FbKey,
}

impl KeySize {
    /// Returns the size at quantile `u`, at most [`MemcachedWorkload::KEY_BYTES_MAX`]. `u` is in (0, 1].
    pub fn draw(self, u: f64) -> u32 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::FbKey => {
                let (location, scale, shape) = (30.7984, 8.20449, 0.078_688);
                let exponential = -u.ln();
                let bytes = location + scale * (exponential.powf(-shape) - 1.0) / shape;
                whole_bytes(bytes.round(), MemcachedWorkload::KEY_BYTES_MAX)
            }
        }
    }
}

/// The distribution of value sizes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSize {
    /// All values have the same size.
    Fixed(u32),
    /// Facebook's distribution of value sizes: 0 to 14 by a table, larger sizes generalized Pareto with
    /// location 15, scale 214.476, shape 0.348238.
    FbValue,
}

impl ValueSize {
    /// The probability of each size from 0 to 14.
    pub const FB_VALUE_HEAD: [f64; 15] = [
        0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
        0.08989, 0.00092, 0.00326, 0.01980,
    ];

    /// Returns the size at two quantiles: `head` selects the part of the distribution, and `tail` the size
    /// within the tail. At most [`MemcachedWorkload::VALUE_BYTES_MAX`]. Both quantiles are in (0, 1] and
    /// independent.
    pub fn draw(self, head: f64, tail: f64) -> u32 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::FbValue => {
                let mut below = 0.0;
                for (bytes, share) in (0..).zip(Self::FB_VALUE_HEAD) {
                    below += share;
                    if head <= below {
                        return bytes;
                    }
                }
                let pareto = GeneralizedPareto { location: 15.0, scale: 214.476, shape: 0.348_238 };
                whole_bytes(pareto.draw(tail), MemcachedWorkload::VALUE_BYTES_MAX)
            }
        }
    }
}

/// Truncates a size to whole bytes, within 0..=`most`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=most before the cast; a fraction of a byte is dropped"
)]
fn whole_bytes(bytes: f64, most: u32) -> u32 {
    bytes.clamp(0.0, f64::from(most)) as u32
}

impl fmt::Display for KeySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => f.pad(&bytes.to_string()),
            Self::FbKey => f.pad("fb_key"),
        }
    }
}

impl FromStr for KeySize {
    type Err = NotADistribution;

    fn from_str(text: &str) -> Result<Self, NotADistribution> {
        if text == "fb_key" {
            return Ok(Self::FbKey);
        }
        let known = "a number of bytes, fb_key";
        text.parse().map(Self::Fixed).map_err(|_| NotADistribution { text: text.to_owned(), known })
    }
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(bytes) => f.pad(&bytes.to_string()),
            Self::FbValue => f.pad("fb_value"),
        }
    }
}

impl FromStr for ValueSize {
    type Err = NotADistribution;

    fn from_str(text: &str) -> Result<Self, NotADistribution> {
        if text == "fb_value" {
            return Ok(Self::FbValue);
        }
        let known = "a number of bytes, fb_value";
        text.parse().map(Self::Fixed).map_err(|_| NotADistribution { text: text.to_owned(), known })
    }
}

crate::as_text! {
    KeySize: "the key sizes",
    ValueSize: "the value sizes",
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn descriptions_state_the_limits_that_are_checked() {
        let schema = serde_json::to_string(&schemars::schema_for!(Workload)).expect("a schema");
        let grouped = |limit: u32| match (limit / 1_000_000, limit / 1_000 % 1_000, limit % 1_000) {
            (0, 0..10, _) => limit.to_string(),
            (0, thousands, rest) => format!("{thousands} {rest:03}"),
            (millions, thousands, rest) => format!("{millions} {thousands:03} {rest:03}"),
        };
        let mib = |limit: u32| format!("{} MiB.", limit >> 20);
        let path = u32::try_from(ForeignWorkload::PATH_BYTES_MAX).expect("a small limit");
        for said in [
            format!("separate epoll. Range 1 to {}.", Pace::THREADS_MAX),
            format!("of each thread. Range 1 to {}.", grouped(Pace::CONNECTIONS_MAX)),
            format!("at most {} for each thread.", grouped(Pace::CONNECTIONS_MAX)),
            format!("per connection. Range 1 to {}.", grouped(Pace::DEPTH_MAX)),
            format!("uniformly. Range 1 to {}.", grouped(MemcachedWorkload::KEYS_MAX)),
            format!("The number of keys. Range 1 to {}.", grouped(ForeignWorkload::KEYS_MAX)),
            format!("in bytes. Range 0 to {}.", grouped(ForeignWorkload::VALUE_BYTES_MAX)),
            format!("At most {} bytes", grouped(path)),
            format!("in bytes. Range 1 to {}", mib(ExchangeWorkload::BYTES_MAX)),
            format!("a multiple of {} up to {}", StorageWorkload::ALIGNMENT, mib(StorageWorkload::BYTES_MAX)),
        ] {
            assert!(schema.contains(&said), "{said}: {schema}");
        }
    }

    /// The number of midpoints in (0, 1) at which a distribution is averaged.
    const STEPS: u32 = 1_000_000;

    fn averaged(draw: impl Fn(f64) -> f64) -> f64 {
        (0..STEPS).map(|i| draw((f64::from(i) + 0.5) / f64::from(STEPS))).sum::<f64>() / f64::from(STEPS)
    }

    fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
        assert!((found / expected - 1.0).abs() <= tolerance, "{what}: {found}, by theory {expected}");
    }

    #[test]
    fn gaps_have_the_mean_that_the_load_asks_for() {
        for arrivals in [Arrivals::Fixed, Arrivals::Exponential, Arrivals::FbIa] {
            assert_near(&arrivals.to_string(), averaged(|u| arrivals.gap(20_000.0, u)), 20_000.0, 0.002);
        }
    }

    #[test]
    fn gaps_have_the_variance_of_their_distribution() {
        let squares = |arrivals: Arrivals| averaged(|u| arrivals.gap(1.0, u).powi(2));
        assert_near("exponential", squares(Arrivals::Exponential) - 1.0, 1.0, 0.005);
        // The variance of a generalized Pareto distribution is scale² / ((1 - k)² (1 - 2k)), which is 1 / (1
        // - 2k) if the mean is 1.
        assert_near("fb_ia", squares(Arrivals::FbIa) - 1.0, 1.0 / (1.0 - 2.0 * 0.154_971), 0.01);
    }

    #[test]
    fn facebooks_keys_have_the_mean_of_their_generalized_extreme_values() {
        // The mean is location + scale (Γ(1 - k) - 1) / k, with Γ(1 - 0.078688) = 1.05222.
        let mean = averaged(|u| f64::from(KeySize::FbKey.draw(u)));
        assert_near("fb_key", mean, 30.7984 + 8.20449 * (1.052_22 - 1.0) / 0.078_688, 0.005);
    }

    #[test]
    fn facebooks_values_have_the_head_and_the_tail_of_the_paper() {
        let head: f64 = ValueSize::FB_VALUE_HEAD.iter().sum();
        let two_bytes = averaged(|u| f64::from(u8::from(ValueSize::FbValue.draw(u, 0.5) == 2)));
        assert_near("values of 2 bytes", two_bytes, 0.1782, 0.001);
        assert_near(
            "short values",
            averaged(|u| f64::from(u8::from(ValueSize::FbValue.draw(u, 0.5) < 15))),
            head,
            0.001,
        );
        // The mean is location + scale / (1 - k), minus the half byte that is truncated on average.
        let tail = averaged(|u| f64::from(ValueSize::FbValue.draw(1.0, u)));
        assert_near("long values", tail, 15.0 + 214.476 / (1.0 - 0.348_238) - 0.5, 0.01);
    }

    #[test]
    fn loads_are_written_as_the_document_writes_them() {
        for (text, load, shown) in [
            ("200K", OfferedLoad::PerSecond(200_000.0), "200K"),
            ("1.5M", OfferedLoad::PerSecond(1_500_000.0), "1500K"),
            ("12500", OfferedLoad::PerSecond(12_500.0), "12.5K"),
            ("max", OfferedLoad::Max, "MAX"),
            ("750", OfferedLoad::PerSecond(750.0), "750"),
            ("0", OfferedLoad::IDLE, "0"),
        ] {
            assert_eq!(text.parse(), Ok(load));
            assert_eq!(load.to_string(), shown);
            assert_eq!(shown.parse(), Ok(load));
        }
        for text in ["", "-5", "1e12", "inf", "NaN", "K", "fast"] {
            assert!(text.parse::<OfferedLoad>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_option_out_of_range_is_named_with_its_range() {
        let good = MemcachedWorkload {
            threads: 1,
            connections_per_thread: 8,
            depth: 1,
            arrivals: Arrivals::Exponential,
            set_share: 0.1,
            keys: 1000,
            key_size: KeySize::Fixed(30),
            value_size: ValueSize::FbValue,
            preload: true,
            warmup: Nanoseconds::ZERO,
            window: Nanoseconds::from_millis(100),
            drain: Nanoseconds::from_millis(100),
            seed: 1,
            waiting: Waiting::Spin,
        };
        assert_eq!(good.check(), Ok(()));
        let wrong = [
            ("threads", MemcachedWorkload { threads: 0, ..good.clone() }),
            ("depth", MemcachedWorkload { depth: 1025, ..good.clone() }),
            ("key-size", MemcachedWorkload { key_size: KeySize::Fixed(251), ..good.clone() }),
            ("set-share", MemcachedWorkload { set_share: f64::NAN, ..good.clone() }),
            ("window", MemcachedWorkload { window: Nanoseconds::ZERO, ..good.clone() }),
        ];
        for (option, workload) in wrong {
            assert_eq!(workload.check().expect_err(option).option, option);
        }
    }

    proptest! {
        #[test]
        fn every_draw_is_within_the_protocols_limits(u in 0.0_f64..1.0, v in 0.0_f64..1.0) {
            let (u, v) = (1.0 - u, 1.0 - v);
            prop_assert!(KeySize::FbKey.draw(u) <= MemcachedWorkload::KEY_BYTES_MAX);
            prop_assert!(ValueSize::FbValue.draw(u, v) <= MemcachedWorkload::VALUE_BYTES_MAX);
            for arrivals in [Arrivals::Fixed, Arrivals::Exponential, Arrivals::FbIa] {
                prop_assert!(arrivals.gap(1000.0, u) >= 0.0);
            }
        }
    }
}
