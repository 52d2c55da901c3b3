//! The f32 masters of a range of parameters, in whichever form they are kept.

use core::ops::Range;

#[cfg(feature = "compressed")]
use crate::memory::Dtype;
use crate::memory::{ArenaError, View};
use crate::remainder;

/// Parameters that an update reads and writes as f32.
pub(super) enum Masters<'v> {
    /// They are f32 themselves.
    Whole(&'v mut [f32]),
    /// They are bf16, with what those lack.
    Split(&'v mut [u16], &'v mut [i16]),
    /// They are bf16, with 8 bits of what those lack.
    #[cfg(feature = "compressed")]
    Short(&'v mut [u16], &'v mut [i8]),
}

impl<'v> Masters<'v> {
    /// Those of `weight` and its `remainder`, which is a view of nothing where there is none.
    ///
    /// # Errors
    /// Regions of other types.
    pub fn of(weight: &'v mut View<'_>, remainder: &'v mut View<'_>) -> Result<Masters<'v>, ArenaError> {
        match remainder.is_none() {
            true => Ok(Self::Whole(weight.f32_mut()?)),
            #[cfg(feature = "compressed")]
            false if remainder.is_of(Dtype::Remainder8) => {
                Ok(Self::Short(weight.bf16_mut()?, remainder.remainders8_mut()?))
            }
            false => Ok(Self::Split(weight.bf16_mut()?, remainder.remainders_mut()?)),
        }
    }

    /// Master i; 0 where there are fewer.
    #[inline(always)]
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Self::Whole(weights) => weights.get(i).copied().unwrap_or(0.0),
            Self::Split(weights, lacks) => {
                weights.get(i).zip(lacks.get(i)).map_or(0.0, |(w, lack)| remainder::join(*w, *lack))
            }
            #[cfg(feature = "compressed")]
            Self::Short(weights, lacks) => {
                weights.get(i).zip(lacks.get(i)).map_or(0.0, |(w, lack)| remainder::join8(*w, *lack))
            }
        }
    }

    /// Some of them; nothing where there are fewer.
    pub fn part(&mut self, range: Range<usize>) -> Option<Masters<'_>> {
        match self {
            Self::Whole(weights) => weights.get_mut(range).map(Masters::Whole),
            Self::Split(weights, lacks) => Some(Masters::Split(weights.get_mut(range.clone())?, lacks.get_mut(range)?)),
            #[cfg(feature = "compressed")]
            Self::Short(weights, lacks) => Some(Masters::Short(weights.get_mut(range.clone())?, lacks.get_mut(range)?)),
        }
    }

    /// Puts `new(i, w)` in the place of every w.
    #[inline(always)]
    pub fn each(&mut self, mut new: impl FnMut(usize, f32) -> f32) {
        match self {
            Self::Whole(weights) => weights.iter_mut().enumerate().for_each(|(i, w)| *w = new(i, *w)),
            Self::Split(weights, lacks) => {
                for (i, (w, lack)) in weights.iter_mut().zip(lacks.iter_mut()).enumerate() {
                    (*w, *lack) = remainder::split(new(i, remainder::join(*w, *lack)));
                }
            }
            #[cfg(feature = "compressed")]
            Self::Short(weights, lacks) => {
                for (i, (w, lack)) in weights.iter_mut().zip(lacks.iter_mut()).enumerate() {
                    (*w, *lack) = remainder::split8(new(i, remainder::join8(*w, *lack)));
                }
            }
        }
    }

    /// What would be kept of x.
    #[inline(always)]
    pub fn kept(&self, x: f32) -> f32 {
        match self {
            Self::Whole(_) => x,
            Self::Split(..) => {
                let (weight, lack) = remainder::split(x);
                remainder::join(weight, lack)
            }
            #[cfg(feature = "compressed")]
            Self::Short(..) => {
                let (weight, lack) = remainder::split8(x);
                remainder::join8(weight, lack)
            }
        }
    }
}
