//! Initial values of regions, before the first step.

use crate::memory::{Init, Slot};
use crate::ops::Rotary;
use crate::random::{Random, stream};

/// The initial values of one layer of a slot. An element depends only on the seed, the slot's name, the layer and the
/// element's index: any part of a region can be written, in any order, by any thread, on any machine.
///
/// - [`Init::Normal`]: number i of the layer's stream times the deviation ([`Random::normal`]: Box-Muller over Philox);
/// - [`Init::Uniform`]: number i of that stream ([`Random::uniform`]) from −1 to 1, times the bound;
/// - [`Init::Rotary`]: cosines and sines of the positions' angles ([`Rotary::angle`]: Su et al. 2021);
/// - [`Init::One`], [`Init::Half`] and [`Init::Zero`]. Padded rows are zero too.
///
/// [`Init::Wiring`] stands for a table of u32, whose rows [`crate::wiring`] draws; here it gives zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstValues {
    init: Init,
    shape: [u32; 4],
    elements: u64,
    random: Random,
}

impl FirstValues {
    /// The initial values of layer `layer` of `slot` under `seed`. Each layer has its own random stream, whose number
    /// is the hash of the name plus the layer. A weight and its master share a name, so they begin alike.
    pub const fn new(slot: &Slot, layer: u32, seed: u64) -> FirstValues {
        let random = Random::new(seed, stream(slot.name).wrapping_add(layer as u64));
        FirstValues { init: slot.init, shape: slot.shape, elements: slot.elements(), random }
    }

    /// Element `i` of the region.
    pub fn at(&self, i: u64) -> f32 {
        if i >= self.elements {
            return 0.0;
        }
        match self.init {
            Init::Zero | Init::Wiring { .. } => 0.0,
            Init::One => 1.0,
            Init::Half => 0.5,
            Init::Normal(deviation) => self.random.normal(i) * deviation,
            Init::Uniform(bound) => ((2.0 * self.random.uniform(i) - 1.0) * f64::from(bound)) as f32,
            Init::Rotary { base, scaling } => {
                let pairs = u64::from(self.shape[2]);
                let (position, pair) = (i / 2 / pairs, i / 2 % pairs);
                Rotary::angle(base, scaling, 2 * self.shape[2], position as u32, pair as u32)[(i % 2) as usize]
            }
        }
    }

    /// Writes the elements of the region from index `first` on: the whole region from 0, or a piece at a time.
    pub fn fill(&self, first: u64, elements: &mut [f32]) {
        (first..).zip(elements).for_each(|(i, element)| *element = self.at(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Dtype, Role};
    use crate::ops::RotaryScaling;

    /// Computed independently of this code from the papers' definitions: layers 0 and 1 under seed 42.
    const KNOWN: [[f32; 4]; 2] = [
        [-0.423_847, -0.846_351_4, -0.929_504_75, 0.165_202_96],
        [1.074_855_3, 0.579_333_25, 0.188_383_33, -0.238_444_15],
    ];

    fn values<const N: usize>(slot: &Slot, layer: u32) -> [f32; N] {
        let mut all = [f32::NAN; N];
        FirstValues::new(slot, layer, 42).fill(0, &mut all);
        all
    }

    fn slot(shape: [u32; 4], init: Init) -> Slot {
        Slot { init, ..Slot::new("layers.*.weight", Role::Weight, Dtype::F32, shape).layers(2) }
    }

    #[test]
    fn normal_numbers_are_known_and_a_layer_has_its_own() {
        let normal = slot([1, 1, 2, 2], Init::Normal(0.5));
        assert_eq!(values(&normal, 0), KNOWN[0]);
        assert_eq!(values(&normal, 1), KNOWN[1]);
        assert_eq!(values(&Slot { role: Role::Master, ..normal }, 1), KNOWN[1]);
        let other = values::<4>(&Slot { name: "embed.weight", ..normal }, 0);
        assert!(other.iter().zip(KNOWN[0]).all(|(a, b)| *a != b));
    }

    #[test]
    fn a_piece_has_the_values_of_the_whole() {
        let normal = slot([1, 1, 5, 3], Init::Normal(1.0));
        let (whole, mut pieces) = (values::<15>(&normal, 1), [0.0; 15]);
        for (first, piece) in (0..).step_by(4).zip(pieces.chunks_mut(4)) {
            FirstValues::new(&normal, 1, 42).fill(first, piece);
        }
        assert_eq!(whole, pieces);
    }

    #[test]
    fn uniform_numbers_fill_the_range_between_both_bounds() {
        let drawn = values::<4096>(&slot([1, 1, 64, 64], Init::Uniform(0.25)), 0);
        let (least, most) = drawn.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        assert!((-0.25..-0.249).contains(&least) && (0.249..0.25).contains(&most), "{least} {most}");
        let squares: f32 = drawn.iter().map(|x| x * x).sum();
        // The variance of the uniform distribution is b² / 3.
        assert!((squares / 4096.0 * 48.0 - 1.0).abs() < 0.05, "{squares}");
    }

    #[test]
    fn ones_stop_where_padding_begins() {
        let padded = Slot { parts: [2, 1, 0], ..slot([1, 1, 4, 2], Init::One) };
        assert_eq!(values(&padded, 0), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(values(&slot([1, 1, 1, 3], Init::Zero), 0), [0.0; 3]);
    }

    #[test]
    fn the_rotary_table_is_cosines_and_sines_by_position() {
        let init = Init::Rotary { base: 10_000.0, scaling: RotaryScaling::None };
        let found = values::<12>(&slot([1, 3, 2, 2], init), 0);
        for (i, found) in found.chunks_exact(2).enumerate() {
            // Two pairs of four dims: wavelengths of 2 π and 2 π · 100.
            let angle = (i / 2) as f64 * [1.0, 0.01][i % 2];
            assert_eq!(found, [libm::cos(angle) as f32, libm::sin(angle) as f32]);
        }
    }
}
