//! Attention, its gradient, single-token attention over a cache, and rotation.

use capful_core::memory::Region;
use capful_core::ops::{
    Attention, AttentionGrad, CachedAttention, Heads, Pattern, PatternKind, Rotary, RotaryScaling, Rotate,
};
use capful_core::random::Random;

use super::{Lay, Witness, matrix};

/// Heads, batch, length and pattern.
pub type Case = (Heads, u32, u32, Pattern);

/// A few cases of every kind.
pub fn attentions() -> Vec<Case> {
    let pattern = |kind, block| Pattern { kind, block, window: 1, stride: 3 };
    let windowed = |kind, block, window, stride| Pattern { kind, block, window, stride };
    vec![
        (Heads::interleaved(1, 1), 1, 1, Pattern::DENSE),
        (Heads::interleaved(2, 64), 2, 70, Pattern::DENSE),
        (Heads::grouped(4, 2, 6), 2, 65, pattern(PatternKind::Local, 16)),
        (Heads::grouped(6, 2, 10), 1, 150, pattern(PatternKind::Global, 8)),
        (Heads::interleaved(3, 32), 1, 129, pattern(PatternKind::Mixed, 7)),
        (Heads::interleaved(1, 128), 2, 33, Pattern::DENSE),
        (Heads::grouped(2, 1, 100), 1, 40, pattern(PatternKind::Local, 5)),
        (Heads::interleaved(2, 256), 1, 21, Pattern::DENSE),
        (Heads::grouped(2, 1, 200), 1, 35, pattern(PatternKind::Global, 4)),
        // Longer than several tiles; blocks of one token, of more than a tile, and of half the length.
        (Heads::grouped(4, 2, 32), 1, 333, Pattern::DENSE),
        (Heads::interleaved(3, 5), 1, 333, windowed(PatternKind::Local, 1, 2, 3)),
        (Heads::grouped(3, 1, 34), 1, 333, windowed(PatternKind::Mixed, 64, 1, 3)),
        (Heads::interleaved(1, 2), 2, 600, windowed(PatternKind::Local, 70, 2, 2)),
        (Heads::interleaved(1, 5), 1, 600, windowed(PatternKind::Global, 300, 0, 1)),
        (Heads::grouped(4, 2, 32), 3, 130, windowed(PatternKind::Global, 16, 1, 2)),
        (Heads::interleaved(1, 2), 3, 9, windowed(PatternKind::Mixed, 1, 2, 3)),
    ]
}

/// A rotation of all elements where `all`, else of half of each head; of at least one pair where a head has one.
pub fn rotary(l: &mut Lay, heads: Heads, positions: u32, all: bool) -> Rotary {
    let pairs = if all { heads.size / 2 } else { (heads.size / 4).max(u32::from(heads.size > 1)) };
    turning(l, heads, positions, pairs)
}

/// A rotation of `pairs` pairs of each head.
pub fn turning(l: &mut Lay, heads: Heads, positions: u32, pairs: u32) -> Rotary {
    let mut angles = Vec::new();
    for (position, pair) in (0..positions).flat_map(|p| (0..pairs).map(move |j| (p, j))) {
        angles.extend(Rotary::angle(100.0, RotaryScaling::None, 2 * pairs, position, pair));
    }
    Rotary { table: l.values([1, positions, pairs, 2], angles), heads, positions }
}

pub fn attention(l: &mut Lay, (heads, batch, t, pattern): Case) -> Attention {
    Attention {
        qkv: l.normal([1, batch, t, heads.width()], 1.0),
        out: l.poison([1, batch, t, heads.out_width()]),
        log_sum: l.poison_exact([1, batch, heads.queries, t]),
        heads,
        pattern,
        offsets: None,
    }
}

pub fn attention_grad(l: &mut Lay, (heads, batch, t, pattern): Case) -> AttentionGrad {
    let (width, out_width) = (heads.width(), heads.out_width());
    AttentionGrad {
        qkv: l.normal([1, batch, t, width], 0.3),
        out: l.normal([1, batch, t, out_width], 0.5),
        // A sum near the true one, so that the probabilities are below 1.
        log_sum: l.values([1, batch, heads.queries, t], vec![3.0; (batch * heads.queries * t) as usize]),
        out_grad: l.normal([1, batch, t, out_width], 1.0),
        qkv_grad: l.poison([1, batch, t, width]),
        heads,
        pattern,
        offsets: None,
        rotary: rotary(l, heads, t, heads.size == 64),
    }
}

pub fn attention_and_its_gradient(w: &mut impl Witness) {
    w.by_all_attention();
    for case in attentions() {
        w.case(|l| attention(l, case));
        w.case(|l| attention_grad(l, case));
    }
}

