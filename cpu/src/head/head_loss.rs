//! The output head and its loss, a chunk of rows at a time: logits, softmax in place, and the matrix multiplications of
//! both gradients.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{HeadLoss, IGNORE, IntegerRows};
use capful_core::train::{Results, Settings};
use capful_core::views;

use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::product::integer::{self, Codes};
use crate::simd;
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// A softmax task takes rows of about this many logits together.
const LOGITS: usize = 8192;

impl OnCpu for HeadLoss {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        let [rows, d, vocabulary] = [self.x.rows(), self.x.columns(), self.weight.rows()].map(|n| n as usize);
        let chunk = rows.min(self.logits.rows() as usize);
        let len = |m, n, k| gemm::scratch_len(m, n, k, profile.workers());
        let forward = len(chunk, vocabulary, d);
        if self.integer.is_some() {
            return 0;
        }
        bytes(match self.gradient {
            Some(_) => forward.max(len(chunk, d, vocabulary)).max(len(vocabulary, d, chunk)),
            None => forward,
        })
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
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
            mut scratch = Some(cpu.scratch),
            x_scales = self.integer.and_then(|p| p.x_scales),
            scales = self.integer.map(|p| p.weight.scales),
        );
        let [rows, d, vocabulary] = [self.x.rows(), self.x.columns(), self.weight.rows()].map(|n| n as usize);
        let (bias, targets, scratch) = (bias.f32()?, targets.u32()?, scratch.f32_mut()?);
        let integers = match &self.integer {
            Some(product) => {
                let weight = IntegerRows::new(self.weight, product.weight, &weight, &scales)?;
                Some((weight, Codes { codes: x.i8()?, scales: x_scales.f32()?, inputs: d }))
            }
            None => None,
        };
        let (x, weight) = if integers.is_some() { (&[][..], &[][..]) } else { (x.f32()?, weight.f32()?) };
        let weight = Matrix::new(weight, weight.len() / d.max(1), d);
        let scale = Settings::from_slice(settings.f32()?)?.loss_scale;
        let (ids, cap, gradient_scale) = (self.ids as usize, self.softcap, self.gradient.map(|_| scale));
        let (chunk, together) = (self.logits.rows() as usize, (LOGITS / vocabulary.max(1)).max(1));
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let (own, inputs) = (first..first + count, first * d..(first + count) * d);
            let logits = &mut logits.f32_mut()?[..count * vocabulary];
            let x = Matrix::new(x.get(inputs.clone()).unwrap_or_default(), if x.is_empty() { 0 } else { count }, d);
            match &integers {
                Some((weight, all)) => {
                    let own = Codes { codes: &all.codes[inputs.clone()], scales: &all.scales[own.clone()], ..*all };
                    let store = |_, _, z: &[f32], to: &mut [f32]| to.copy_from_slice(z);
                    integer::product(&mut cpu.pool, own, weight, logits, vocabulary, store);
                }
                None => {
                    let to = MatrixMut::new(logits, count, vocabulary);
                    gemm::product(&mut cpu.pool, x, weight.transposed(), to, Update::Overwrite, scratch, |_, _| {});
                }
            }
            let bands = [(&mut *logits, together * vocabulary), (&mut losses.f32_mut()?[own], together)];
            cpu.pool.bands(bands, |_, band, [logits, losses]| {
                let targets = &targets[first + band * together..];
                for ((row, loss), &target) in logits.chunks_exact_mut(vocabulary).zip(losses).zip(targets) {
                    simd::add(bias, &mut row[..bias.len()]);
                    *loss = cross_entropy(row, ids, target, cap, gradient_scale);
                }
            });
            let Some(gradient) = self.gradient else { continue };
            let logits = Matrix::new(logits, count, vocabulary);
            let dx = MatrixMut::new(&mut x_grad.f32_mut()?[inputs], count, d);
            gemm::product(&mut cpu.pool, logits, weight, dx, Update::Overwrite, scratch, |_, _| {});
            if gradient.weight_grad.is_none() {
                continue;
            }
            let update = if gradient.accumulate || first > 0 { Update::Accumulate } else { Update::Overwrite };
            let dw = MatrixMut::new(weight_grad.f32_mut()?, vocabulary, d);
            gemm::product(&mut cpu.pool, logits.transposed(), x, dw, update, scratch, |_, _| {});
        }
        let results = Results::from_slice_mut(results.f32_mut()?)?;
        let before = if self.add_loss { results.loss } else { 0.0 };
        results.loss = before + scale * simd::sum(losses.f32()?);
        Ok(())
    }
}

/// The loss of a row of logits. Only the first `ids` logits count; `cap` caps them unless it is 0. With
/// `gradient_scale` the row is overwritten with the loss's gradient times that scale, otherwise its content is lost.
fn cross_entropy(row: &mut [f32], ids: usize, target: u32, cap: f32, gradient_scale: Option<f32>) -> f32 {
    if target == IGNORE {
        row.fill(0.0);
        return 0.0;
    }
    let (row, padding) = row.split_at_mut(ids);
    if cap > 0.0 {
        simd::softcap(row, cap);
    }
    let (largest, at_target) = (simd::max(row), row[target as usize]);
    // The gradient of a capped logit needs both the logit and its exponential.
    let keeps = cap > 0.0 && gradient_scale.is_some();
    let total = if keeps { simd::sum_of_exp(row, largest) } else { simd::exp_and_sum(row, largest) };
    if let Some(scale) = gradient_scale {
        // d loss / d logit = probability − [v = target], capped times 1 − (logit / cap)².
        if keeps {
            simd::exp_and_softcap_gradient(row, largest, scale / total, cap);
            let share = at_target / cap;
            row[target as usize] -= scale * (1.0 - share * share);
        } else {
            simd::scale(row, scale / total);
            row[target as usize] -= scale;
        }
        padding.fill(0.0);
    }
    largest + libm::logf(total) - at_target
}
