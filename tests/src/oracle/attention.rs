//! Masked softmax attention, with dense loops whatever the pattern: the mask is a function of every pair.

/// The earlier positions that a position sees. All patterns are causal; the sparse ones work on blocks of `block`
/// positions, and within a visible block the causal rule applies element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Every earlier position and itself.
    Dense,
    /// Key blocks at most `window` blocks back.
    Local {
        /// Positions of a block.
        block: usize,
        /// The number of blocks back.
        window: usize,
    },
    /// Key blocks whose index is a multiple of `stride`, and the query's own block.
    Global {
        /// Positions of a block.
        block: usize,
        /// The distance between blocks that all positions see.
        stride: usize,
    },
    /// Local with window 1 together with global with stride 4.
    Mixed {
        /// Positions of a block.
        block: usize,
    },
}

impl Pattern {
    /// Whether the query at position `i` sees the key at position `j`.
    pub fn sees(self, i: usize, j: usize) -> bool {
        let local = |block: usize, window: usize| (i / block).abs_diff(j / block) <= window;
        let global = |block: usize, stride: usize| (j / block).is_multiple_of(stride) || i / block == j / block;
        j <= i
            && match self {
                Pattern::Dense => true,
                Pattern::Local { block, window } => local(block, window),
                Pattern::Global { block, stride } => global(block, stride),
                Pattern::Mixed { block } => local(block, 1) || global(block, 4),
            }
    }
}

/// Sizes of an attention: queries [batch, length, heads, head_dim], keys and values [batch, length, kv_heads,
/// head_dim]. Query head h reads key head h / (heads / kv_heads).
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Positions of a sequence.
    pub length: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl Shape {
    fn query(self, b: usize, t: usize, h: usize) -> std::ops::Range<usize> {
        let start = ((b * self.length + t) * self.heads + h) * self.head_dim;
        start..start + self.head_dim
    }

    fn key(self, b: usize, t: usize, h: usize) -> std::ops::Range<usize> {
        let h = h / (self.heads / self.kv_heads);
        let start = ((b * self.length + t) * self.kv_heads + h) * self.head_dim;
        start..start + self.head_dim
    }

    fn scale(self) -> f64 {
        1.0 / libm::sqrt(self.head_dim as f64)
    }

    fn check(self, q: &[f64], k: &[f64], v: &[f64]) {
        assert_eq!(self.heads % self.kv_heads, 0);
        assert_eq!(q.len(), self.batch * self.length * self.heads * self.head_dim);
        assert_eq!(k.len(), self.batch * self.length * self.kv_heads * self.head_dim);
        assert_eq!(v.len(), k.len());
    }
}

