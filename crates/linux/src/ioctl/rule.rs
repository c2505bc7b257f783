//! Converts a flow rule to and from the bytes of `struct ethtool_rxnfc`.
//!
//! Kernel: 6.18, `include/uapi/linux/ethtool.h` `struct ethtool_rx_flow_spec`.

use std::net::{Ipv4Addr, Ipv6Addr};

use model::host::{PlacedRule, RssContext};
use model::{EtherFlow, FlowMatch, IpFlow, QueueIndex, SteerTo, Transport};
use sys::ethtool::RXNFC_WORDS;

/// The offsets in `struct ethtool_rxnfc`, in bytes.
mod at {
    pub(super) const FLOW_TYPE: usize = 16;
    /// The offset of `fs.h_u`, the values of the header fields. The mask of a field is in `fs.m_u`, [`MASK`]
    /// bytes after its value.
    pub(super) const HEADER: usize = 20;
    pub(super) const MASK: usize = 72;
    /// `fs.m_ext`.
    pub(super) const EXTENSION_MASK: usize = 144;
    pub(super) const EXTENSION_BYTES: usize = 20;
    pub(super) const RING_COOKIE: usize = 168;
    pub(super) const LOCATION: usize = 176;
    pub(super) const CONTEXT: usize = 184;
}

/// The size of `union ethtool_flow_union`.
const HEADER_BYTES: usize = 52;

/// The kernel's `*_FLOW` constants, and the flags that can be added to a flow type.
mod flow_type {
    pub(super) const TCP_V4: u32 = 1;
    pub(super) const UDP_V4: u32 = 2;
    pub(super) const TCP_V6: u32 = 5;
    pub(super) const UDP_V6: u32 = 6;
    pub(super) const ETHER: u32 = 0x12;
    pub(super) const EXT: u32 = 1 << 31;
    pub(super) const RSS: u32 = 1 << 29;
}

/// The kernel's `RX_CLS_FLOW_DISC`.
const DROP: u64 = u64::MAX;

/// The header fields of a flow type: the offset and the length of each.
struct Fields {
    source: (usize, usize),
    destination: (usize, usize),
    source_port: (usize, usize),
    destination_port: (usize, usize),
}

const IP4: Fields =
    Fields { source: (0, 4), destination: (4, 4), source_port: (8, 2), destination_port: (10, 2) };
const IP6: Fields =
    Fields { source: (0, 16), destination: (16, 16), source_port: (32, 2), destination_port: (34, 2) };
/// `struct ethhdr`: destination, source, protocol.
const ETHER_DESTINATION: (usize, usize) = (0, 6);
const ETHER_PROTOCOL: (usize, usize) = (12, 2);

/// The bytes of a rule as the kernel expects them.
struct Bytes([u8; 4 * RXNFC_WORDS]);

