//! The f32 masters of a range of parameters, in any of their storage forms.

use core::ops::Range;

#[cfg(feature = "compressed")]
use crate::memory::Dtype;
use crate::memory::{ArenaError, View};
use crate::optimizer::Group;
#[cfg(feature = "compressed")]
use crate::random::Random;
use crate::remainder;
use crate::train::Results;

/// Parameters that an update reads and writes as f32.
pub(super) enum Masters<'v> {
    /// f32 weights, which are their own masters.
    Whole(&'v mut [f32]),
    /// bf16 weights with remainders of 16 bits.
    Split(&'v mut [u16], &'v mut [i16]),
    /// bf16 weights with remainders of 8 bits.
    #[cfg(feature = "compressed")]
    Short(&'v mut [u16], &'v mut [i8]),
    /// bf16 weights alone, rounded stochastically; the number is the index of the first weight.
    #[cfg(feature = "compressed")]
    Dithered(&'v mut [u16], Dither, u64),
}

/// The random numbers that round weights without masters, for a step and a group of parameters. Loss and norm identify
/// the step, so there is no state, and a resumed run draws the same numbers.
#[derive(Clone, Copy)]
pub(super) struct Dither(#[cfg(feature = "compressed")] Random);

impl Dither {
    /// The random numbers of this step.
    #[cfg(feature = "compressed")]
    pub fn of(results: &Results, group: Group) -> Dither {
        let Results { loss, squared_norm } = *results;
        let seed = u64::from(loss.to_bits()) | u64::from(squared_norm.to_bits()) << 32;
        Dither(Random::new(seed, group.index() as u64))
    }

    /// None: this build has no weights without masters.
    #[cfg(not(feature = "compressed"))]
    pub const fn of(_: &Results, _: Group) -> Dither {
        Dither()
    }

    /// The number for element i: a word has two.
    #[cfg(feature = "compressed")]
    fn at(self, i: u64) -> u16 {
        let word = self.0.block(i / 8)[(i % 8 / 2) as usize];
        (word >> (16 * (i % 2))) as u16
    }
}

impl<'v> Masters<'v> {
    /// The masters of `weight` and its `remainder`, which is a view without a region where there is none.
    ///
    /// # Errors
    /// The error for regions of other types.
    pub fn of(
        weight: &'v mut View<'_>,
        remainder: &'v mut View<'_>,
        #[cfg_attr(not(feature = "compressed"), allow(unused_variables))] dither: Dither,
    ) -> Result<Masters<'v>, ArenaError> {
        match remainder.is_none() {
            #[cfg(feature = "compressed")]
            true if weight.is_of(Dtype::Bf16) => Ok(Self::Dithered(weight.bf16_mut()?, dither, 0)),
            true => Ok(Self::Whole(weight.f32_mut()?)),
            #[cfg(feature = "compressed")]
            false if remainder.is_of(Dtype::Remainder8) => {
                Ok(Self::Short(weight.bf16_mut()?, remainder.remainders8_mut()?))
            }
            false => Ok(Self::Split(weight.bf16_mut()?, remainder.remainders_mut()?)),
        }
    }

    /// Master i; 0 out of range.
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
            #[cfg(feature = "compressed")]
            Self::Dithered(weights, ..) => weights.get(i).map_or(0.0, |w| remainder::join(*w, 0)),
        }
    }

    /// The masters in `range`; `None` out of range.
    pub fn part(&mut self, range: Range<usize>) -> Option<Masters<'_>> {
        match self {
            Self::Whole(weights) => weights.get_mut(range).map(Masters::Whole),
            Self::Split(weights, lacks) => Some(Masters::Split(weights.get_mut(range.clone())?, lacks.get_mut(range)?)),
            #[cfg(feature = "compressed")]
            Self::Short(weights, lacks) => Some(Masters::Short(weights.get_mut(range.clone())?, lacks.get_mut(range)?)),
            #[cfg(feature = "compressed")]
            Self::Dithered(weights, dither, first) => {
                let first = *first + range.start as u64;
                Some(Masters::Dithered(weights.get_mut(range)?, *dither, first))
            }
        }
    }

    /// Replaces every master w with `new(i, w)`.
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
            #[cfg(feature = "compressed")]
            Self::Dithered(weights, dither, first) => {
                for (i, w) in weights.iter_mut().enumerate() {
                    *w = remainder::dithered(new(i, remainder::join(*w, 0)), dither.at(*first + i as u64));
                }
            }
        }
    }

    /// The value of x after it is stored and read back.
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
            // Averages are taken of masters only.
            #[cfg(feature = "compressed")]
            Self::Dithered(..) => x,
        }
    }
}
