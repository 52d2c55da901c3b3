//! Sums of codes by the instructions that a Cortex-M4 and its successors have for two multiplications at once. Integers
//! are exact, so the results equal those of [`Portable`].

use capful_core::integer::{Portable, Sums, dot4, pair};

/// Computes sums with SMLAD, which adds two products of halves of words. SXTB16 and UXTB16 extend two bytes to halves.
pub struct Dsp;

unsafe extern "C" {
    /// Sums of `pairs` pairs of rows of `4 · words` codes; a pair begins `stride` bytes after the previous one, at a
    /// multiple of four. With scales the results are products; without, the sums are added to the i32 at their
    /// positions. `words` is 8 to [`LONG`].
    fn rows_in_pairs(
        x: *const i8,
        rows: *const u8,
        stride: usize,
        out: *mut f32,
        words: usize,
        pairs: usize,
        scales: *const u16,
        x_scale: f32,
    );

    /// `sums[r] = Σ x · row r` for `2 · twos` rows of `8 · words` codes, two in each byte. Row r begins at `rows + r ·
    /// stride`; `words` is 1 to [`ROOM`].
    fn sums_of_nibbles(x: *const i8, rows: *const u8, stride: usize, sums: *mut i32, words: usize, twos: usize);

    /// `products[r] += sums[r] · (scale r · x_scale)` for one row or more; the scales are `stride` bytes apart.
    fn weigh(sums: *const i32, scales: *const u16, stride: usize, products: *mut f32, count: usize, x_scale: f32);
}

// VCVTB reads IEEE 754 half precision, the control register's mode after reset; VMLA rounds twice. x_scale is s0.
core::arch::global_asm!(
    ".fpu fpv4-sp-d16",
    ".section .text.weigh",
    ".global weigh",
    ".thumb_func",
    "weigh:",
    "push {{r4, lr}}",
    "ldr lr, [sp, #8]",
    "lsrs lr, lr, #1",
    "bcc 1f",
    "ldrh r12, [r1]",
    "add r1, r1, r2",
    "vmov s1, r12",
    "vcvtb.f32.f16 s1, s1",
    "vldmia r0!, {{s2}}",
    "vcvt.f32.s32 s2, s2",
    "vldr s3, [r3]",
    "vmul.f32 s1, s1, s0",
    "vmla.f32 s3, s2, s1",
    "vstmia r3!, {{s3}}",
    "1: cmp lr, #0",
    "beq 3f",
    // Two at a time.
    "2: ldrh r12, [r1]",
    "ldrh r4, [r1, r2]",
    "add r1, r1, r2, lsl #1",
    "vmov s2, s3, r12, r4",
    "vldmia r0!, {{s4, s5}}",
    "vldmia r3, {{s6, s7}}",
    "vcvtb.f32.f16 s2, s2",
    "vcvtb.f32.f16 s3, s3",
    "vcvt.f32.s32 s4, s4",
    "vcvt.f32.s32 s5, s5",
    "vmul.f32 s2, s2, s0",
    "vmul.f32 s3, s3, s0",
    "vmla.f32 s6, s4, s2",
    "vmla.f32 s7, s5, s3",
    "vstmia r3!, {{s6, s7}}",
    "subs lr, lr, #1",
    "bne 2b",
    "3: pop {{r4, pc}}",
);

