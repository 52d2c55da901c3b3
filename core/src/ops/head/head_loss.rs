//! The output head, the cross-entropy and their gradients, a chunk of rows at a time: the full logits never exist.

use crate::data::IGNORE;
use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot, max, softcap, softcap_derivative, sum};
use crate::ops::{IntegerProduct, IntegerRows};
use crate::train::{Results, Settings};
use crate::views;

/// The gradients that [`HeadLoss`] writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadGrad {
    /// [rows, d].
    pub x_grad: Region,
    /// [vocabulary, d]. Without it, the logits' gradient stays in `logits`, for all rows if there is room, so that a
    /// later operation can compute the weight's gradient from it.
    pub weight_grad: Option<Region>,
    /// Whether to add to `weight_grad` instead of overwriting it.
    pub accumulate: bool,
}

/// Over the ids v: `losses[r] = ln Σ_v exp z_rv − z_r,target` with `z = x · weight + bias`, capped where there is a
/// `softcap`; adds their sum times the loss scale to the results, and computes the gradients of that sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadLoss {
    /// [rows, d].
    pub x: Region,
    /// [vocabulary, d], padded to a number of rows that suits the device.
    pub weight: Region,
    /// `[vocabulary]`, added to the logits.
    pub bias: Option<Region>,
    /// C of `C · tanh(z / C)`, which caps the logits as [`Softcap`](crate::ops::Softcap) does; 0 for no cap.
    pub softcap: f32,
    /// The number of rows of the weight that are ids: later rows are padding, with no probability and gradients of 0.
    pub ids: u32,
    /// `[rows]` u32: the next id, or [`IGNORE`].
    pub targets: Region,
    /// [chunk, vocabulary]: the chunk's rows. A gradient that stays in it is with respect to `z` before the cap.
    pub logits: Region,
    /// `[rows]`: nats.
    pub losses: Region,
    /// The settings; reads the loss scale.
    pub settings: Region,
    /// The results; writes the loss, or adds to it.
    pub results: Region,
    /// Whether to add to the loss of an earlier micro-batch.
    pub add_loss: bool,
    /// The gradients, in training.
    pub gradient: Option<HeadGrad>,
    /// The scales of `x` and `weight` where both are integers, which they are not in training.
    pub integer: Option<IntegerProduct>,
}

