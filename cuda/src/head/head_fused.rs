//! The output head without logits in memory: losses and gradients are computed from tiles that stay on the chip.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::HeadLoss;

use crate::arguments::FusedHeadArgs;
use crate::device::{Cuda, blocks, reduced};

/// Rows and columns of a tile of scores, and the largest width.
const TILE: u32 = 128;
/// Threads of a block, and its shared memory: five tiles of rows in bf16, and two words for each row of four of these
/// tiles.
const THREADS: u32 = 384;
const ROOM: u32 = 5 * TILE * TILE * 2 + 4 * TILE * 8;

/// The largest cap C for which exp(-2 C) is a normal number.
const MOST_CAP: f32 = 40.0;

impl Cuda {
    /// Whether the head runs fused: in bf16, with the warpgroup kernels, where the blocks keep at least half of the GPU
    /// busy. Its two kernels compute four matrix multiplications in half the time of three multiplications with logits
    /// in memory.
    pub(crate) fn fuses_head(&self, o: &HeadLoss) -> bool {
        let mut activations = [Some(o.x), Some(o.weight), o.gradient.map(|g| g.x_grad)].into_iter().flatten();
        let [rows, ids, d] = [o.x.rows(), o.ids, o.x.columns()];
        let possible = self.hardware.warpgroups
            && activations.all(|r| r.dtype == Dtype::Bf16 && r.offset.is_multiple_of(16))
            && d.is_multiple_of(8)
            && d <= TILE
            && o.bias.is_none()
            && o.softcap <= MOST_CAP
            && o.integer.is_none()
            && o.gradient.is_none_or(|g| g.weight_grad.is_some());
        let [row_tiles, id_tiles] = [rows, ids].map(|n| blocks(n.into(), TILE));
        let time = |own: u32, others: u32| u64::from(own.div_ceil(self.hardware.multiprocessors)) * u64::from(others);
        let kernels = if o.gradient.is_some() { 2 } else { 1 };
        let taken = time(row_tiles, id_tiles) + if kernels == 2 { time(id_tiles, row_tiles) } else { 0 };
        let tile = u64::from(TILE * TILE) * u64::from(self.hardware.multiprocessors);
        possible && taken * tile <= 2 * kernels * u64::from(rows) * u64::from(ids)
    }

    /// Computes the losses of all rows, and the gradients.
    pub(crate) fn fused_head(&mut self, o: &HeadLoss) -> Result<(), OperationError> {
        let (rows, gradient) = (o.x.rows(), o.gradient);
        let arguments = FusedHeadArgs {
            x: self.address(o.x)?,
            weight: self.address(o.weight)?,
            targets: self.address(o.targets)?,
            losses: self.address(o.losses)?,
            log_sums: self.scratch_at(0, 4 * u64::from(rows))?,
            x_grad: self.address_or_null(gradient.map(|g| g.x_grad))?,
            weight_grad: self.address_or_null(gradient.and_then(|g| g.weight_grad))?,
            settings: self.address(o.settings)?,
            rows,
            vocabulary: o.weight.rows(),
            ids: o.ids,
            d: o.x.columns(),
            accumulate: gradient.is_some_and(|g| g.accumulate).into(),
            softcap: o.softcap,
            reduced: gradient.and_then(|g| g.weight_grad).map_or(0, |w| reduced(w.dtype)),
        };
        let mut launch = |kernel: &str, own: u32| {
            self.launch_with("head_fused", kernel, [blocks(own.into(), TILE), 1, 1], THREADS, ROOM, &arguments)
        };
        let name = if o.softcap > 0.0 { "head_fused_capped" } else { "head_fused" };
        if gradient.is_none() {
            return launch(&format!("{name}_evaluation"), rows);
        }
        launch(name, rows)?;
        launch(&format!("{name}_weight"), o.weight.rows())
    }
}