impl Bytes {
    fn u32(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> u64 {
        self.0[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Requires a field to have this value: sets the value, and every bit of the field's mask.
    fn demand(&mut self, (at, length): (usize, usize), value: &[u8]) {
        self.put(at::HEADER + at, value);
        self.0[at::HEADER + at::MASK + at..][..length].fill(0xff);
    }

    /// Returns the value of a field; `None` if the field may have any value.
    ///
    /// # Errors
    /// If only a part of the field is required.
    fn demanded<const N: usize>(
        &self,
        seen: &mut usize,
        (at, length): (usize, usize),
    ) -> Result<Option<[u8; N]>, ()> {
        let mask = &self.0[at::HEADER + at::MASK + at..][..length];
        if mask.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if mask.iter().any(|byte| *byte != 0xff) {
            return Err(());
        }
        *seen += length;
        self.0[at::HEADER + at..].first_chunk().map(|value| Some(*value)).ok_or(())
    }
}

/// Parses a rule.
pub(super) fn read(location: u32, words: &[u32; RXNFC_WORDS], contexts: &[RssContext]) -> PlacedRule {
    let mut bytes = Bytes([0; 4 * RXNFC_WORDS]);
    for (at, word) in words.iter().enumerate() {
        bytes.put(4 * at, &word.to_ne_bytes());
    }
    PlacedRule { location, flow: flow(&bytes), to: to(&bytes, contexts) }
}

fn to(bytes: &Bytes, contexts: &[RssContext]) -> SteerTo {
    let cookie = bytes.u64(at::RING_COOKIE);
    let by_hash = bytes.u32(at::FLOW_TYPE) & flow_type::RSS != 0;
    match (cookie, by_hash) {
        (DROP, _) => SteerTo::Drop,
        // Some NICs add the rule's queue to the queue that the context selects.
        (0, true) => {
            let id = bytes.u32(at::CONTEXT);
            let queues = contexts.iter().find(|context| context.id == id).and_then(|context| context.queues);
            queues.map_or(SteerTo::Other, SteerTo::Context)
        }
        // The upper half of the 64-bit value is the index of a virtual function.
        (queue, false) => {
            u32::try_from(queue).map_or(SteerTo::Other, |queue| SteerTo::Queue(QueueIndex(queue)))
        }
        (_, true) => SteerTo::Other,
    }
}

/// Parses the flow; `None` if it has conditions on parts of fields, or other conditions that a [`FlowMatch`]
/// cannot express.
fn flow(bytes: &Bytes) -> Option<FlowMatch> {
    let kind = bytes.u32(at::FLOW_TYPE) & !(flow_type::RSS | flow_type::EXT);
    if bytes.0[at::EXTENSION_MASK..][..at::EXTENSION_BYTES].iter().any(|byte| *byte != 0) {
        return None;
    }
    let mut seen = 0;
    let flow = match kind {
        flow_type::TCP_V4 => FlowMatch::Ip4(ip(bytes, &mut seen, &IP4, Transport::Tcp, Ipv4Addr::from)?),
        flow_type::UDP_V4 => FlowMatch::Ip4(ip(bytes, &mut seen, &IP4, Transport::Udp, Ipv4Addr::from)?),
        flow_type::TCP_V6 => FlowMatch::Ip6(ip(bytes, &mut seen, &IP6, Transport::Tcp, Ipv6Addr::from)?),
        flow_type::UDP_V6 => FlowMatch::Ip6(ip(bytes, &mut seen, &IP6, Transport::Udp, Ipv6Addr::from)?),
        flow_type::ETHER => FlowMatch::Ether(EtherFlow {
            destination: bytes.demanded(&mut seen, ETHER_DESTINATION).ok()?,
            protocol: bytes.demanded(&mut seen, ETHER_PROTOCOL).ok()?.map(u16::from_be_bytes),
        }),
        _ => return None,
    };
    let mask = &bytes.0[at::HEADER + at::MASK..][..HEADER_BYTES];
    (mask.iter().filter(|byte| **byte != 0).count() == seen).then_some(flow)
}

fn ip<A, const N: usize>(
    bytes: &Bytes,
    seen: &mut usize,
    fields: &Fields,
    transport: Transport,
    address: impl Fn([u8; N]) -> A,
) -> Option<IpFlow<A>> {
    Some(IpFlow {
        transport,
        source: bytes.demanded(seen, fields.source).ok()?.map(&address),
        destination: bytes.demanded(seen, fields.destination).ok()?.map(&address),
        source_port: bytes.demanded(seen, fields.source_port).ok()?.map(u16::from_be_bytes),
        destination_port: bytes.demanded(seen, fields.destination_port).ok()?.map(u16::from_be_bytes),
    })
}

/// Builds the words of a rule at a location.
///
/// # Errors
/// Why the rule cannot be expressed.
pub(super) fn write(
    flow: FlowMatch,
    to: SteerTo,
    location: u32,
    contexts: &[RssContext],
) -> Result<[u32; RXNFC_WORDS], String> {
    let mut bytes = Bytes([0; 4 * RXNFC_WORDS]);
    let mut kind = match flow {
        FlowMatch::Ip4(flow) => {
            put_ip(&mut bytes, &IP4, &flow, |address| address.octets().to_vec());
            match flow.transport {
                Transport::Tcp => flow_type::TCP_V4,
                Transport::Udp => flow_type::UDP_V4,
            }
        }
        FlowMatch::Ip6(flow) => {
            put_ip(&mut bytes, &IP6, &flow, |address| address.octets().to_vec());
            match flow.transport {
                Transport::Tcp => flow_type::TCP_V6,
                Transport::Udp => flow_type::UDP_V6,
            }
        }
        FlowMatch::Ether(flow) => {
            if let Some(destination) = flow.destination {
                bytes.demand(ETHER_DESTINATION, &destination);
            }
            if let Some(protocol) = flow.protocol {
                bytes.demand(ETHER_PROTOCOL, &protocol.to_be_bytes());
            }
            flow_type::ETHER
        }
    };
    let cookie = match to {
        SteerTo::Queue(queue) => u64::from(queue.0),
        SteerTo::Drop => DROP,
        SteerTo::Context(queues) => {
            let mut fitting = contexts.iter().filter(|context| context.queues == Some(queues));
            let context = fitting.next().ok_or_else(|| format!("there is no context of queues {queues}"))?;
            kind |= flow_type::RSS;
            bytes.put(at::CONTEXT, &context.id.to_ne_bytes());
            0
        }
        SteerTo::Other => return Err("its target cannot be expressed".to_owned()),
    };
    bytes.put(at::FLOW_TYPE, &kind.to_ne_bytes());
    bytes.put(at::RING_COOKIE, &cookie.to_ne_bytes());
    bytes.put(at::LOCATION, &location.to_ne_bytes());
    let mut words = [0; RXNFC_WORDS];
    for (at, word) in words.iter_mut().enumerate() {
        *word = bytes.u32(4 * at);
    }
    Ok(words)
}

fn put_ip<A>(bytes: &mut Bytes, fields: &Fields, flow: &IpFlow<A>, octets: impl Fn(&A) -> Vec<u8>) {
    if let Some(source) = &flow.source {
        bytes.demand(fields.source, &octets(source));
    }
    if let Some(destination) = &flow.destination {
        bytes.demand(fields.destination, &octets(destination));
    }
    if let Some(port) = flow.source_port {
        bytes.demand(fields.source_port, &port.to_be_bytes());
    }
    if let Some(port) = flow.destination_port {
        bytes.demand(fields.destination_port, &port.to_be_bytes());
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use model::{FlowRule, QueueSpan};
    use proptest::prelude::*;

    fn contexts() -> Vec<RssContext> {
        let span = QueueSpan { first: 4, count: 4 };
        vec![RssContext { id: 7, queues: Some(span), table: span.table(8) }]
    }

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        for text in [
            "tcp4 dst-port 11211 queue 2",
            "udp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 src-port 1 dst-port 65535 context 4-7",
            "tcp6 src-ip ::1 dst-ip fe80::1 src-port 5 drop",
            "udp6 queue 0",
            "ether dst 02:00:00:00:00:07 proto 0x88b5 queue 1",
            "ether proto 0x0800 drop",
        ] {
            let rule: FlowRule = text.parse().expect(text);
            let words = write(rule.flow, rule.to, 9, &contexts()).expect(text);
            let expected = PlacedRule { location: 9, flow: Some(rule.flow), to: rule.to };
            assert_eq!(read(9, &words, &contexts()), expected, "{text}");
        }
    }

    /// The expected bytes of `ethtool -N eth0 flow-type tcp4 dst-ip 10.0.0.1 dst-port 11211 action 2 loc 3`,
    /// at the offsets that a C compiler gives the fields of `struct ethtool_rxnfc`.
    #[test]
    fn a_rule_has_the_layout_of_the_kernels_structure() {
        let rule: FlowRule = "tcp4 dst-ip 10.0.0.1 dst-port 11211 queue 2".parse().expect("a rule");
        let words = write(rule.flow, rule.to, 3, &[]).expect("can be said");
        let mut expected = [0; RXNFC_WORDS];
        expected[4] = 1;
        expected[6] = u32::from_ne_bytes([10, 0, 0, 1]);
        expected[7] = u32::from_ne_bytes([0, 0, 0x2b, 0xcb]);
        expected[24] = u32::MAX;
        expected[25] = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
        expected[if cfg!(target_endian = "little") { 42 } else { 43 }] = 2;
        expected[44] = 3;
        assert_eq!(words, expected);
    }

    #[test]
    fn what_cannot_be_said_with_whole_fields_is_not_said() {
        let rule: FlowRule = "tcp4 dst-ip 10.0.0.1 queue 2".parse().expect("a rule");
        let words = write(rule.flow, rule.to, 3, &[]).expect("can be said");
        let with = |at: usize, value: u32| {
            let mut words = words;
            words[at] = value;
            read(3, &words, &contexts())
        };
        assert_eq!(with(24, u32::from_ne_bytes([0xff, 0xff, 0xff, 0])).flow, None, "a prefix");
        assert_eq!(with(26, u32::from_ne_bytes([0xff, 0, 0, 0])).flow, None, "a type of service");
        assert_eq!(with(38, 1).flow, None, "a VLAN");
        assert_eq!(with(4, 0x10).flow, None, "a flow type that cannot be expressed");
        assert_eq!(with(43, 1).to, SteerTo::Other, "a virtual function");
        assert_eq!(
            with(4, 1 | flow_type::RSS).to,
            SteerTo::Other,
            "a queue that is added to the context's queue"
        );
        let error = write(rule.flow, SteerTo::Context(QueueSpan { first: 0, count: 2 }), 3, &contexts());
        assert!(error.expect_err("no such context").contains("0-1"));
        assert!(write(rule.flow, SteerTo::Other, 3, &[]).is_err());
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(words in proptest::collection::vec(any::<u32>(), RXNFC_WORDS)) {
            let words: [u32; RXNFC_WORDS] = words.try_into().expect("as many");
            let _ = read(0, &words, &contexts());
        }
    }
}
