//! The norm of queries and keys: a task takes some rows.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::QkNorm;

use crate::simd::{self, vectorise};
use crate::{Cpu, OnCpu};

/// Rows of a task.
const ROWS: usize = 16;

impl OnCpu for QkNorm {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([query_gain, key_gain], [qkv, raw, stats]) =
            arena.f32s([Some(self.query_gain), Some(self.key_gain)], [Some(self.qkv), self.raw, self.stats])?;
        let (heads, eps, normed) = (self.heads, self.eps, self.heads.normed() as usize);
        let (size, width) = (heads.size as usize, heads.width() as usize);
        let bands = [(qkv, ROWS * width), (raw, ROWS * normed * size), (stats, ROWS * normed)];
        cpu.pool.bands(bands, |_, _, [qkv, raw, stats]| {
            vectorise!({
                for (r, row) in qkv.chunks_exact_mut(width).enumerate() {
                    for h in 0..normed {
                        let head = &mut row[heads.query_or_key(h as u32)..][..size];
                        let at = r * normed + h;
                        if let Some(raw) = raw.get_mut(at * size..(at + 1) * size) {
                            raw.copy_from_slice(head);
                        }
                        let scale = 1.0 / (simd::dot(head, head) / size as f32 + eps).sqrt();
                        if let Some(stat) = stats.get_mut(at) {
                            *stat = scale;
                        }
                        let gain = if h < heads.queries as usize { query_gain } else { key_gain };
                        for (x, g) in head.iter_mut().zip(gain) {
                            *x = *x * scale * g;
                        }
                    }
                }
            },);
        });
        Ok(())
    }
}
