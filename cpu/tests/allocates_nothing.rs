//! The Cpu engine allocates nothing once its pool has started, in whatever thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capful_cpu::gemm::{self, Matrix, MatrixMut, Update};
use capful_cpu::{pool::Pool, simd};

struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let (m, n, k) = (130, 140, 150);
    let mut pool = Pool::new(3);
    let (a, b, mut c) = (vec![1.0; m * k], vec![1.0; k * n], vec![f32::NAN; m * n]);
    let mut scratch = vec![f32::NAN; gemm::scratch_len(m, n, k, 3).max(gemm::small_scratch_len(m, n, k))];
    let begin = ALLOCATIONS.load(Ordering::SeqCst);
    for _ in 0..3 {
        for (a, b) in [
            (Matrix::new(&a, m, k), Matrix::new(&b, n, k).transposed()),
            (Matrix::new(&a, k, m).transposed(), Matrix::new(&b, k, n)),
        ] {
            gemm::product(
                &mut pool,
                a,
                b,
                MatrixMut::new(&mut c, m, n),
                Update::Overwrite,
                &mut scratch,
                |_, block| {
                    assert!(!block.rows().is_empty());
                },
            );
            gemm::small(a, b, MatrixMut::new(&mut c, m, n), Update::Accumulate, &mut scratch);
        }
        // Long enough for the others, then for the owner, to fall asleep.
        std::thread::sleep(Duration::from_millis(2));
        pool.tasks(3, |_, task| std::thread::sleep(Duration::from_millis(task as u64)));
        simd::exp_and_sum(&mut c[..n], 1.0);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - begin, 0);
    assert_eq!(c[n], 300.0);
    // The counter does count.
    drop(std::hint::black_box(vec![0u8; 10]));
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > begin);
    println!("products and runs allocate nothing: ok");
}
