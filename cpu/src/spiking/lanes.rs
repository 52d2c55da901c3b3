//! The streams of a batch as vector lanes, in groups whose size is known at compile time.

/// Runs `body` for each group of lanes: `at` is the first lane of the group, `L` the number of its lanes, 32, 16, 8 or
/// 1. A group fits in registers, so an inner loop over sources sums in registers.
macro_rules! lanes {
    ($streams:expr, $at:ident, $lanes:ident => $body:expr) => {{
        let mut $at = 0;
        while $streams - $at >= 32 {
            const $lanes: usize = 32;
            $body;
            $at += $lanes;
        }
        while $streams - $at >= 16 {
            const $lanes: usize = 16;
            $body;
            $at += $lanes;
        }
        while $streams - $at >= 8 {
            const $lanes: usize = 8;
            $body;
            $at += $lanes;
        }
        while $streams > $at {
            const $lanes: usize = 1;
            $body;
            $at += $lanes;
        }
    }};
}
pub(crate) use lanes;

/// The `L` numbers from `at` on.
#[inline(always)]
pub(crate) fn pick<const L: usize>(x: &[f32], at: usize) -> &[f32; L] {
    let Some(x) = x[at..].first_chunk() else { panic!("{L} lanes from {at} on of {}", x.len()) };
    x
}

/// The `L` numbers from `at` on, writable.
#[inline(always)]
pub(crate) fn pick_mut<const L: usize>(x: &mut [f32], at: usize) -> &mut [f32; L] {
    let len = x.len();
    let Some(x) = x[at..].first_chunk_mut() else { panic!("{L} lanes from {at} on of {len}") };
    x
}

/// `sum + w · x` in each lane, fused.
#[inline(always)]
pub(crate) fn fused<const L: usize>(sum: &mut [f32; L], w: f32, x: &[f32; L]) {
    // Read before any write, since the compiler cannot see that the slices do not overlap.
    let (x, old) = (*x, *sum);
    for i in 0..L {
        sum[i] = w.mul_add(x[i], old[i]);
    }
}

/// `sum + a · b` in each lane, fused.
#[inline(always)]
pub(crate) fn fused_pairs<const L: usize>(sum: &mut [f32; L], a: &[f32; L], b: &[f32; L]) {
    let (a, b, old) = (*a, *b, *sum);
    for i in 0..L {
        sum[i] = a[i].mul_add(b[i], old[i]);
    }
}

/// The same numbers, opaque to the compiler: sums that were computed in them stay vectors, whatever is done with single
/// lanes afterwards. Otherwise the compiler adapts the loop before it to the pairwise additions after it, and the
/// loop's sums become scalars or pairs.
#[inline(always)]
pub(crate) fn whole<const L: usize>(lanes: [f32; L]) -> [f32; L] {
    std::hint::black_box(lanes)
}

/// The sum of the lanes, pairwise.
#[inline(always)]
pub(crate) fn across<const L: usize>(lanes: [f32; L]) -> f32 {
    let mut lanes = whole(lanes);
    let mut width = L / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Transposes a matrix: `put(&mut to[j · to_row + i], from[i · from_row + j])` for i below `rows` and j below
/// `columns`, by blocks that fit in the nearest cache.
#[inline(always)]
pub(crate) fn turn(
    from: &[f32],
    from_row: usize,
    to: &mut [f32],
    to_row: usize,
    [rows, columns]: [usize; 2],
    put: impl Fn(&mut f32, f32),
) {
    const BLOCK: usize = 16;
    for i in (0..rows).step_by(BLOCK) {
        for j in (0..columns).step_by(BLOCK) {
            for j in j..columns.min(j + BLOCK) {
                let to = &mut to[j * to_row + i..][..BLOCK.min(rows - i)];
                let from = from[i * from_row + j..].iter().step_by(from_row);
                to.iter_mut().zip(from).for_each(|(to, x)| put(to, *x));
            }
        }
    }
}
