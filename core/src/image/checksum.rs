//! CRC-32 (ISO 3309; Peterson and Brown 1961), as used by Ethernet, zip and the CRC units of most chips.
//!
//! It detects every single flipped bit, every burst of up to 32 bits and, within 11 KiB, any three flipped bits, for
//! one look-up, one shift and two exclusive ors for each byte. A 64-bit FNV needs a 64-bit multiplication for each
//! byte, which takes three multiplications on a Cortex-M, and guarantees nothing for bursts.

/// The polynomial, its lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The remainder of each single byte.
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut remainder, mut bit) = (byte as u32, 0);
        while bit < 8 {
            remainder = remainder >> 1 ^ if remainder & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// The CRC-32 of `bytes`.
///
/// ```
/// assert_eq!(capful_core::image::crc32(b"123456789"), 0xcbf4_3926);
/// ```
pub fn crc32(bytes: &[u8]) -> u32 {
    let next = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize];
    !bytes.iter().fold(!0, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_checksum() {
        // The check value in the catalogue of parametrised CRCs; an empty message; a known pangram.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }
}
