//! Numbers, addresses, rates and sizes in tc's syntax.
//!
//! Every parser is total and returns `None` for invalid values; the caller reports the expected syntax.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A number base: 10, 16, or by prefix (`0x` is 16, `0` is 8) as in `strtoul(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Decimal.
    Ten,
    /// Hexadecimal, with or without `0x`.
    Sixteen,
    /// By prefix.
    Prefix,
}

/// An unsigned integer.
pub fn unsigned(word: &str, base: Base) -> Option<u64> {
    let (rest, number) = leading_unsigned(word, base)?;
    rest.is_empty().then_some(number)
}

/// The integer at the beginning of a word, and the rest of the word.
pub fn leading_unsigned(word: &str, base: Base) -> Option<(&str, u64)> {
    let bytes = word.as_bytes();
    let hexadecimal =
        bytes.len() > 2 && bytes[0] == b'0' && bytes[1] | 0x20 == b'x' && bytes[2].is_ascii_hexdigit();
    let (radix, skip) = match base {
        Base::Ten => (10_u64, 0),
        Base::Sixteen => (16, if hexadecimal { 2 } else { 0 }),
        Base::Prefix if hexadecimal => (16, 2),
        Base::Prefix if bytes.first() == Some(&b'0') => (8, 0),
        Base::Prefix => (10, 0),
    };
    let mut number = 0_u64;
    let mut end = skip;
    while let Some(digit) = bytes.get(end).map(|byte| u64::from(digit(*byte))).filter(|digit| *digit < radix)
    {
        number = number.checked_mul(radix)?.checked_add(digit)?;
        end += 1;
    }
    (end > skip).then(|| (&word[end..], number))
}

/// The value of a hexadecimal digit in either case; 255 for other bytes.
pub(crate) const fn digit(byte: u8) -> u8 {
    DIGITS[byte as usize]
}

/// A table of [`digit`] for every byte.
static DIGITS: [u8; 256] = {
    let mut digits = [u8::MAX; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value as usize] as usize] = value;
        digits[b"0123456789ABCDEF"[value as usize] as usize] = value;
        value += 1;
    }
    digits
};

/// An 8-bit number.
pub fn u8(word: &str, base: Base) -> Option<u8> {
    unsigned(word, base)?.try_into().ok()
}

/// A 16-bit number.
pub fn u16(word: &str, base: Base) -> Option<u16> {
    unsigned(word, base)?.try_into().ok()
}

/// A 32-bit number.
pub fn u32(word: &str, base: Base) -> Option<u32> {
    unsigned(word, base)?.try_into().ok()
}

/// A signed 32-bit number.
pub fn i32(word: &str) -> Option<i32> {
    match word.strip_prefix('-') {
        Some(rest) => i32::try_from(-i64::from(u32(rest, Base::Prefix)?)).ok(),
        None => unsigned(word, Base::Prefix)?.try_into().ok(),
    }
}

/// A class or a parent: `MAJOR:MINOR` in hexadecimal, `root` or `none`. Kernel: `TC_H_MAKE`.
pub fn class(word: &str) -> Option<u32> {
    match word {
        "root" => return Some(u32::MAX),
        "none" => return Some(0),
        _ => {}
    }
    let (major, rest) = match word.strip_prefix(':') {
        Some(rest) => (0, Some(rest)),
        None => {
            let (rest, major) = leading_unsigned(word, Base::Sixteen)?;
            match rest.strip_prefix(':') {
                Some(minor) => (major, Some(minor)),
                None if rest.is_empty() => (major, None),
                None => return None,
            }
        }
    };
    match rest {
        None => u32::try_from(major).ok(),
        Some(minor) => {
            let minor = if minor.is_empty() { 0 } else { u16(minor, Base::Sixteen)? };
            Some(u32::from(u16::try_from(major).ok()?) << 16 | u32::from(minor))
        }
    }
}

