//! Compares matrix multiplications with f64, over odd shapes, strides and instruction sets. Elements that must not be
//! read are NaN.

use capful_core::random::Random;
use pulp::Arch;

use super::small::small_on;
use super::*;

/// The instruction sets of this machine, the best one first.
fn sets() -> Vec<Arch> {
    let mut sets = vec![simd::arch()];
    #[cfg(target_arch = "x86_64")]
    if let (Arch::V4(_), Some(v3)) = (simd::arch(), pulp::x86::V3::try_new()) {
        sets.push(Arch::V3(v3));
    }
    sets.push(Arch::Scalar);
    sets
}

/// The memory layout of an operand.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Rows,
    Cols,
    Scattered,
}
const LAYOUTS: [Layout; 3] = [Layout::Rows, Layout::Cols, Layout::Scattered];

/// A matrix of normal numbers with gaps of NaN between its lines.
struct Operand {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
    strides: (usize, usize),
}

impl Operand {
    fn new(rows: usize, cols: usize, gap: usize, layout: Layout, stream: u64) -> Self {
        let strides = match layout {
            Layout::Rows => (cols + gap, 1),
            Layout::Cols => (1, rows + gap),
            Layout::Scattered => (2 * cols + gap, 2),
        };
        let len = if rows * cols == 0 { 0 } else { (rows - 1) * strides.0 + (cols - 1) * strides.1 + 1 };
        let mut data = vec![f32::NAN; len];
        let random = Random::new(7, stream);
        for i in 0..rows {
            for j in 0..cols {
                data[i * strides.0 + j * strides.1] = random.normal((i * cols + j) as u64);
            }
        }
        Self { data, rows, cols, strides }
    }

    fn view(&self) -> Matrix<'_> {
        Matrix::with_strides(&self.data, self.rows, self.cols, self.strides.0, self.strides.1)
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        f64::from(self.data[i * self.strides.0 + j * self.strides.1])
    }
}

/// Compares C (and the gaps between its rows) with the sum in f64; the sum in f32 differs by at most depth rounding
/// errors. Checks every `step`th element.
fn check(c: &[f32], row: usize, a: &Operand, b: &Operand, before: Option<&[f32]>, step: usize, what: &str) {
    let mut number = 0;
    for i in 0..a.rows {
        for j in 0..row.min(c.len() - i * row) {
            let got = c[i * row + j];
            if j >= b.cols {
                assert!(got.is_nan(), "{what}: a gap of C is written, row {i}");
                continue;
            }
            number += 1;
            if number % step != 0 {
                assert!(!got.is_nan(), "{what}: ({i}, {j}) is not written");
                continue;
            }
            let before = before.map_or(0.0, |before| f64::from(before[i * row + j]));
            let (mut exact, mut size) = (before, before.abs());
            for p in 0..a.cols {
                let term = a.at(i, p) * b.at(p, j);
                exact += term;
                size += term.abs();
            }
            let bound = size * (a.cols + 2) as f64 * f64::from(f32::EPSILON) / 2.0;
            assert!((f64::from(got) - exact).abs() <= bound, "{what}: ({i}, {j}) is {got}, not {exact}");
        }
    }
}

/// C before the call: NaN, or numbers if the call adds to them; its gaps are NaN.
fn target(rows: usize, cols: usize, row: usize, update: Update) -> Vec<f32> {
    let random = Random::new(8, 0);
    (0..(rows * row).saturating_sub(row - cols))
        .map(|at| if update == Update::Accumulate && at % row < cols { random.normal(at as u64) } else { f32::NAN })
        .collect()
}

fn one(arch: Arch, pool: &mut Pool, a: &Operand, b: &Operand, gap: usize, update: Update) -> (Vec<f32>, Vec<f32>) {
    let row = b.cols + gap;
    let before = target(a.rows, b.cols, row, update);
    let mut c = before.clone();
    let mut scratch = vec![f32::NAN; scratch_len(a.rows, b.cols, a.cols, pool.threads())];
    let to = MatrixMut::with_stride(&mut c, a.rows, b.cols, row);
    product_on(arch, pool, a.view(), b.view(), to, update, &mut scratch, |_, _| {});
    (c, before)
}

#[test]
fn odd_shapes_and_strides() {
    let random = Random::new(1, 0);
    let mut pool = Pool::new(2);
    for arch in sets() {
        for case in 0..400 {
            let draw = |which: u64, n| random.below(case * 8 + which, n) as usize;
            let (m, n, k) = (1 + draw(0, 70), 1 + draw(1, 70), 1 + draw(2, 70));
            let (gap, at) = (draw(3, 4), draw(4, 9));
            let update = if draw(5, 2) == 0 { Update::Overwrite } else { Update::Accumulate };
            let a = Operand::new(m, k, gap, LAYOUTS[at % 3], 1);
            let b = Operand::new(k, n, draw(6, 4), LAYOUTS[at / 3], 2);
            let what = format!("{arch:?} {:?} · {:?} {update:?}", a.view(), b.view());
            let (c, before) = one(arch, &mut pool, &a, &b, gap, update);
            let before = (update == Update::Accumulate).then_some(&before[..]);
            check(&c, n + gap, &a, &b, before, 1, &what);
        }
    }
}

