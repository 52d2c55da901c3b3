//! A layer: attention and feed-forward, each after its norm, forward and backward. Rows are tokens.

use super::super::Batch;
use super::super::attention::{Shape, attention, attention_gradient};
use super::super::ops::{gelu, gelu_gradient, rotary, rotary_gradient, swiglu, swiglu_gradient};
use super::super::tensor::{Tensor, Tensors};
use super::named::Named;
use super::names::{NORM1, NORM2, Projection};
use super::{Config, Feed, Residual};

/// One layer of a model on a batch.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) model: Named<'a>,
    pub(super) batch: Batch<'a>,
    pub(super) layer: usize,
    /// Whether dropout is active.
    pub(super) trains: bool,
}

/// The values of a layer's forward pass that the backward pass needs.
pub(super) struct Saved {
    input: Vec<f64>,
    norm1: Vec<f64>,
    /// Queries, keys and values after their projection.
    projected: [Vec<f64>; 3],
    /// Queries and keys after their norm and their rotation, and unchanged values.
    qkv: [Vec<f64>; 3],
    attended: Vec<f64>,
    /// The input of the second norm.
    between: Vec<f64>,
    norm2: Vec<f64>,
    hidden: Hidden,
}

/// The inside of a feed-forward.
struct Hidden {
    /// Empty without a gate.
    gate: Vec<f64>,
    up: Vec<f64>,
    activated: Vec<f64>,
}

/// a + b.
pub(super) fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The fused projection [rows, heads, (q, k, v), size] → q, k and v, each [rows, heads, size].
pub(super) fn split(fused: &[f64], size: usize) -> [Vec<f64>; 3] {
    let mut parts = [const { Vec::new() }; 3];
    for (i, piece) in fused.chunks(size).enumerate() {
        parts[i % 3].extend_from_slice(piece);
    }
    parts
}

/// The inverse of [`split`].
pub(super) fn fuse(parts: &[Vec<f64>; 3], size: usize) -> Vec<f64> {
    let pieces = parts[0].len() / size;
    (0..pieces).flat_map(|i| parts.each_ref().map(|part| &part[i * size..][..size]).concat()).collect()
}

