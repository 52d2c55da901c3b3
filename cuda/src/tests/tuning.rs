//! The library's algorithms: chosen by measured time, saved, used again.

use capful_core::device::{Device as _, OperationError};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{Epilogue, Heads, Linear, Rotary, Rotate};

use super::bench::{apart, open_with, replay};
use crate::product::tuning::noise;
use crate::{Choice, Cuda, Products};
use capful_witness::lay::{decode, encode};

const ROWS: u32 = 5;
const INPUTS: u32 = 301;
const OUTPUTS: u32 = 7;

fn region(offset: u64, rows: u32, columns: u32) -> Region {
    Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, rows, columns] }
}

fn linear() -> Linear {
    let (x, weight) = (region(0, ROWS, INPUTS), region(8192, OUTPUTS, INPUTS));
    Linear::new(x, weight, Some(region(20480, 1, OUTPUTS)), region(24576, ROWS, OUTPUTS))
}

fn gpu() -> Cuda {
    let scratch = Region { offset: 32768, shape: [1, 1, 1, 8 << 20], ..region(0, 1, 1) };
    open_with(scratch.end(), scratch, 64, Products::Library)
}

fn queue(cuda: &mut Cuda) -> Result<(), OperationError> {
    cuda.run(&linear().into())
}

/// The result of the multiplication, replayed.
fn product(cuda: &mut Cuda) -> Vec<f32> {
    let o = linear();
    for region in [o.x, o.weight, o.bias.expect("one")] {
        let values: Vec<f32> = (0..region.elements()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        cuda.write(region, &encode(Dtype::F32, &values)).expect("in the arena");
    }
    replay(cuda, 0, queue).expect("a product");
    let mut bytes = vec![0; o.out.bytes() as usize];
    cuda.read(o.out, &mut bytes).expect("in the arena");
    decode(Dtype::F32, &bytes)
}

/// The number of the stand-in's algorithm.
fn number(choice: &Choice) -> &str {
    &choice.algorithm.as_ref().expect("an algorithm")[..2]
}

#[test]
fn the_fastest_is_taken() {
    let environments = ["1", "2", "3"].map(|n| [("CAPFUL_STAND_IN_BLAS_FASTEST", n)]);
    let environments = environments.each_ref().map(|e| e.as_slice());
    apart("tuning::the_fastest_is_taken", &environments, || {
        let mut cuda = gpu();
        cuda.tune(queue).expect("a product");
        let choices = cuda.choices();
        assert_eq!(choices.len(), 1);
        assert_eq!(choices[0].product, "nt 5 7 301 f32 f32 bias 256");
        assert_eq!((choices[0].gpu.as_str(), choices[0].library), ("CPU stand-in", 130_000));
        assert!(choices[0].milliseconds.is_some_and(|ms| ms < 1000.0), "{choices:?}");
        let fastest = std::env::var("CAPFUL_STAND_IN_BLAS_FASTEST").expect("set above");
        assert_eq!(number(&choices[0]), format!("0{fastest}"));
        // A tuned multiplication is not tuned again, and the arena is unchanged.
        cuda.tune(queue).expect("a product");
        assert_eq!(cuda.choices(), choices);
        let mut bytes = vec![1; linear().out.bytes() as usize];
        cuda.read(linear().out, &mut bytes).expect("in the arena");
        assert!(bytes.iter().all(|b| *b == 0));
    });
}

#[test]
fn algorithms_are_timed_on_random_operands_that_have_left_the_cache() {
    let name = "tuning::algorithms_are_timed_on_random_operands_that_have_left_the_cache";
    apart(name, &[&[("CAPFUL_STAND_IN_CACHE", "65536")]], || {
        let mut cuda = gpu();
        let o = linear();
        // In the scratch after the multiplication's output.
        let behind = region(40_960, 1, 32_768);
        cuda.write(behind, &encode(Dtype::F32, &vec![1.0; 32_768])).expect("in the arena");
        cuda.set_tuning(true);
        queue(&mut cuda).expect("a product");
        cuda.set_tuning(false);
        let mut read = |region: Region| {
            let mut bytes = vec![0; region.bytes() as usize];
            cuda.read(region, &mut bytes).expect("in the arena");
            decode(Dtype::F32, &bytes)
        };
        for operand in [o.x, o.weight] {
            let mut values = read(operand);
            values.sort_by(f32::total_cmp);
            values.dedup();
            assert!(values.len() > 1000 && values.iter().all(|x| x.is_finite()), "{}", values.len());
        }
        // Exactly twice the size of the cache was written, from the end of the operands on.
        let left = read(behind).iter().position(|x| *x != 0.0);
        assert_eq!(left, Some(((o.weight.end() + 2 * 65_536 - behind.offset) / 4) as usize));
    });
}

#[test]
fn noise_is_of_numbers_in_every_type() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::E4m3, Dtype::E5m2] {
        let bytes = noise(dtype, 1000, 1);
        assert_eq!(bytes.len() as u64, 1000 * dtype.size());
        let mut values = decode(dtype, &bytes);
        assert!(values.iter().all(|x| x.is_finite() && x.abs() < 8.0), "{dtype:?}");
        values.sort_by(f32::total_cmp);
        values.dedup();
        assert!(values.len() > 20, "{dtype:?}: {}", values.len());
    }
}

