//! Tests of operations that apply to GPUs only: rows of NaN, kernels for certain shapes, weights in halves.

use capful_core::ops::{AdamW, Embed, EmbedGrad, Exchange, Moved, NormKind, Sgd};
use capful_core::optimizer::Group;
use capful_core::random::Random;
use capful_core::remainder;
use capful_core::train::Settings;

use super::bench::{Bench, share};
use crate::Precision;
use capful_witness::norm::{Form, norm_grad};
use capful_witness::optimizer::{adamw, average, in_halves, normal};
use capful_witness::{Lay, drawn};

/// The row of an id beyond the vocabulary is NaN, and its gradient is dropped. The memory after the tables contains
/// numbers here.
#[test]
fn ids_beyond_the_vocabulary_are_rows_of_nan_without_a_gradient() {
    let [rows, d, vocabulary] = [100, 128, 7];
    let ids: Vec<u32> =
        drawn(5, rows, vocabulary + 2).into_iter().map(|id| if id == 8 { u32::MAX } else { id }).collect();
    assert!(ids.contains(&7) && ids.contains(&u32::MAX));
    let numbers: Vec<f32> = (0..rows * d).map(|i| (i % 13) as f32).collect();
    let at = |row: usize| row * d as usize..(row + 1) * d as usize;
    let mut bench = Bench::new();
    for precision in [Precision::F32, Precision::Bf16] {
        let left = bench.left(precision, &|l: &mut Lay| Embed {
            out: l.poison([1, 1, rows, d]),
            table: l.normal([1, 1, vocabulary, d], 1.0),
            scales: None,
            ids: l.ids(ids.clone()),
        });
        for (row, id) in ids.iter().enumerate() {
            let found = &left[0][at(row)];
            match *id < vocabulary {
                true => assert_eq!(found, &left[1][at(*id as usize)]),
                false => assert!(found.iter().all(|x| x.is_nan()), "{precision:?}: id {id}"),
            }
        }
        let left = bench.left(precision, &|l: &mut Lay| EmbedGrad {
            table_grad: l.poison_exact([1, 1, vocabulary, d]),
            out_grad: l.values([1, 1, rows, d], numbers.clone()),
            ids: l.ids(ids.clone()),
            accumulate: false,
        });
        // Small integers have exact sums.
        let mut expected = vec![0.0; (vocabulary * d) as usize];
        for (row, id) in ids.iter().enumerate().filter(|(_, id)| **id < vocabulary) {
            expected[at(*id as usize)].iter_mut().zip(&numbers[at(row)]).for_each(|(sum, x)| *sum += x);
        }
        assert!(left[0] == expected && left[1] == numbers, "{precision:?}");
    }
}

/// With one to four vectors of a row for each lane, and with more rows than a warp has moments for at once.
#[test]
fn the_gradient_of_layer_norm_reads_all_once() {
    let mut bench = Bench::new();
    for size in share(vec![[257, 24], [65, 512], [130, 768], [70, 1000], [3, 256], [65_700, 8]]) {
        for two in [false, true] {
            bench.agree_in(Precision::Bf16, 4e-3, &|l: &mut Lay| {
                norm_grad(l, Form::of(NormKind::Layer, two), size, two)
            });
        }
    }
}

/// The results of AdamW for f32 weights, and for bf16 weights with remainders, both as such pairs.
fn moved(bench: &mut Bench, build: &impl Fn(&mut Lay) -> AdamW) -> [Vec<(u16, i16)>; 2] {
    let alone = bench.left(Precision::F32, build);
    let both = bench.left(Precision::Bf16, build);
    let (remainders, others) = both.split_last().expect("the remainders are last");
    assert!(alone[1..] == others[1..], "other moments");
    let halves = both[0].iter().zip(remainders);
    let halves = halves.map(|(w, r)| ((w.to_bits() >> 16) as u16, *r as i16));
    [alone[0].iter().map(|w| remainder::split(*w)).collect(), halves.collect()]
}

#[test]
fn a_bf16_weight_and_its_remainder_are_the_f32_that_moves_alone() {
    let mut bench = Bench::new();
    // Whole vectors of eight, and a remainder.
    for count in [7, 1000, 70_003] {
        let mut values: Vec<f32> =
            normal(count).iter().map(|x| remainder::split(*x)).map(|(w, r)| remainder::join(w, r)).collect();
        for _ in 0..5 {
            let [expected, found] = moved(&mut bench, &|l| adamw(l, &values, true, 9.0));
            assert!(found == expected, "{count}");
            let next: Vec<f32> = found.iter().map(|(w, r)| remainder::join(*w, *r)).collect();
            // Of 70,000 weights one may have a decay that cancels its update.
            let still = next.iter().zip(&values).filter(|(a, b)| a == b).count();
            assert!(still <= 1, "{count}: {still} weights did not move");
            values = next;
        }
    }
}

