//! The last tokens' embeddings as signals for the neurons: a delay line that starts anew with each document.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// The number of earlier tokens that token `t` of a segment sees of its own document: `offset`, or fewer if the segment
/// is `fresh`. 0 at the beginning of a document.
pub const fn reach(offset: u32, t: u32, fresh: bool) -> u32 {
    if fresh && t < offset { t } else { offset }
}

/// In slot t + 1, row k·E + e of stream b is `x[b, t − k, e]`, or 0 where token t − k is in another document; tokens
/// before the segment come from slot 0. `keep[t, b]` is 0 where a document begins, else 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taps {
    /// [B, T, E].
    pub x: Region,
    /// `[B · T]` u32: the number of tokens of the same document before each token.
    pub offsets: Region,
    /// [T + 1, rows, B]: the first taps · E rows of slots 1 … T are written.
    pub signals: Region,
    /// [T, B].
    pub keep: Region,
    /// The number of tokens that neurons see, including the current one.
    pub taps: u32,
    /// Whether the segment has no past: slot 0 is not read.
    pub fresh: bool,
}

impl Taps {
    const fn sizes(&self) -> [usize; 4] {
        let [_, batch, tokens, width] = self.x.shape;
        [batch as usize, tokens as usize, width as usize, self.signals.shape[2] as usize]
    }
}

impl Operation for Taps {
    const NAME: &'static str = "taps";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x).exact());
        visit(Operand::read("offsets", self.offsets).ids());
        visit(Operand::update("signals", self.signals));
        visit(Operand::write("keep", self.keep).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, batch, tokens, width] = self.x.shape;
        let [_, slots, rows, streams] = self.signals.shape;
        self.expect(self.offsets.elements() == u64::from(batch) * u64::from(tokens), "offsets")?;
        self.expect(slots == tokens + 1 && streams == batch && self.taps * width <= rows, "signals")?;
        self.expect(self.taps > 0, "taps")?;
        self.expect(self.keep.rows() == tokens && self.keep.columns() == batch, "keep")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [x, offsets, mut signals, mut keep] =
            arena.views([Some(self.x), Some(self.offsets), Some(self.signals), Some(self.keep)])?;
        let [batch, tokens, width, rows] = self.sizes();
        let (x, offsets) = (x.f32()?, offsets.u32()?);
        for t in 0..tokens {
            let (before, now) = signals.f32_mut()?[t * rows * batch..].split_at_mut(rows * batch);
            for b in 0..batch {
                let reach = reach(offsets[b * tokens + t], t as u32, self.fresh);
                keep.f32_mut()?[t * batch + b] = if reach > 0 { 1.0 } else { 0.0 };
                for k in 0..self.taps as usize {
                    for e in 0..width {
                        now[(k * width + e) * batch + b] = match k {
                            0 => x[(b * tokens + t) * width + e],
                            _ if k as u32 <= reach => before[((k - 1) * width + e) * batch + b],
                            _ => 0.0,
                        };
                    }
                }
            }
        }
        Ok(())
    }
}