/// The probabilities of one query row over all `length` keys, and the log of the sum of exponentials of its scores.
/// A query that sees nothing has probabilities 0 and a log-sum-exp of −∞.
fn probabilities(shape: Shape, q: &[f64], k: &[f64], at: (usize, usize, usize), sees: Sees<'_>) -> (Vec<f64>, f64) {
    let (b, h, i) = at;
    let query = &q[shape.query(b, i, h)];
    let scores: Vec<f64> = (0..shape.length)
        .map(|j| {
            let dot: f64 = query.iter().zip(&k[shape.key(b, j, h)]).map(|(a, b)| a * b).sum();
            if sees(b, i, j) { dot * shape.scale() } else { f64::NEG_INFINITY }
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return (vec![0.0; shape.length], largest);
    }
    let sum: f64 = scores.iter().map(|s| libm::exp(s - largest)).sum();
    let log_sum = largest + libm::log(sum);
    (scores.iter().map(|s| libm::exp(s - log_sum)).collect(), log_sum)
}

/// A function of (sequence, query position, key position): whether the query sees the key.
pub type Sees<'a> = &'a dyn Fn(usize, usize, usize) -> bool;

/// softmax(q kᵀ / √head_dim over the visible keys) v. Returns the output [batch, length, heads, head_dim] and the
/// log-sum-exp of the scores [batch, heads, length].
pub fn attention(shape: Shape, q: &[f64], k: &[f64], v: &[f64], sees: Sees<'_>) -> (Vec<f64>, Vec<f64>) {
    shape.check(q, k, v);
    let mut out = vec![0.0; q.len()];
    let mut log_sums = Vec::new();
    for b in 0..shape.batch {
        for h in 0..shape.heads {
            for i in 0..shape.length {
                let (p, log_sum) = probabilities(shape, q, k, (b, h, i), sees);
                log_sums.push(log_sum);
                for (j, p) in p.iter().enumerate() {
                    for (o, v) in out[shape.query(b, i, h)].iter_mut().zip(&v[shape.key(b, j, h)]) {
                        *o += p * v;
                    }
                }
            }
        }
    }
    (out, log_sums)
}

/// The gradients (dq, dk, dv) of [`attention`] under the output's gradient `d_out`:
/// dv_j = Σ p_ij dO_i, ds_ij = p_ij (dO_i·v_j − Σ_l p_il dO_i·v_l), dq_i = Σ ds_ij k_j / √D, dk_j = Σ ds_ij q_i / √D.
pub fn attention_gradient(
    shape: Shape,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    d_out: &[f64],
    sees: Sees<'_>,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    shape.check(q, k, v);
    assert_eq!(d_out.len(), q.len());
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for b in 0..shape.batch {
        for h in 0..shape.heads {
            for i in 0..shape.length {
                let (p, _) = probabilities(shape, q, k, (b, h, i), sees);
                let row = shape.query(b, i, h);
                let d_out = &d_out[row.clone()];
                let dp: Vec<f64> = (0..shape.length)
                    .map(|j| d_out.iter().zip(&v[shape.key(b, j, h)]).map(|(a, b)| a * b).sum())
                    .collect();
                let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
                for j in 0..shape.length {
                    let ds = p[j] * (dp[j] - mean) * shape.scale();
                    let column = shape.key(b, j, h);
                    for x in 0..shape.head_dim {
                        dv[column.start + x] += p[j] * d_out[x];
                        dq[row.start + x] += ds * k[column.start + x];
                        dk[column.start + x] += ds * q[row.start + x];
                    }
                }
            }
        }
    }
    (dq, dk, dv)
}

#[cfg(test)]
mod tests {
    use super::super::differences::{assert_close, gradient, waves};
    use super::*;

    const PATTERNS: [Pattern; 4] = [
        Pattern::Dense,
        Pattern::Local { block: 2, window: 1 },
        Pattern::Global { block: 2, stride: 2 },
        Pattern::Mixed { block: 1 },
    ];

    /// The number of blocks in which some query sees some key, counted from the element mask.
    fn active_blocks(pattern: Pattern, length: usize, block: usize) -> usize {
        let n = length.div_ceil(block);
        let mut seen = vec![false; n * n];
        for i in 0..length {
            for j in 0..length {
                seen[i / block * n + j / block] |= pattern.sees(i, j);
            }
        }
        seen.iter().filter(|&&s| s).count()
    }

    #[test]
    fn active_blocks_are_as_many_as_published() {
        let block = 64;
        for (length, local, global, mixed, dense) in
            [(256, 7, 8, 9, 10), (512, 15, 24, 23, 36), (1024, 31, 80, 63, 136), (2048, 63, 288, 191, 528)]
        {
            assert_eq!(active_blocks(Pattern::Local { block, window: 1 }, length, block), local);
            assert_eq!(active_blocks(Pattern::Global { block, stride: 2 }, length, block), global);
            assert_eq!(active_blocks(Pattern::Mixed { block }, length, block), mixed);
            assert_eq!(active_blocks(Pattern::Dense, length, block), dense);
        }
    }

    #[test]
    fn a_small_attention_is_as_worked_out_by_hand() {
        // One head of one element; the scores of the second row are ln 3 and 0, so its weights are 3/4 and 1/4.
        let shape = Shape { batch: 1, length: 2, heads: 1, kv_heads: 1, head_dim: 1 };
        let (out, log_sums) =
            attention(shape, &[5.0, 1.0], &[libm::log(3.0), 0.0], &[8.0, -4.0], &|_, i, j| Pattern::Dense.sees(i, j));
        assert_close("out", &out, &[8.0, 5.0], 1e-15);
        assert_close("log-sum-exp", &log_sums, &[5.0 * libm::log(3.0), libm::log(4.0)], 1e-15);
    }

    #[test]
    fn gradients_agree_with_differences_for_every_pattern_and_shared_heads() {
        let shape = Shape { batch: 2, length: 7, heads: 4, kv_heads: 2, head_dim: 3 };
        let (q, k, v) = (waves(1, 2 * 7 * 12), waves(2, 2 * 7 * 6), waves(3, 2 * 7 * 6));
        let d_out = waves(4, q.len());
        let dot = |out: Vec<f64>| -> f64 { out.iter().zip(&d_out).map(|(a, b)| a * b).sum() };
        for pattern in PATTERNS {
            let sees = |_, i, j| pattern.sees(i, j);
            let (dq, dk, dv) = attention_gradient(shape, &q, &k, &v, &d_out, &sees);
            assert_close("dq", &dq, &gradient(|q| dot(attention(shape, q, &k, &v, &sees).0), &q, 1e-3), 1e-9);
            assert_close("dk", &dk, &gradient(|k| dot(attention(shape, &q, k, &v, &sees).0), &k, 1e-3), 1e-9);
            assert_close("dv", &dv, &gradient(|v| dot(attention(shape, &q, &k, v, &sees).0), &v, 1e-3), 1e-9);
        }
    }

    #[test]
    fn a_query_that_sees_nothing_gives_zero_and_takes_no_gradient() {
        let shape = Shape { batch: 1, length: 2, heads: 1, kv_heads: 1, head_dim: 2 };
        let (q, k, v) = (waves(1, 4), waves(2, 4), waves(3, 4));
        let sees = |_, i: usize, j: usize| i == 1 && j == 0;
        assert_eq!(attention(shape, &q, &k, &v, &sees).0[..2], [0.0, 0.0]);
        let (dq, _, dv) = attention_gradient(shape, &q, &k, &v, &[1.0; 4], &sees);
        assert_eq!(dq, [0.0; 4]);
        assert_eq!(dv, [1.0, 1.0, 0.0, 0.0]);
    }
}