impl Operation for HeadLoss {
    const NAME: &'static str = "head_loss";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        match &self.integer {
            Some(product) => product.operands(self.x, self.weight, visit),
            None => {
                visit(Operand::read("x", self.x));
                visit(Operand::read("weight", self.weight));
            }
        }
        self.bias.into_iter().for_each(|r| visit(Operand::read("bias", r).exact()));
        visit(Operand::read("targets", self.targets).ids());
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::write("logits", self.logits));
        visit(Operand::write("losses", self.losses).exact());
        visit(Operand::update("results", self.results).exact());
        if let Some(g) = self.gradient {
            visit(Operand::write("x_grad", g.x_grad));
            g.weight_grad.into_iter().for_each(|r| visit(Operand::sum("weight_grad", r, g.accumulate)));
        }
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, d, vocabulary) = (self.x.rows(), self.x.columns(), self.weight.rows());
        self.expect(self.weight.columns() == d && (1..=vocabulary).contains(&self.ids), "weight")?;
        self.expect(self.bias.is_none_or(|b| b.elements() == u64::from(vocabulary)), "bias")?;
        self.expect(self.softcap >= 0.0 && self.softcap.is_finite(), "softcap")?;
        self.expect(self.targets.elements() == u64::from(rows), "targets")?;
        self.expect(self.logits.columns() == vocabulary && self.logits.rows() > 0, "logits")?;
        self.expect(self.losses.elements() == u64::from(rows), "losses")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")?;
        let fits =
            |p: &IntegerProduct| self.gradient.is_none() && p.x_scales.is_some() && p.fits(&self.x, &self.weight);
        self.expect(self.integer.as_ref().is_none_or(fits), "integer")?;
        if let Some(g) = &self.gradient {
            self.expect(g.x_grad.rows() == rows && g.x_grad.columns() == d, "x_grad")?;
            let fits = |w: Region| w.rows() == vocabulary && w.columns() == d;
            self.expect(g.weight_grad.is_none_or(fits), "weight_grad")?;
        }
        Ok(())
    }

    fn flops(&self) -> u64 {
        let products = match self.gradient {
            Some(HeadGrad { weight_grad: Some(_), .. }) => 3,
            Some(_) => 2,
            None => 1,
        };
        count(&[2, products, self.x.rows().into(), self.weight.elements()])
    }

    fn flops_8bit(&self) -> u64 {
        if self.integer.is_some() { self.flops() } else { 0 }
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            x = Some(self.x),
            weight = Some(self.weight),
            bias = self.bias,
            targets = Some(self.targets),
            mut logits = Some(self.logits),
            mut losses = Some(self.losses),
            settings = Some(self.settings),
            mut results = Some(self.results),
            mut x_grad = self.gradient.map(|g| g.x_grad),
            mut weight_grad = self.gradient.and_then(|g| g.weight_grad),
            x_scales = self.integer.and_then(|p| p.x_scales),
            scales = self.integer.map(|p| p.weight.scales),
        );
        let integers = match self.integer {
            Some(product) => Some(IntegerRows::new(self.weight, product.weight, &weight, &scales)?),
            None => None,
        };
        let (x, x_codes) = if integers.is_some() { (&[][..], x.i8()?) } else { (x.f32()?, &[][..]) };
        let weight = if integers.is_some() { &[] } else { weight.f32()? };
        let (d, vocabulary) = (self.x.columns() as usize, self.weight.rows() as usize);
        let scale = Settings::from_slice(settings.f32()?)?.loss_scale;
        if self.gradient.is_some_and(|g| !g.accumulate) {
            weight_grad.f32_mut()?.fill(0.0);
        }
        for (r, &target) in targets.u32()?.iter().enumerate() {
            // The gradients of all rows stay where there is room for them; otherwise every row overwrites the same
            // slot.
            let keeps = self.gradient.is_some_and(|g| g.weight_grad.is_none()) && self.logits.rows() >= self.x.rows();
            let all = &mut logits.f32_mut()?[if keeps { r * vocabulary } else { 0 }..][..vocabulary];
            if target == IGNORE {
                losses.f32_mut()?[r] = 0.0;
                all.fill(0.0);
                x_grad.f32_mut()?.iter_mut().skip(r * d).take(d).for_each(|g| *g = 0.0);
                continue;
            }
            let (logits, padding) = all.split_at_mut(self.ids as usize);
            if let Some(weight) = &integers {
                let (x, scale) = (&x_codes[r * d..][..d], x_scales.f32()?[r]);
                for (v, z) in logits.iter_mut().enumerate() {
                    *z = weight.row(v).ok_or(self.misfit("weight"))?.dot(x, scale);
                }
            } else {
                let x = &x[r * d..][..d];
                logits.iter_mut().zip(weight.chunks_exact(d)).for_each(|(z, w)| *z = dot(x, w));
            }
            for (z, bias) in logits.iter_mut().zip(bias.f32()?) {
                *z += bias;
            }
            if self.softcap > 0.0 {
                logits.iter_mut().for_each(|z| *z = softcap(*z, self.softcap));
            }
            padding.fill(0.0);
            let (largest, at_target) = (max(logits), logits[target as usize]);
            logits.iter_mut().for_each(|z| *z = libm::expf(*z - largest));
            let total = sum(logits);
            losses.f32_mut()?[r] = largest + libm::logf(total) - at_target;
            if self.gradient.is_none() {
                continue;
            }
            // d loss / d logit = probability − [v = target].
            logits.iter_mut().for_each(|z| *z *= scale / total);
            logits[target as usize] -= scale;
            let x = &x[r * d..][..d];
            let dx = &mut x_grad.f32_mut()?[r * d..][..d];
            dx.fill(0.0);
            for (v, (dz, w)) in logits.iter_mut().zip(weight.chunks_exact(d)).enumerate() {
                if self.softcap > 0.0 {
                    // The logit was overwritten with its exponential, so it is computed again.
                    let z = dot(x, w) + bias.f32()?.get(v).unwrap_or(&0.0);
                    *dz *= softcap_derivative(z, self.softcap);
                }
                let dz = *dz;
                axpy(dz, w, dx);
                if let Some(to) = weight_grad.f32_mut()?.get_mut(v * d..(v + 1) * d) {
                    axpy(dz, x, to);
                }
            }
        }
        let results = Results::from_slice_mut(results.f32_mut()?)?;
        let before = if self.add_loss { results.loss } else { 0.0 };
        results.loss = before + scale * sum(losses.f32()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    fn case(b: &mut Bench<4096>, targets: &[u32]) -> HeadLoss {
        let rows = targets.len() as u32;
        HeadLoss {
            x: b.normal([1, 1, rows, 6], 1, 1.0),
            weight: b.normal([1, 1, 9, 6], 2, 1.0),
            bias: None,
            softcap: 0.0,
            ids: 9,
            targets: b.ids(targets),
            logits: b.poison([1, 1, 2, 9]),
            losses: b.poison([1, 1, 1, rows]),
            settings: b.settings(Settings { loss_scale: 0.25, ..Settings::default() }),
            results: b.results(Results { loss: 7.0, squared_norm: 0.0 }),
            add_loss: false,
            gradient: None,
            integer: None,
        }
    }

    #[test]
    fn losses_agree_with_f64_and_ignored_rows_have_none() {
        // With the cap, most of these logits change a lot.
        [0.0, 2.0].into_iter().for_each(losses_agree_with_f64);
    }

    fn losses_agree_with_f64(softcap: f32) {
        let mut b = Bench::<4096>::new();
        let op = HeadLoss { softcap, ..case(&mut b, &[3, IGNORE, 8, 0, 3]) };
        b.run(op);
        let mut total = 0.0;
        for (r, target) in [3, IGNORE, 8, 0, 3].into_iter().enumerate() {
            let mut expected = 0.0;
            if target != IGNORE {
                let z = |b: &mut Bench<4096>, v: usize| -> f64 {
                    let x = |b: &mut Bench<4096>, i| f64::from(b.get(op.x)[r * 6 + i]);
                    let z = (0..6).map(|i| x(b, i) * f64::from(b.get(op.weight)[v * 6 + i])).sum();
                    let cap = f64::from(softcap);
                    if cap > 0.0 { cap * libm::tanh(z / cap) } else { z }
                };
                let sum: f64 = (0..9).map(|v| libm::exp(z(&mut b, v))).sum();
                expected = libm::log(sum) - z(&mut b, target as usize);
            }
            approx::assert_relative_eq!(f64::from(b.get(op.losses)[r]), expected, epsilon = 1e-5);
            total += expected;
        }
        let loss = |b: &mut Bench<4096>| f64::from(Results::from_slice(b.get(op.results)).unwrap().loss);
        approx::assert_relative_eq!(loss(&mut b), 0.25 * total, epsilon = 1e-5);
        b.run(HeadLoss { add_loss: true, ..op });
        approx::assert_relative_eq!(loss(&mut b), 0.5 * total, epsilon = 1e-5);
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        [0.0, 2.0, 30.0].into_iter().for_each(gradients_agree);
    }

    fn gradients_agree(softcap: f32) {
        let mut b = Bench::<4096>::new();
        let forward = HeadLoss { softcap, ..case(&mut b, &[3, IGNORE, 8, 0, 3]) };
        let (x_grad, weight_grad) = (b.poison([1, 1, 5, 6]), b.poison([1, 1, 9, 6]));
        b.run(HeadLoss {
            gradient: Some(HeadGrad { x_grad, weight_grad: Some(weight_grad), accumulate: false }),
            ..forward
        });
        let scale = b.values([1, 1, 1, 5], &[0.25; 5]);
        b.check_gradient(forward, forward.x, x_grad, forward.losses, scale);
        b.check_gradient(forward, forward.weight, weight_grad, forward.losses, scale);
    }

    #[test]
    fn padding_has_no_probability_and_no_gradient() {
        let mut b = Bench::<4096>::new();
        let padded = HeadLoss { ids: 7, ..case(&mut b, &[3, IGNORE, 6, 0, 3]) };
        let gradient = |b: &mut Bench<4096>, rows| {
            let weight_grad = Some(b.poison([1, 1, rows, 6]));
            Some(HeadGrad { x_grad: b.poison([1, 1, 5, 6]), weight_grad, accumulate: false })
        };
        let padded = HeadLoss { gradient: gradient(&mut b, 9), ..padded };
        let exact = HeadLoss {
            weight: padded.weight.slice_rows(0, 7),
            logits: b.poison([1, 1, 2, 7]),
            losses: b.poison([1, 1, 1, 5]),
            gradient: gradient(&mut b, 7),
            ..padded
        };
        b.run(padded);
        b.run(exact);
        let losses: [f32; 5] = b.get(exact.losses).try_into().unwrap();
        assert_eq!(b.get(padded.losses), losses);
        let (padded, exact) = (padded.gradient.unwrap(), exact.gradient.unwrap());
        let x_grad: [f32; 30] = b.get(exact.x_grad).try_into().unwrap();
        assert_eq!(b.get(padded.x_grad), x_grad);
        let weight_grad: [f32; 42] = b.get(exact.weight_grad.unwrap()).try_into().unwrap();
        assert_eq!(b.get(padded.weight_grad.unwrap())[..42], weight_grad);
        assert_eq!(b.get(padded.weight_grad.unwrap())[42..], [0.0; 12]);
        // A padded id must not be a target, and the number of ids must not exceed the weight's rows.
        let error = HeadLoss { ids: 10, ..case(&mut b, &[3]) }.validate();
        assert_eq!(error, Err(OperationError::Shape { operation: "head_loss", operand: "weight" }));
        for softcap in [-1.0, f32::INFINITY, f32::NAN] {
            let error = HeadLoss { softcap, ..case(&mut b, &[3]) }.validate();
            assert_eq!(error, Err(OperationError::Shape { operation: "head_loss", operand: "softcap" }));
        }
    }

    #[test]
    fn a_bias_counts_and_without_a_weights_gradient_the_logits_keep_theirs() {
        [0.0, 2.0].into_iter().for_each(a_bias_counts);
    }

    fn a_bias_counts(softcap: f32) {
        let mut b = Bench::<4096>::new();
        let targets = [3, IGNORE, 8, 0, 3];
        let op = HeadLoss {
            softcap,
            bias: Some(b.normal([1, 1, 1, 9], 7, 1.0)),
            logits: b.poison([1, 1, 5, 9]),
            ..case(&mut b, &targets)
        };
        let x_grad = b.poison([1, 1, 5, 6]);
        b.run(HeadLoss { gradient: Some(HeadGrad { x_grad, weight_grad: None, accumulate: false }), ..op });
        let dz: [f32; 45] = b.get(op.logits).try_into().unwrap();
        let scale = b.values([1, 1, 1, 5], &[0.25; 5]);
        b.check_gradient(op, op.x, x_grad, op.losses, scale);
        // With one chunk at a time the input's gradient is the same.
        let whole: [f32; 30] = b.get(x_grad).try_into().unwrap();
        let chunk = b.poison([1, 1, 2, 9]);
        let gradient = Some(HeadGrad { x_grad, weight_grad: None, accumulate: false });
        b.run(HeadLoss { gradient, logits: chunk, ..op });
        assert_eq!(b.get(x_grad), whole);
        // The gradient of a bias is the column sum of the logits' gradient.
        let mut sums = [0.0; 9];
        dz.iter().enumerate().for_each(|(i, dz)| sums[i % 9] += dz);
        let sums = b.values([1, 1, 1, 9], &sums);
        b.check_gradient(op, op.bias.unwrap(), sums, op.losses, scale);
    }
}