// x is widened once, on the stack: eight bytes for four codes. For a pair, C in r2 uses each half as is and U in r3
// uses its lower byte, so 14 instructions compute 16 products. r0 is x, r1 the pair, r12 the address of the results, lr
// the remaining count. Both sums begin with −128 · Σ x.
core::arch::global_asm!(
    ".macro two_columns x, halves",
    "smlad r2, \\x, \\halves, r2",
    "uxtb16 \\halves, \\halves",
    "smlad r3, \\x, \\halves, r3",
    ".endm",
    ".macro eight_columns",
    "ldmia r0!, {{r4-r7}}",
    "ldmia r1!, {{r8-r11}}",
    "two_columns r4, r8",
    "two_columns r5, r9",
    "two_columns r6, r10",
    "two_columns r7, r11",
    ".endm",
    ".section .text.rows_in_pairs",
    ".global rows_in_pairs",
    ".thumb_func",
    "rows_in_pairs:",
    "push {{r0-r11, lr}}",
    "sub sp, sp, #536",
    "ldr lr, [sp, #588]",
    // The part of a row in steps of 32 columns, and the rest in steps of 4.
    "lsrs r4, lr, #3",
    "and r5, lr, #7",
    "strd r4, r5, [sp, #520]",
    // The distance from the end of a pair to the next pair.
    "ldr r4, [sp, #544]",
    "sub r4, r4, lr, lsl #3",
    "str r4, [sp, #528]",
    "mov r12, sp",
    "movs r4, #0",
    "mov r5, #0x00010001",
    "1: ldr r6, [r0], #4",
    "sxtb16 r7, r6",
    "sxtb16 r6, r6, ror #8",
    "pkhbt r8, r7, r6, lsl #16",
    "pkhtb r9, r6, r7, asr #16",
    "smlad r4, r8, r5, r4",
    "smlad r4, r9, r5, r4",
    "stmia r12!, {{r8, r9}}",
    "subs lr, lr, #1",
    "bne 1b",
    "lsls r4, r4, #7",
    "rsbs r4, r4, #0",
    "mov r5, r4",
    "strd r4, r5, [sp, #512]",
    "ldr r12, [sp, #548]",
    "ldr r4, [sp, #592]",
    "add r4, r12, r4, lsl #3",
    "str r4, [sp, #592]",
    "2: mov r0, sp",
    "ldrd r2, r3, [sp, #512]",
    "ldr lr, [sp, #520]",
    "3: .rept 4",
    "eight_columns",
    ".endr",
    "subs lr, lr, #1",
    "bne 3b",
    "ldr r6, [sp, #524]",
    "cbz r6, 6f",
    "5: ldmia r0!, {{r4, r5}}",
    "ldmia r1!, {{r8, r9}}",
    "two_columns r4, r8",
    "two_columns r5, r9",
    "subs r6, r6, #1",
    "bne 5b",
    "6: subs r2, r2, r3",
    "ldr r6, [sp, #596]",
    "asrs r2, r2, #8",
    "cbz r6, 8f",
    "vmov s4, s5, r3, r2",
    "vldmia r6!, {{s6}}",
    "str r6, [sp, #596]",
    "vcvtt.f32.f16 s7, s6",
    "vcvtb.f32.f16 s6, s6",
    "vcvt.f32.s32 s4, s4",
    "vcvt.f32.s32 s5, s5",
    "vmul.f32 s6, s6, s0",
    "vmul.f32 s7, s7, s0",
    // lr is 0. VMLA rounds twice.
    "vmov s2, s3, lr, lr",
    "vmla.f32 s2, s4, s6",
    "vmla.f32 s3, s5, s7",
    "vstmia r12!, {{s2, s3}}",
    "7: ldr r4, [sp, #592]",
    "cmp r12, r4",
    "bne 2b",
    "add sp, sp, #552",
    "pop {{r4-r11, pc}}",
    "8: ldrd r4, r5, [r12]",
    "add r4, r4, r3",
    "add r5, r5, r2",
    "stmia r12!, {{r4, r5}}",
    "ldr r4, [sp, #528]",
    "add r1, r1, r4",
    "b 7b",
);

