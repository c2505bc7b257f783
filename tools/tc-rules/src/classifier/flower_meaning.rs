//! The keywords of flower, and their meaning in their context: after `ip_proto tcp`, a port is a TCP port.

use super::flower_field::{Field, ICMP, ICMPV6, Match, SCTP, TCP, UDP};
use crate::number::{self, Base};
use crate::protocol;
use crate::words::{Read, Words, abbreviates, keywords};

keywords! {
    /// The keywords of the classifier, in iproute2's order.
    pub(super) enum Word {
        Classid = "classid",
        Flowid = "flowid",
        HwTc = "hw_tc",
        IpFlags = "ip_flags",
        Verbose = "verbose",
        SkipHw = "skip_hw",
        SkipSw = "skip_sw",
        CtState = "ct_state",
        CtZone = "ct_zone",
        CtMark = "ct_mark",
        CtLabel = "ct_label",
        Indev = "indev",
        NumOfVlans = "num_of_vlans" exact,
        VlanId = "vlan_id",
        VlanPrio = "vlan_prio",
        VlanEthtype = "vlan_ethtype",
        CvlanId = "cvlan_id",
        CvlanPrio = "cvlan_prio",
        CvlanEthtype = "cvlan_ethtype",
        PppoeSid = "pppoe_sid" exact,
        PppProto = "ppp_proto" exact,
        Mpls = "mpls",
        MplsLabel = "mpls_label",
        MplsTc = "mpls_tc",
        MplsBos = "mpls_bos",
        MplsTtl = "mpls_ttl",
        DstMac = "dst_mac",
        SrcMac = "src_mac",
        IpProto = "ip_proto",
        IpTos = "ip_tos",
        IpTtl = "ip_ttl",
        DstIp = "dst_ip",
        SrcIp = "src_ip",
        DstPort = "dst_port",
        SrcPort = "src_port",
        TcpFlags = "tcp_flags",
        Type = "type",
        Code = "code",
        ArpTip = "arp_tip",
        ArpSip = "arp_sip",
        ArpOp = "arp_op",
        ArpTha = "arp_tha",
        ArpSha = "arp_sha",
        EncDstIp = "enc_dst_ip",
        EncSrcIp = "enc_src_ip",
        EncKeyId = "enc_key_id",
        EncDstPort = "enc_dst_port",
        EncTos = "enc_tos",
        EncTtl = "enc_ttl",
        GeneveOpts = "geneve_opts",
        VxlanOpts = "vxlan_opts",
        ErspanOpts = "erspan_opts",
        GtpOpts = "gtp_opts" exact,
        Action = "action",
    }
}

pub(super) const MPLS_ONLY: &str = "this field needs protocol mpls_uc or mpls_mc";

/// The context that determines the meaning of later words.
pub(super) struct Meaning {
    pub(super) eth_type: u16,
    pub(super) vlan_ethtype: u16,
    pub(super) vlans: u8,
    pub(super) ip_proto: Option<u8>,
    pub(super) parent: u32,
}

