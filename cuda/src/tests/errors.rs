//! The error messages that a user sees when the device does not meet the request.

use capful_core::device::Device as _;
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::Gelu;

use super::bench::{allocations, apart, open, replay};
use crate::{Cuda, CudaError, Products, Room, describe};

fn region(offset: u64, columns: u32) -> Region {
    Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, columns] }
}

#[test]
fn a_gpu_that_is_not_there_and_an_arena_that_does_not_fit_are_refused() {
    drop(open(512, region(0, 64), 0));
    let room = Room { arena: 512, scratch: region(0, 64), staging: 0 };
    let error = Cuda::open(77, room, Products::Own).err().expect("there is no GPU 77");
    assert!(matches!(error, CudaError::NoSuchCard { asked: 77, .. }), "{error}");
    let error = Cuda::open(0, Room { arena: 1 << 50, ..room }, Products::Own).err().expect("no GPU is so large");
    assert!(matches!(error, CudaError::TooSmall { needed, .. } if needed == 1 << 50), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn a_region_beyond_the_arena_is_an_error_with_details() {
    let mut cuda = open(512, region(0, 64), 16);
    assert!(cuda.run(&Gelu { x: region(0, 64), out: region(256, 65) }.into()).is_err());
    assert_eq!(cuda.take_failure(), Some(CudaError::OutOfBounds { end: 516, bytes: 512 }));
    assert!(cuda.read(region(256, 65), &mut [0; 260]).is_err());
    assert!(cuda.write(region(256, 1), &[0; 8]).is_err());
    cuda.next_step().expect("a first step");
    assert!(cuda.queue_write(region(0, 64), &[0; 256]).is_err(), "more than the staging memory");
}

#[test]
fn results_whose_place_a_later_step_has_taken_are_an_error_and_not_its_bytes() {
    let mut cuda = open(512, region(0, 64), 16);
    let step = |cuda: &mut Cuda, value: f32| {
        cuda.next_step().expect("a step");
        cuda.queue_write(region(0, 1), &value.to_le_bytes()).expect("room");
        cuda.queue_read(region(0, 1)).expect("room")
    };
    let first = step(&mut cuda, 1.0);
    let second = step(&mut cuda, 2.0);
    assert_eq!(cuda.results(first), Ok(&1.0f32.to_le_bytes()[..]));
    let third = step(&mut cuda, 3.0);
    assert_eq!(cuda.results(first), Err(CudaError::Stale { step: 1, now: 3 }));
    assert_eq!(cuda.results_soon(first), Err(CudaError::Stale { step: 1, now: 3 }));
    assert_eq!(cuda.results(second), Ok(&2.0f32.to_le_bytes()[..]));
    assert_eq!(cuda.results_soon(third), Ok(&mut 3.0f32.to_le_bytes()[..]));
}

#[test]
fn a_failure_while_a_graph_is_recorded_leaves_the_device_usable() {
    let mut cuda = open(512, region(0, 64), 16);
    let bad = replay(&mut cuda, 1, |c| c.run(&Gelu { x: region(0, 64), out: region(512, 64) }.into()));
    assert!(matches!(bad, Err(CudaError::OutOfBounds { .. })), "{bad:?}");
    cuda.write(region(0, 1), &1.0f32.to_le_bytes()).expect("room");
    replay(&mut cuda, 1, |c| c.run(&Gelu { x: region(0, 1), out: region(256, 1) }.into())).expect("a good one");
    let mut out = [0; 4];
    cuda.read(region(256, 1), &mut out).expect("room");
    assert!((f32::from_le_bytes(out) - 0.841_344_7).abs() < 1e-6);
}

#[test]
fn the_description_names_driver_and_gpus() {
    drop(open(512, region(0, 64), 0));
    let description = describe();
    let (version, library) = description.driver.expect("a driver or the stand-in");
    assert!(version.split('.').count() == 2 && !library.is_empty());
    assert!(description.gpus.iter().all(|c| c.bytes > 0 && c.capability >= (7, 5)) && !description.gpus.is_empty());
}

/// Memory on the stand-in, opened as a run does.
fn opened(arena: u64) -> Result<Cuda, CudaError> {
    Cuda::open(0, Room { arena, scratch: region(0, 64), staging: 64 }, Products::Own)
}

#[test]
fn an_old_driver_is_named_with_its_version() {
    apart("errors::an_old_driver_is_named_with_its_version", &[&[("CAPFUL_STAND_IN_VERSION", "12040")]], || {
        let error = opened(512).err().expect("an old driver");
        assert_eq!(error, CudaError::OldDriver { found: "12.4".into(), needed: "13.0" });
        assert!(error.to_string().contains("580"), "{error}");
        let description = describe();
        assert_eq!(description.driver, Err(error.to_string()));
        assert!(description.gpus.is_empty());
    });
}

#[test]
fn a_machine_without_a_gpu() {
    apart("errors::a_machine_without_a_gpu", &[&[("CAPFUL_STAND_IN_GPUS", "0")]], || {
        assert_eq!(opened(512).err(), Some(CudaError::NoCard));
        assert_eq!(describe().driver, Err(CudaError::NoCard.to_string()));
    });
}

#[test]
fn several_gpus_are_counted() {
    apart("errors::several_gpus_are_counted", &[&[("CAPFUL_STAND_IN_GPUS", "2")]], || {
        opened(512).expect("GPU 0");
        let room = Room { arena: 512, scratch: region(0, 64), staging: 0 };
        Cuda::open(1, room, Products::Own).expect("GPU 1");
        let error = Cuda::open(2, room, Products::Own).err();
        assert_eq!(error, Some(CudaError::NoSuchCard { asked: 2, gpus: 2 }));
        assert_eq!(describe().gpus.len(), 2);
    });
}

#[test]
fn an_old_gpu_is_named() {
    apart("errors::an_old_gpu_is_named", &[&[("CAPFUL_STAND_IN_CAPABILITY", "70")]], || {
        let error = opened(512).err();
        assert_eq!(error, Some(CudaError::OldCard { name: "CPU stand-in".into(), major: 7, minor: 0 }));
    });
}

#[test]
fn the_oldest_gpu_that_is_supported() {
    apart("errors::the_oldest_gpu_that_is_supported", &[&[("CAPFUL_STAND_IN_CAPABILITY", "75")]], || {
        opened(512).expect("old enough");
        assert!(!describe().gpus[0].bf16);
    });
}

#[test]
fn a_small_gpu_is_refused_before_anything_is_allocated() {
    apart(
        "errors::a_small_gpu_is_refused_before_anything_is_allocated",
        &[&[("CAPFUL_STAND_IN_TOTAL", "1000000")]],
        || {
            let small = CudaError::TooSmall {
                name: "CPU stand-in".into(),
                needed: 1_000_001,
                free: 1_000_000,
                total: 1_000_000,
            };
            assert_eq!(opened(1_000_001).err(), Some(small));
            assert_eq!(allocations(), 0);
            // Exact to the byte; and memory in use is no longer free.
            let cuda = opened(1_000_000).expect("exactly as much");
            assert_eq!(cuda.used().expect("a working GPU"), 1_000_000);
            assert!(matches!(opened(1).err(), Some(CudaError::TooSmall { free: 0, .. })));
            drop(cuda);
            opened(1_000_000).expect("freed");
        },
    );
}

#[test]
fn memory_that_others_hold_is_not_counted_upon() {
    apart("errors::memory_that_others_hold_is_not_counted_upon", &[&[("CAPFUL_STAND_IN_FREE", "5000")]], || {
        let error = opened(5001).err();
        assert!(matches!(error, Some(CudaError::TooSmall { needed: 5001, free: 5000, total, .. }) if total == 8 << 30));
        assert_eq!(allocations(), 0);
        opened(5000).expect("what is left");
    });
}

/// An environment in which `plan` fails, and the expected error code.
fn failing<'a>((plan, said): (&'a str, &'a str)) -> [(&'a str, &'a str); 2] {
    [("CAPFUL_STAND_IN_FAIL_AT", plan), ("CAPFUL_TEST_CODE", said)]
}

#[test]
fn a_driver_that_does_not_start_says_its_own_code() {
    // A code that cust knows, one that only the driver knows, and an unknown one.
    let environments = [
        ("init:1:803", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        ("context:1:46", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        ("context:1:4242", "CUresult 4242"),
    ]
    .map(failing);
    let environments = environments.each_ref().map(|e| e.as_slice());
    apart("errors::a_driver_that_does_not_start_says_its_own_code", &environments, || {
        let error = opened(512).err().expect("a failure");
        let code = std::env::var("CAPFUL_TEST_CODE").expect("set above");
        assert!(matches!(&error, CudaError::NotStarted { code: found, .. } if *found == code), "{error}");
        assert!(error.refuses(), "{error}");
    });
}

/// Replays steps of one recorded kernel, with copies for input and result, until an error occurs.
fn steps(cuda: &mut Cuda) -> (u32, CudaError) {
    for step in 0..100 {
        let run = |cuda: &mut Cuda| {
            cuda.next_step()?;
            cuda.queue_write(region(0, 1), &1.0f32.to_le_bytes())?;
            replay(cuda, 0, |c| c.run(&Gelu { x: region(0, 1), out: region(256, 1) }.into()))?;
            let pending = cuda.queue_read(region(256, 1))?;
            cuda.results(pending).map(drop)
        };
        if let Err(error) = run(cuda) {
            return (step, error);
        }
    }
    panic!("nothing went wrong");
}

#[test]
fn a_gpu_that_fails_in_a_step_fails_for_good() {
    let environments = [
        ("graph:5", "CUDA_ERROR_LAUNCH_FAILED"),
        ("launch:14:214", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        ("launch:14:913", "CUDA_ERROR_FUNCTION_NOT_LOADED"),
    ]
    .map(failing);
    let environments = environments.each_ref().map(|e| e.as_slice());
    apart("errors::a_gpu_that_fails_in_a_step_fails_for_good", &environments, || {
        let mut cuda = opened(512).expect("a GPU that works so far");
        let (step, error) = steps(&mut cuda);
        assert_eq!(step, 4);
        let code = std::env::var("CAPFUL_TEST_CODE").expect("set above");
        assert!(matches!(&error, CudaError::Driver { code: found, .. } if *found == code), "{error}");
        assert!(error.to_string().contains("nvidia-smi"));
        assert_eq!(steps(&mut cuda).0, 0, "after a failure nothing works");
        assert!(cuda.read(region(0, 1), &mut [0; 4]).is_err());
        assert!(cuda.run(&Gelu { x: region(0, 1), out: region(256, 1) }.into()).is_err());
        drop(cuda);
    });
}

#[test]
fn steps_allocate_nothing_on_the_gpu() {
    apart("errors::steps_allocate_nothing_on_the_gpu", &[&[]], || {
        let mut cuda = opened(512).expect("a GPU");
        let step = |cuda: &mut Cuda| {
            cuda.next_step()?;
            cuda.queue_write(region(0, 1), &1.0f32.to_le_bytes())?;
            replay(cuda, 0, |c| c.run(&Gelu { x: region(0, 1), out: region(256, 1) }.into()))?;
            cuda.queue_read(region(256, 1))
        };
        let before = allocations();
        assert_eq!(before, 2, "the arena and the staging memory");
        for _ in 0..10 {
            step(&mut cuda).expect("a good step");
        }
        cuda.synchronise().expect("good steps");
        assert_eq!(allocations(), before);
    });
}
