//! Compares the sums of codes that the chip's instructions make with those of plain code: every length, every number of
//! rows, at every offset within a word. Ends with 0, or with 1 and a line that says where they differ.
#![no_std]
#![no_main]

use core::fmt::Write as _;

use capful_core::integer::{Portable, Sums};
use capful_core::random::Random;
use capful_firmware::{Dsp, Line, Once, exit};

/// The longest row, in codes.
const LONGEST: usize = 150;
/// The most rows.
const ROWS: usize = 9;

static CODES: Once<[u8; 2048]> = Once::new([0; 2048]);

/// Compares one product; `x` and the rows begin within a word. Of rows of two codes a byte where `halves`.
fn agree(codes: &[u8], [length, rows, offset]: [usize; 3], halves: bool) -> bool {
    let bytes = if halves { length.div_ceil(2) } else { length };
    // Rows at multiples of four, and others.
    let stride = if offset == 0 { bytes.next_multiple_of(4) } else { bytes + offset % 3 };
    let (x, first) = (&codes[offset..][..length], codes.as_ptr().align_offset(4) + LONGEST.next_multiple_of(4) + 4);
    // The last row is all that is there of the rest.
    let weight = &codes[first + offset..][..(rows - 1) * stride + bytes];
    let (mut found, mut expected) = ([i32::MIN; ROWS], [i32::MIN; ROWS]);
    let x: &[i8] = bytemuck::cast_slice(x);
    let (own, plain) = (&mut found[..rows], &mut expected[..rows]);
    match halves {
        true => (Dsp::nibbles(x, weight, stride, own), Portable::nibbles(x, weight, stride, plain)),
        false => (Dsp::bytes(x, weight, stride, own), Portable::bytes(x, weight, stride, plain)),
    };
    found == expected
}

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let mut line = Line::open();
    let Some(codes) = CODES.take() else { exit(1) };
    // Every scale; a signalling NaN becomes a quiet one, which a product with it does as well.
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
    // Numbers of every size, then the largest of both signs alone.
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
        for length in 0..LONGEST + 1 {
            for (rows, offset) in (1..ROWS + 1).flat_map(|rows| (0..4).map(move |offset| (rows, offset))) {
                for halves in [false, true] {
                    if !agree(codes, [length, rows, offset], halves) {
                        let _ = writeln!(line, "{rows} rows of {length} codes, from {offset}, {halves}: another sum");
                        exit(1);
                    }
                    products += 1;
                }
            }
        }
    }
    let _ = writeln!(line, "sums {products}");
    exit(0)
}