/// Formats a class.
pub fn class_name(class: u32) -> String {
    match class {
        u32::MAX => "root".to_owned(),
        0 => "none".to_owned(),
        _ if class >> 16 == 0 => format!(":{:x}", class & 0xffff),
        _ if class & 0xffff == 0 => format!("{:x}:", class >> 16),
        _ => format!("{:x}:{:x}", class >> 16, class & 0xffff),
    }
}

/// An Ethernet address. A part may have a single digit; missing trailing parts are zero.
pub fn mac(word: &str) -> Option<[u8; 6]> {
    let bytes = word.as_bytes();
    let mut address = [0; 6];
    let (mut part, mut digits) = (0, 0);
    for byte in bytes {
        match digit(*byte) {
            digit @ 0..16 if digits < 2 => {
                address[part] = address[part] << 4 | digit;
                digits += 1;
            }
            _ if *byte == b':' && digits > 0 && part < 5 => (part, digits) = (part + 1, 0),
            _ => return None,
        }
    }
    (digits > 0).then_some(address)
}

/// An Ethernet address without missing parts.
pub fn whole_mac(word: &str) -> Option<[u8; 6]> {
    mac(word).filter(|_| word.bytes().filter(|byte| *byte == b':').count() == 5)
}

/// Formats an Ethernet address.
pub fn mac_name(mac: &[u8]) -> String {
    let parts: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}

/// An IPv4 or IPv6 address. Its bytes are at the start of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The bytes; the first four of them for IPv4.
    pub bytes: [u8; 16],
    /// Whether the address is IPv6.
    pub v6: bool,
}

impl Address {
    /// The length in bytes.
    pub const fn length(&self) -> usize {
        if self.v6 { 16 } else { 4 }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length()]
    }

    /// The address with these bytes; `None` unless they are 4 or 16.
    pub fn from_bytes(payload: &[u8]) -> Option<Self> {
        let mut bytes = [0; 16];
        bytes.get_mut(..payload.len())?.copy_from_slice(payload);
        matches!(payload.len(), 4 | 16).then_some(Self { bytes, v6: payload.len() == 16 })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.v6 {
            Ipv6Addr::from(self.bytes).fmt(f)
        } else {
            Ipv4Addr::new(self.bytes[0], self.bytes[1], self.bytes[2], self.bytes[3]).fmt(f)
        }
    }
}

/// An IPv4 address in the common form: four decimal parts without leading zeros.
fn dotted(word: &str) -> Option<Address> {
    let mut bytes = [0; 16];
    let (mut part, mut number, mut digits) = (0, 0_u16, 0);
    for byte in word.as_bytes() {
        match digit(*byte) {
            // A leading zero would make the part octal.
            digit @ 0..10 if digits == 0 || digits < 3 && number != 0 => {
                number = number * 10 + u16::from(digit);
                digits += 1;
            }
            _ if *byte == b'.' && digits > 0 && part < 3 => {
                bytes[part] = u8::try_from(number).ok()?;
                (part, number, digits) = (part + 1, 0, 0);
            }
            _ => return None,
        }
    }
    bytes[part] = u8::try_from(number).ok()?;
    (part == 3 && digits > 0).then_some(Address { bytes, v6: false })
}

/// An address. IPv4 may have fewer than four parts; missing trailing parts are zero.
pub fn address(word: &str) -> Option<Address> {
    if let Some(address) = dotted(word) {
        return Some(address);
    }
    let mut bytes = [0; 16];
    if word.contains(':') {
        return word.parse::<Ipv6Addr>().ok().map(|address| Address { bytes: address.octets(), v6: true });
    }
    let mut rest = word;
    for (i, byte) in bytes.iter_mut().take(4).enumerate() {
        let (after, part) = leading_unsigned(rest, Base::Prefix)?;
        *byte = part.try_into().ok()?;
        match after.strip_prefix('.') {
            Some(next) if i < 3 => rest = next,
            None if after.is_empty() => return Some(Address { bytes, v6: false }),
            _ => return None,
        }
    }
    None
}