/// Among the values are some halfway between two bf16.
#[test]
fn averages_of_bf16_weights_are_those_of_their_masters_and_can_be_exchanged() {
    let mut bench = Bench::new();
    let split = |x: &f32| remainder::split(*x);
    let joined = |x: &f32| remainder::join(split(x).0, split(x).1);
    for count in [7, 70_003] {
        let mut values: Vec<f32> = normal(count).iter().map(joined).collect();
        (values[0], values[1]) = (joined(&f32::from_bits(0x3f80_8000)), f32::from_bits(0x3f81_8000));
        for control in [[0.375, 9.0], [1.0, f32::NAN], [0.0, 9.0]] {
            let alone = bench.left(Precision::F32, &|l| average(l, &values, false, control));
            let halves = bench.left(Precision::Bf16, &|l| average(l, &values, true, control));
            let expected: Vec<f32> = alone[1].iter().map(|x| if control[0] == 0.0 { *x } else { joined(x) }).collect();
            assert!(halves[1] == expected, "{count} {control:?}");
            // The weights do not change.
            let weights: Vec<u16> = halves[0].iter().map(|w| (w.to_bits() >> 16) as u16).collect();
            assert!(weights.iter().zip(&values).all(|(w, x)| *w == split(x).0));
        }
        // Averages of a step are exchanged with the weights and back.
        let averages: Vec<f32> = normal(count).iter().rev().map(joined).collect();
        let exchange = |weights: &[f32], averages: &[f32], bench: &mut Bench| {
            let shape = [1, 1, 1, count];
            let left = bench.left(Precision::Bf16, &|l: &mut Lay| Exchange {
                weight: l.kept(shape, weights.to_vec()),
                average: l.values(shape, averages.to_vec()),
                remainder: l.remainders(shape, weights),
            });
            let halves = left[0].iter().zip(&left[2]);
            let masters = halves.map(|(w, r)| remainder::join((w.to_bits() >> 16) as u16, *r as i16));
            [masters.collect::<Vec<f32>>(), left[1].clone()]
        };
        assert!(exchange(&values, &averages, &mut bench) == [averages.clone(), values.clone()], "{count}");
    }
}

#[test]
fn what_moves_to_halfway_between_two_bf16_is_rounded_and_split_as_others_do() {
    let mut bench = Bench::new();
    // Moves from ±1 by the moment alone, halfway to the next bf16 and to the one after it; the largest number, which is
    // infinity in bf16; zero.
    let unit = 1.0 / 256.0;
    let (mut values, mut by) =
        (vec![1.0, 1.0, -1.0, -1.0, f32::MAX, 0.0], vec![-unit, -3.0 * unit, unit, 3.0 * unit, 0.0, 0.0]);
    let halves = [(0x3f80, i16::MAX), (0x3f82, i16::MIN), (0xbf80, i16::MAX), (0xbf82, i16::MIN), (0x7f80, -1), (0, 0)];
    // In vectors of eight, and in a remainder.
    for times in [1, 7] {
        values = values.repeat(times);
        by = by.repeat(times);
        let shape = [1, 1, 1, values.len() as u32];
        let [expected, found] = moved(&mut bench, &|l| {
            let moved = Moved {
                weight: l.kept(shape, values.clone()),
                gradient: l.values(shape, vec![0.0; values.len()]),
                settings: l.settings(Settings::UNIT),
                results: l.results(0.0, 1.0),
                remainder: None,
                group: Group::Matrix,
                rate: 1.0,
                decay: 0.0,
            };
            let first = l.values(shape, by.clone());
            let second = l.values(shape, vec![0.0; values.len()]);
            let moved = in_halves(l, moved, &values, true);
            AdamW { moved, first, second, beta1: 1.0, beta2: 1.0, eps: 1.0 }
        });
        assert_eq!(found, halves.repeat(times));
        assert_eq!(found, expected);
    }
}

/// A step with numbers that are exact in f32, so that only the rounding depends on the device.
#[test]
fn weights_without_masters_are_rounded_by_the_chance_that_the_core_has() {
    let mut bench = Bench::new();
    let halves = |x: &f32| half::bf16::from_f32(*x).to_f32();
    for count in [7, 1000, 4096] {
        let values: Vec<f32> = normal(count).iter().map(halves).collect();
        let gradient: Vec<f32> = normal(count).iter().rev().map(halves).collect();
        let (shape, [loss, squared_norm], rate) = ([1, 1, 1, count], [0.375f32, 2.25f32], 1.0 / 512.0);
        let left = bench.left(Precision::Bf16, &|l: &mut Lay| Sgd {
            moved: Moved {
                weight: l.kept(shape, values.clone()),
                gradient: l.values(shape, gradient.clone()),
                settings: l.settings(Settings { learning_rate: rate, clip: f32::INFINITY, ..Settings::UNIT }),
                results: l.results(loss, squared_norm),
                remainder: None,
                group: Group::Head,
                rate: 1.0,
                decay: 0.0,
            },
            buffer: None,
            momentum: 0.0,
        });
        let seed = u64::from(loss.to_bits()) | u64::from(squared_norm.to_bits()) << 32;
        let random = Random::new(seed, Group::Head.index() as u64);
        let mut rounded = 0;
        for (i, (w, (x, g))) in left[0].iter().zip(values.iter().zip(&gradient)).enumerate() {
            let word = random.block(i as u64 / 8)[i % 8 / 2];
            let moved = x - rate * g;
            let expected = remainder::dithered(moved, (word >> (16 * (i % 2))) as u16);
            assert_eq!((w.to_bits() >> 16) as u16, expected, "{i} of {count}");
            rounded += usize::from(half::bf16::from_f32(moved).to_bits() != expected);
        }
        assert!(count < 100 || rounded > count as usize / 10, "{rounded} of {count}");
    }
}
