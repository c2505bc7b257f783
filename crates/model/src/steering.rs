//! Steering in the NIC: RSS contexts and ntuple rules.
//!
//! Kernel: `include/uapi/linux/ethtool.h` `struct ethtool_rxfh`, `struct ethtool_rx_flow_spec`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::QueueIndex;

/// A contiguous range of receive queues. The range identifies an RSS context, whose id exists only after the
/// context has been created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpan {
    /// The first queue.
    pub first: u32,
    /// The number of queues, at least one.
    pub count: u32,
}

impl QueueSpan {
    /// Returns the indirection table, with this many entries, that spreads packets evenly over these queues.
    pub fn table(self, entries: usize) -> Vec<u32> {
        (self.first..self.first.saturating_add(self.count)).cycle().take(entries).collect()
    }

    /// Returns the queues over which a table spreads packets evenly; `None` if the table is different.
    pub fn of_table(table: &[u32]) -> Option<Self> {
        let (first, last) = (*table.iter().min()?, *table.iter().max()?);
        let span = Self { first, count: (last - first).checked_add(1)? };
        (span.table(table.len()) == table).then_some(span)
    }

    /// The last queue.
    pub const fn last(self) -> u32 {
        self.first.saturating_add(self.count.saturating_sub(1))
    }
}

impl fmt::Display for QueueSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.pad(&self.first.to_string()),
            _ => f.pad(&format!("{}-{}", self.first, self.last())),
        }
    }
}

impl FromStr for QueueSpan {
    type Err = NotSteering;

    fn from_str(text: &str) -> Result<Self, NotSteering> {
        let wrong = || {
            NotSteering(format!(
                "`{text}` is not a range of queues: write one queue as \"2\", several as \"2-5\""
            ))
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        let count = last.checked_sub(first).and_then(|more| more.checked_add(1)).ok_or_else(wrong)?;
        Ok(Self { first, count })
    }
}

/// A protocol with ports.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Whether the protocol is TCP.
    pub const fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp)
    }
}

/// The packets of one protocol and IP version, with the values that their header fields must have; `None`
/// matches any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpFlow<A> {
    /// The protocol.
    pub transport: Transport,
    /// The source address.
    pub source: Option<A>,
    /// The destination address.
    pub destination: Option<A>,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub destination_port: Option<u16>,
}

impl<A> IpFlow<A> {
    /// Creates a match for all packets of a protocol.
    pub const fn all(transport: Transport) -> Self {
        Self { transport, source: None, destination: None, source_port: None, destination_port: None }
    }
}

/// Ethernet frames with any payload; a field that is `None` matches any value.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct EtherFlow {
    /// The destination address.
    pub destination: Option<[u8; 6]>,
    /// The EtherType.
    pub protocol: Option<u16>,
}

/// The packets that an ntuple rule matches. A rule can match only whole fields, no prefixes and no ranges.
///
/// The match identifies the rule. The text format is that of `ethtool -N`: `tcp4 dst-port 11211`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowMatch {
    /// TCP or UDP over IPv4.
    Ip4(IpFlow<Ipv4Addr>),
    /// TCP or UDP over IPv6.
    Ip6(IpFlow<Ipv6Addr>),
    /// Any frame. Some NICs accept no other rules.
    Ether(EtherFlow),
}

impl fmt::Display for FlowMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        match self {
            Self::Ip4(flow) => write_ip(&mut text, flow, '4'),
            Self::Ip6(flow) => write_ip(&mut text, flow, '6'),
            Self::Ether(EtherFlow { destination, protocol }) => {
                text.push_str("ether");
                if let Some([a, b, c, d, e, f]) = destination {
                    text.push_str(&format!(" dst {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"));
                }
                if let Some(protocol) = protocol {
                    text.push_str(&format!(" proto {protocol:#06x}"));
                }
            }
        }
        f.pad(&text)
    }
}

