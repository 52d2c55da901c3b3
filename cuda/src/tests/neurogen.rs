//! The operations of a spiking model: tests that apply to GPUs only.

use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{Carry, Linear};

use super::bench::{Bench, open_with, replay};
use crate::{OnCuda, Precision, Products};
use capful_witness::Lay;
use capful_witness::optimizer::{DECODERS, decoder_update};
use capful_witness::spiking::{CELLS, cell, spike, spiking};

#[test]
fn regions_are_carried_also_in_a_graph() {
    let region = |offset| Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, 3] };
    let mut cuda = open_with(768, region(512), 0, Products::Own);
    let operation = Carry { from: region(0), to: region(256) };
    for value in [1u8, 2] {
        cuda.write(operation.from, &[value; 12]).expect("the GPU takes it");
        replay(&mut cuda, 5, |c| OnCuda::run(operation, c)).expect("it is recorded");
        let mut found = [0; 12];
        cuda.read(operation.to, &mut found).expect("the GPU gives it back");
        assert_eq!(found, [value; 12]);
    }
}

/// The spikes are independent of the storage format.
#[test]
fn values_that_bf16_holds_fire_alike() {
    let mut bench = Bench::new();
    let modules = spiking().into_iter().enumerate();
    for (i, m, (block, winners)) in modules.flat_map(|(i, m)| CELLS.map(|of| (i, m, of))) {
        let build = |l: &mut Lay| spike(l, m, cell(block, winners, 0.0), true, i % 2 == 0);
        let [exact, stored] = [Precision::F32, Precision::Bf16].map(|p| bench.left(p, &build));
        assert!(exact.iter().flatten().all(|x| !x.is_nan()));
        assert_eq!(exact[3], stored[3]);
    }
}

#[test]
fn a_decoder_is_updated_by_products_of_bf16_where_f32_may_be_rounded() {
    let mut bench = Bench::of_products();
    for gpu in bench.gpus_mut() {
        gpu.allow_tf32(true);
    }
    for sizes in DECODERS {
        let update = |l: &mut Lay| decoder_update(l, sizes, true, 0.5);
        bench.agree_in(Precision::Bf16, 5e-3, &update);
    }
    for gpu in bench.gpus().iter().filter(|gpu| gpu.library.blas.is_some()) {
        let choices = gpu.choices();
        assert!(choices.iter().any(|c| c.product.starts_with("tn 32 40 70 bf16 f32 plain")), "{choices:?}");
    }
}

/// Where rounding is permitted, f32 is multiplied rounded to TF32; the choice is saved and found again under that name.
#[test]
fn f32_is_rounded_to_tf32_where_that_is_allowed() {
    let mut bench = Bench::of_products();
    let linear = |l: &mut Lay| {
        let (x, weight) = (l.exact([1, 1, 40, 64], 1.0), l.exact([1, 1, 24, 64], 1.0));
        Linear::new(x, weight, None, l.poison_exact([1, 1, 40, 24]))
    };
    let products = |bench: &Bench| -> Vec<String> {
        bench.gpus().iter().flat_map(|gpu| gpu.choices()).map(|choice| choice.product).collect()
    };
    bench.agree_in(Precision::F32, 1e-5, &linear);
    assert!(products(&bench).iter().all(|p| !p.contains("tf32")));
    for gpu in bench.gpus_mut() {
        gpu.allow_tf32(true);
    }
    bench.agree_in(Precision::F32, 1e-3, &linear);
    for gpu in bench.gpus_mut().iter_mut().filter(|gpu| gpu.library.blas.is_some()) {
        let choices = gpu.choices();
        assert!(choices.iter().any(|c| c.product.starts_with("nt 40 24 64 tf32 f32 plain")), "{choices:?}");
        gpu.reuse(&choices).expect("its own choices");
        assert_eq!(gpu.choices(), choices);
    }
}
