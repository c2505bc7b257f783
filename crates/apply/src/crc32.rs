//! The check sum of a journal line.

/// CRC-32 as in Ethernet and zlib: polynomial 0x04C11DB7 reflected, initial value and final XOR of all ones.
///
/// A journal line is short and written a few times per transaction, so a bit at a time is fast enough and
/// needs no table.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xEDB8_8320;
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= POLYNOMIAL;
            }
        }
    }
    !crc
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn it_is_the_crc_of_ethernet_and_zlib() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414F_A339);
    }
}
