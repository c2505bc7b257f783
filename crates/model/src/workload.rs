//! The workload of a run: its options, and the distributions of arrivals and sizes.
//!
//! The distributions are inverse cumulative distribution functions, from a number drawn evenly out of (0, 1] to
//! a gap or a size. They hold no state and no chance of their own: the load generator and the simulator draw
//! from the same functions, each with its own seeded numbers.
//!
//! Source of the Facebook distributions: Atikoglu, Xu, Frachtenberg, Jiang, Paleczny, "Workload Analysis of a
//! Large-Scale Key-Value Store", SIGMETRICS 2012, section 5 and table 5 (the pool ETC), with the parameters that
//! the tool mutilate gives the names `fb_ia`, `fb_key` and `fb_value`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::exchange::{ExchangeWorkload, ForeignWorkload, StorageWorkload};
use crate::pace::{Arrivals, GeneralizedPareto, NotADistribution, OutOfRange, Pace, Waiting, span, within};
use crate::units::Nanoseconds;

/// One run's workload. Written into the evidence, so that the run can be repeated from it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Requests to a key-value server in the memcached ASCII protocol.
    Memcached(MemcachedWorkload),
    /// Requests and answers of fixed sizes.
    TcpRr(ExchangeWorkload),
    /// Blocks in one direction, as fast as they go.
    TcpStream(ExchangeWorkload),
    /// Operations on the server's storage.
    Storage(StorageWorkload),
    /// Requests to a foreign server, whose protocol says where an answer ends.
    Foreign(ForeignWorkload),
}

impl Workload {
    /// The seed that all chance of the run was drawn from.
    pub fn seed(&self) -> u64 {
        match self {
            Self::Memcached(memcached) => memcached.seed,
            Self::TcpRr(exchange) | Self::TcpStream(exchange) => exchange.pace.seed,
            Self::Storage(storage) => storage.pace.seed,
            Self::Foreign(foreign) => foreign.pace.seed,
        }
    }

    /// The same workload with another seed: what makes two runs comparable is that they are equal in this form.
    #[must_use]
    pub fn with_seed(&self, seed: u64) -> Self {
        let mut workload = self.clone();
        match &mut workload {
            Self::Memcached(memcached) => memcached.seed = seed,
            Self::TcpRr(exchange) | Self::TcpStream(exchange) => exchange.pace.seed = seed,
            Self::Storage(storage) => storage.pace.seed = seed,
            Self::Foreign(foreign) => foreign.pace.seed = seed,
        }
        workload
    }

    /// Lets client threads wait in another way.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        match self {
            Self::Memcached(memcached) => memcached.waiting = waiting,
            Self::TcpRr(exchange) | Self::TcpStream(exchange) => exchange.pace.waiting = waiting,
            Self::Storage(storage) => storage.pace.waiting = waiting,
            Self::Foreign(foreign) => foreign.pace.waiting = waiting,
        }
    }

    /// When and over what its requests go.
    pub fn pace(&self) -> Pace {
        match self {
            Self::Memcached(memcached) => memcached.pace(),
            Self::TcpRr(exchange) | Self::TcpStream(exchange) => exchange.pace.clone(),
            Self::Storage(storage) => storage.pace.clone(),
            Self::Foreign(foreign) => foreign.pace.clone(),
        }
    }

    /// Whether every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
    pub fn check(&self) -> Result<(), OutOfRange> {
        match self {
            Self::Memcached(memcached) => memcached.check(),
            Self::TcpRr(exchange) | Self::TcpStream(exchange) => exchange.check(),
            Self::Storage(storage) => storage.check(),
            Self::Foreign(foreign) => foreign.check(),
        }
    }
}

