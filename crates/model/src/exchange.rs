//! Workloads for netpolicy's own server: exchanges of fixed sizes, streams, and storage operations.
//!
//! They are modelled on neper (`tcp_rr`, `tcp_stream`, `udp_rr`, `udp_stream`) and on the remote-SSD application in the cover letter
//! of the patch series "implement kthread based napi poll" (v4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pace::{OutOfRange, Pace, within};

/// Requests and answers of fixed sizes, as in neper's `tcp_rr`. A stream is the special case of many large
/// blocks in flight, each acknowledged by one byte.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeWorkload {
    /// When the client sends requests, and over which connections.
    pub pace: Pace,
    /// The size of a request in bytes. Range 1 to 16 MiB.
    pub request_bytes: u32,
    /// The size of an answer in bytes. Range 1 to 16 MiB.
    pub answer_bytes: u32,
}

impl ExchangeWorkload {
    /// The maximum size of a request or an answer, in bytes.
    pub const BYTES_MAX: u32 = 16 << 20;
    /// The minimum size of a datagram in bytes: enough for the number of the request, which the answer
    /// repeats.
    pub const DATAGRAM_BYTES_MIN: u32 = 8;
    /// The maximum payload of a UDP datagram over IPv4, in bytes. Source: RFC 768, RFC 791.
    pub const DATAGRAM_BYTES_MAX: u32 = 65_507;

    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.check_sizes(1, Self::BYTES_MAX)
    }

    /// Checks that every option is within its range for UDP.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check_datagrams(&self) -> Result<(), OutOfRange> {
        self.check_sizes(Self::DATAGRAM_BYTES_MIN, Self::DATAGRAM_BYTES_MAX)
    }

    fn check_sizes(&self, least: u32, most: u32) -> Result<(), OutOfRange> {
        within("request-bytes", self.request_bytes, least, most)?;
        within("answer-bytes", self.answer_bytes, least, most)?;
        self.pace.check()
    }
}

/// Reads and writes of one size at random offsets of the server's storage, bypassing the page cache.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageWorkload {
    /// When the client sends requests, and over which connections.
    pub pace: Pace,
    /// The number of bytes that one operation reads or writes: a multiple of 4096 up to 1 MiB.
    pub op_bytes: u32,
    /// The share of operations that write. Range 0..=1.
    pub write_share: f64,
    /// The number of bytes of the storage that are used, from its start: at least one operation's size.
    pub span_bytes: u64,
}

impl StorageWorkload {
    /// The alignment of offsets, lengths and memory: enough for any device with sectors of up to 4 KiB.
    /// Kernel: open(2), "O_DIRECT".
    pub const ALIGNMENT: u32 = 4096;
    /// The largest operation.
    pub const BYTES_MAX: u32 = 1 << 20;

    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        if !(Self::ALIGNMENT..=Self::BYTES_MAX).contains(&self.op_bytes)
            || !self.op_bytes.is_multiple_of(Self::ALIGNMENT)
        {
            let range = format!("multiples of {} up to {}", Self::ALIGNMENT, Self::BYTES_MAX);
            return Err(OutOfRange { option: "op-bytes", value: self.op_bytes.to_string(), range });
        }
        if !(0.0..=1.0).contains(&self.write_share) {
            let value = self.write_share.to_string();
            return Err(OutOfRange { option: "write-share", value, range: "0..=1".to_owned() });
        }
        let places = self.span_bytes / u64::from(self.op_bytes);
        if places == 0 || u32::try_from(places).is_err() {
            let range = format!("1 to {} operations", u32::MAX);
            return Err(OutOfRange { option: "span-bytes", value: self.span_bytes.to_string(), range });
        }
        self.pace.check()
    }
}

/// Requests to a foreign server, one or several at a time on each connection.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignWorkload {
    /// When the client sends requests, and over which connections.
    pub pace: Pace,
    /// What is requested, and in which protocol.
    pub asks: Asks,
}

/// What is requested from a foreign server.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asks {
    /// `GET` and `SET` of random keys, in the protocol of Redis (RESP 2).
    Redis {
        /// The number of keys. Range 1 to 10 000 000.
        keys: u32,
        /// The share of requests that are `SET`. Range 0..=1.
        set_share: f64,
        /// The size of a value in bytes. Range 0 to 1 000 000.
        value_bytes: u32,
    },
    /// `GET` of one path over HTTP/1.1, with keep-alive connections.
    Http {
        /// The path, starting with `/`. At most 1024 bytes, printable, no spaces.
        path: String,
    },
}