#[test]
fn a_choice_is_saved_and_gives_the_same_bits() {
    apart("tuning::a_choice_is_saved_and_gives_the_same_bits", &[&[("CAPFUL_STAND_IN_BLAS_FASTEST", "3")]], || {
        let mut cuda = gpu();
        cuda.tune(queue).expect("a product");
        let (bits, text) = (product(&mut cuda), serde_json::to_string(&cuda.choices()).expect("plain data"));
        let choices: Vec<Choice> = serde_json::from_str(&text).expect("what was written");
        assert_eq!(choices, cuda.choices());
        let mut again = gpu();
        again.reuse(&choices).expect("the same GPU and library");
        assert_eq!(again.choices(), choices);
        assert_eq!(product(&mut again), bits);
        assert_ne!(product(&mut gpu()), bits, "the library's first proposal sums in another order");
    });
}

#[test]
fn a_product_first_met_in_a_recording_takes_the_first_proposal() {
    apart("tuning::a_product_first_met_in_a_recording_takes_the_first_proposal", &[&[]], || {
        let mut cuda = gpu();
        product(&mut cuda);
        let choices = cuda.choices();
        assert_eq!((choices.len(), number(&choices[0]), choices[0].milliseconds), (1, "01", None));
        // The choice stays.
        cuda.tune(queue).expect("a product");
        assert_eq!(cuda.choices(), choices);
    });
}