fn write_ip<A: fmt::Display>(text: &mut String, flow: &IpFlow<A>, version: char) {
    text.push_str(match flow.transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    });
    text.push(version);
    let mut word = |word: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {word} {value}"));
        }
    };
    word("src-ip", flow.source.as_ref().map(ToString::to_string));
    word("dst-ip", flow.destination.as_ref().map(ToString::to_string));
    word("src-port", flow.source_port.map(|port| port.to_string()));
    word("dst-port", flow.destination_port.map(|port| port.to_string()));
}

/// The target to which an ntuple rule directs packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SteerTo {
    /// One receive queue.
    Queue(QueueIndex),
    /// The queues of an RSS context, over which the hash spreads the packets: see
    /// [`crate::NicKnob::RssContext`].
    Context(QueueSpan),
    /// No queue: the NIC drops the packets.
    Drop,
    /// A target that is not supported here, such as a virtual function. netpolicy reads it but never writes
    /// it.
    Other,
}

impl fmt::Display for SteerTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => f.pad(&format!("queue {queue}")),
            Self::Context(span) => f.pad(&format!("context {span}")),
            Self::Drop => f.pad("drop"),
            Self::Other => f.pad("elsewhere"),
        }
    }
}

/// A requested ntuple rule, such as `tcp4 dst-port 11211 queue 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowRule {
    /// The matching packets.
    pub flow: FlowMatch,
    /// The target to which the rule directs the packets.
    pub to: SteerTo,
}

impl FlowRule {
    /// The maximum number of rules that netpolicy writes to a device. NICs have room for between 8 and
    /// several thousand rules.
    pub const OF_A_DEVICE_MAX: usize = 64;
}

impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.flow, self.to))
    }
}

/// The error for text that is neither a range of queues nor a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSteering(String);

impl fmt::Display for NotSteering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotSteering {}

impl FromStr for FlowRule {
    type Err = NotSteering;

    fn from_str(text: &str) -> Result<Self, NotSteering> {
        let wrong = |why: String| NotSteering(format!("`{text}` is not a rule: {why}"));
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or("");
        let mut flow = match kind {
            "tcp4" => FlowMatch::Ip4(IpFlow::all(Transport::Tcp)),
            "udp4" => FlowMatch::Ip4(IpFlow::all(Transport::Udp)),
            "tcp6" => FlowMatch::Ip6(IpFlow::all(Transport::Tcp)),
            "udp6" => FlowMatch::Ip6(IpFlow::all(Transport::Udp)),
            "ether" => FlowMatch::Ether(EtherFlow::default()),
            _ => return Err(wrong("a flow begins with tcp4, udp4, tcp6, udp6 or ether".to_owned())),
        };
        let mut seen: Vec<&str> = Vec::new();
        let mut to = None;
        while let Some(word) = words.next() {
            if to.is_some() {
                return Err(wrong(format!("`{word}` follows the rule's target")));
            }
            if seen.contains(&word) {
                return Err(wrong(format!("`{word}` is given twice")));
            }
            seen.push(word);
            if word == "drop" {
                to = Some(SteerTo::Drop);
                continue;
            }
            let value = words.next().ok_or_else(|| wrong(format!("nothing follows `{word}`")))?;
            match word {
                "queue" => {
                    let queue = value.parse().map_err(|_| wrong(format!("`{value}` is not a queue")))?;
                    to = Some(SteerTo::Queue(QueueIndex(queue)));
                }
                "context" => {
                    to = Some(SteerTo::Context(value.parse().map_err(|no: NotSteering| wrong(no.0))?));
                }
                _ => condition(&mut flow, word, value).map_err(wrong)?,
            }
        }
        let to =
            to.ok_or_else(|| wrong("a rule ends with \"queue N\", \"context N-M\" or \"drop\"".to_owned()))?;
        Ok(Self { flow, to })
    }
}