impl Meaning {
    /// Returns the field that a word refers to in this context.
    pub(super) fn field(&self, word: Word, words: &Words<'_>) -> Read<Field> {
        let ip = self.eth_type == protocol::IP;
        let ip6 = self.eth_type == protocol::IPV6;
        let tagged =
            |eth_type: u16, vlans: bool| vlans || matches!(eth_type, protocol::VLAN | protocol::VLAN_AD);
        let arp = matches!(self.eth_type, protocol::ARP | protocol::RARP);
        let mpls = matches!(self.eth_type, protocol::MPLS_UC | protocol::MPLS_MC);
        let next = words.peek().unwrap_or_default();
        let v6 = next.contains(':');
        let needs = |holds: bool, what: &'static str, field: Field| {
            if holds { Ok(field) } else { Err(words.wrong(what)) }
        };
        const IP_ONLY: &str = "this field needs protocol ip or ipv6, or such a vlan_ethtype";
        const TAG_ONLY: &str = "this field needs protocol 802.1Q or 802.1ad, or num_of_vlans before it";
        const INNER_ONLY: &str =
            "this field needs vlan_ethtype 802.1Q or 802.1ad, or num_of_vlans 2 before it";
        const ARP_ONLY: &str = "this field needs protocol arp or rarp";
        const PPP_ONLY: &str = "this field needs protocol ppp_ses";
        const ICMP_ONLY: &str = "this field needs ip_proto icmp with protocol ip, or icmpv6 with ipv6";
        const PORT_ONLY: &str = "this field needs ip_proto tcp, udp or sctp before it";
        match word {
            Word::DstMac => Ok(Field::ETH_DST),
            Word::SrcMac => Ok(Field::ETH_SRC),
            // iproute2 checks `icmp` first, so an abbreviation of both names means `icmp`.
            Word::IpProto if !next.is_empty() && abbreviates(next, "icmp") => {
                needs(ip, "icmp needs protocol ip", Field::IP_PROTO)
            }
            Word::IpProto if !next.is_empty() && abbreviates(next, "icmpv6") => {
                needs(ip6, "icmpv6 needs protocol ipv6", Field::IP_PROTO)
            }
            Word::IpProto => needs(ip || ip6, IP_ONLY, Field::IP_PROTO),
            Word::IpTos => Ok(Field::IP_TOS),
            Word::IpTtl => Ok(Field::IP_TTL),
            Word::DstIp | Word::SrcIp => {
                let holds = (ip && !v6) || (ip6 && v6) || self.eth_type == 0;
                let field = match (word == Word::DstIp, v6) {
                    (true, false) => Field::IPV4_DST,
                    (true, true) => Field::IPV6_DST,
                    (false, false) => Field::IPV4_SRC,
                    (false, true) => Field::IPV6_SRC,
                };
                needs(holds, "the address must be of the protocol, ip or ipv6", field)
            }
            Word::EncDstIp => Ok(if v6 { Field::ENC_IPV6_DST } else { Field::ENC_IPV4_DST }),
            Word::EncSrcIp => Ok(if v6 { Field::ENC_IPV6_SRC } else { Field::ENC_IPV4_SRC }),
            Word::EncKeyId => Ok(Field::ENC_KEY_ID),
            Word::EncDstPort => Ok(Field::ENC_UDP_DST_PORT),
            Word::EncTos => Ok(Field::ENC_IP_TOS),
            Word::EncTtl => Ok(Field::ENC_IP_TTL),
            Word::DstPort | Word::SrcPort => {
                let destination = word == Word::DstPort;
                match self.ip_proto {
                    Some(TCP) => Ok(if destination { Field::TCP_DST } else { Field::TCP_SRC }),
                    Some(UDP) => Ok(if destination { Field::UDP_DST } else { Field::UDP_SRC }),
                    Some(SCTP) => Ok(if destination { Field::SCTP_DST } else { Field::SCTP_SRC }),
                    _ => Err(words.wrong(PORT_ONLY)),
                }
            }
            Word::TcpFlags => Ok(Field::TCP_FLAGS),
            Word::Type | Word::Code => {
                let code = word == Word::Code;
                match self.ip_proto {
                    Some(ICMP) if ip => Ok(if code { Field::ICMPV4_CODE } else { Field::ICMPV4_TYPE }),
                    Some(ICMPV6) if ip6 => Ok(if code { Field::ICMPV6_CODE } else { Field::ICMPV6_TYPE }),
                    _ => Err(words.wrong(ICMP_ONLY)),
                }
            }
            Word::NumOfVlans => Ok(Field::NUM_OF_VLANS),
            Word::VlanId => needs(tagged(self.outermost(), self.vlans > 0), TAG_ONLY, Field::VLAN_ID),
            Word::VlanPrio => needs(tagged(self.outermost(), self.vlans > 0), TAG_ONLY, Field::VLAN_PRIO),
            Word::VlanEthtype => needs(tagged(self.eth_type, self.vlans > 0), TAG_ONLY, Field::VLAN_ETH_TYPE),
            Word::CvlanId => needs(tagged(self.vlan_ethtype, self.vlans > 1), INNER_ONLY, Field::CVLAN_ID),
            Word::CvlanPrio => {
                needs(tagged(self.vlan_ethtype, self.vlans > 1), INNER_ONLY, Field::CVLAN_PRIO)
            }
            Word::CvlanEthtype => {
                needs(tagged(self.vlan_ethtype, self.vlans > 1), INNER_ONLY, Field::CVLAN_ETH_TYPE)
            }
            Word::MplsLabel => needs(mpls, MPLS_ONLY, Field::MPLS_LABEL),
            Word::MplsTc => needs(mpls, MPLS_ONLY, Field::MPLS_TC),
            Word::MplsBos => needs(mpls, MPLS_ONLY, Field::MPLS_BOS),
            Word::MplsTtl => needs(mpls, MPLS_ONLY, Field::MPLS_TTL),
            Word::PppoeSid => needs(self.eth_type == protocol::PPP_SES, PPP_ONLY, Field::PPPOE_SID),
            Word::PppProto => needs(self.eth_type == protocol::PPP_SES, PPP_ONLY, Field::PPP_PROTO),
            Word::ArpTip => needs(arp, ARP_ONLY, Field::ARP_TIP),
            Word::ArpSip => needs(arp, ARP_ONLY, Field::ARP_SIP),
            Word::ArpOp => needs(arp, ARP_ONLY, Field::ARP_OP),
            Word::ArpTha => Ok(Field::ARP_THA),
            Word::ArpSha => Ok(Field::ARP_SHA),
            Word::CtState => Ok(Field::CT_STATE),
            Word::CtZone => Ok(Field::CT_ZONE),
            Word::CtMark => Ok(Field::CT_MARK),
            Word::CtLabel => Ok(Field::CT_LABELS),
            Word::Classid
            | Word::Flowid
            | Word::HwTc
            | Word::IpFlags
            | Word::Verbose
            | Word::SkipHw
            | Word::SkipSw
            | Word::Indev
            | Word::GeneveOpts
            | Word::VxlanOpts
            | Word::ErspanOpts
            | Word::GtpOpts
            | Word::Mpls
            | Word::Action => Err(words.wrong("this is not a field")),
        }
    }

    /// Returns the protocol of the outermost header: 802.1Q if the line has named the protocol inside a VLAN
    /// tag.
    const fn outermost(&self) -> u16 {
        if self.vlan_ethtype != 0 { protocol::VLAN } else { self.eth_type }
    }

    /// Parses `FIRST-LAST`, two ports.
    pub(super) fn port_range(&self, word: Word, text: &str) -> Option<Match> {
        let field = match word {
            Word::DstPort => Field::PORT_DST_MIN,
            Word::SrcPort => Field::PORT_SRC_MIN,
            _ => return None,
        };
        let (first, last) = text.split_once('-')?;
        let (first, last) = (number::u16(first, Base::Ten)?, number::u16(last, Base::Ten)?);
        (first != 0 && first < last).then(|| Match::of(field, &first.to_be_bytes(), &last.to_be_bytes()))
    }
}
