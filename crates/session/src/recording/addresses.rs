//! Replaces IP addresses with pseudonyms that preserve prefixes and the kind of address.
//!
//! As in Crypto-PAn (Xu, Fan, Ammar, Moon: Prefix-Preserving IP Address Anonymization, 2002), a keyed
//! function of the preceding bits decides whether a bit is flipped. Two pseudonyms therefore share exactly as
//! many leading bits as their addresses do.
//!
//! A bit is kept if its two values lead to addresses of different kinds ([`SPECIAL_4`], [`SPECIAL_6`]).
//! Therefore a pseudonym is of the same kind as its address, as in netconan: loopback, private and so on. The
//! price is that a public address next to a special block keeps the bits that it shares with the block, at
//! most 15 in IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A block of addresses: its leading bits, and how many they are.
type Block<T> = (T, u32);

/// The IPv4 blocks with a special meaning. Source: IANA IPv4 Special-Purpose Address Registry.
const SPECIAL_4: [Block<u32>; 9] = [
    (0, 8),
    (0x0a00_0000, 8),
    (0x6440_0000, 10),
    (0x7f00_0000, 8),
    (0xa9fe_0000, 16),
    (0xac10_0000, 12),
    (0xc0a8_0000, 16),
    (0xe000_0000, 4),
    (0xf000_0000, 4),
];

/// The IPv6 blocks with a special meaning: unspecified and loopback in `::/64`, NAT64, unique local, link
/// local, multicast. Source: IANA IPv6 Special-Purpose Address Registry.
const SPECIAL_6: [Block<u128>; 5] =
    [(0, 64), (0x0064_ff9b << 96, 96), (0xfc00 << 112, 7), (0xfe80 << 112, 10), (0xff00 << 112, 8)];

/// A keyed function that decides which bits of an address are flipped.
pub(super) trait Flip {
    /// Returns whether to flip the bit after these leading bits. `family` is 4 or 6, and `length` is the
    /// number of bits.
    fn flips(&mut self, family: u8, length: u32, bits: u128) -> bool;
}

/// Returns the pseudonym of an address.
pub(super) fn pseudonym(address: IpAddr, flip: &mut impl Flip) -> IpAddr {
    match address {
        IpAddr::V4(four) => IpAddr::V4(of_4(four, flip)),
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => IpAddr::V6(of_4(four, flip).to_ipv6_mapped()),
            None => IpAddr::V6(of_6(six, flip)),
        },
    }
}

fn of_4(address: Ipv4Addr, flip: &mut impl Flip) -> Ipv4Addr {
    if address.is_unspecified() || address.is_loopback() || address.is_broadcast() {
        return address;
    }
    let bits = u128::from(address.to_bits());
    let special = SPECIAL_4.map(|(first, length)| (u128::from(first), length));
    let flipped = flipped(4, 32, bits, &special, flip);
    Ipv4Addr::from_bits(u32::try_from(flipped).unwrap_or_default())
}

fn of_6(address: Ipv6Addr, flip: &mut impl Flip) -> Ipv6Addr {
    if address.is_unspecified() || address.is_loopback() {
        return address;
    }
    Ipv6Addr::from_bits(flipped(6, 128, address.to_bits(), &SPECIAL_6, flip))
}

fn flipped(family: u8, width: u32, bits: u128, special: &[Block<u128>], flip: &mut impl Flip) -> u128 {
    let mut result = bits;
    for length in 0..width {
        let before = leading(bits, length, width);
        // If a special block begins with the bits before this one, the two values of this bit may lead to
        // different kinds.
        let divides = |(first, of): &Block<u128>| *of > length && leading(*first, length, width) == before;
        if !special.iter().any(divides) && flip.flips(family, length, before) {
            result ^= 1 << (width - 1 - length);
        }
    }
    result
}

