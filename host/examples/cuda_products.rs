//! One square product by the naive kernel, by our own tiled one and by cublasLt: `cuda_products [N]`, 4096 if N is not
//! given. Runs without cargo.

use std::error::Error;

use capful_core::device::Device as _;
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::Linear;
use capful_host::device::cuda::{Cuda, Products, Room, describe};

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// TFLOP/s of one square product; by the naive kernel where no other is named.
fn square(n: u32, dtype: Dtype, products: Option<Products>) -> Result<f64, Box<dyn Error>> {
    let bytes = (u64::from(n) * u64::from(n) * dtype.size()).next_multiple_of(256);
    let at = |i: u64| Region { space: Space::Arena, dtype, offset: i * bytes, shape: [1, 1, n, n] };
    let scratch = Region { dtype: Dtype::F32, shape: [1, 1, 1, 8 << 20], ..at(3) };
    let room = Room { arena: scratch.end(), scratch, staging: 0 };
    let mut cuda = Cuda::open(0, room, products.unwrap_or(Products::Own))?;
    cuda.tune(|c| c.run(&Linear::new(at(0), at(1), None, at(2)).into()))?;
    let values: Vec<f32> = (0..n * n).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    for operand in [at(0), at(1)] {
        cuda.write(operand, &encode(dtype, &values))?;
    }
    let seconds = match products {
        None => cuda.time(5, |c| c.naive_product(at(0), at(1), at(2)))?,
        Some(_) => cuda.time(5, |c| c.run(&Linear::new(at(0), at(1), None, at(2)).into()))?,
    };
    Ok(2.0 * f64::from(n).powi(3) / seconds / 1e12)
}

fn report(n: u32) -> Result<(), Box<dyn Error>> {
    let description = describe();
    description.driver?;
    let names: Vec<_> = description.gpus.iter().take(1).map(|gpu| gpu.name.as_str()).collect();
    println!("{n}^3 on {}, TFLOP/s", names.concat());
    println!("  {:<6} {:>9} {:>9} {:>9} {:>11} {:>13}", "", "naive", "own", "cublasLt", "own/naive", "own/cublasLt");
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let [naive, own, library] =
            [None, Some(Products::Own), Some(Products::Library)].map(|products| square(n, dtype, products));
        let (naive, own, library) = (naive?, own?, library?);
        println!(
            "  {:<6} {naive:>9.2} {own:>9.2} {library:>9.2} {:>11.1} {:>12.0}%",
            dtype.name(),
            own / naive,
            own / library * 100.0
        );
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let n = std::env::args().nth(1).map_or(Ok(4096), |n| n.parse());
    let done = n.map_err(Into::into).and_then(report);
    let Err(error) = done else { return std::process::ExitCode::SUCCESS };
    eprintln!("cuda_products: {error}");
    std::process::ExitCode::FAILURE
}