#[test]
fn a_product_and_what_follows_it_are_one_kernel_where_that_is_faster() {
    // As if this program's own kernel took a second longer, and as if all of the library's algorithms did.
    let fastest = |n| ("CAPFUL_STAND_IN_BLAS_FASTEST", n);
    let (slow, all) = ([fastest("1"), ("CAPFUL_STAND_IN_SLOW", "warpgroup_product")], [fastest("99")]);
    let environments = [&slow[..], &all[..]];
    apart("tuning::a_product_and_what_follows_it_are_one_kernel_where_that_is_faster", &environments, || {
        let at = |offset, rows, columns| Region { dtype: Dtype::Bf16, ..region(offset, rows, columns) };
        let (x, weight, bias) = (at(0, 64, 512), at(1 << 16, 768, 512), at(13 << 16, 1, 768));
        let (out, activated) = (at(14 << 16, 64, 768), at(16 << 16, 64, 768));
        let table = Region { shape: [1, 4, 8, 2], ..region(18 << 16, 1, 64) };
        let plain = Linear::new(x, weight, Some(bias), out);
        let rotary = Rotary { table, heads: Heads::grouped(4, 4, 64), positions: 4 };
        let turned = vec![plain.into(), Rotate { qkv: out, rotary }.into()];
        let gelu = vec![Linear { epilogue: Epilogue::Gelu(activated), ..plain }.into()];
        let scratch = Region { offset: 19 << 16, ..region(0, 1, 8 << 20) };
        let opened = || open_with(scratch.end(), scratch, 64, Products::Library);
        for (name, ops, result) in [("gelu", gelu, activated), ("turned", turned, out)] {
            let bits = |cuda: &mut Cuda| {
                for region in [x, weight, bias, table] {
                    let values: Vec<f32> =
                        (0..region.elements()).map(|i| ((i * 37 % 101) as f32 - 50.0) / 70.0).collect();
                    cuda.write(region, &encode(region.dtype, &values)).expect("in the arena");
                }
                cuda.run_program(&ops).expect("a product");
                let mut bytes = vec![0; result.bytes() as usize];
                cuda.read(result, &mut bytes).expect("in the arena");
                bytes
            };
            let mut cuda = opened();
            cuda.tune(|cuda| cuda.run_program(&ops)).expect("a product");
            let (choices, tuned) = (cuda.choices(), bits(&mut cuda));
            let ours =
                std::env::var("CAPFUL_STAND_IN_BLAS_FASTEST").is_ok_and(|n| n == "99") && cuda.hardware.warpgroups;
            let with = choices.iter().map(|c| (c.product.as_str(), c.algorithm.is_none())).collect::<Vec<_>>();
            assert_eq!(with, [(format!("nt 64 768 512 bf16 bf16 {name} 256").as_str(), ours)]);
            // Saved choices are used again. Where nothing was timed, the single kernel is used.
            let mut again = opened();
            again.reuse(&choices).expect("the same GPU and library");
            assert_eq!((again.choices(), bits(&mut again) == tuned), (choices, true));
            let mut untuned = opened();
            bits(&mut untuned);
            assert_eq!(untuned.choices()[0].algorithm.is_none(), untuned.hardware.warpgroups);
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_as_a_whole() {
    apart("tuning::what_does_not_fit_is_refused_as_a_whole", &[&[]], || {
        let mut cuda = gpu();
        cuda.tune(queue).expect("a product");
        let good = cuda.choices().remove(0);
        let other = |change: &dyn Fn(&mut Choice)| {
            let mut changed = good.clone();
            change(&mut changed);
            [good.clone(), changed]
        };
        let forged = |digits: &str| Some(digits.repeat(64 / (digits.len() / 2)));
        for (choices, word) in [
            (other(&|c| c.gpu = "NVIDIA H100".into()), "NVIDIA H100"),
            (other(&|c| c.library = 120_900), "120900"),
            (other(&|c| c.product = "nt 5 7".into()), "nt 5 7"),
            (other(&|c| c.algorithm = Some("02".into())), "nt 5 7 301"),
            (other(&|c| c.algorithm = forged("zz")), "nt 5 7 301"),
            (other(&|c| c.algorithm = forged("é")), "nt 5 7 301"),
            // An algorithm unknown to the library; a known one whose sums have no fixed order.
            (other(&|c| c.algorithm = forged("7f")), "nt 5 7 301"),
            (other(&|c| c.algorithm = Some(format!("04{}01{}", "00".repeat(7), "00".repeat(55)))), "nt 5 7 301"),
        ] {
            let mut fresh = gpu();
            let warning = fresh.reuse(&choices).expect_err("a reason");
            assert!(warning.contains(word) && warning.lines().count() == 1, "{warning}");
            assert!(fresh.choices().is_empty());
            product(&mut fresh);
        }
        let mut own = super::bench::open(512, Region { offset: 0, ..region(0, 1, 64) }, 0);
        assert!(own.reuse(&[]).is_ok());
        assert!(own.reuse(&[good]).expect_err("no library").contains("cublasLt"));
    });
}

#[test]
fn without_the_library_there_is_one_warning_and_our_own_kernels_run() {
    let name = "tuning::without_the_library_there_is_one_warning_and_our_own_kernels_run";
    apart(name, &[&[("CAPFUL_STAND_IN_BLAS", "0")]], || {
        let mut cuda = gpu();
        assert!(cuda.warnings.len() == 1 && cuda.warnings[0].contains("libcublas"), "{:?}", cuda.warnings);
        cuda.tune(queue).expect("nothing to tune");
        assert!(product(&mut cuda).iter().all(|x| x.is_finite()));
        // A single entry stands for all, so that the run continues with own kernels.
        let choices = cuda.choices();
        assert!(choices.len() == 1 && choices[0].algorithm.is_none(), "{choices:?}");
        assert_eq!(cuda.reuse(&choices), Ok(()));
    });
}
