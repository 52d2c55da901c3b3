//! The end of a step for tensors in 8 bits: their largest values enter the history, which determines the next scales.

use crate::device::{Operand, Operation, OperationError};
use crate::fp8::Format;
use crate::memory::{Arena, Dtype, Region};

/// For each of n tensors: the history moves up by one step and receives `amax`; `scale` becomes the largest power of
/// two for which `scale · max(history)` is within the format (1 where the history is 0), `inverse` its inverse, `amax`
/// 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rescale {
    /// The format of the tensors: E4M3 or E5M2.
    pub dtype: Dtype,
    /// `[n]`: the largest |x| of this step.
    pub amax: Region,
    /// [[`Rescale::HISTORY`], n]: the largest |x| of the last steps, the oldest first.
    pub history: Region,
    /// `[n]`.
    pub scale: Region,
    /// [n, [`Rescale::APART`]]: each inverse four times.
    pub inverse: Region,
}

impl Rescale {
    /// The number of steps for which a large value is remembered.
    pub const HISTORY: u32 = 16;
    /// The distance between the inverses of two tensors: cublasLt can only read one at a multiple of 16 bytes.
    pub const APART: u32 = 4;
}

impl Operation for Rescale {
    const NAME: &'static str = "rescale";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("amax", self.amax).exact());
        visit(Operand::update("history", self.history).exact());
        visit(Operand::write("scale", self.scale).exact());
        visit(Operand::write("inverse", self.inverse).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let n = self.amax.elements();
        self.expect(Format::of(self.dtype).is_some(), "dtype")?;
        self.expect(self.history.rows() == Self::HISTORY && u64::from(self.history.columns()) == n, "history")?;
        self.expect(self.scale.elements() == n, "scale")?;
        let apart = self.inverse.columns() == Self::APART && u64::from(self.inverse.rows()) == n;
        self.expect(apart, "inverse")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let format = Format::of(self.dtype).ok_or(OperationError::Shape { operation: Self::NAME, operand: "dtype" })?;
        let [mut amax, mut history, mut scale, mut inverse] =
            arena.views([self.amax, self.history, self.scale, self.inverse].map(Some))?;
        let (amax, history) = (amax.f32_mut()?, history.f32_mut()?);
        let n = amax.len();
        let kept = history.len() - n;
        history.copy_within(n.., 0);
        history[kept..].copy_from_slice(amax);
        amax.fill(0.0);
        let inverses = inverse.f32_mut()?.chunks_exact_mut(Self::APART as usize);
        for (i, (scale, inverse)) in scale.f32_mut()?.iter_mut().zip(inverses).enumerate() {
            let largest = history.iter().skip(i).step_by(n).fold(0.0, |a: f32, b| a.max(*b));
            *scale = format.scale(largest);
            inverse.fill(1.0 / *scale);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    const N: usize = 3;

    fn fresh(b: &mut Bench<256>, dtype: Dtype) -> Rescale {
        let n = N as u32;
        Rescale {
            dtype,
            amax: b.values([1, 1, 1, n], &[0.0; N]),
            history: b.values([1, 1, 16, n], &[0.0; 16 * N]),
            scale: b.poison([1, 1, 1, n]),
            inverse: b.poison([1, 1, n, 4]),
        }
    }

    /// Runs a step with these largest values; returns the scales after it.
    fn step(b: &mut Bench<256>, op: Rescale, amax: [f32; N]) -> [f32; N] {
        b.set(op.amax, &amax);
        b.run(op);
        assert_eq!(b.get(op.amax), [0.0; N]);
        let scale: [f32; N] = b.get(op.scale).try_into().unwrap();
        assert_eq!(b.get(op.inverse), scale.map(|s| [1.0 / s; 4]).as_flattened());
        scale
    }

    #[test]
    fn the_scale_follows_the_largest_of_sixteen_steps_and_not_the_last() {
        let mut b = Bench::<256>::new();
        let op = fresh(&mut b, Dtype::E4m3);
        // 448 / 1 is above 256, and 448 / 7 is 64; the third tensor has no values yet.
        assert_eq!(step(&mut b, op, [1.0, 7.0, 0.0]), [256.0, 64.0, 1.0]);
        assert_eq!(step(&mut b, op, [0.01, 7.5, 0.0]), [256.0, 32.0, 1.0]);
        // A spike counts for sixteen steps, including its own.
        assert_eq!(step(&mut b, op, [100.0, 1.0, 0.0])[0], 4.0);
        for later in 1..16 {
            assert_eq!(step(&mut b, op, [1.0, 1.0, 2.0])[0], 4.0, "{later} steps later");
        }
        assert_eq!(step(&mut b, op, [1.0; N]), [256.0, 256.0, 128.0]);
    }

    #[test]
    fn gradients_have_the_range_of_their_format() {
        let mut b = Bench::<256>::new();
        let op = fresh(&mut b, Dtype::E5m2);
        assert_eq!(step(&mut b, op, [1.0, 57_344.0, 1e-9]), [32_768.0, 1.0, libm::exp2f(45.0)]);
    }
}