// A code is placed in the upper half of a byte, where its sign is the byte's, and is 16 times too large; so is the sum,
// which still fits in 32 bits. First x is arranged on the stack in pairs that are four apart, in the order in which the
// halves of the bytes are extracted: sixteen bytes for eight codes. Two rows share the loads of x: 25 instructions for
// 16 products. r0 is x, r1 and r2 the rows, r5 and r6 their sums, lr the remaining count.
core::arch::global_asm!(
    ".macro one_row_of_nibbles row, sum",
    "ldr r11, [\\row], #4",
    "lsl r12, r11, #4",
    "and r11, r11, #0xf0f0f0f0",
    "and r12, r12, #0xf0f0f0f0",
    "sxtb16 r7, r12",
    "sxtb16 r12, r12, ror #8",
    "smlad \\sum, r3, r7, \\sum",
    "smlad \\sum, r4, r12, \\sum",
    "sxtb16 r7, r11",
    "sxtb16 r11, r11, ror #8",
    "smlad \\sum, r8, r7, \\sum",
    "smlad \\sum, r9, r11, \\sum",
    ".endm",
    ".macro two_rows",
    "ldmia r0!, {{r3, r4, r8, r9}}",
    "one_row_of_nibbles r1, r5",
    "one_row_of_nibbles r2, r6",
    ".endm",
    ".section .text.sums_of_nibbles",
    ".global sums_of_nibbles",
    ".thumb_func",
    "sums_of_nibbles:",
    "push {{r0-r11, lr}}",
    "sub sp, sp, #256",
    "ldr lr, [sp, #308]",
    "mov r12, sp",
    "1: ldr r5, [r0], #4",
    "ldr r6, [r0], #4",
    "sxtb16 r7, r5",
    "sxtb16 r9, r6",
    "pkhbt r1, r7, r9, lsl #16",
    "pkhtb r2, r9, r7, asr #16",
    "sxtb16 r7, r5, ror #8",
    "sxtb16 r9, r6, ror #8",
    "pkhbt r3, r7, r9, lsl #16",
    "pkhtb r4, r9, r7, asr #16",
    "stmia r12!, {{r1-r4}}",
    "subs lr, lr, #1",
    "bne 1b",
    "2: mov r0, sp",
    "ldr r1, [sp, #260]",
    "ldr r12, [sp, #264]",
    "add r2, r1, r12",
    "add r12, r2, r12",
    "str r12, [sp, #260]",
    "movs r5, #0",
    "movs r6, #0",
    "ldr r10, [sp, #308]",
    "ands lr, r10, #3",
    "beq 4f",
    "3: two_rows",
    "subs lr, lr, #1",
    "bne 3b",
    "4: lsrs lr, r10, #2",
    "beq 6f",
    "5: .rept 4",
    "two_rows",
    ".endr",
    "subs lr, lr, #1",
    "bne 5b",
    "6: asrs r5, r5, #4",
    "asrs r6, r6, #4",
    "ldr r12, [sp, #268]",
    "stmia r12!, {{r5, r6}}",
    "str r12, [sp, #268]",
    "ldr r12, [sp, #312]",
    "subs r12, r12, #1",
    "str r12, [sp, #312]",
    "bne 2b",
    "add sp, sp, #272",
    "pop {{r4-r11, pc}}",
);

/// The least number of words of codes of x for [`rows_in_pairs`].
const SHORT: usize = 8;
/// The largest number of words of codes of x for [`rows_in_pairs`].
const LONG: usize = 64;
/// The largest number of words of codes for [`sums_of_nibbles`]: groups have at most 128 inputs.
const ROOM: usize = 16;

/// Whether `count` rows of `bytes` bytes, `stride` apart, fit in `rows`.
fn there(rows: &[u8], stride: usize, count: usize, bytes: usize) -> bool {
    count > 0
        && (count - 1).checked_mul(stride).and_then(|last| last.checked_add(bytes)).is_some_and(|n| n <= rows.len())
}

