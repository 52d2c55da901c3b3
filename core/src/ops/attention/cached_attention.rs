//! Attention of one new token over the keys and values of the tokens before it.

use super::heads::Heads;
use super::pattern::Pattern;
use super::rotary::Rotary;
use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot, short_dot};

/// Rotates the row's queries and keys by the cursor's position, stores key and value there, and attends over the
/// positions 0 … cursor that the pattern sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CachedAttention {
    /// [1, width]; a device may rotate queries and keys in place, and nothing reads them afterwards.
    pub qkv: Region,
    /// [2, context, keys · size]: keys, then values.
    pub cache: Region,
    /// `[1]` u32: the token's position, below the cache's context.
    pub cursor: Region,
    /// [1, queries · size].
    pub out: Region,
    /// The order of the heads, and the angles.
    pub rotary: Rotary,
    /// The keys that a query sees.
    pub pattern: Pattern,
}

/// The number of scores that are stored between the search for the largest and their use; others are computed twice.
const KEPT: usize = 128;

impl Operation for CachedAttention {
    const NAME: &'static str = "cached_attention";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("qkv", self.qkv));
        visit(Operand::update("cache", self.cache));
        visit(Operand::read("cursor", self.cursor).ids());
        visit(Operand::read("rotary", self.rotary.table).exact());
        visit(Operand::write("out", self.out));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let heads = &self.rotary.heads;
        self.expect(self.qkv.rows() == 1 && self.qkv.columns() == heads.width(), "qkv")?;
        self.expect(self.cache.shape[1] == 2 && self.cache.columns() == heads.keys * heads.size, "cache")?;
        self.expect(self.rotary.fits() && self.rotary.positions >= self.cache.shape[2], "rotary")?;
        self.expect(self.pattern.fits(), "pattern")?;
        self.expect(self.out.elements() == u64::from(heads.out_width()), "out")
    }

    fn flops(&self) -> u64 {
        count(&[4, self.rotary.heads.out_width().into(), self.cache.shape[2].into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut qkv, mut cache, cursor, table, mut out] = arena.views([
            Some(self.qkv),
            Some(self.cache),
            Some(self.cursor),
            Some(self.rotary.table),
            Some(self.out),
        ])?;
        let (heads, size) = (&self.rotary.heads, self.rotary.heads.size as usize);
        let (context, columns) = (self.cache.shape[2] as usize, self.cache.columns() as usize);
        // Ensures that no head and no row is empty, and that the length of a block of rows does not overflow.
        let block_len = KEPT.checked_mul(columns).filter(|len| *len > 0).ok_or(self.misfit("cache"))?;
        self.expect(size > 0 && columns == heads.keys as usize * size, "cache")?;
        self.expect(self.pattern.fits(), "pattern")?;
        let served = heads.served().ok_or(self.misfit("qkv"))?;
        let now = cursor.u32()?.first().map_or(context, |now| *now as usize);
        self.expect(now < context, "cursor")?;
        let row = qkv.f32_mut()?;
        Rotary::rotate(heads, table.f32()?, self.rotary.dims() as usize, now, row, false)
            .ok_or(self.misfit("rotary"))?;
        let (keys, values) = cache.f32_mut()?.split_at_mut_checked(context * columns).ok_or(self.misfit("cache"))?;
        // The keys and values of positions 0 to now; those of `now` are stored first.
        let seen = ..(now + 1) * columns;
        let keys = keys.get_mut(seen).ok_or(self.misfit("cache"))?;
        let values = values.get_mut(seen).ok_or(self.misfit("cache"))?;
        for (cache, head) in [(&mut *keys, Heads::key as fn(&Heads, u32) -> usize), (&mut *values, Heads::value)] {
            let last = cache.get_mut(now * columns..).ok_or(self.misfit("cache"))?;
            for (h, place) in (0..).zip(last.chunks_exact_mut(size)) {
                let at = head(heads, h);
                place.copy_from_slice(row.get(at..at + size).ok_or(self.misfit("qkv"))?);
            }
        }
        let all = self.pattern.dense();
        let (pattern, last) = (&self.pattern, now as u32);
        let sees = move |j: usize| pattern.sees(last, j as u32);
        let (row, keys, values) = (&*row, &*keys, &*values);
        let (scale, mut kept) = (heads.scale(), [0.0f32; KEPT]);
        for (h, out) in (0..heads.queries).zip(out.f32_mut()?.chunks_exact_mut(size)) {
            let at = heads.query(h);
            let query = row.get(at..at + size).ok_or(self.misfit("qkv"))?;
            let own = (h / served) as usize * size;
            // The range of this head in every key and value.
            let part = own..own + size;
            self.expect(part.end <= columns, "cache")?;
            let mut largest = f32::NEG_INFINITY;
            for (j, key) in keys.chunks_exact(columns).enumerate() {
                if all || sees(j) {
                    let s = short_dot(query, key.get(part.clone()).unwrap_or_default()) * scale;
                    if let Some(kept) = kept.get_mut(j) {
                        *kept = s;
                    }
                    largest = if s > largest { s } else { largest };
                }
            }
            out.fill(0.0);
            let mut total = 0.0;
            for (block, values) in values.chunks(block_len).enumerate() {
                let first = block * KEPT;
                if block > 0 {
                    for (i, (score, key)) in kept.iter_mut().zip(keys.chunks_exact(columns).skip(first)).enumerate() {
                        if all || sees(first + i) {
                            *score = dot(query, key.get(part.clone()).unwrap_or_default()) * scale;
                        }
                    }
                }
                for (i, weight) in kept.iter_mut().take(now + 1 - first).enumerate() {
                    if all || sees(first + i) {
                        *weight = libm::expf(*weight - largest);
                        total += *weight;
                    }
                }
                // Eight sums at a time stay in registers over all positions.
                let (eights, rest) = out.as_chunks_mut::<8>();
                let mut from = own;
                for out in eights {
                    let mut sums = *out;
                    for (i, (value, weight)) in values.chunks_exact(columns).zip(&kept).enumerate() {
                        if all || sees(first + i) {
                            for (sum, x) in sums.iter_mut().zip(value.get(from..from + 8).unwrap_or_default()) {
                                *sum += weight * x;
                            }
                        }
                    }
                    (*out, from) = (sums, from + 8);
                }
                if !rest.is_empty() {
                    for (i, (value, weight)) in values.chunks_exact(columns).zip(&kept).enumerate() {
                        if all || sees(first + i) {
                            axpy(*weight, value.get(from..).unwrap_or_default(), rest);
                        }
                    }
                }
            }
            out.iter_mut().for_each(|o| *o /= total);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;
    use crate::ops::{Attention, Linear, PatternKind, RotaryScaling, Rotate};

    /// Compares tokens one by one with all tokens at once, which must give the same bits: `OUT` is the width of the
    /// result.
    fn equals<const WORDS: usize, const OUT: usize>(heads: Heads, t: u32, kind: PatternKind) {
        let mut b = Bench::<WORDS>::new();
        let width = heads.width();
        let pairs = (0..t).flat_map(|p| [0, 1].map(|j| Rotary::angle(100.0, RotaryScaling::None, 4, p, j)));
        let mut angles = [0.0; 1024];
        angles.chunks_exact_mut(2).zip(pairs).for_each(|(place, pair)| place.copy_from_slice(&pair));
        let table = b.values([1, t, 2, 2], &angles[..4 * t as usize]);
        let rotary = Rotary { table, heads, positions: t };
        let pattern = Pattern { kind, block: 3, window: 1, stride: 2 };
        let (x, weight) = (b.normal([1, 1, t, 3], 1, 1.0), b.normal([1, 1, width, 3], 2, 1.0));
        let qkv = b.poison([1, 1, t, width]);
        let (out, log_sum) = (b.poison([1, 1, t, OUT as u32]), b.poison([1, 1, heads.queries, t]));
        b.run(Linear::new(x, weight, None, qkv));
        b.run(Rotate { qkv, rotary });
        b.run(Attention { qkv, out, log_sum, heads, pattern, offsets: None });

        let (row, cache) = (b.poison([1, 1, 1, width]), b.poison([1, 2, t, heads.keys * heads.size]));
        let (step, cursor) = (b.poison([1, 1, 1, OUT as u32]), b.ids(&[0]));
        for position in 0..t {
            b.set_bytes(cursor, 0, &position.to_le_bytes());
            b.run(Linear::new(x.slice_rows(position, 1), weight, None, row));
            b.run(CachedAttention { qkv: row, cache, cursor, out: step, rotary, pattern });
            let whole: [f32; OUT] = b.get(out.slice_rows(position, 1)).try_into().unwrap();
            assert_eq!(b.get(step), whole, "{kind:?} at {position}");
        }
    }

    #[test]
    fn operands_that_do_not_belong_together_are_errors() {
        let mut b = Bench::<4096>::new();
        let heads = Heads::grouped(4, 2, 4);
        let table = b.values([1, 3, 2, 2], &[0.5; 12]);
        let (qkv, cache) = (b.poison([1, 1, 1, heads.width()]), b.poison([1, 2, 3, 8]));
        let (out, cursor) = (b.poison([1, 1, 1, 16]), b.ids(&[2]));
        let rotary = Rotary { table, heads, positions: 3 };
        let whole = CachedAttention { qkv, cache, cursor, out, rotary, pattern: Pattern::DENSE };
        let of = |heads| Rotary { heads, ..rotary };
        let local = Pattern { kind: PatternKind::Local, block: 0, window: 1, stride: 2 };
        let wrong = [
            (CachedAttention { qkv: qkv.slice_columns(0, 24), ..whole }, "qkv"),
            (CachedAttention { qkv: qkv.slice_columns(0, 16), ..whole }, "rotary"),
            (CachedAttention { rotary: of(Heads::grouped(1, 2, 4)), ..whole }, "qkv"),
            (CachedAttention { rotary: of(Heads::grouped(4, 0, 4)), ..whole }, "cache"),
            (CachedAttention { rotary: of(Heads::grouped(4, 2, 0)), ..whole }, "cache"),
            (CachedAttention { cache: cache.reshaped([1, 1, 3, 8]), ..whole }, "cache"),
            (CachedAttention { cache: cache.reshaped([1, 2, 2, 8]), ..whole }, "cursor"),
            (CachedAttention { cache: cache.reshaped([1, 2, 3, 0]), ..whole }, "cache"),
            (CachedAttention { rotary: Rotary { table: table.reshaped([1, 2, 2, 2]), ..rotary }, ..whole }, "rotary"),
            (CachedAttention { pattern: local, ..whole }, "pattern"),
        ];
        for (wrong, operand) in wrong {
            assert_eq!(b.fails(wrong), Some(wrong.misfit(operand)), "{wrong:?}");
        }
        assert_eq!(b.fails(whole), None);
        let sparse = CachedAttention { pattern: local, ..whole };
        assert_eq!((whole.validate(), sparse.validate()), (Ok(()), Err(sparse.misfit("pattern"))));
    }

    #[test]
    fn token_by_token_equals_the_whole_sequence() {
        for kind in [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed] {
            equals::<4096, 16>(Heads::grouped(4, 2, 4), 10, kind);
            // More positions than stored scores, and heads whose size is not a multiple of eight.
            equals::<16384, 24>(Heads::grouped(2, 1, 12), 140, kind);
        }
    }
}
