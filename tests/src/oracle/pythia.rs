//! GPT-NeoX, the architecture of Pythia (Black et al., "GPT-NeoX-20B", 2022; Biderman et al., "Pythia", 2023).
//!
//! Embedding; layers x + attention(LN1 x) + mlp(LN2 x); final LayerNorm; untied head. Weights carry their Hugging Face
//! names and layout: linear weights [out, in], and the rows of the fused projection ordered [head, (q, k, v), head_dim].

use super::Oracle;
use super::attention::{Pattern, Shape, attention, attention_gradient};
use super::ops::{
    cross_entropy, cross_entropy_gradient, embedding, embedding_gradient, gelu, gelu_gradient, layer_norm,
    layer_norm_gradient, linear, linear_gradient, rotary, rotary_gradient,
};
use super::tensor::{Tensor, Tensors};

/// The sizes of a model and the pattern of its attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub d: usize,
    /// Attention heads, each of d / heads dimensions.
    pub heads: usize,
    /// Width inside the MLP.
    pub d_ff: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Dimensions of each head that rotate, an even number.
    pub rotary: usize,
    /// Base of the rotary frequencies.
    pub rotary_base: f64,
    /// Added to the variance in every LayerNorm.
    pub eps: f64,
    /// Which positions a position attends to.
    pub attention: Pattern,
}

impl Config {
    /// A Pythia of these sizes: a quarter of each head rotates, base 10,000, eps 1e-5, dense attention.
    pub fn pythia(layers: usize, d: usize, heads: usize, d_ff: usize, vocab: usize) -> Self {
        let rotary = d / heads / 4;
        Self { layers, d, heads, d_ff, vocab, rotary, rotary_base: 10_000.0, eps: 1e-5, attention: Pattern::Dense }
    }

    /// Pythia-70M with a vocabulary of `vocab`.
    pub fn pythia_70m(vocab: usize) -> Self {
        Self::pythia(6, 512, 8, 2048, vocab)
    }

    /// Name and shape of every weight, in the order of the model's forward pass.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, ff) = (self.d, self.d_ff);
        let mut all = vec![("gpt_neox.embed_in.weight".to_owned(), vec![self.vocab, d])];
        for layer in 0..self.layers {
            for (name, shape) in [
                ("input_layernorm.weight", vec![d]),
                ("input_layernorm.bias", vec![d]),
                ("post_attention_layernorm.weight", vec![d]),
                ("post_attention_layernorm.bias", vec![d]),
                ("attention.query_key_value.weight", vec![3 * d, d]),
                ("attention.query_key_value.bias", vec![3 * d]),
                ("attention.dense.weight", vec![d, d]),
                ("attention.dense.bias", vec![d]),
                ("mlp.dense_h_to_4h.weight", vec![ff, d]),
                ("mlp.dense_h_to_4h.bias", vec![ff]),
                ("mlp.dense_4h_to_h.weight", vec![d, ff]),
                ("mlp.dense_4h_to_h.bias", vec![d]),
            ] {
                all.push((format!("gpt_neox.layers.{layer}.{name}"), shape));
            }
        }
        all.push(("gpt_neox.final_layer_norm.weight".to_owned(), vec![d]));
        all.push(("gpt_neox.final_layer_norm.bias".to_owned(), vec![d]));
        all.push(("embed_out.weight".to_owned(), vec![self.vocab, d]));
        all
    }

    /// Number of weights.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Weights by formula: entry i of tensor number n (in the order of [`Config::tensors`]) is `scale` ·
    /// sin(0.37 i² + n), plus 1 in a LayerNorm's weight. Rounded to f32, so that a copy in f32 is the same model.
    pub fn formula_weights(&self, scale: f64) -> Tensors {
        super::tensor::formula_weights(self.tensors(), scale)
    }

    fn attention_shape(&self, batch: Batch<'_>) -> Shape {
        let (length, heads) = (batch.length, self.heads);
        Shape { batch: batch.sequences(), length, heads, kv_heads: heads, head_dim: self.d / heads }
    }

    /// The fused projection [rows, heads, (q, k, v), head_dim] → q, k and v, each [rows, heads, head_dim].
    fn split(&self, fused: &[f64]) -> [Vec<f64>; 3] {
        let head_dim = self.d / self.heads;
        let mut parts = [const { Vec::new() }; 3];
        for (i, piece) in fused.chunks(head_dim).enumerate() {
            parts[i % 3].extend_from_slice(piece);
        }
        parts
    }

    /// The inverse of [`Config::split`].
    fn fuse(&self, parts: [&[f64]; 3]) -> Vec<f64> {
        let head_dim = self.d / self.heads;
        let pieces = parts[0].len() / head_dim;
        (0..pieces).flat_map(|i| parts.map(|part| &part[i * head_dim..][..head_dim]).concat()).collect()
    }

    fn rotate(&self, x: &[f64], positions: &[usize]) -> Vec<f64> {
        rotary(x, positions, self.heads, self.d / self.heads, self.rotary, self.rotary_base)
    }

    fn rotate_back(&self, dy: &[f64], positions: &[usize]) -> Vec<f64> {
        rotary_gradient(dy, positions, self.heads, self.d / self.heads, self.rotary, self.rotary_base)
    }
}

