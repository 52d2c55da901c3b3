//! Sums of codes by the instructions that a Cortex-M4 and everything above it have for two products at once. Integers are
//! exact, so they are [`Portable`]'s.

use capful_core::integer::{Portable, Sums};

/// Makes sums with SXTB16, which widens two bytes of a word, and SMLAD, which adds two products.
pub struct Dsp;

unsafe extern "C" {
    /// `sums[r] = Σ x · row r` of `4 · fours` rows of `4 · words` codes. Row r begins at `rows + r · stride`.
    fn sums_of_bytes(x: *const i8, rows: *const u8, stride: usize, sums: *mut i32, words: usize, fours: usize);

    /// The same of `2 · twos` rows, which begin at multiples of four; `words` is 1 to [`LONG`].
    fn sums_of_words(x: *const i8, rows: *const u8, stride: usize, sums: *mut i32, words: usize, twos: usize);

    /// The same of `2 · twos` rows of `8 · words` codes, two a byte; `words` is 1 to [`ROOM`].
    fn sums_of_nibbles(x: *const i8, rows: *const u8, stride: usize, sums: *mut i32, words: usize, twos: usize);

    /// `products[r] += sums[r] · (scale r · x_scale)` of one row or more; the scales are `stride` bytes apart.
    fn weigh(sums: *const i32, scales: *const u16, stride: usize, products: *mut f32, count: usize, x_scale: f32);
}

// VCVTB reads half precision, of IEEE 754 as the control register says from reset on; VMLA rounds twice. x_scale is s0.
core::arch::global_asm!(
    ".fpu fpv4-sp-d16",
    ".section .text.weigh",
    ".global weigh",
    ".thumb_func",
    "weigh:",
    "push {{r4, lr}}",
    "ldr lr, [sp, #8]",
    "1: ldrh r12, [r1]",
    "add r1, r1, r2",
    "vmov s1, r12",
    "vcvtb.f32.f16 s1, s1",
    "vldmia r0!, {{s2}}",
    "vcvt.f32.s32 s2, s2",
    "vldr s3, [r3]",
    "vmul.f32 s1, s1, s0",
    "vmla.f32 s3, s2, s1",
    "vstmia r3!, {{s3}}",
    "subs lr, lr, #1",
    "bne 1b",
    "pop {{r4, pc}}",
);

// Four rows share the load of x: 23 instructions for 16 products. r0 is x, r1 to r4 the rows, r5 to r8 their sums, lr what
// is left; x, rows, stride and sums are kept on the stack. A load of a word may begin anywhere.
core::arch::global_asm!(
    ".macro one_row row, sum",
    "ldr r11, [\\row], #4",
    "sxtb16 r12, r11",
    "sxtb16 r11, r11, ror #8",
    "smlad \\sum, r9, r12, \\sum",
    "smlad \\sum, r10, r11, \\sum",
    ".endm",
    ".macro four_rows",
    "ldr r11, [r0], #4",
    "sxtb16 r9, r11",
    "sxtb16 r10, r11, ror #8",
    "one_row r1, r5",
    "one_row r2, r6",
    "one_row r3, r7",
    "one_row r4, r8",
    ".endm",
    ".section .text.sums_of_bytes",
    ".global sums_of_bytes",
    ".thumb_func",
    "sums_of_bytes:",
    "push {{r0-r11, lr}}",
    "1: ldrd r0, r1, [sp]",
    "ldr r12, [sp, #8]",
    "add r2, r1, r12",
    "add r3, r2, r12",
    "add r4, r3, r12",
    "add r12, r4, r12",
    "str r12, [sp, #4]",
    "movs r5, #0",
    "movs r6, #0",
    "movs r7, #0",
    "mov r8, r7",
    "ldr lr, [sp, #52]",
    "ands lr, lr, #3",
    "beq 3f",
    "2: four_rows",
    "subs lr, lr, #1",
    "bne 2b",
    "3: ldr lr, [sp, #52]",
    "lsrs lr, lr, #2",
    "beq 5f",
    "4: .rept 4",
    "four_rows",
    ".endr",
    "subs lr, lr, #1",
    "bne 4b",
    "5: ldr r12, [sp, #12]",
    "stmia r12!, {{r5-r8}}",
    "str r12, [sp, #12]",
    "ldr r12, [sp, #56]",
    "subs r12, r12, #1",
    "str r12, [sp, #56]",
    "bne 1b",
    "add sp, sp, #16",
    "pop {{r4-r11, pc}}",
);

