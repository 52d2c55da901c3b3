//! The test cases of all operations, of odd shapes and sizes. Every device is compared with core's Reference by these
//! cases.

#![allow(missing_docs, reason = "the name of a case says what it tests")]

pub mod attention;
pub mod decoding;
pub mod embedding;
pub mod head;
pub mod lay;
pub mod norm;
pub mod optimizer;
pub mod pointwise;
pub mod product;
pub mod ranks;
#[cfg(feature = "neurogen")]
pub mod spiking;

use capful_core::device::Operation;
use capful_core::memory::Region;
use capful_core::random::Random;
use capful_core::train::Settings;

pub use lay::Lay;

/// A device to compare with the Reference.
pub trait Witness {
    /// Runs the operation that `build` lays out on both, in every precision of the device. In f32 an operand may differ
    /// by at most 1e-5 of its norm, and an element by 32 times that; [exact](Operation::EXACT) operations must agree
    /// exactly.
    fn case<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O);

    /// Announces cases of matrix multiplication, to be run by each of the device's implementations.
    fn by_all_products(&mut self) {}

    /// Announces cases of attention, to be run with each of the device's kernels.
    fn by_all_attention(&mut self) {}
}

/// All cases, each a test of `$device`.
#[macro_export]
macro_rules! tests {
    ($device:ty) => {
        $crate::spiking_tests!($device);
        $crate::tests! { $device:
            attention {
                attention_and_its_gradient
                attention_inside_documents
                scores_far_apart_do_not_overflow
                cached_attention
                queries_and_keys_are_turned
            }
            decoding { most_likely drawn_tokens_are_those_of_the_sampler }
            embedding { embed_and_its_gradient values_from_tables_and_their_gradients }
            head {
                head_loss_and_its_gradients
                a_padded_vocabulary
                long_rows_of_logits
                capped_logits
                a_head_with_a_bias_keeps_its_logits_gradient
            }
            norm { norm_and_its_gradient the_norm_of_queries_and_keys_and_its_gradient }
            optimizer {
                squared_norm
                norms_of_pieces_and_their_sum
                rules_with_and_without_remainders
                rules_with_states_in_8_bits
                matrices_with_factored_moments
                matrices_are_gathered_and_moved
                a_decoder_is_updated_tile_by_tile
                an_embedding_is_updated_where_it_was_used
                averages_and_their_exchange_with_the_weights
            }
            pointwise {
                gelu
                swiglu_and_its_gradient
                swiglu_far_out_is_a_number
                regions_are_carried
                activations_in_8_bits_and_back
                numbers_are_dropped
                the_embedding_is_mixed_into_the_stream
            }
            product {
                linear_with_everything_that_belongs_to_it
                logits_are_f32_in_every_precision
                a_row_in_f32_by_a_weight_in_the_precisions_type
                linear_grad_overwrites_and_accumulates
                weights_in_fewer_bits_are_their_numbers
                parts_are_spread_over_blocks_and_their_gradient
            }
            ranks { parts_are_added_with_the_reference_s_bits the_largest_of_parts }
        }
    };
    ($device:ty: $($folder:ident { $($case:ident)* })*) => {
        $(mod $folder {
            $(#[test]
            fn $case() {
                $crate::$folder::$case(&mut <$device>::new());
            })*
        })*
    };
}

/// The cases of spiking neurons, in a build that has them.
#[cfg(feature = "neurogen")]
#[doc(hidden)]
#[macro_export]
macro_rules! spiking_tests {
    ($device:ty) => {
        $crate::tests! { $device:
            spiking {
                taps_and_their_gradient
                signals_as_rows_and_back
                inhibitory_synapses
                spikes_are_the_references_to_the_bit
                gradients_of_neurons
                gradients_of_synapses
                gradients_of_synapses_sources
                the_readout_and_its_gradients
                the_memory_and_its_gradients
                dopamine_and_novelty
            }
        }
    };
}

/// No cases of spiking neurons.
#[cfg(not(feature = "neurogen"))]
#[doc(hidden)]
#[macro_export]
macro_rules! spiking_tests {
    ($device:ty) => {};
}

/// Settings that all differ, so that a confusion of two of them is detected.
const SETTINGS: Settings = Settings {
    learning_rate: 0.01,
    clip: 1.5,
    loss_scale: 0.125,
    factored: 0.1,
    corrections: [[0.2, 0.1], [0.3, 0.15], [0.4, 0.25], [0.5, 0.35], [0.6, 0.45]],
    decay: 0.7,
    average: 0.375,
};

/// The regions of [`SETTINGS`], and of results with this loss.
fn control(l: &mut Lay, loss: f32) -> [Region; 2] {
    [l.settings(SETTINGS), l.results(loss, 9.0)]
}

/// Numbers from 1 to `most`, the same in every run.
fn shapes<const N: usize>(seed: u64, count: u64, most: [u32; N]) -> Vec<[u32; N]> {
    let random = Random::new(seed, 7);
    (0..count)
        .map(|i| std::array::from_fn(|j| 1 + random.below(i * N as u64 + j as u64, u64::from(most[j])) as u32))
        .collect()
}

/// Whole numbers below `below`, the same in every run.
pub fn drawn(seed: u64, count: u32, below: u32) -> Vec<u32> {
    let random = Random::new(seed, 9);
    (0..u64::from(count)).map(|i| random.below(i, below.into()) as u32).collect()
}

const fn vector(columns: u32) -> [u32; 4] {
    matrix(1, columns)
}

/// A shape.
pub const fn matrix(rows: u32, columns: u32) -> [u32; 4] {
    [1, 1, rows, columns]
}