/// Sequences of equal length, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids [sequences, length].
    pub inputs: &'a [u32],
    /// The id to predict at each place, or [`super::IGNORE`].
    pub targets: &'a [u32],
    /// Tokens a sequence.
    pub length: usize,
}

impl Batch<'_> {
    pub(super) fn sequences(&self) -> usize {
        assert!(self.inputs.len().is_multiple_of(self.length));
        self.inputs.len() / self.length
    }

    pub(super) fn positions(&self) -> Vec<usize> {
        (0..self.inputs.len()).map(|row| row % self.length).collect()
    }
}

/// What a layer computed on its way forward, kept for the way back. Rows are tokens.
struct Saved {
    input: Vec<f64>,
    norm1: Vec<f64>,
    norm2: Vec<f64>,
    /// Queries and keys after their rotation, values as they are.
    qkv: [Vec<f64>; 3],
    attended: Vec<f64>,
    mlp_input: Vec<f64>,
    mlp_activation: Vec<f64>,
}

/// The weights of one layer, or of the model's ends, by the tail of their names.
struct Named<'a> {
    weights: &'a Tensors,
    prefix: String,
}

impl<'a> Named<'a> {
    fn layer(weights: &'a Tensors, layer: usize) -> Self {
        Self { weights, prefix: format!("gpt_neox.layers.{layer}.") }
    }

    fn get(&self, tail: &str) -> &'a [f64] {
        let name = format!("{}{tail}", self.prefix);
        &self.weights.get(&name).unwrap_or_else(|| panic!("no tensor {name}")).data
    }
}

fn layer_forward(config: &Config, w: &Named<'_>, batch: Batch<'_>, input: Vec<f64>) -> (Vec<f64>, Saved) {
    let (rows, d, ff, eps) = (batch.inputs.len(), config.d, config.d_ff, config.eps);
    let norm1 = layer_norm(&input, w.get("input_layernorm.weight"), w.get("input_layernorm.bias"), d, eps);
    let fused = linear(
        &norm1,
        w.get("attention.query_key_value.weight"),
        Some(w.get("attention.query_key_value.bias")),
        rows,
        d,
        3 * d,
    );
    let [q, k, v] = config.split(&fused);
    let positions = batch.positions();
    let (q, k) = (config.rotate(&q, &positions), config.rotate(&k, &positions));
    let sees = |_, i, j| config.attention.sees(i, j);
    let (attended, _) = attention(config.attention_shape(batch), &q, &k, &v, &sees);
    let from_attention =
        linear(&attended, w.get("attention.dense.weight"), Some(w.get("attention.dense.bias")), rows, d, d);

    let (gain, bias) = (w.get("post_attention_layernorm.weight"), w.get("post_attention_layernorm.bias"));
    let norm2 = layer_norm(&input, gain, bias, d, eps);
    let mlp_input =
        linear(&norm2, w.get("mlp.dense_h_to_4h.weight"), Some(w.get("mlp.dense_h_to_4h.bias")), rows, d, ff);
    let mlp_activation = gelu(&mlp_input);
    let from_mlp =
        linear(&mlp_activation, w.get("mlp.dense_4h_to_h.weight"), Some(w.get("mlp.dense_4h_to_h.bias")), rows, ff, d);

    let output = (0..rows * d).map(|i| input[i] + from_attention[i] + from_mlp[i]).collect();
    (output, Saved { input, norm1, norm2, qkv: [q, k, v], attended, mlp_input, mlp_activation })
}

