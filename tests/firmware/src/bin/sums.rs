//! Compares the sums and products of codes computed with the chip's instructions with those of plain code: for many
//! lengths and numbers of rows, at every offset within a word. Exits with 0, or with 1 and a line that describes the
//! difference.
#![no_std]
#![no_main]

use core::fmt::Write as _;

use capful_core::integer::{Portable, Sums};
use capful_core::random::Random;
use capful_firmware::{Dsp, Line, Once, exit};

/// The longest row, in codes.
const LONGEST: usize = 600;
/// The largest number of rows.
const ROWS: usize = 9;

static CODES: Once<[u8; 8192]> = Once::new([0; 8192]);

/// Compares sums of rows with two codes in each byte; `x` and the rows begin within a word.
fn nibbles_agree(codes: &[u8], [length, rows, offset]: [usize; 3]) -> bool {
    let bytes = length.div_ceil(2);
    // Rows at multiples of four, and at other offsets.
    let stride = if offset == 0 { bytes.next_multiple_of(4) } else { bytes + offset % 3 };
    let (x, first) = (&codes[offset..][..length], first(codes));
    // The slice ends with the last row.
    let weight = &codes[first + offset..][..(rows - 1) * stride + bytes];
    let (mut found, mut expected) = ([i32::MIN; ROWS], [i32::MIN; ROWS]);
    let x: &[i8] = bytemuck::cast_slice(x);
    Dsp::nibbles(x, weight, stride, &mut found[..rows]);
    Portable::nibbles(x, weight, stride, &mut expected[..rows]);
    found == expected
}

/// Compares products of pairs of rows. Scales are finite.
fn pairs_agree(codes: &[u8], [length, rows, offset]: [usize; 3]) -> bool {
    let x: &[i8] = bytemuck::cast_slice(&codes[offset..][..length]);
    let weight = &codes[first(codes) + offset..][..rows * length];
    let scales: [u16; ROWS] = core::array::from_fn(|r| 0x2000 + 97 * r as u16);
    let (mut found, mut expected) = ([f32::NAN; ROWS], [f32::NAN; ROWS]);
    Dsp::pairs(x, 0.37, weight, &scales[..rows], &mut found[..rows]);
    Portable::pairs(x, 0.37, weight, &scales[..rows], &mut expected[..rows]);
    found.map(f32::to_bits) == expected.map(f32::to_bits)
}

/// The index of the first row: at a multiple of four, after x.
fn first(codes: &[u8]) -> usize {
    codes.as_ptr().align_offset(4) + LONGEST.next_multiple_of(4) + 4
}

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let mut line = Line::open();
    let Some(codes) = CODES.take() else { exit(1) };
    // Every third scale; a signalling NaN becomes quiet, as it also does in a multiplication.
    for bits in (0..=u16::MAX).step_by(3) {
        let (sums, scales) = ([3, -1_000_001, 0], [bits, bits ^ 0x8000, bits.wrapping_add(1), 9, bits.wrapping_add(2)]);
        let (mut found, mut expected) = ([-0.0f32, 1.5, 1e-6], [-0.0f32, 1.5, 1e-6]);
        Dsp::weigh(&sums, &scales, 2, 0.37, &mut found);
        Portable::weigh(&sums, &scales, 2, 0.37, &mut expected);
        if found.map(f32::to_bits) != expected.map(f32::to_bits) {
            let _ = writeln!(line, "scales from {bits:#06x}: {found:?} in place of {expected:?}");
            exit(1);
        }
    }
    let mut products = 0;
    // Codes of every size, then only the largest of both signs.
    for extreme in [false, true] {
        let random = Random::new(11, 1);
        for (i, code) in codes.iter_mut().enumerate() {
            let bits = random.bits(i as u64) as u8;
            *code = match (extreme, bits & 1) {
                (false, _) => bits,
                (true, 0) => 0x80,
                (true, _) => 0x7f,
            };
        }
        // Every length that a block of columns may have, and lengths that exceed the space for x.
        for length in (0..151).chain([255, 256, 257, 260, 512, 515, LONGEST]) {
            for (rows, offset) in (1..ROWS + 1).flat_map(|rows| (0..4).map(move |offset| (rows, offset))) {
                if !nibbles_agree(codes, [length, rows, offset]) {
                    let _ = writeln!(line, "{rows} rows of {length} codes, from {offset}, two a byte: another sum");
                    exit(1);
                }
                let in_pairs = length > 0 && rows.is_multiple_of(2);
                if in_pairs && !pairs_agree(codes, [length, rows, offset]) {
                    let _ = writeln!(line, "{rows} rows of {length} codes, from {offset}, in pairs: another product");
                    exit(1);
                }
                products += 1 + usize::from(in_pairs);
            }
        }
    }
    let _ = writeln!(line, "sums {products}");
    exit(0)
}
