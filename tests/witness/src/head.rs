//! The loss of a head and its gradients.

use capful_core::memory::Dtype;
use capful_core::ops::{HeadGrad, HeadLoss, IGNORE, Softcap};

use super::{Lay, Witness, control, drawn, matrix, shapes, vector};

/// A head of one of these shapes. Some rows have no target.
#[derive(Clone, Copy)]
pub struct Head {
    /// Rows, width, rows of the weight, number of ids among these, rows of a chunk.
    pub shape: [u32; 5],
    /// The standard deviation of the rows.
    pub deviation: f32,
    pub gradient: bool,
    /// If there is a gradient: whether the weight has one; if not, the gradient of the logits is an output.
    pub weight_grad: bool,
    /// Whether the gradients are added to existing ones.
    pub again: bool,
    pub biased: bool,
    /// The cap of the logits, or 0.
    pub softcap: f32,
    /// Whether all operands are f32.
    pub exact: bool,
}

impl Head {
    pub fn of(shape: [u32; 5], gradient: bool, again: bool) -> Head {
        Head { shape, deviation: 1.0, gradient, weight_grad: true, again, biased: false, softcap: 0.0, exact: false }
    }
}

pub fn head_loss(l: &mut Lay, head: Head) -> HeadLoss {
    let Head { shape: [rows, d, vocabulary, own, chunk], gradient, again, exact, .. } = head;
    let mut targets = drawn(5, rows, own);
    targets.iter_mut().skip(rows as usize / 2).step_by(5).for_each(|id| *id = IGNORE);
    let [settings, results] = control(l, 0.5);
    let given = |l: &mut Lay, shape, scale| if exact { l.exact(shape, scale) } else { l.normal(shape, scale) };
    let made = |l: &mut Lay, shape| if exact { l.poison_exact(shape) } else { l.poison(shape) };
    let logits = matrix(chunk, vocabulary);
    HeadLoss {
        x: given(l, matrix(rows, d), head.deviation),
        weight: given(l, matrix(vocabulary, d), 0.3),
        bias: head.biased.then(|| l.exact(vector(vocabulary), 1.0)),
        softcap: head.softcap,
        ids: own,
        targets: l.ids(targets),
        logits: match gradient {
            // An evaluation's logits are f32 in every precision.
            false => l.left(logits, Some(Dtype::F32)),
            true if !head.weight_grad => made(l, logits),
            true => l.left(logits, exact.then_some(Dtype::F32)),
        },
        losses: l.poison_exact(vector(rows)),
        settings,
        results,
        add_loss: again,
        integer: None,
        gradient: gradient.then(|| HeadGrad {
            x_grad: made(l, matrix(rows, d)),
            weight_grad: head.weight_grad.then(|| l.gradient(matrix(vocabulary, d), again)),
            accumulate: again,
        }),
    }
}

/// Without a gradient, with one, and with one that is added to an existing one.
const FORMS: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

pub fn head_loss_and_its_gradients(w: &mut impl Witness) {
    // Rows of 26,000 and 4,001 logits exceed the registers of a block.
    let cases = [[9, 16, 300, 4], [1, 1, 2, 1], [7, 5, 33, 9], [3, 4, 26_000, 2], [2, 4, 4001, 2], [150, 70, 400, 40]];
    for [rows, d, vocabulary, chunk] in cases.into_iter().chain(shapes(4, 4, [40, 30, 500, 50])) {
        for (gradient, again) in FORMS {
            // Long rows take long on the stand-in.
            if vocabulary > 4000 && gradient && !again {
                continue;
            }
            w.case(|l| head_loss(l, Head::of([rows, d, vocabulary, vocabulary, chunk], gradient, again)));
        }
    }
}

/// Shapes with rows of the weight that are no ids.
pub const PADDED: [[u32; 5]; 4] =
    [[9, 16, 320, 261, 4], [5, 3, 64, 3, 5], [4, 8, 301, 170, 3], [3, 4, 26_048, 17_003, 2]];

pub fn a_padded_vocabulary(w: &mut impl Witness) {
    for (shape, (gradient, again)) in PADDED.into_iter().flat_map(|shape| FORMS.map(|form| (shape, form))) {
        w.case(|l| head_loss(l, Head::of(shape, gradient, again)));
    }
}

/// Rows that occupy a multiprocessor alone, and exceed its registers.
pub fn long_rows_of_logits(w: &mut impl Witness) {
    for (shape, again) in [([3, 1, 66_048, 50_005, 2], false), ([2, 1, 65_543, 65_543, 2], true)] {
        w.case(|l| head_loss(l, Head::of(shape, true, again)));
    }
}

/// Logits with deviations around the cap, so that some are nearly unchanged and others are at the cap.
pub fn capped_logits(w: &mut impl Witness) {
    let cases = [[9, 16, 320, 261, 4], [5, 3, 64, 64, 5], [3, 4, 4001, 4001, 3], [2, 1, 66_048, 50_005, 2]];
    for (shape, (gradient, again)) in cases.into_iter().flat_map(|shape| FORMS.map(|form| (shape, form))) {
        // Long rows take long on the stand-in.
        if shape[2] > 50_000 && gradient == again {
            continue;
        }
        let head = Head::of(shape, gradient, again);
        for softcap in [1.5, 4.0] {
            w.case(|l| head_loss(l, Head { softcap, ..head }));
        }
    }
    // In bf16, the gradient of a logit that is rounded to the cap cannot be compared.
    for (exact, deviation) in [(true, 8.0), (false, 1.0)] {
        let head = Head {
            softcap: 1.5,
            deviation,
            biased: true,
            weight_grad: false,
            exact,
            ..Head::of([5, 6, 320, 261, 5], true, false)
        };
        w.case(|l| head_loss(l, head));
    }
    for (shape, cap) in [(matrix(1, 1), 0.5), (matrix(3, 1001), 2.0), (matrix(1, 20_000), 30.0)] {
        w.case(|l| Softcap { x: l.exact(shape, 3.0), cap });
    }
}

pub fn a_head_with_a_bias_keeps_its_logits_gradient(w: &mut impl Witness) {
    for [rows, d, vocabulary, own] in [[3, 8, 300, 300], [2, 4, 4001, 4001], [5, 6, 320, 261], [2, 1, 33_024, 33_001]] {
        for (gradient, exact) in [(false, true), (true, true), (true, false)] {
            let head = Head::of([rows, d, vocabulary, own, rows], gradient, false);
            w.case(|l| head_loss(l, Head { biased: true, weight_grad: false, exact, ..head }));
        }
    }
    // A head without a bias may lack the weight's gradient; a head with a bias has it.
    for (biased, again) in [(true, false), (false, true), (true, true)] {
        let head = Head::of([21, 33, 150, 147, if biased { 8 } else { 21 }], true, again);
        w.case(|l| head_loss(l, Head { biased, weight_grad: biased, ..head }));
    }
}