/// Every option of a memcached run.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemcachedWorkload {
    /// Client threads, each with its own epoll. Range 1..=[`Pace::THREADS_MAX`].
    pub threads: u32,
    /// TCP connections of each thread. Range 1..=[`Pace::CONNECTIONS_MAX`].
    pub connections_per_thread: u32,
    /// Requests that one connection may have under way. Range 1..=[`Pace::DEPTH_MAX`].
    pub depth: u32,
    /// How the gaps between the requests of one connection are distributed. Closed loop has no gaps.
    pub arrivals: Arrivals,
    /// The share of requests that are `set`; the rest are `get`. Range 0..=1.
    pub set_share: f64,
    /// How many keys there are; requests choose among them evenly. Range 1..=[`Self::KEYS_MAX`].
    pub keys: u32,
    /// How long the keys are.
    pub key_size: KeySize,
    /// How long the values are.
    pub value_size: ValueSize,
    /// Whether every key is set, and every set is checked, before the first request.
    pub preload: bool,
    /// How long requests run before the window opens.
    pub warmup: Nanoseconds,
    /// How long is measured: requests *due* in the window count.
    pub window: Nanoseconds,
    /// How long after the window answers are waited for.
    pub drain: Nanoseconds,
    /// The seed of all chance.
    pub seed: u64,
    /// How a client thread waits.
    pub waiting: Waiting,
}

impl MemcachedWorkload {
    /// The most keys.
    pub const KEYS_MAX: u32 = 10_000_000;
    /// The longest key the protocol takes. Source: memcached, doc/protocol.txt, "Keys".
    pub const KEY_BYTES_MAX: u32 = 250;
    /// The longest value drawn or asked for; memcached's default item limit is 1 MiB with its own overhead.
    pub const VALUE_BYTES_MAX: u32 = 1_000_000;

    /// Connections of all threads.
    pub fn connections(&self) -> u64 {
        u64::from(self.threads) * u64::from(self.connections_per_thread)
    }

    /// When and over what its requests go. At most `u32::MAX` connections are distinguished, more than any host has.
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

    /// Whether every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is not.
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

/// How many requests are offered.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OfferedLoad {
    /// Open loop: this many requests per second, whether or not the server keeps up.
    PerSecond(f64),
    /// Closed loop: every answer is followed by the next request. The document's `MAX`.
    Max,
}

impl OfferedLoad {
    /// The highest rate that can be asked for, in requests per second.
    pub const PER_SECOND_MAX: f64 = 100_000_000.0;
}

impl fmt::Display for OfferedLoad {
    /// As the document writes it: `200K`, `MAX`; rates that are no whole thousands in full.
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

/// Why a text names no load.
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
            Ok(n) if n > 0.0 && n * factor <= Self::PER_SECOND_MAX => Ok(Self::PerSecond(n * factor)),
            _ => Err(NotALoad(text.to_owned())),
        }
    }
}

/// How long keys are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySize {
    /// All alike.
    Fixed(u32),
    /// Facebook's: generalized extreme value, location 30.7984, scale 8.20449, shape 0.078688.
    FbKey,
}

impl KeySize {
    /// The length at `u`, at most [`MemcachedWorkload::KEY_BYTES_MAX`]. `u` is in (0, 1].
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

/// How long values are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSize {
    /// All alike.
    Fixed(u32),
    /// Facebook's: lengths 0 to 14 by a table, longer ones generalized Pareto with location 15, scale 214.476,
    /// shape 0.348238.
    FbValue,
}

impl ValueSize {
    /// The probability of each length from 0 to 14.
    pub const FB_VALUE_HEAD: [f64; 15] = [
        0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
        0.08989, 0.00092, 0.00326, 0.01980,
    ];

    /// The length at `head` (which part of the distribution) and `tail` (where in its tail), at most
    /// [`MemcachedWorkload::VALUE_BYTES_MAX`]. Both are in (0, 1] and drawn apart.
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

/// A length cut down to whole bytes, within 0..=`most`.
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
    KeySize: "the sizes of keys",
    ValueSize: "the sizes of values",
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    /// Steps over (0, 1) that a distribution is averaged over, at the middle of each.
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
        // Generalized Pareto: scale² / ((1 - k)² (1 - 2k)), which is 1 / (1 - 2k) where the mean is 1.
        assert_near("fb_ia", squares(Arrivals::FbIa) - 1.0, 1.0 / (1.0 - 2.0 * 0.154_971), 0.01);
    }

    #[test]
    fn facebooks_keys_have_the_mean_of_their_generalized_extreme_values() {
        // location + scale (Γ(1 - k) - 1) / k, with Γ(1 - 0.078688) = 1.05222.
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
        // location + scale / (1 - k), less half a byte that is cut off on average.
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
        ] {
            assert_eq!(text.parse(), Ok(load));
            assert_eq!(load.to_string(), shown);
            assert_eq!(shown.parse(), Ok(load));
        }
        for text in ["", "0", "-5", "1e12", "inf", "NaN", "K", "fast"] {
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
