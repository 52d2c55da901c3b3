//! The momentum of matrices in blocks of 8 bits, and its blend with the gradient.

use super::matrix_momentum::MatrixMomentum;
use super::moved::Factors;
use crate::compressed::BLOCK;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::optimizer::Group;
use crate::train::{Results, Settings};

/// As [`MatrixMomentum`], but element by element in place: `m = μ m + (1 − μ) g` and `g = μ m + (1 − μ) g`, with the
/// clipped g on the right. A gradient norm or a loss that is not finite changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlendMomentum {
    /// `[n]`, whole blocks.
    pub gradient: Region,
    /// `[n]`, in 8 bits: m.
    pub momentum: Region,
    /// The settings: μ, clip.
    pub settings: Region,
    /// The results; reads the loss and the squared norm.
    pub results: Region,
    /// The group whose μ is read.
    pub group: Group,
}

impl Operation for BlendMomentum {
    const NAME: &'static str = "blend_momentum";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        if !cfg!(feature = "compressed") {
            return;
        }
        visit(Operand::update("gradient", self.gradient));
        visit(Operand::update("momentum", self.momentum).state());
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        if !cfg!(feature = "compressed") {
            return Err(self.misfit("momentum"));
        }
        let n = self.gradient.elements();
        let coded = self.momentum.dtype.is_coded();
        self.expect(n.is_multiple_of(BLOCK as u64), "gradient")?;
        self.expect(self.momentum.elements() == n && coded, "momentum")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        // A build without 8-bit blocks has no code for the following.
        if !cfg!(feature = "compressed") {
            return Err(self.misfit("momentum"));
        }
        let [mut gradient, mut momentum, settings, results] =
            arena.views([self.gradient, self.momentum, self.settings, self.results].map(Some))?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = Factors::of(settings, results, self.group, 1.0) else { return Ok(()) };
        let Some((code, blocks)) = momentum.coded_mut()? else { return Err(self.misfit("momentum")) };
        let [keep, _] = factors.corrections;
        for (gradient, block) in gradient.f32_mut()?.chunks_exact_mut(BLOCK).zip(blocks) {
            let mut numbers = [0.0; BLOCK];
            code.unpack(block, &mut numbers);
            for (g, m) in gradient.iter_mut().zip(&mut numbers) {
                *g = MatrixMomentum::blend(*g * factors.gradient, m, keep);
            }
            code.pack(&numbers, block);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Dtype;
    use crate::ops::testing::Bench;

    #[test]
    fn momentum_and_blend_agree_with_f64_up_to_the_code_s_step() {
        let mut b = Bench::<512>::new();
        let shape = [1, 1, 2, BLOCK as u32];
        let mut settings = Settings { clip: 2.0, ..Settings::UNIT };
        settings.corrections[Group::Matrix.index()] = [0.9, f32::NAN];
        let op = BlendMomentum {
            gradient: b.normal(shape, 1, 1.0),
            momentum: b.codes(Dtype::Moment8, shape),
            settings: b.settings(settings),
            results: b.results(Results { loss: 0.0, squared_norm: 16.0 }),
            group: Group::Matrix,
        };
        b.set_bytes(op.momentum, 0, &[0; 2 * crate::compressed::BYTES]);
        let mut expected = [0.0f64; 2 * BLOCK];
        for step in 0..4 {
            let gradients: [f32; 2 * BLOCK] = core::array::from_fn(|i| ((i + 31 * step) as f32 * 0.7).sin());
            b.set(op.gradient, &gradients);
            b.run(op);
            let largest =
                expected.iter().zip(gradients).map(|(m, g)| (0.9 * m + 0.05 * f64::from(g)).abs()).fold(0.0, f64::max);
            for (i, (m, g)) in expected.iter_mut().zip(gradients).enumerate() {
                // A norm of 4 with a clip of 2: half the gradient.
                let new = 0.1 * 0.5 * f64::from(g);
                *m = 0.9 * *m + new;
                let blend = f64::from(b.get(op.gradient)[i]);
                // Each step adds at most half a step of the code, and reduces the earlier errors by a tenth.
                assert!((blend - (0.9 * *m + new)).abs() < 0.9 * 4.0 * largest / 127.0, "step {step}, {i}");
            }
        }
        let before: [f32; 2 * BLOCK] = b.get(op.gradient).try_into().unwrap();
        b.set(op.results, &[f32::NAN, 1.0]);
        b.run(op);
        assert_eq!(b.get(op.gradient), before);
    }
}
