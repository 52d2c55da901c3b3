//! Attention of one new token: a task is a head, which reads its keys and values once, a few dozen at a time, with a
//! running softmax.

use capful_core::device::{Operation, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{CachedAttention, Rotary};

use super::tiles::Tiles;
use crate::simd::{self, vectorise};
use crate::{Cpu, OnCpu};

/// Keys between two updates of the largest score.
const KEYS: usize = 64;

impl OnCpu for CachedAttention {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [mut qkv, mut cache, cursor, table, mut out] = arena.views([
            Some(self.qkv),
            Some(self.cache),
            Some(self.cursor),
            Some(self.rotary.table),
            Some(self.out),
        ])?;
        let (heads, size, scale) = (self.rotary.heads, self.rotary.heads.size as usize, self.rotary.heads.scale());
        let (context, columns) = (self.cache.shape[2] as usize, self.cache.columns() as usize);
        let now = cursor.u32()?[0] as usize;
        self.expect(now < context, "cursor")?;
        let row = qkv.f32_mut()?;
        let turned = Rotary::rotate(&heads, table.f32()?, self.rotary.dims() as usize, now, row, false);
        turned.ok_or(self.misfit("rotary"))?;
        let (keys, values) = cache.f32_mut()?.split_at_mut(context * columns);
        for h in 0..heads.keys {
            let at = now * columns + h as usize * size;
            keys[at..at + size].copy_from_slice(&row[heads.key(h)..][..size]);
            values[at..at + size].copy_from_slice(&row[heads.value(h)..][..size]);
        }
        let (row, keys, values) = (&*row, &*keys, &*values);
        let tiles = Tiles::new(self.pattern, now + 1);
        cpu.pool.chunks(out.f32_mut()?, size, |_, h, out| {
            let query = &row[heads.query(h as u32)..][..size];
            let column = heads.key_of(h as u32) as usize * size;
            let (mut largest, mut total) = (f32::NEG_INFINITY, 0.0);
            out.fill(0.0);
            tiles.steps(&(now..now + 1), 0, |run| {
                for start in run.clone().step_by(KEYS) {
                    let at = |j: usize| (start + j) * columns + column;
                    let mut scores = [0.0; KEYS];
                    let scores = &mut scores[..KEYS.min(run.end - start)];
                    vectorise!({
                        for (j, score) in scores.iter_mut().enumerate() {
                            *score = simd::dot(query, &keys[at(j)..][..size]) * scale;
                        }
                        let before = largest;
                        largest = scores.iter().fold(before, |a, &s| if s > a { s } else { a });
                        if largest > before && before > f32::NEG_INFINITY {
                            let shrink = simd::exp(before - largest);
                            total *= shrink;
                            for x in out.iter_mut() {
                                *x *= shrink;
                            }
                        }
                        for (j, score) in scores.iter().enumerate() {
                            let weight = simd::exp(score - largest);
                            total += weight;
                            simd::axpy(weight, &values[at(j)..][..size], out);
                        }
                    },);
                }
            });
            let inverse = 1.0 / total;
            for x in out.iter_mut() {
                *x *= inverse;
            }
        });
        Ok(())
    }
}