/// An address with its prefix length: `ADDRESS[/BITS]` or `ADDRESS/DOTTED-MASK`.
pub fn prefix(word: &str) -> Option<(Address, u32)> {
    if let Some(address) = dotted(word) {
        return Some((address, 32));
    }
    let Some((host, bits)) = word.split_once('/') else {
        if matches!(word, "any" | "all" | "default") {
            return Some((Address { bytes: [0; 16], v6: false }, 0));
        }
        let address = address(word)?;
        return Some((address, if address.v6 { 128 } else { 32 }));
    };
    let address = address(host)?;
    let bits = match u32(bits, Base::Prefix) {
        Some(bits) => bits,
        None => {
            let mask = self::address(bits).filter(|mask| !mask.v6)?;
            let mask = u32::from_be_bytes([mask.bytes[0], mask.bytes[1], mask.bytes[2], mask.bytes[3]]);
            (mask.leading_ones() + mask.trailing_zeros() >= 32).then(|| mask.leading_ones())?
        }
    };
    (bits <= if address.v6 { 128 } else { 32 }).then_some((address, bits))
}

/// The mask of this many bits.
pub fn mask(bits: u32) -> [u8; 16] {
    let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits.min(128)) };
    mask.to_be_bytes()
}

/// Decodes hexadecimal digits into a buffer and returns the number of bytes. An odd number of digits is
/// invalid: in some places, iproute2 silently drops the last one.
pub fn hex(word: &str, buffer: &mut [u8]) -> Option<usize> {
    let (pairs, odd) = word.as_bytes().as_chunks::<2>();
    let count = pairs.len();
    if !odd.is_empty() {
        return None;
    }
    for (byte, pair) in buffer.get_mut(..count)?.iter_mut().zip(pairs) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(count)
}

/// Formats bytes as hexadecimal digits.
pub fn hex_name(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Splits a decimal fraction from the unit after it.
fn decimal(word: &str) -> Option<(f64, &str)> {
    let end = word.bytes().position(|byte| !(byte.is_ascii_digit() || byte == b'.')).unwrap_or(word.len());
    Some((word[..end].parse().ok()?, &word[end..]))
}

/// A rate in bytes per second: `10mbit`, `1gbit`, `125kbps`, or bits per second without a unit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked: finite, not negative, below 2^64"
)]
pub fn rate(word: &str) -> Option<u64> {
    let (number, unit) = decimal(word)?;
    let unit = unit.to_ascii_lowercase();
    let (unit, eight) = match unit.strip_suffix("bps") {
        Some(rest) => (rest, 8.0),
        None => (if unit.is_empty() { "" } else { unit.strip_suffix("bit")? }, 1.0),
    };
    let scale = match unit {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => 1024.0,
        "mi" => 1024.0 * 1024.0,
        "gi" => 1024.0 * 1024.0 * 1024.0,
        "ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * scale * eight / 8.0;
    (bytes.is_finite() && bytes < 1.8e19).then_some(bytes as u64)
}

/// A size in bytes: `1500`, `10k`, `1mb`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked: not negative, below 2^32"
)]
pub fn size(word: &str) -> Option<u32> {
    let (number, unit) = decimal(word)?;
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1024.0,
        "m" | "mb" => 1024.0 * 1024.0,
        "g" | "gb" => 1024.0 * 1024.0 * 1024.0,
        "kbit" => 1024.0 / 8.0,
        "mbit" => 1024.0 * 1024.0 / 8.0,
        "gbit" => 1024.0 * 1024.0 * 1024.0 / 8.0,
        _ => return None,
    };
    let bytes = number * scale;
    (bytes < 4_294_967_296.0).then_some(bytes as u32)
}

