//! TensorBoard's event files: records framed by masked CRC-32C, each a small protocol-buffer `Event`.
//!
//! Formats: TensorFlow's `record_writer` (length, its checksum, data, its checksum) and `event.proto`
//! (1: wall time, 2: step, 3: file version, 5: summary of values with 1: tag and 2: simple value).

/// A record; its buffer fits every tag of this program.
pub type Record = heapless::Vec<u8, 128>;

/// The record that begins a file.
pub fn version(wall_time: f64) -> Record {
    let mut event = event(wall_time);
    bytes_field(&mut event, 3, b"brain.Event:2");
    frame(&event)
}

/// A scalar at a step. `tag` must have at most 40 bytes.
pub fn scalar(wall_time: f64, step: u64, tag: &str, value: f32) -> Record {
    let mut inner = Record::new();
    bytes_field(&mut inner, 1, tag.as_bytes());
    push(&mut inner, &[2 << 3 | 5]);
    push(&mut inner, &value.to_le_bytes());
    let mut summary = Record::new();
    bytes_field(&mut summary, 1, &inner);
    let mut event = event(wall_time);
    push(&mut event, &[2 << 3]);
    varint(&mut event, step);
    bytes_field(&mut event, 5, &summary);
    frame(&event)
}

fn event(wall_time: f64) -> Record {
    let mut event = Record::new();
    push(&mut event, &[1 << 3 | 1]);
    push(&mut event, &wall_time.to_le_bytes());
    event
}

fn frame(data: &[u8]) -> Record {
    let mut record = Record::new();
    let length = (data.len() as u64).to_le_bytes();
    push(&mut record, &length);
    push(&mut record, &masked(crc32c(&length)).to_le_bytes());
    push(&mut record, data);
    push(&mut record, &masked(crc32c(data)).to_le_bytes());
    record
}

/// Excess bytes would be dropped; tags are short constants, so everything fits.
fn push(out: &mut Record, bytes: &[u8]) {
    let _ = out.extend_from_slice(bytes);
}

fn bytes_field(out: &mut Record, field: u8, bytes: &[u8]) {
    push(out, &[field << 3 | 2]);
    varint(out, bytes.len() as u64);
    push(out, bytes);
}

fn varint(out: &mut Record, mut value: u64) {
    while value >= 0x80 {
        push(out, &[value as u8 | 0x80]);
        value >>= 7;
    }
    push(out, &[value as u8]);
}

/// The number of complete records at the beginning of a file's `content`; a killed run may leave a partial record after
/// them.
///
/// # Errors
/// The offset of the first record with wrong checksums.
pub fn records(content: &[u8]) -> Result<u64, usize> {
    let (mut at, mut count) = (0, 0);
    let sum = |at: usize| Some(u32::from_le_bytes(content.get(at..at + 4)?.try_into().ok()?));
    while let Some(length) = content.get(at..at + 8) {
        let Some(sum_of_length) = sum(at + 8) else { break };
        if sum_of_length != masked(crc32c(length)) {
            return Err(at);
        }
        let length = length.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        let Some((data, sum_of_data)) =
            content.get(at + 12..).and_then(|rest| rest.get(..length)).zip(sum(at + 12 + length))
        else {
            break;
        };
        if sum_of_data != masked(crc32c(data)) {
            return Err(at);
        }
        (at, count) = (at + 16 + length, count + 1);
    }
    Ok(count)
}

const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), reflected polynomial 0x82F63B78, bit by bit: records are short and few.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| (c >> 1) ^ (0x82F6_3B78 & (c & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_standards() {
        // The check value of CRC-32C.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
    }

    #[test]
    fn a_record_has_the_bytes_of_the_format() {
        let record = scalar(1.5, 300, "a/b", 2.0);
        let data = [
            &[0x09][..],
            &1.5f64.to_le_bytes(),
            &[0x10, 0xAC, 0x02, 0x2A, 12, 0x0A, 10, 0x0A, 3, b'a', b'/', b'b', 0x15],
            &2.0f32.to_le_bytes(),
        ]
        .concat();
        assert_eq!(record[..8], (data.len() as u64).to_le_bytes());
        assert_eq!(record[12..12 + data.len()], data);
        assert_eq!(record.len(), data.len() + 16);
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_noticed_and_half_a_record_is_none() {
        let whole = [&version(1.0)[..], &scalar(1.5, 300, "a/b", 2.0), &scalar(1.5, 301, "a/b", 2.5)].concat();
        assert_eq!(records(&whole), Ok(3));
        assert_eq!(records(&[]), Ok(0));
        for cut in 0..whole.len() {
            assert!(records(&whole[..cut]).is_ok_and(|count| count < 3), "{cut}");
        }
        for bit in 0..8 * whole.len() {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(records(&bad).is_err(), "{bit}");
        }
    }
}
