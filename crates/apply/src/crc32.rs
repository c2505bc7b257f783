//! The check sum of a journal line.

/// The polynomial 0x04C11DB7, reflected.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// What each byte adds. A plan of a device with 64 queues is a line of many kilobytes, and settings that alternate write and read it several times a second.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let (mut crc, mut bit) = (byte, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// CRC-32 as in Ethernet and zlib: polynomial 0x04C11DB7 reflected, initial value and final XOR of all ones.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let add = |crc: u32, byte: &u8| {
        let [lowest, ..] = crc.to_le_bytes();
        (crc >> 8) ^ TABLE[usize::from(lowest ^ byte)]
    };
    !bytes.iter().fold(u32::MAX, add)
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