/// Returns the first `length` bits of an address of this width.
const fn leading(bits: u128, length: u32, width: u32) -> u128 {
    if length == 0 { 0 } else { bits >> (width - length) }
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use super::*;

    /// Flips bits without a regular pattern, so that the tests find mistakes.
    struct Mixed;

    impl Flip for Mixed {
        fn flips(&mut self, family: u8, length: u32, bits: u128) -> bool {
            let seed = bits ^ u128::from(length) << 7 ^ u128::from(family) << 100;
            let mixed = (seed ^ seed >> 61).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            (mixed ^ mixed >> 67).count_ones() % 2 == 1
        }
    }

    fn mapped(text: &str) -> IpAddr {
        pseudonym(text.parse().expect("an address"), &mut Mixed)
    }

    fn common(one: IpAddr, other: IpAddr) -> u32 {
        match (one, other) {
            (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => 0,
        }
    }

    /// Returns the special block of an address; `None` for a public address.
    fn kind(address: IpAddr) -> Option<usize> {
        match address {
            IpAddr::V4(four) => SPECIAL_4
                .iter()
                .position(|(first, length)| (four.to_bits() ^ first).leading_zeros() >= *length),
            IpAddr::V6(six) => SPECIAL_6
                .iter()
                .position(|(first, length)| (six.to_bits() ^ first).leading_zeros() >= *length),
        }
    }

    /// Returns addresses inside and next to the borders of every special block, and others.
    fn addresses() -> Vec<IpAddr> {
        let mut all = Vec::new();
        for (first, length) in SPECIAL_4 {
            let last = first | u32::MAX >> length;
            let next = [first.wrapping_sub(1), first, first + 1, last - 1, last, last.wrapping_add(1)];
            all.extend(next.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))));
        }
        for (first, length) in SPECIAL_6 {
            let last = first | u128::MAX >> length;
            let next = [first.wrapping_sub(1), first, first + 1, last - 1, last, last.wrapping_add(1)];
            all.extend(next.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))));
        }
        for step in 0..4000_u32 {
            let bits = step.wrapping_mul(0x9e37_79b9);
            all.push(IpAddr::V4(Ipv4Addr::from_bits(bits)));
            all.push(IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits) << 96 | u128::from(step))));
        }
        all
    }

    #[test]
    fn every_kind_of_address_maps_to_itself_and_no_two_to_one() {
        let all: BTreeSet<IpAddr> = addresses().into_iter().collect();
        let mut seen = BTreeSet::new();
        for address in &all {
            let is = pseudonym(*address, &mut Mixed);
            assert_eq!(kind(is), kind(*address), "{address} → {is}");
            assert!(seen.insert(is), "{address} → {is}, like another");
        }
        for kept in ["127.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(mapped(kept).to_string(), kept);
        }
        let private: Ipv4Addr = "10.1.2.3".parse().expect("an address");
        assert_eq!(mapped("::ffff:10.1.2.3").to_canonical(), IpAddr::V4(of_4(private, &mut Mixed)));
        for changed in
            ["10.1.2.3", "192.168.7.9", "203.0.113.9", "8.8.8.8", "fe80::1:2", "2001:db8::7", "fd00::1"]
        {
            assert_ne!(mapped(changed).to_string(), changed);
        }
    }

    #[test]
    fn two_addresses_share_as_many_leading_bits_as_before() {
        let all = addresses();
        let is_fixed = |address: &IpAddr| pseudonym(*address, &mut Mixed) == *address;
        for pair in all.windows(2).chain(all.chunks(97)) {
            let [one, other] = [pair[0], pair[pair.len() - 1]];
            // Loopback, broadcast and unspecified addresses are kept, so the number of bits that they share
            // with others may change.
            if is_fixed(&one) || is_fixed(&other) || one.is_ipv4() != other.is_ipv4() {
                continue;
            }
            let now = common(pseudonym(one, &mut Mixed), pseudonym(other, &mut Mixed));
            assert_eq!(now, common(one, other), "{one} {other}");
        }
    }
}