impl Sums for Dsp {
    fn pairs(x: &[i8], x_scale: f32, pairs: &[u8], scales: &[u16], products: &mut [f32]) {
        let (stride, count, words) = (2 * x.len(), products.len() / 2, x.len() / 4);
        if scales.len() < 2 * count || !there(pairs, stride, count, stride) {
            return products.fill(f32::NAN);
        }
        let aligned = (pairs.as_ptr() as usize | scales.as_ptr() as usize | stride).is_multiple_of(4);
        if aligned && x.len() == 4 * words && (SHORT..LONG + 1).contains(&words) {
            let (x, rows, out) = (x.as_ptr(), pairs.as_ptr(), products.as_mut_ptr());
            // Safety: there are `count` pairs of rows as long as x, as many products and scales, and enough space for
            // x.
            return unsafe { rows_in_pairs(x, rows, stride, out, words, count, scales.as_ptr(), x_scale) };
        }
        let rows = pairs.chunks((BLOCK / 2 * stride).max(1)).zip(scales.chunks(BLOCK));
        for (products, (pairs, scales)) in products.chunks_mut(BLOCK).zip(rows) {
            let mut sums = [0; BLOCK];
            let (sums, _) = sums.split_at_mut(products.len().min(BLOCK));
            for (piece, x) in x.chunks(4 * LONG).enumerate() {
                add_piece(x, pairs.get(8 * LONG * piece..).unwrap_or_default(), stride, sums);
            }
            products.fill(0.0);
            Self::weigh(sums, scales, 1, x_scale, products);
        }
    }

    fn nibbles(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]) {
        let (words, twos) = (x.len() / 8, sums.len() / 2);
        let whole = 2 * twos;
        let by_words = (1..ROOM + 1).contains(&words) && there(rows, stride, whole, x.len().div_ceil(2));
        let mut done = 0;
        if by_words {
            // Safety: there are `whole` rows as long as x, as many sums, and enough space for x.
            unsafe { sums_of_nibbles(x.as_ptr(), rows.as_ptr(), stride, sums.as_mut_ptr(), words, twos) };
            done = whole;
        }
        let (made, left) = sums.split_at_mut(done);
        let row = |r: usize| rows.get(r * stride..).unwrap_or_default();
        left.iter_mut().enumerate().for_each(|(r, sum)| *sum = dot4(x, row(done + r)));
        // The codes after the last whole word of each row.
        let (_, rest) = x.as_chunks::<8>();
        if rest.is_empty() {
            return;
        }
        for (r, sum) in made.iter_mut().enumerate() {
            *sum += dot4(rest, row(r).get(4 * words..).unwrap_or_default());
        }
    }

    fn weigh(sums: &[i32], scales: &[u16], stride: usize, x_scale: f32, products: &mut [f32]) {
        let count = products.len().min(sums.len());
        let last = count.checked_sub(1).and_then(|last| last.checked_mul(stride));
        if last.is_none_or(|last| last >= scales.len()) {
            return Portable::weigh(sums, scales, stride, x_scale, products);
        }
        // Safety: there are `count` sums and products, and as many scales, whose last one was checked.
        unsafe { weigh(sums.as_ptr(), scales.as_ptr(), 2 * stride, products.as_mut_ptr(), count, x_scale) };
    }
}

/// The number of rows whose sums are buffered while long rows are processed in pieces.
const BLOCK: usize = 32;

/// Adds the sums of a piece of x, at most `4 · LONG` codes, with the pairs of rows that begin `stride` apart.
#[inline(never)]
fn add_piece(x: &[i8], pairs: &[u8], stride: usize, sums: &mut [i32]) {
    let (words, count) = (x.len() / 4, sums.len() / 2);
    let aligned = (pairs.as_ptr() as usize | stride).is_multiple_of(4);
    let whole = if aligned && words >= SHORT && there(pairs, stride, count, 8 * words) { words } else { 0 };
    if whole > 0 {
        let out = sums.as_mut_ptr().cast();
        // Safety: there are `count` pairs with `8 · words` bytes each, as many sums, and enough space for x; without
        // scales the sums are added to the i32 at `out`.
        unsafe { rows_in_pairs(x.as_ptr(), pairs.as_ptr(), stride, out, whole, count, core::ptr::null(), 0.0) };
    }
    let rest = x.get(4 * whole..).unwrap_or_default();
    for (p, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let more = pair::sums(rest, pairs.get(p * stride + 8 * whole..).unwrap_or_default());
        *sums = [sums[0] + more[0], sums[1] + more[1]];
    }
}