impl ForeignWorkload {
    /// The maximum number of keys.
    pub const KEYS_MAX: u32 = 10_000_000;
    /// The longest value.
    pub const VALUE_BYTES_MAX: u32 = 1_000_000;
    /// The longest path.
    pub const PATH_BYTES_MAX: usize = 1024;

    /// Checks that every option is within its range.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first option that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        match &self.asks {
            Asks::Redis { keys, set_share, value_bytes } => {
                within("keys", *keys, 1, Self::KEYS_MAX)?;
                within("value-bytes", *value_bytes, 0, Self::VALUE_BYTES_MAX)?;
                if !(0.0..=1.0).contains(set_share) {
                    let value = set_share.to_string();
                    return Err(OutOfRange { option: "set-share", value, range: "0..=1".to_owned() });
                }
            }
            Asks::Http { path } => {
                let fits = path.starts_with('/')
                    && path.len() <= Self::PATH_BYTES_MAX
                    && path.bytes().all(|byte| byte.is_ascii_graphic());
                if !fits {
                    let range = format!(
                        "printable, without spaces, beginning with `/`, at most {} bytes",
                        Self::PATH_BYTES_MAX
                    );
                    return Err(OutOfRange { option: "path", value: path.clone(), range });
                }
            }
        }
        self.pace.check()
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::pace::{Arrivals, Waiting};
    use crate::units::Nanoseconds;

    fn pace(threads: u32, flows: u32) -> Pace {
        Pace {
            threads,
            flows,
            depth: 1,
            arrivals: Arrivals::Exponential,
            warmup: Nanoseconds::ZERO,
            window: Nanoseconds::from_millis(100),
            drain: Nanoseconds::ZERO,
            seed: 1,
            waiting: Waiting::Sleep,
        }
    }

    #[test]
    fn flows_are_shared_out_to_the_last_and_no_thread_has_two_more_than_another() {
        let pace = pace(4, 15);
        let shares: Vec<u32> = (0..4).map(|thread| pace.flows_of(thread)).collect();
        assert_eq!(shares, [4, 4, 4, 3]);
        assert_eq!(pace.check(), Ok(()));
    }

    #[test]
    fn what_no_run_can_have_is_refused_by_its_name() {
        let refused = |found: Result<(), OutOfRange>| found.expect_err("out of range").option;
        assert_eq!(refused(pace(4, 3).check()), "flows", "a thread without a connection measures nothing");
        let exchange = ExchangeWorkload { pace: pace(1, 1), request_bytes: 0, answer_bytes: 1 };
        assert_eq!(refused(exchange.check()), "request-bytes");
        let datagrams = |request_bytes, answer_bytes| ExchangeWorkload {
            request_bytes,
            answer_bytes,
            ..exchange.clone()
        };
        assert_eq!(refused(datagrams(7, 8).check_datagrams()), "request-bytes");
        assert_eq!(refused(datagrams(8, 65_508).check_datagrams()), "answer-bytes");
        assert_eq!(datagrams(8, 65_507).check_datagrams(), Ok(()));
        let storage =
            StorageWorkload { pace: pace(1, 1), op_bytes: 4096, write_share: 0.5, span_bytes: 1 << 20 };
        assert_eq!(storage.check(), Ok(()));
        assert_eq!(refused(StorageWorkload { op_bytes: 5000, ..storage.clone() }.check()), "op-bytes");
        assert_eq!(refused(StorageWorkload { write_share: 1.5, ..storage.clone() }.check()), "write-share");
        assert_eq!(refused(StorageWorkload { span_bytes: 4095, ..storage }.check()), "span-bytes");
        let foreign = |asks| ForeignWorkload { pace: pace(1, 1), asks }.check();
        let redis = |keys, set_share, value_bytes| Asks::Redis { keys, set_share, value_bytes };
        assert_eq!(foreign(redis(1, 0.1, 100)), Ok(()));
        assert_eq!(refused(foreign(redis(0, 0.1, 100))), "keys");
        assert_eq!(refused(foreign(redis(1, 1.1, 100))), "set-share");
        assert_eq!(foreign(Asks::Http { path: "/a?b=c".to_owned() }), Ok(()));
        for path in ["", "a", "/a b", "/a\r\nHost: b"] {
            assert_eq!(refused(foreign(Asks::Http { path: path.to_owned() })), "path", "{path:?}");
        }
    }
}
