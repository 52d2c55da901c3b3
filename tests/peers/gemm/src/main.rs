//! Our matrix multiplications compared with those of the crate `gemm`, at the shapes of the models' layers.
//!
//! `cargo run --release --manifest-path tests/peers/gemm/Cargo.toml [-- --threads N] [--filter TEXT] [--seconds X] [--best]`
//!
//! Both run alternately in one process, so that other work on the machine disturbs them alike; the medians are of wall
//! time, the last columns of the CPU time of all threads (Unix only), which other processes disturb less. `--best`
//! shows the best instead of the medians: an estimate for an idle machine (then look at wall time: the CPU clock lags
//! behind for running threads).

use std::time::Instant;

use capful_core::random::Random;
use capful_host::device::cpu::gemm::{self as ours, Matrix, MatrixMut, Update};
use capful_host::device::cpu::pool::Pool;

struct Case {
    name: &'static str,
    m: usize,
    n: usize,
    k: usize,
    /// Which operand is transposed in memory.
    a_transposed: bool,
    b_transposed: bool,
}

fn cases() -> Vec<Case> {
    let rows = 1024;
    let mut cases = vec![];
    let mut layer = |name, n, k| {
        cases.push(Case { name, m: rows, n, k, a_transposed: false, b_transposed: true });
        cases.push(Case { name, m: rows, n: k, k: n, a_transposed: false, b_transposed: false });
        cases.push(Case { name, m: n, n: k, k: rows, a_transposed: true, b_transposed: false });
    };
    layer("d512 qkv", 1536, 512);
    layer("d512 proj", 512, 512);
    layer("d512 up", 2048, 512);
    layer("d512 down", 512, 2048);
    layer("d512 head", 10000, 512);
    layer("d256 qkv", 768, 256);
    layer("d256 up", 1024, 256);
    layer("d256 down", 256, 1024);
    layer("d128 qkv", 384, 128);
    layer("d128 proj", 128, 128);
    layer("d128 up", 512, 128);
    layer("d128 down", 128, 512);
    layer("d128 head", 10000, 128);
    for m in [1, 4, 8] {
        cases.push(Case { name: "decode up", m, n: 2048, k: 512, a_transposed: false, b_transposed: true });
        cases.push(Case { name: "decode head", m, n: 50304, k: 512, a_transposed: false, b_transposed: true });
    }
    for s in [16, 32, 64, 128] {
        for (a_transposed, b_transposed) in [(false, true), (false, false), (true, false)] {
            cases.push(Case { name: "small", m: s, n: s, k: s.min(64), a_transposed, b_transposed });
        }
    }
    cases
}

/// Seconds of CPU time of this process's threads.
fn cpu_time() -> f64 {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes the struct it is given.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    }
    #[cfg(not(unix))]
    f64::NAN
}

fn numbers(len: usize, stream: u64) -> Vec<f32> {
    let random = Random::new(1, stream);
    (0..len).map(|i| random.uniform(i as u64) as f32 - 0.5).collect()
}

/// Times and CPU times of batches of calls.
#[derive(Default)]
struct Samples(Vec<(f64, f64)>);

impl Samples {
    fn take(&mut self, repeat: usize, mut call: impl FnMut()) {
        let (cpu, begin) = (cpu_time(), Instant::now());
        (0..repeat).for_each(|_| call());
        let wall = begin.elapsed().as_secs_f64();
        self.0.push((wall / repeat as f64, (cpu_time() - cpu) / repeat as f64));
    }

    /// Median (or best) wall and CPU time.
    fn summary(mut self, best: bool) -> (f64, f64) {
        let middle = if best { 0 } else { self.0.len() / 2 };
        self.0.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wall = self.0[middle].0;
        self.0.sort_by(|a, b| a.1.total_cmp(&b.1));
        (wall, self.0[middle].1)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let threads = option("--threads").and_then(|x| x.parse().ok()).unwrap_or(2);
    let seconds: f64 = option("--seconds").and_then(|x| x.parse().ok()).unwrap_or(0.6);
    let best = arguments.iter().any(|a| a == "--best");
    let filter = option("--filter").cloned().unwrap_or_default();
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    let mut pool = Pool::new(threads);
    let begin = Instant::now();
    (0..100_000).for_each(|_| pool.tasks(threads, |_, _| {}));
    println!("an empty run of {threads} threads: {:.2} µs", begin.elapsed().as_secs_f64() * 10.0);
    println!(
        "{:<12}{:>6}{:>7}{:>7}    {:>9}{:>9}{:>7}    {:>9}{:>9}{:>7}",
        "GFLOP/s", "m", "n", "k", "ours", "gemm", "ratio", "ours/cpu", "gemm/cpu", "ratio"
    );
    for case in cases() {
        let Case { name, m, n, k, a_transposed, b_transposed } = case;
        let kind = [if a_transposed { 'T' } else { 'N' }, if b_transposed { 'T' } else { 'N' }];
        let title = format!("{name} {}", kind.iter().collect::<String>());
        if !title.contains(&filter) {
            continue;
        }
        let (a, b, mut c) = (numbers(m * k, 0), numbers(k * n, 1), vec![0.0f32; m * n]);
        let view = |data, rows, cols, transposed: bool| {
            if transposed { Matrix::new(data, cols, rows).transposed() } else { Matrix::new(data, rows, cols) }
        };
        let (a_view, b_view) = (view(&a, m, k, a_transposed), view(&b, k, n, b_transposed));
        let small = name == "small";
        let mut scratch =
            vec![0.0; if small { ours::small_scratch_len(m, n, k) } else { ours::scratch_len(m, n, k, threads) }];
        let strides = |rows: usize, cols: usize, transposed: bool| {
            if transposed { (1, rows as isize) } else { (cols as isize, 1) }
        };
        let ((a_row, a_col), (b_row, b_col)) = (strides(m, k, a_transposed), strides(k, n, b_transposed));
        let flops = 2.0 * m as f64 * n as f64 * k as f64;
        let repeat = (3e8 / flops).ceil() as usize;
        let (mut mine, mut theirs) = (Samples::default(), Samples::default());
        let begin = Instant::now();
        while begin.elapsed().as_secs_f64() < seconds || mine.0.len() < 5 {
            mine.take(repeat, || {
                let to = MatrixMut::new(&mut c, m, n);
                if small {
                    ours::small(a_view, b_view, to, Update::Overwrite, &mut scratch);
                } else {
                    ours::product(&mut pool, a_view, b_view, to, Update::Overwrite, &mut scratch, |_, _| {});
                }
            });
            theirs.take(repeat, || {
                let parallelism = if small { gemm::Parallelism::None } else { parallelism };
                // SAFETY: the three matrices are inside their vectors with these strides.
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        k,
                        c.as_mut_ptr(),
                        1,
                        n as isize,
                        false,
                        a.as_ptr(),
                        a_col,
                        a_row,
                        b.as_ptr(),
                        b_col,
                        b_row,
                        0.0f32,
                        1.0f32,
                        false,
                        false,
                        false,
                        parallelism,
                    );
                }
            });
        }
        let ((wall, cpu), (their_wall, their_cpu)) = (mine.summary(best), theirs.summary(best));
        let rate = |time: f64| flops / time * 1e-9;
        println!(
            "{title:<12}{m:>6}{n:>7}{k:>7}    {:>9.1}{:>9.1}{:>7.2}    {:>9.1}{:>9.1}{:>7.2}",
            rate(wall),
            rate(their_wall),
            their_wall / wall,
            rate(cpu),
            rate(their_cpu),
            their_cpu / cpu
        );
    }
}
