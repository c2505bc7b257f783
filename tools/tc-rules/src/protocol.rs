//! The Ethernet protocols that tc knows by name.
//!
//! Kernel: 6.18, `include/uapi/linux/if_ether.h` `ETH_P_*`; the names are those of iproute2 6.1.

use crate::number::{self, Base};

/// Every protocol: `ETH_P_ALL`.
pub const ALL: u16 = 0x0003;
/// `ETH_P_IP`.
pub const IP: u16 = 0x0800;
/// `ETH_P_ARP`.
pub const ARP: u16 = 0x0806;
/// `ETH_P_RARP`.
pub const RARP: u16 = 0x8035;
/// `ETH_P_IPV6`.
pub const IPV6: u16 = 0x86dd;
/// `ETH_P_8021Q`.
pub const VLAN: u16 = 0x8100;
/// `ETH_P_8021AD`.
pub const VLAN_AD: u16 = 0x88a8;
/// `ETH_P_MPLS_UC`.
pub const MPLS_UC: u16 = 0x8847;
/// `ETH_P_MPLS_MC`.
pub const MPLS_MC: u16 = 0x8848;
/// `ETH_P_PPP_SES`.
pub const PPP_SES: u16 = 0x8864;

/// The PPP protocols by name, with the equivalent Ethernet protocol. Kernel: `PPP_IP` and others.
const PPP: &[(&str, u16, u16)] =
    &[("ip", 0x21, IP), ("ipv6", 0x57, IPV6), ("mpls_uc", 0x281, MPLS_UC), ("mpls_mc", 0x283, MPLS_MC)];

/// The protocols by name; if there are several names, the first is used for output.
const NAMES: &[(&str, u16)] = &[
    ("ip", IP),
    ("ipv6", IPV6),
    ("all", ALL),
    ("arp", ARP),
    ("802.1Q", VLAN),
    ("802.1ad", VLAN_AD),
    ("mpls_uc", MPLS_UC),
    ("mpls_mc", MPLS_MC),
    ("rarp", RARP),
    ("ipv4", IP),
    ("loop", 0x0060),
    ("pup", 0x0200),
    ("pupat", 0x0201),
    ("x25", 0x0805),
    ("bpq", 0x08ff),
    ("ieeepup", 0x0a00),
    ("ieeepupat", 0x0a01),
    ("dec", 0x6000),
    ("dna_dl", 0x6001),
    ("dna_rc", 0x6002),
    ("dna_rt", 0x6003),
    ("lat", 0x6004),
    ("diag", 0x6005),
    ("cust", 0x6006),
    ("sca", 0x6007),
    ("atalk", 0x809b),
    ("aarp", 0x80f3),
    ("ipx", 0x8137),
    ("ppp_disc", 0x8863),
    ("ppp_ses", 0x8864),
    ("atmmpoa", 0x884c),
    ("atmfate", 0x8884),
    ("802_3", 0x0001),
    ("ax25", 0x0002),
    ("802_2", 0x0004),
    ("snap", 0x0005),
    ("ddcmp", 0x0006),
    ("wan_ppp", 0x0007),
    ("ppp_mp", 0x0008),
    ("localtalk", 0x0009),
    ("can", 0x000c),
    ("ppptalk", 0x0010),
    ("tr_802_2", 0x0011),
    ("mobitex", 0x0015),
    ("control", 0x0016),
    ("irda", 0x0017),
    ("econet", 0x0018),
    ("tipc", 0x88ca),
    ("profinet", 0x8892),
    ("aoe", 0x88a2),
    ("ethercat", 0x88a4),
    ("teb", 0x6558),
    ("LLDP", 0x88cc),
];

/// The names, for suggestions after a misspelling.
pub const WORDS: &[&str] =
    &["ip", "ipv6", "all", "arp", "802.1Q", "802.1ad", "mpls_uc", "mpls_mc", "rarp", "ipv4"];

/// Parses a protocol: a name in either case, or a number.
pub fn parse(word: &str) -> Option<u16> {
    match word {
        "ip" => return Some(IP),
        "all" => return Some(ALL),
        "ipv6" => return Some(IPV6),
        _ => {}
    }
    let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    named.map(|(_, protocol)| *protocol).or_else(|| number::u16(word, Base::Prefix))
}

/// Formats a protocol.
pub fn name(protocol: u16) -> String {
    match NAMES.iter().find(|(_, number)| *number == protocol) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("{protocol:#06x}"),
    }
}

/// Parses a PPP protocol: a name in either case, or a number.
pub fn ppp(word: &str) -> Option<u16> {
    let named = PPP.iter().find(|(name, ..)| name.eq_ignore_ascii_case(word));
    named.map(|(_, protocol, _)| *protocol).or_else(|| number::u16(word, Base::Prefix))
}

/// Formats a PPP protocol.
pub fn ppp_name(protocol: u16) -> String {
    match PPP.iter().find(|(_, number, _)| *number == protocol) {
        Some((name, ..)) => (*name).to_owned(),
        None => format!("{protocol:#06x}"),
    }
}

/// The Ethernet protocol equivalent to a PPP protocol; 0 if there is none.
pub fn ethernet_of_ppp(protocol: u16) -> u16 {
    PPP.iter().find(|(_, number, _)| *number == protocol).map_or(0, |(_, _, ethernet)| *ethernet)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_protocol_is_read_back_from_its_name() {
        for protocol in NAMES.iter().map(|(_, number)| *number).chain([0x1234, 0xffff]) {
            assert_eq!(parse(&name(protocol)), Some(protocol), "{protocol:#x}");
        }
        assert_eq!(parse("IPv6"), Some(IPV6));
        assert_eq!(parse("ipx6"), None);
    }
}
