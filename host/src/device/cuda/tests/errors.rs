//! What a user meets when the device is not what was asked for.

use capful_core::device::Run;
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::Gelu;

use super::bench::open;
use crate::device::cuda::{Cuda, CudaError, Products, Room, describe};

fn region(offset: u64, columns: u32) -> Region {
    Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, columns] }
}

#[test]
fn a_card_that_is_not_there_and_an_arena_that_does_not_fit_are_refused() {
    drop(open(512, region(0, 64), 0));
    let room = Room { arena: 512, scratch: region(0, 64), staging: 0 };
    let error = Cuda::open(77, room, Products::Own).err().expect("there is no card 77");
    assert!(matches!(error, CudaError::NoSuchCard { asked: 77, .. }), "{error}");
    let error = Cuda::open(0, Room { arena: 1 << 50, ..room }, Products::Own).err().expect("no card is so large");
    assert!(matches!(error, CudaError::TooSmall { needed, .. } if needed == 1 << 50), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

#[test]
fn a_region_beyond_the_arena_is_an_error_with_details() {
    let mut cuda = open(512, region(0, 64), 16);
    assert!(cuda.run(Gelu { x: region(0, 64), out: region(256, 65) }).is_err());
    assert_eq!(cuda.take_failure(), Some(CudaError::OutOfBounds { end: 516, bytes: 512 }));
    assert!(cuda.read(region(256, 65), &mut [0; 260]).is_err());
    assert!(cuda.write(region(256, 1), &[0; 8]).is_err());
    cuda.next_step().expect("a first step");
    assert!(cuda.queue_write(region(0, 64), &[0; 256]).is_err(), "more than the staging memory");
}

#[test]
fn a_failure_while_a_graph_is_recorded_leaves_the_device_usable() {
    let mut cuda = open(512, region(0, 64), 16);
    let bad = cuda.replay(1, |c| c.run(Gelu { x: region(0, 64), out: region(512, 64) }));
    assert!(matches!(bad, Err(CudaError::OutOfBounds { .. })), "{bad:?}");
    cuda.write(region(0, 1), &1.0f32.to_le_bytes()).expect("room");
    cuda.replay(1, |c| c.run(Gelu { x: region(0, 1), out: region(256, 1) })).expect("a good one");
    let mut out = [0; 4];
    cuda.read(region(256, 1), &mut out).expect("room");
    assert!((f32::from_le_bytes(out) - 0.841_344_7).abs() < 1e-6);
}

#[test]
fn the_description_names_driver_and_cards() {
    drop(open(512, region(0, 64), 0));
    let description = describe();
    let (version, library) = description.driver.expect("a driver or the stand-in");
    assert!(version.split('.').count() == 2 && !library.is_empty());
    assert!(description.cards.iter().all(|c| c.bytes > 0 && c.capability >= (7, 5)) && !description.cards.is_empty());
}