#[test]
fn odd_shapes_and_strides_of_small_products() {
    let random = Random::new(2, 0);
    for arch in sets() {
        for case in 0..400 {
            let draw = |which: u64, n| random.below(case * 8 + which, n) as usize;
            let (m, n, k) = (1 + draw(0, 70), 1 + draw(1, 70), 1 + draw(2, 70));
            let (gap, at) = (draw(3, 4), draw(4, 9));
            let update = if draw(5, 2) == 0 { Update::Overwrite } else { Update::Accumulate };
            let a = Operand::new(m, k, gap, LAYOUTS[at % 3], 1);
            let b = Operand::new(k, n, draw(6, 4), LAYOUTS[at / 3], 2);
            let what = format!("{arch:?} {:?} · {:?} {update:?}", a.view(), b.view());
            let row = n + gap;
            let before = target(m, n, row, update);
            let mut c = before.clone();
            let mut scratch = vec![f32::NAN; small_scratch_len(m, n, k)];
            let to = MatrixMut::with_stride(&mut c, m, n, row);
            small_on(arch, a.view(), b.view(), to, update, &mut scratch);
            check(&c, row, &a, &b, (update == Update::Accumulate).then_some(&before[..]), 1, &what);
        }
    }
}

/// More than one phase along each extent, more than one chunk of depth; and the same bits for 1, 2, 3 threads.
#[test]
fn large_shapes_and_threads() {
    let shapes = [(40, 1100, 1100), (1600, 70, 1050), (130, 131, 2500), (97, 300, 513), (7, 500, 700), (1, 1025, 129)];
    for arch in sets().into_iter().take(2) {
        for (m, n, k) in shapes {
            for (a_layout, b_layout) in
                [(Layout::Rows, Layout::Cols), (Layout::Rows, Layout::Rows), (Layout::Cols, Layout::Rows)]
            {
                let a = Operand::new(m, k, 3, a_layout, 1);
                let b = Operand::new(k, n, 0, b_layout, 2);
                for update in [Update::Overwrite, Update::Accumulate] {
                    let what = format!("{arch:?} {:?} · {:?} {update:?}", a.view(), b.view());
                    let (c, before) = one(arch, &mut Pool::new(1), &a, &b, 1, update);
                    let before = (update == Update::Accumulate).then_some(&before[..]);
                    check(&c, n + 1, &a, &b, before, 97, &what);
                    for threads in [2, 3] {
                        let (again, _) = one(arch, &mut Pool::new(threads), &a, &b, 1, update);
                        let same = c.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{what}: {threads} threads give other bits than one");
                    }
                }
            }
        }
    }
}

#[test]
fn the_epilogue_sees_every_element_once_and_finished() {
    for (m, n, k) in [(200, 1300, 1100), (3, 200, 20), (50, 60, 0), (1700, 40, 30)] {
        let a = Operand::new(m, k, 0, Layout::Cols, 1);
        let b = Operand::new(k, n, 0, Layout::Rows, 2);
        let mut pool = Pool::new(3);
        let (plain, _) = one(simd::arch(), &mut pool, &a, &b, 0, Update::Overwrite);
        let mut c = vec![f32::NAN; m * n];
        let mut scratch = vec![f32::NAN; scratch_len(m, n, k, 3)];
        let to = MatrixMut::new(&mut c, m, n);
        product(&mut pool, a.view(), b.view(), to, Update::Overwrite, &mut scratch, |worker, mut block| {
            assert!(worker < 3);
            for row in block.rows() {
                let cols = block.cols();
                for (x, col) in block.row(row).iter_mut().zip(cols) {
                    *x = 2.0 * *x + (row * n + col) as f32;
                }
            }
        });
        for (at, (&plain, &c)) in plain.iter().zip(&c).enumerate() {
            assert_eq!(c, 2.0 * plain + at as f32, "{m} × {n} × {k}, element {at}");
        }
    }
}

#[test]
fn without_rows_columns_or_depth() {
    let mut pool = Pool::new(2);
    for arch in sets() {
        for (m, n, k) in [(0, 5, 3), (5, 0, 3), (5, 6, 0), (20, 40, 0)] {
            let a = Operand::new(m, k, 0, Layout::Rows, 1);
            let b = Operand::new(k, n, 0, Layout::Rows, 2);
            let (c, _) = one(arch, &mut pool, &a, &b, 0, Update::Overwrite);
            assert_eq!(c, vec![0.0; m * n]);
            let (c, before) = one(arch, &mut pool, &a, &b, 0, Update::Accumulate);
            assert_eq!(c, before);
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let refused = |run: fn() -> usize| std::panic::catch_unwind(run).is_err();
    assert!(refused(|| Matrix::new(&[0.0; 5], 2, 3).rows));
    assert!(refused(|| Matrix::with_strides(&[0.0; 5], 2, 2, usize::MAX, 1).rows));
    assert!(refused(|| MatrixMut::with_stride(&mut [0.0; 9], 2, 3, 2).rows));
    assert!(!refused(|| MatrixMut::with_stride(&mut [0.0; 9], 2, 3, 3).rows));
    let product = |inner: usize, scratch: usize| {
        let (a, b, mut c) = ([0.0; 9], [0.0; 9], [0.0; 9]);
        let (a, b, c) = (Matrix::new(&a, 3, 3), Matrix::new(&b, inner, 3), MatrixMut::new(&mut c, 3, 3));
        super::product(&mut Pool::new(1), a, b, c, Update::Overwrite, &mut vec![0.0; scratch], |_, _| {});
    };
    let refused = |inner, scratch| std::panic::catch_unwind(|| product(inner, scratch)).is_err();
    let enough = scratch_len(3, 3, 3, 1);
    assert!(!refused(3, enough) && refused(2, enough) && refused(3, enough - 1));
}