fn condition(flow: &mut FlowMatch, word: &str, value: &str) -> Result<(), String> {
    match flow {
        FlowMatch::Ip4(flow) => ip_condition(flow, word, value),
        FlowMatch::Ip6(flow) => ip_condition(flow, word, value),
        FlowMatch::Ether(flow) => match word {
            "dst" => {
                flow.destination = Some(mac(value).ok_or_else(|| format!("`{value}` is not a MAC address"))?);
                Ok(())
            }
            "proto" => {
                let number = value
                    .strip_prefix("0x")
                    .map_or_else(|| value.parse(), |digits| u16::from_str_radix(digits, 16));
                flow.protocol = Some(number.map_err(|_| format!("`{value}` is no EtherType"))?);
                Ok(())
            }
            _ => Err(format!("`{word}` is not a condition for frames: expected dst or proto")),
        },
    }
}

fn ip_condition<A: FromStr>(flow: &mut IpFlow<A>, word: &str, value: &str) -> Result<(), String> {
    let address =
        || value.parse::<A>().map_err(|_| format!("`{value}` is not an address of this IP version"));
    let port = || value.parse::<u16>().map_err(|_| format!("`{value}` is not a port"));
    match word {
        "src-ip" => flow.source = Some(address()?),
        "dst-ip" => flow.destination = Some(address()?),
        "src-port" => flow.source_port = Some(port()?),
        "dst-port" => flow.destination_port = Some(port()?),
        _ => {
            return Err(format!(
                "`{word}` is not a condition: expected src-ip, dst-ip, src-port or dst-port"
            ));
        }
    }
    Ok(())
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_rule_reads_as_ethtool_writes_it_and_back() {
        for text in [
            "tcp4 dst-port 11211 queue 2",
            "udp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 src-port 1 dst-port 65535 context 4-7",
            "tcp6 dst-ip fe80::1 drop",
            "ether dst 02:00:00:00:00:07 proto 0x88b5 queue 1",
            "udp6 queue 0",
        ] {
            let rule: FlowRule = text.parse().expect(text);
            assert_eq!(rule.to_string(), text);
            let json = serde_json::to_string(&rule).expect("serialises");
            assert_eq!(serde_json::from_str::<FlowRule>(&json).expect("parses"), rule);
        }
    }

    #[test]
    fn a_rule_that_is_none_says_why() {
        for (text, why) in [
            ("", "a flow begins with"),
            ("tcp4 dst-port 80", "a rule ends with"),
            ("tcp4 dst-port", "nothing follows `dst-port`"),
            ("tcp4 dst-port 65536 queue 1", "`65536` is not a port"),
            ("tcp4 dst-ip fe80::1 queue 1", "`fe80::1` is not an address"),
            ("tcp4 dst-port 1 dst-port 2 queue 1", "is given twice"),
            ("tcp4 queue 1 dst-port 2", "follows the rule's target"),
            ("tcp4 queue 1 drop", "follows the rule's target"),
            ("ether dst 02:00 queue 1", "is not a MAC address"),
            ("ether dst-port 2 queue 1", "not a condition for frames"),
            ("udp4 context 5-4", "is not a range of queues"),
        ] {
            let wrong = text.parse::<FlowRule>().expect_err(text);
            assert!(wrong.to_string().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_span_is_found_again_in_its_table_and_in_no_other() {
        for (first, count) in [(0, 1), (2, 2), (3, 5)] {
            let span = QueueSpan { first, count };
            assert_eq!(QueueSpan::of_table(&span.table(128)), Some(span));
        }
        assert_eq!(QueueSpan::of_table(&[2, 2, 3, 3]), None);
        assert_eq!(QueueSpan::of_table(&[2, 4, 2, 4]), None);
        assert_eq!(QueueSpan::of_table(&[]), None);
        assert_eq!(QueueSpan::of_table(&[0, u32::MAX]), None);
        assert_eq!("7".parse(), Ok(QueueSpan { first: 7, count: 1 }));
        assert!("0-4294967295".parse::<QueueSpan>().is_err());
        assert!(QueueSpan { first: 0, count: 0 }.table(4).is_empty());
    }
}