/// The gradient of [`Taps`] within the segment: `x_grad[b, t, e] (+)= Σ_k signals_grad[t + k, k·E + e, b]` over the taps
/// that see token t.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TapsGrad {
    /// [T, rows, B].
    pub signals_grad: Region,
    /// `[B · T]` u32.
    pub offsets: Region,
    /// [B, T, E].
    pub x_grad: Region,
    /// As in [`Taps`].
    pub taps: u32,
    /// As in [`Taps`].
    pub fresh: bool,
    /// Whether to add to `x_grad` instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for TapsGrad {
    const NAME: &'static str = "taps_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("signals_grad", self.signals_grad));
        visit(Operand::read("offsets", self.offsets).ids());
        visit(Operand::sum("x_grad", self.x_grad, self.accumulate).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, batch, tokens, width] = self.x_grad.shape;
        let [_, slots, rows, streams] = self.signals_grad.shape;
        self.expect(self.offsets.elements() == u64::from(batch) * u64::from(tokens), "offsets")?;
        self.expect(slots == tokens && streams == batch && self.taps * width <= rows, "signals_grad")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [grad, offsets, mut x_grad] =
            arena.views([Some(self.signals_grad), Some(self.offsets), Some(self.x_grad)])?;
        let [_, batch, tokens, width] = self.x_grad.shape.map(|n| n as usize);
        let (grad, offsets, rows) = (grad.f32()?, offsets.u32()?, self.signals_grad.shape[2] as usize);
        for b in 0..batch {
            for t in 0..tokens {
                let to = &mut x_grad.f32_mut()?[(b * tokens + t) * width..][..width];
                if !self.accumulate {
                    to.fill(0.0);
                }
                for k in 0..(self.taps as usize).min(tokens - t) {
                    let later = t + k;
                    if (k as u32) > reach(offsets[b * tokens + later], later as u32, self.fresh) {
                        continue;
                    }
                    for (e, to) in to.iter_mut().enumerate() {
                        *to += grad[(later * rows + k * width + e) * batch + b];
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    fn case(b: &mut Bench<4096>, fresh: bool) -> Taps {
        Taps {
            x: b.normal([1, 2, 5, 3], 1, 1.0),
            offsets: b.ids(&[3, 4, 0, 1, 2, 0, 1, 2, 3, 4]),
            signals: b.normal([1, 6, 11, 2], 2, 1.0),
            keep: b.poison([1, 1, 5, 2]),
            taps: 3,
            fresh,
        }
    }

    #[test]
    fn taps_see_back_to_their_documents_begin() {
        let mut b = Bench::<4096>::new();
        let op = case(&mut b, false);
        let before: [f32; 132] = b.get(op.signals).try_into().unwrap();
        b.run(op);
        let x: [f32; 30] = b.get(op.x).try_into().unwrap();
        let keep: [f32; 10] = b.get(op.keep).try_into().unwrap();
        assert_eq!(keep, [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let row = |b: &mut Bench<4096>, t: usize, k: usize, e: usize, s: usize| {
            b.get(op.signals)[((t + 1) * 11 + k * 3 + e) * 2 + s]
        };
        for e in 0..3 {
            // Stream 0, token 3 is the second token of its document; token 0 sees two tokens from before the segment.
            assert_eq!(row(&mut b, 3, 1, e, 0), x[2 * 3 + e]);
            assert_eq!(row(&mut b, 3, 2, e, 0), 0.0);
            assert_eq!(row(&mut b, 0, 1, e, 0), before[e * 2]);
            assert_eq!(row(&mut b, 1, 2, e, 0), before[e * 2]);
            assert_eq!(row(&mut b, 4, 2, e, 1), x[(5 + 2) * 3 + e]);
        }
        // The rows after the taps belong to other signals.
        assert_eq!(row(&mut b, 2, 3, 0, 1), before[(3 * 11 + 9) * 2 + 1]);
    }

    #[test]
    fn a_fresh_segment_reads_nothing_before_it() {
        let mut b = Bench::<4096>::new();
        let op = case(&mut b, true);
        b.set(op.signals, &[f32::NAN; 132]);
        b.run(op);
        assert_eq!(b.get(op.keep)[..2], [0.0, 0.0]);
        let written = (1..6).flat_map(|slot| (0..18).map(move |i| slot * 22 + i));
        let all: [f32; 132] = b.get(op.signals).try_into().unwrap();
        assert!(written.clone().all(|i| all[i].is_finite()));
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let mut b = Bench::<4096>::new();
        let op = case(&mut b, false);
        // Only slots of this segment count, and only the rows of taps.
        let mut weights = [0.0; 132];
        let random = crate::random::Random::new(4, 4);
        for slot in 1..6 {
            for i in 0..18 {
                weights[slot * 22 + i] = random.normal((slot * 22 + i) as u64);
            }
        }
        let weights = b.values([1, 6, 11, 2], &weights);
        let signals_grad = Region { offset: weights.offset + 88, shape: [1, 5, 11, 2], ..weights };
        let x_grad = b.poison([1, 2, 5, 3]);
        b.run(TapsGrad { signals_grad, offsets: op.offsets, x_grad, taps: 3, fresh: false, accumulate: false });
        b.check_gradient(op, op.x, x_grad, op.signals, weights);
    }
}