/// The gradient of the layer's input; the gradients of its weights go into `gradients`.
fn layer_backward(
    config: &Config,
    w: &Named<'_>,
    batch: Batch<'_>,
    saved: &Saved,
    d_output: &[f64],
    gradients: &mut Tensors,
) -> Vec<f64> {
    let (rows, d, ff, eps) = (batch.inputs.len(), config.d, config.d_ff, config.eps);
    let mut put = |tail: &str, shape: &[usize], data: Vec<f64>| {
        gradients.insert(format!("{}{tail}", w.prefix), Tensor::new(shape, data));
    };

    let (d_activation, dw, db) =
        linear_gradient(&saved.mlp_activation, w.get("mlp.dense_4h_to_h.weight"), d_output, rows, ff, d);
    put("mlp.dense_4h_to_h.weight", &[d, ff], dw);
    put("mlp.dense_4h_to_h.bias", &[d], db);
    let d_mlp_input = gelu_gradient(&saved.mlp_input, &d_activation);
    let (d_norm2, dw, db) = linear_gradient(&saved.norm2, w.get("mlp.dense_h_to_4h.weight"), &d_mlp_input, rows, d, ff);
    put("mlp.dense_h_to_4h.weight", &[ff, d], dw);
    put("mlp.dense_h_to_4h.bias", &[ff], db);
    let (d_input_mlp, dgain, dbias) =
        layer_norm_gradient(&saved.input, w.get("post_attention_layernorm.weight"), &d_norm2, d, eps);
    put("post_attention_layernorm.weight", &[d], dgain);
    put("post_attention_layernorm.bias", &[d], dbias);

    let (d_attended, dw, db) = linear_gradient(&saved.attended, w.get("attention.dense.weight"), d_output, rows, d, d);
    put("attention.dense.weight", &[d, d], dw);
    put("attention.dense.bias", &[d], db);
    let [q, k, v] = &saved.qkv;
    let sees = |_, i, j| config.attention.sees(i, j);
    let (dq, dk, dv) = attention_gradient(config.attention_shape(batch), q, k, v, &d_attended, &sees);
    let positions = batch.positions();
    let (dq, dk) = (config.rotate_back(&dq, &positions), config.rotate_back(&dk, &positions));
    let d_fused = config.fuse([&dq, &dk, &dv]);
    let (d_norm1, dw, db) =
        linear_gradient(&saved.norm1, w.get("attention.query_key_value.weight"), &d_fused, rows, d, 3 * d);
    put("attention.query_key_value.weight", &[3 * d, d], dw);
    put("attention.query_key_value.bias", &[3 * d], db);
    let (d_input_attention, dgain, dbias) =
        layer_norm_gradient(&saved.input, w.get("input_layernorm.weight"), &d_norm1, d, eps);
    put("input_layernorm.weight", &[d], dgain);
    put("input_layernorm.bias", &[d], dbias);

    (0..rows * d).map(|i| d_output[i] + d_input_attention[i] + d_input_mlp[i]).collect()
}

/// Everything up to the logits: what the layers kept, the input of the final LayerNorm, its output, and the logits.
fn forward(config: &Config, weights: &Tensors, batch: Batch<'_>) -> (Vec<Saved>, Vec<f64>, Vec<f64>, Vec<f64>) {
    let ends = Named { weights, prefix: String::new() };
    let mut x = embedding(ends.get("gpt_neox.embed_in.weight"), batch.inputs, config.d);
    let mut layers = Vec::new();
    for layer in 0..config.layers {
        let (output, saved) = layer_forward(config, &Named::layer(weights, layer), batch, x);
        layers.push(saved);
        x = output;
    }
    let (gain, bias) = (ends.get("gpt_neox.final_layer_norm.weight"), ends.get("gpt_neox.final_layer_norm.bias"));
    let hidden = layer_norm(&x, gain, bias, config.d, config.eps);
    let logits = linear(&hidden, ends.get("embed_out.weight"), None, batch.inputs.len(), config.d, config.vocab);
    (layers, x, hidden, logits)
}

/// The logits [sequences · length, vocab] of `inputs` [sequences, length].
pub fn logits(config: &Config, weights: &Tensors, inputs: &[u32], length: usize) -> Vec<f64> {
    forward(config, weights, Batch { inputs, targets: &[], length }).3
}

/// Mean cross-entropy over the targets that are not ignored, in nats.
pub fn loss(config: &Config, weights: &Tensors, batch: Batch<'_>) -> f64 {
    cross_entropy(&forward(config, weights, batch).3, batch.targets, config.vocab)
}

/// The loss and its gradient by every weight, under the weight's name.
pub fn loss_and_gradients(config: &Config, weights: &Tensors, batch: Batch<'_>) -> (f64, Tensors) {
    let (d, vocab, rows) = (config.d, config.vocab, batch.inputs.len());
    let ends = Named { weights, prefix: String::new() };
    let (layers, last, hidden, logits) = forward(config, weights, batch);
    let loss = cross_entropy(&logits, batch.targets, vocab);

    let d_logits = cross_entropy_gradient(&logits, batch.targets, vocab);
    let mut gradients = Tensors::new();
    let (d_hidden, dw, _) = linear_gradient(&hidden, ends.get("embed_out.weight"), &d_logits, rows, d, vocab);
    gradients.insert("embed_out.weight".to_owned(), Tensor::new(&[vocab, d], dw));
    let gain = ends.get("gpt_neox.final_layer_norm.weight");
    let (mut dx, dgain, dbias) = layer_norm_gradient(&last, gain, &d_hidden, d, config.eps);
    gradients.insert("gpt_neox.final_layer_norm.weight".to_owned(), Tensor::new(&[d], dgain));
    gradients.insert("gpt_neox.final_layer_norm.bias".to_owned(), Tensor::new(&[d], dbias));
    for (layer, saved) in layers.iter().enumerate().rev() {
        dx = layer_backward(config, &Named::layer(weights, layer), batch, saved, &dx, &mut gradients);
    }
    let table = embedding_gradient(batch.inputs, &dx, vocab, d);
    gradients.insert("gpt_neox.embed_in.weight".to_owned(), Tensor::new(&[vocab, d], table));
    (loss, gradients)
}

impl Oracle for Config {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn attention(&self) -> Pattern {
        self.attention
    }

    fn loss_and_gradients(&self, weights: &Tensors, batch: Batch<'_>) -> (f64, Tensors) {
        loss_and_gradients(self, weights, batch)
    }
}

#[cfg(test)]
#[path = "pythia_tests.rs"]
mod tests;