// x is widened once, on the stack: eight bytes for four codes. Two rows share the load of it, and a row's load brings eight
// codes: 19 instructions for 16 products. LDRD, unlike LDR, must begin at a multiple of four. r0 is x, r1 and r2 the rows, r5
// and r6 their sums, r7 the words of a row, lr what is left.
core::arch::global_asm!(
    ".macro four_codes from, low, high, sum",
    "sxtb16 r12, \\from",
    "sxtb16 \\from, \\from, ror #8",
    "smlad \\sum, \\low, r12, \\sum",
    "smlad \\sum, \\high, \\from, \\sum",
    ".endm",
    ".macro two_words row, sum",
    "ldrd r10, r11, [\\row], #8",
    "four_codes r10, r3, r4, \\sum",
    "four_codes r11, r8, r9, \\sum",
    ".endm",
    ".macro two_rows_of_words",
    "ldmia r0!, {{r3, r4, r8, r9}}",
    "two_words r1, r5",
    "two_words r2, r6",
    ".endm",
    ".section .text.sums_of_words",
    ".global sums_of_words",
    ".thumb_func",
    "sums_of_words:",
    "push {{r0-r11, lr}}",
    "sub sp, sp, #512",
    "ldr lr, [sp, #564]",
    "mov r12, sp",
    "1: ldr r5, [r0], #4",
    "sxtb16 r6, r5",
    "sxtb16 r7, r5, ror #8",
    "stmia r12!, {{r6, r7}}",
    "subs lr, lr, #1",
    "bne 1b",
    "ldr r7, [sp, #564]",
    "2: mov r0, sp",
    "ldr r1, [sp, #516]",
    "ldr r12, [sp, #520]",
    "add r2, r1, r12",
    "add r12, r2, r12",
    "str r12, [sp, #516]",
    "movs r5, #0",
    "movs r6, #0",
    "lsrs lr, r7, #1",
    "bcc 3f",
    "ldmia r0!, {{r3, r4}}",
    "ldr r10, [r1], #4",
    "ldr r11, [r2], #4",
    "four_codes r10, r3, r4, r5",
    "four_codes r11, r3, r4, r6",
    "3: ands lr, lr, #3",
    "beq 5f",
    "4: two_rows_of_words",
    "subs lr, lr, #1",
    "bne 4b",
    "5: lsrs lr, r7, #3",
    "beq 7f",
    "6: .rept 4",
    "two_rows_of_words",
    ".endr",
    "subs lr, lr, #1",
    "bne 6b",
    "7: ldr r12, [sp, #524]",
    "stmia r12!, {{r5, r6}}",
    "str r12, [sp, #524]",
    "ldr r12, [sp, #568]",
    "subs r12, r12, #1",
    "str r12, [sp, #568]",
    "bne 2b",
    "add sp, sp, #528",
    "pop {{r4-r11, pc}}",
);

// A code stands in the upper half of its byte, where its sign is the byte's, and is 16 times too large; so is the sum, which
// stays within 32 bits. First x is put in pairs four apart, as the halves of the bytes come, on the stack: sixteen bytes for
// eight codes. Two rows share the load of them: 25 instructions for 16 products. r0 is x, r1 and r2 the rows, r5 and r6
// their sums, lr what is left.
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

/// Words of codes that [`sums_of_words`] has room for.
const LONG: usize = 64;
/// Words of codes that [`sums_of_nibbles`] has room for: groups are of 128 at most.
const ROOM: usize = 16;

/// Whether `count` rows of `bytes` bytes, `stride` apart, are in `rows`.
fn there(rows: &[u8], stride: usize, count: usize, bytes: usize) -> bool {
    count > 0
        && (count - 1).checked_mul(stride).and_then(|last| last.checked_add(bytes)).is_some_and(|n| n <= rows.len())
}

impl Sums for Dsp {
    fn bytes(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]) {
        let words = x.len() / 4;
        let aligned = (rows.as_ptr() as usize | stride).is_multiple_of(4) && (1..LONG + 1).contains(&words);
        let at_once = if aligned { 2 } else { 4 };
        let times = sums.len() / at_once;
        let whole = at_once * times;
        if !there(rows, stride, whole, x.len()) {
            return Portable::bytes(x, rows, stride, sums);
        }
        let made_by = if aligned { sums_of_words } else { sums_of_bytes };
        // Safety: `whole` rows as long as x are there, as many sums, and no less than `words` words of x, for which
        // `sums_of_words` has room.
        unsafe { made_by(x.as_ptr(), rows.as_ptr(), stride, sums.as_mut_ptr(), words, times) };
        let (done, rest) = sums.split_at_mut(whole);
        add_rest(Portable::bytes, (&x[4 * words..], &rows[4 * words..], stride), done);
        if !rest.is_empty() {
            Portable::bytes(x, &rows[whole * stride..], stride, rest);
        }
    }

    fn nibbles(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]) {
        let (words, twos) = (x.len() / 8, sums.len() / 2);
        let whole = 2 * twos;
        if words == 0 || words > ROOM || !there(rows, stride, whole, x.len().div_ceil(2)) {
            return Portable::nibbles(x, rows, stride, sums);
        }
        // Safety: as above; x has room on the stack.
        unsafe { sums_of_nibbles(x.as_ptr(), rows.as_ptr(), stride, sums.as_mut_ptr(), words, twos) };
        let (done, rest) = sums.split_at_mut(whole);
        add_rest(Portable::nibbles, (&x[8 * words..], &rows[4 * words..], stride), done);
        if !rest.is_empty() {
            Portable::nibbles(x, &rows[whole * stride..], stride, rest);
        }
    }

    fn weigh(sums: &[i32], scales: &[u16], stride: usize, x_scale: f32, products: &mut [f32]) {
        let count = products.len().min(sums.len());
        let last = count.checked_sub(1).and_then(|last| last.checked_mul(stride));
        if last.is_none_or(|last| last >= scales.len()) {
            return Portable::weigh(sums, scales, stride, x_scale, products);
        }
        // Safety: `count` sums and products are there, and as many scales, the last of which was looked for.
        unsafe { weigh(sums.as_ptr(), scales.as_ptr(), 2 * stride, products.as_mut_ptr(), count, x_scale) };
    }
}

type Plain = fn(&[i8], &[u8], usize, &mut [i32]);

/// Adds the sums of the codes that make no whole word.
fn add_rest(sums: Plain, (x, rows, stride): (&[i8], &[u8], usize), done: &mut [i32]) {
    if x.is_empty() {
        return;
    }
    for (r, sum) in done.iter_mut().enumerate() {
        let mut more = [0];
        sums(x, &rows[r * stride..], stride, &mut more);
        *sum += more[0];
    }
}