/// Offsets of `batch` rows of `t` positions. The first row continues an earlier document, which ends at a block's end;
/// the later documents begin at 16, 17, 63, 81, 191, 193 and so on: before, at and after boundaries of a warp's rows
/// and of tiles. The second row is one document, which begins with the row; the third is inside a document; the fourth
/// has documents of one token.
pub fn offsets(batch: u32, t: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for row in 0..batch {
        let (mut offset, mut left, lengths) = match row % 4 {
            0 => (5, 16, &[1, 46, 18, 110, 2, 1, 63, 5, 64, 130, 600][..]),
            1 => (0, t, &[][..]),
            2 => (t / 2, t, &[][..]),
            _ => (0, 1, &[1][..]),
        };
        let mut lengths = lengths.iter().cycle();
        for _ in 0..t {
            if left == 0 {
                (offset, left) = (0, lengths.next().copied().unwrap_or(t));
            }
            all.push(offset);
            (offset, left) = (offset + 1, left - 1);
        }
    }
    all
}

/// Attention inside documents.
pub fn attention_inside(l: &mut Lay, case: Case) -> Attention {
    let offsets = Some(l.ids(offsets(case.1, case.2)));
    Attention { offsets, ..attention(l, case) }
}

/// The gradient of attention inside documents.
pub fn attention_grad_inside(l: &mut Lay, case: Case) -> AttentionGrad {
    let offsets = Some(l.ids(offsets(case.1, case.2)));
    AttentionGrad { offsets, ..attention_grad(l, case) }
}

pub fn attention_inside_documents(w: &mut impl Witness) {
    w.by_all_attention();
    let more = [(Heads::interleaved(2, 64), 4, 200, Pattern::DENSE), (Heads::grouped(4, 2, 32), 4, 9, Pattern::DENSE)];
    for case in attentions().into_iter().chain(more) {
        w.case(|l| attention_inside(l, case));
        w.case(|l| attention_grad_inside(l, case));
    }
}

pub fn scores_far_apart_do_not_overflow(w: &mut impl Witness) {
    w.by_all_attention();
    let (heads, t) = (Heads::interleaved(2, 16), 600);
    // Increasing scores, so that the running maximum changes at each step of keys.
    let random = Random::new(5, 5);
    let values: Vec<f32> =
        (0..u64::from(t * heads.width())).map(|i| random.normal(i) * (i / 96) as f32 / 60.0).collect();
    w.case(|l| {
        let qkv = l.kept([1, 1, t, heads.width()], values.clone());
        Attention { qkv, ..attention(l, (heads, 1, t, Pattern::DENSE)) }
    });
}

/// Attention of the token at `cursor`, of `t` positions.
pub fn cached(l: &mut Lay, (heads, _, t, pattern): Case, cursor: u32) -> CachedAttention {
    CachedAttention {
        qkv: l.spent(matrix(1, heads.width()), 1.0),
        cache: l.normal([1, 2, t, heads.keys * heads.size], 1.0),
        cursor: l.ids(vec![cursor]),
        out: l.poison(matrix(1, heads.out_width())),
        rotary: rotary(l, heads, t, t % 2 == 0),
        pattern,
    }
}

pub fn cached_attention(w: &mut impl Witness) {
    for case in attentions() {
        for cursor in [0, case.2 / 2, case.2 - 1] {
            w.case(|l| cached(l, case, cursor));
        }
    }
}

/// A rotation of existing rows.
pub fn rotate(l: &mut Lay, qkv: Region, heads: Heads, dims: u32, positions: u32) -> Rotate {
    Rotate { qkv, rotary: turning(l, heads, positions, dims / 2) }
}

pub fn queries_and_keys_are_turned(w: &mut impl Witness) {
    for (heads, dims, rows, positions) in [
        (Heads::interleaved(1, 2), 2, 1, 7),
        (Heads::interleaved(5, 3), 2, 59, 7),
        (Heads::interleaved(2, 8), 2, 13, 13),
        (Heads::grouped(4, 2, 6), 6, 20, 5),
        (Heads::grouped(10, 5, 41), 20, 60, 7),
        (Heads::interleaved(3, 64), 16, 9, 9),
        (Heads::grouped(4, 2, 64), 64, 30, 10),
        (Heads::interleaved(2, 40), 24, 7, 7),
    ] {
        w.case(|l| {
            let qkv = l.normal(matrix(rows, heads.width()), 1.0);
            rotate(l, qkv, heads, dims, positions)
        });
    }
}