impl<'a> Block<'a> {
    fn config(self) -> &'a Config {
        self.model.config
    }

    fn name(self, part: &str) -> String {
        self.config().part(self.layer, part)
    }

    /// The layer's output, and the values that the backward pass needs.
    pub(super) fn forward(self, input: Vec<f64>) -> (Vec<f64>, Saved) {
        let (model, names) = (self.model, self.config().spelling());
        let norm1 = self.masked(1, model.norm(&self.name(NORM1), &input));
        let projected = self.project(&norm1);
        let qkv = self.with_table(self.rotated(self.normed(projected.clone())));
        let [q, k, v] = &qkv;
        let (attended, _) = attention(self.shape(), q, k, v, &|_, i, j| self.config().sees(self.trains, i, j));
        let with_attention = sum(&input, &model.linear(&self.name(names.output), &attended));
        let between = match self.config().residual {
            Residual::Parallel => input.clone(),
            Residual::Sequential => with_attention.clone(),
        };
        let norm2 = self.masked(2, model.norm(&self.name(NORM2), &between));
        let hidden = self.hidden(&norm2);
        let output = sum(&with_attention, &model.linear(&self.name(names.down), &hidden.activated));
        (output, Saved { input, norm1, projected, qkv, attended, between, norm2, hidden })
    }

    /// The gradient of the layer's input; the gradients of its weights go into `gradients`.
    pub(super) fn backward(self, saved: &Saved, d_output: &[f64], gradients: &mut Tensors) -> Vec<f64> {
        let d_between = self.feed_back(saved, d_output, gradients);
        let with_feed = sum(d_output, &d_between);
        let d_attention = match self.config().residual {
            Residual::Parallel => d_output,
            Residual::Sequential => &with_feed,
        };
        sum(&with_feed, &self.attention_back(saved, d_attention, gradients))
    }

    /// Dropout of the output of norm 1 or 2, or of its gradient, in training.
    fn masked(self, norm: usize, x: Vec<f64>) -> Vec<f64> {
        super::masked(self.config(), self.trains, 2 * self.layer + norm, x)
    }

    /// Queries, keys and values before any rotation.
    fn project(self, x: &[f64]) -> [Vec<f64>; 3] {
        match self.config().projection() {
            Projection::Fused(name) => split(&self.model.linear(&self.name(name), x), self.config().head_size),
            Projection::Separate(names) => names.map(|name| self.model.linear(&self.name(name), x)),
        }
    }

    /// The gradient of the input of [`Block::project`].
    fn project_back(self, x: &[f64], d_qkv: &[Vec<f64>; 3], gradients: &mut Tensors) -> Vec<f64> {
        match self.config().projection() {
            Projection::Fused(name) => {
                self.model.linear_back(&self.name(name), x, &fuse(d_qkv, self.config().head_size), gradients)
            }
            Projection::Separate(names) => {
                let parts = names.into_iter().zip(d_qkv);
                let back = |(name, dy): (&str, &Vec<f64>)| self.model.linear_back(&self.name(name), x, dy, gradients);
                parts.map(back).reduce(|a, b| sum(&a, &b)).expect("three of them")
            }
        }
    }

    /// From the output of the attention's last linear layer back to the input of the norm before it.
    fn attention_back(self, saved: &Saved, dy: &[f64], gradients: &mut Tensors) -> Vec<f64> {
        let output = self.name(self.config().spelling().output);
        let d_attended = self.model.linear_back(&output, &saved.attended, dy, gradients);
        let [q, k, v] = &saved.qkv;
        let sees = |_, i, j| self.config().sees(true, i, j);
        let (dq, dk, dv) = attention_gradient(self.shape(), q, k, v, &d_attended, &sees);
        self.table_back(&dv, gradients);
        let d_qkv = self.normed_back(&saved.projected, self.rotated_back([dq, dk, dv]), gradients);
        let d_norm1 = self.project_back(&saved.norm1, &d_qkv, gradients);
        self.model.norm_back(&self.name(NORM1), &saved.input, &self.masked(1, d_norm1), gradients)
    }

    /// The feed-forward up to its last linear layer.
    fn hidden(self, x: &[f64]) -> Hidden {
        let names = self.config().spelling();
        let up = self.model.linear(&self.name(names.up), x);
        match self.config().feed {
            Feed::Gelu => Hidden { gate: Vec::new(), activated: gelu(&up), up },
            Feed::SwiGlu => {
                let gate = self.model.linear(&self.name(names.gate), x);
                Hidden { activated: swiglu(&gate, &up), gate, up }
            }
        }
    }

    /// From the output of the feed-forward back to the input of the norm before it.
    fn feed_back(self, saved: &Saved, dy: &[f64], gradients: &mut Tensors) -> Vec<f64> {
        let (model, names) = (self.model, self.config().spelling());
        let Hidden { gate, up, activated } = &saved.hidden;
        let d_activated = model.linear_back(&self.name(names.down), activated, dy, gradients);
        let d_norm2 = match self.config().feed {
            Feed::Gelu => {
                let d_up = gelu_gradient(up, &d_activated);
                model.linear_back(&self.name(names.up), &saved.norm2, &d_up, gradients)
            }
            Feed::SwiGlu => {
                let (d_gate, d_up) = swiglu_gradient(gate, up, &d_activated);
                let from_gate = model.linear_back(&self.name(names.gate), &saved.norm2, &d_gate, gradients);
                sum(&from_gate, &model.linear_back(&self.name(names.up), &saved.norm2, &d_up, gradients))
            }
        };
        model.norm_back(&self.name(NORM2), &saved.between, &self.masked(2, d_norm2), gradients)
    }

    fn shape(self) -> Shape {
        let (config, batch) = (self.config(), self.batch);
        let (heads, kv_heads, head_dim) = (config.heads, config.kv_heads, config.head_size);
        Shape { batch: batch.sequences(), length: batch.length, heads, kv_heads, head_dim }
    }

    /// Queries and keys after their norms, if there are any.
    fn normed(self, [q, k, v]: [Vec<f64>; 3]) -> [Vec<f64>; 3] {
        if !self.config().qk_norm {
            return [q, k, v];
        }
        let [query, key] = self.config().spelling().qk_norms.map(|name| self.name(name));
        [self.model.head_norm(&query, &q), self.model.head_norm(&key, &k), v]
    }

    /// The gradient of the input of [`Block::normed`].
    fn normed_back(self, projected: &[Vec<f64>; 3], d: [Vec<f64>; 3], gradients: &mut Tensors) -> [Vec<f64>; 3] {
        if !self.config().qk_norm {
            return d;
        }
        let ([q, k, _], [dq, dk, dv]) = (projected, d);
        let [query, key] = self.config().spelling().qk_norms.map(|name| self.name(name));
        let mut back = |name: &str, x: &[f64], dy: &[f64]| self.model.head_norm_back(name, x, dy, gradients);
        [back(&query, q, &dq), back(&key, k, &dk), dv]
    }

    /// The layer's value table, if it has one, its gain, and their names.
    fn table(self) -> Option<([String; 2], &'a [f64], f64)> {
        let config = self.config();
        let number = self.layer.checked_rem(config.value_tables)?;
        let names = [config.value_table(number), self.name(config.spelling().value_gain)];
        let [table, gain] = names.each_ref().map(|name| self.model.data(name));
        Some((names, table, gain[0]))
    }

    /// Values plus the tokens' rows of the table.
    fn with_table(self, [q, k, mut v]: [Vec<f64>; 3]) -> [Vec<f64>; 3] {
        if let Some((_, table, gain)) = self.table() {
            let width = self.config().kv_heads * self.config().head_size;
            for (row, id) in v.chunks_mut(width).zip(self.batch.inputs) {
                row.iter_mut().zip(&table[*id as usize * width..]).for_each(|(v, x)| *v += gain * x);
            }
        }
        [q, k, v]
    }

    /// The gradients of table and gain, computed from the values' gradient. The table's may already have those of other
    /// layers.
    fn table_back(self, dv: &[f64], gradients: &mut Tensors) {
        let Some(([name, gain_name], table, gain)) = self.table() else { return };
        let (width, vocab) = (self.config().kv_heads * self.config().head_size, self.config().vocab);
        let zeros = || Tensor::new(&[vocab, width], vec![0.0; vocab * width]);
        let (d_table, mut d_gain) = (gradients.entry(name).or_insert_with(zeros), 0.0);
        for (d, id) in dv.chunks(width).zip(self.batch.inputs) {
            let at = *id as usize * width;
            d_gain += d.iter().zip(&table[at..]).map(|(d, x)| d * x).sum::<f64>();
            d_table.data[at..].iter_mut().zip(d).for_each(|(to, d)| *to += gain * d);
        }
        gradients.insert(gain_name, Tensor::new(&[1], vec![d_gain]));
    }

    /// Queries and keys rotated by their positions.
    fn rotated(self, [q, k, v]: [Vec<f64>; 3]) -> [Vec<f64>; 3] {
        let Config { heads, kv_heads, .. } = *self.config();
        let frequencies = self.config().frequencies();
        let (size, positions) = (self.config().head_size, self.batch.positions());
        let turn = |x: &[f64], heads| rotary(x, &positions, heads, size, &frequencies);
        [turn(&q, heads), turn(&k, kv_heads), v]
    }

    /// The gradient of [`Block::rotated`].
    fn rotated_back(self, [dq, dk, dv]: [Vec<f64>; 3]) -> [Vec<f64>; 3] {
        let Config { heads, kv_heads, .. } = *self.config();
        let frequencies = self.config().frequencies();
        let (size, positions) = (self.config().head_size, self.batch.positions());
        let turn = |dy: &[f64], heads| rotary_gradient(dy, &positions, heads, size, &frequencies);
        [turn(&dq, heads), turn(&dk, kv_heads), dv]
    }
}