/// A time in nanoseconds: `100`, `100ns`, `1.5ms`, `2s`.
#[expect(clippy::cast_possible_truncation, reason = "checked: not negative, below 2^63")]
pub fn nanoseconds(word: &str) -> Option<i64> {
    if let Some(number) = unsigned(word, Base::Ten) {
        return number.try_into().ok();
    }
    let (number, unit) = decimal(word)?;
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "ns" | "nsec" | "nsecs" => 1.0,
        "us" | "usec" | "usecs" => 1e3,
        "ms" | "msec" | "msecs" => 1e6,
        "s" | "sec" | "secs" => 1e9,
        _ => return None,
    };
    let time = number * scale;
    (time < 9.2e18).then_some(time as i64)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_time_is_nanoseconds_unless_it_has_a_unit() {
        for (word, time) in [
            ("100", 100),
            ("100000000ns", 100_000_000),
            ("1.5us", 1500),
            ("2MS", 2_000_000),
            ("3secs", 3_000_000_000),
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(nanoseconds(word), Some(time), "{word}");
        }
        for word in ["", "-1", "1m", "ns", "99999999999999999999"] {
            assert_eq!(nanoseconds(word), None, "{word}");
        }
    }

    #[test]
    fn a_class_is_hexadecimal_and_may_lack_a_half() {
        for (word, class) in [
            ("ffff:", 0xffff_0000),
            ("1:10", 0x1_0010),
            (":2", 2),
            ("ffff:fff2", 0xffff_fff2),
            ("none", 0),
            ("root", u32::MAX),
            ("10", 0x10),
        ] {
            assert_eq!(self::class(word), Some(class), "{word}");
            assert_eq!(self::class(&class_name(class)), Some(class), "{}", class_name(class));
        }
        for word in ["", "x", "10000:1", "1:10000", "1:g", "1:2:3"] {
            assert_eq!(class(word), None, "{word}");
        }
    }

    #[test]
    fn a_short_ethernet_address_is_padded_with_zeroes() {
        assert_eq!(mac("e4:11:0:0:0:0"), Some([0xe4, 0x11, 0, 0, 0, 0]));
        assert_eq!(mac("e4:11"), Some([0xe4, 0x11, 0, 0, 0, 0]));
        for word in ["", ":", "e4:", "e4:111:0", "1:2:3:4:5:6:7", "g"] {
            assert_eq!(mac(word), None, "{word}");
        }
    }

    #[test]
    fn a_prefix_counts_its_bits_or_is_given_by_a_dotted_mask() {
        assert_eq!(
            prefix("10.0.0.0/8").map(|(a, bits)| (a.to_string(), bits)),
            Some(("10.0.0.0".to_owned(), 8))
        );
        assert_eq!(
            prefix("10.1/255.255.0.0").map(|(a, bits)| (a.to_string(), bits)),
            Some(("10.1.0.0".to_owned(), 16))
        );
        assert_eq!(prefix("fe80::/10").map(|(_, bits)| bits), Some(10));
        for word in
            ["10.0.0.0/33", "10.0.0.0/255.0.255.0", "10.0.0.0.0", "fe80::/129", "300.1.1.1", "/8", "1.2.3.4/"]
        {
            assert_eq!(prefix(word), None, "{word}");
        }
    }

    #[test]
    fn a_part_of_an_address_that_begins_with_zero_is_octal() {
        for (word, address) in
            [("10.0.255.0", "10.0.255.0"), ("010.1.1.1", "8.1.1.1"), ("1.2.3.0x10", "1.2.3.16")]
        {
            assert_eq!(self::address(word).map(|a| a.to_string()).as_deref(), Some(address), "{word}");
        }
        for word in ["", ".", "1..2.3", "1.2.3.256", "1.2.3.4.5", "1.2.3.4 ", "08.1.1.1"] {
            assert_eq!(address(word), None, "{word}");
        }
    }

    #[test]
    fn rates_are_bytes_per_second_and_sizes_are_bytes() {
        for (word, bytes) in
            [("8", 1), ("1mbit", 125_000), ("10kbps", 10_000), ("1gibit", 134_217_728), ("1.5kbit", 187)]
        {
            assert_eq!(rate(word), Some(bytes), "{word}");
        }
        for (word, bytes) in [("1500", 1500), ("10k", 10_240), ("1mb", 1_048_576), ("1.5k", 1536)] {
            assert_eq!(size(word), Some(bytes), "{word}");
        }
        for word in ["", "k", "1x", "-1", "1e3", "99999999g"] {
            assert_eq!((rate(word).is_some(), size(word)), (false, None), "{word}");
        }
    }
}
