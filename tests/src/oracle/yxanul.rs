//! Yxanul: a Llama (Touvron et al. 2023) with grouped queries, whose embedding may be E · Pᵀ.
//!
//! Layers m = x + attention(RMS1 x), x ← m + down(silu(gate n) ∘ up n) with n = RMS2 m; final RMSNorm h; the logits are
//! h · embeddingᵀ where the head is tied, h · headᵀ where not. Weights carry the names of transformers; E and P stand in
//! the place of `model.embed_tokens.weight`.

use super::Oracle;
use super::attention::{Pattern, Shape, attention, attention_gradient};
use super::ops::{
    cross_entropy, cross_entropy_gradient, embedding, embedding_gradient, linear, linear_gradient, rms_norm,
    rms_norm_gradient, rotary, rotary_gradient, swiglu, swiglu_gradient, transposed,
};
use super::pythia::Batch;
use super::tensor::{Tensor, Tensors};

/// The sizes of a model and the pattern of its attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub d: usize,
    /// Query heads, each of d / heads dimensions.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width inside the feed-forward.
    pub d_ff: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Columns of E, where the embedding is factorised.
    pub rank: Option<usize>,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub rotary_base: f64,
    /// Added to the mean square in every RMSNorm.
    pub eps: f64,
    /// Which positions a position attends to.
    pub attention: Pattern,
}

impl Config {
    /// Name and shape of every weight, in the order of the model's forward pass.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, ff, narrow) = (self.d, self.d_ff, self.kv_heads * (self.d / self.heads));
        let mut all = match self.rank {
            Some(rank) => vec![("model.embed_tokens.E".to_owned(), vec![self.vocab, rank])],
            None => vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab, d])],
        };
        all.extend(self.rank.map(|rank| ("model.embed_tokens.P".to_owned(), vec![d, rank])));
        for layer in 0..self.layers {
            for (name, shape) in [
                ("input_layernorm.weight", vec![d]),
                ("self_attn.q_proj.weight", vec![d, d]),
                ("self_attn.k_proj.weight", vec![narrow, d]),
                ("self_attn.v_proj.weight", vec![narrow, d]),
                ("self_attn.o_proj.weight", vec![d, d]),
                ("post_attention_layernorm.weight", vec![d]),
                ("mlp.gate_proj.weight", vec![ff, d]),
                ("mlp.up_proj.weight", vec![ff, d]),
                ("mlp.down_proj.weight", vec![d, ff]),
            ] {
                all.push((format!("model.layers.{layer}.{name}"), shape));
            }
        }
        all.push(("model.norm.weight".to_owned(), vec![d]));
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab, d]));
        }
        all
    }

    /// Weights by formula: see [`super::tensor::formula_weights`].
    pub fn formula_weights(&self, scale: f64) -> Tensors {
        super::tensor::formula_weights(self.tensors(), scale)
    }

    /// The embedding as one table [vocab, d].
    fn table(&self, weights: &Tensors) -> Vec<f64> {
        match self.rank {
            Some(rank) => {
                let [e, p] = ["E", "P"].map(|name| &weights[&format!("model.embed_tokens.{name}")].data);
                linear(e, p, None, self.vocab, rank, self.d)
            }
            None => weights["model.embed_tokens.weight"].data.clone(),
        }
    }

    fn shape(&self, batch: Batch<'_>) -> Shape {
        Shape {
            batch: batch.sequences(),
            length: batch.length,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.d / self.heads,
        }
    }

    fn rotate(&self, x: &[f64], positions: &[usize], heads: usize) -> Vec<f64> {
        let size = self.d / self.heads;
        rotary(x, positions, heads, size, size, self.rotary_base)
    }

    fn rotate_back(&self, dy: &[f64], positions: &[usize], heads: usize) -> Vec<f64> {
        let size = self.d / self.heads;
        rotary_gradient(dy, positions, heads, size, size, self.rotary_base)
    }
}

/// What a layer computed on its way forward. Rows are tokens.
struct Saved {
    input: Vec<f64>,
    norm1: Vec<f64>,
    /// Queries and keys after their rotation, values as they are.
    qkv: [Vec<f64>; 3],
    attended: Vec<f64>,
    mid: Vec<f64>,
    norm2: Vec<f64>,
    gate: Vec<f64>,
    up: Vec<f64>,
    activated: Vec<f64>,
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The weight of layer `layer` called `name`.
fn get<'a>(weights: &'a Tensors, layer: usize, name: &str) -> &'a [f64] {
    &weights[&format!("model.layers.{layer}.{name}.weight")].data
}

fn layer_forward(
    config: &Config,
    weights: &Tensors,
    layer: usize,
    batch: Batch<'_>,
    input: Vec<f64>,
) -> (Vec<f64>, Saved) {
    let (rows, d, ff, narrow) =
        (batch.inputs.len(), config.d, config.d_ff, config.kv_heads * (config.d / config.heads));
    let (get, positions) = (|name: &str| get(weights, layer, name), batch.positions());
    let norm1 = rms_norm(&input, get("input_layernorm"), d, config.eps);
    let q = linear(&norm1, get("self_attn.q_proj"), None, rows, d, d);
    let k = linear(&norm1, get("self_attn.k_proj"), None, rows, d, narrow);
    let v = linear(&norm1, get("self_attn.v_proj"), None, rows, d, narrow);
    let q = config.rotate(&q, &positions, config.heads);
    let k = config.rotate(&k, &positions, config.kv_heads);
    let (attended, _) = attention(config.shape(batch), &q, &k, &v, &|_, i, j| config.attention.sees(i, j));
    let mid = sum(&input, &linear(&attended, get("self_attn.o_proj"), None, rows, d, d));
    let norm2 = rms_norm(&mid, get("post_attention_layernorm"), d, config.eps);
    let gate = linear(&norm2, get("mlp.gate_proj"), None, rows, d, ff);
    let up = linear(&norm2, get("mlp.up_proj"), None, rows, d, ff);
    let activated = swiglu(&gate, &up);
    let output = sum(&mid, &linear(&activated, get("mlp.down_proj"), None, rows, ff, d));
    (output, Saved { input, norm1, qkv: [q, k, v], attended, mid, norm2, gate, up, activated })
}

/// The gradient of the layer's input; the gradients of its weights go into `gradients`.
fn layer_backward(
    config: &Config,
    weights: &Tensors,
    layer: usize,
    batch: Batch<'_>,
    saved: &Saved,
    d_output: &[f64],
    gradients: &mut Tensors,
) -> Vec<f64> {
    let (rows, d, ff, narrow) =
        (batch.inputs.len(), config.d, config.d_ff, config.kv_heads * (config.d / config.heads));
    let (get, positions) = (|name: &str| get(weights, layer, name), batch.positions());
    let mut put = |name: &str, shape: &[usize], data: Vec<f64>| {
        gradients.insert(format!("model.layers.{layer}.{name}.weight"), Tensor::new(shape, data));
    };
    let (d_activated, dw, _) = linear_gradient(&saved.activated, get("mlp.down_proj"), d_output, rows, ff, d);
    put("mlp.down_proj", &[d, ff], dw);
    let (d_gate, d_up) = swiglu_gradient(&saved.gate, &saved.up, &d_activated);
    let (from_gate, dw, _) = linear_gradient(&saved.norm2, get("mlp.gate_proj"), &d_gate, rows, d, ff);
    put("mlp.gate_proj", &[ff, d], dw);
    let (from_up, dw, _) = linear_gradient(&saved.norm2, get("mlp.up_proj"), &d_up, rows, d, ff);
    put("mlp.up_proj", &[ff, d], dw);
    let gain = get("post_attention_layernorm");
    let (d_mid, dgain) = rms_norm_gradient(&saved.mid, gain, &sum(&from_gate, &from_up), d, config.eps);
    put("post_attention_layernorm", &[d], dgain);
    let d_mid = sum(&d_mid, d_output);

    let (d_attended, dw, _) = linear_gradient(&saved.attended, get("self_attn.o_proj"), &d_mid, rows, d, d);
    put("self_attn.o_proj", &[d, d], dw);
    let [q, k, v] = &saved.qkv;
    let sees = |_, i, j| config.attention.sees(i, j);
    let (dq, dk, dv) = attention_gradient(config.shape(batch), q, k, v, &d_attended, &sees);
    let dq = config.rotate_back(&dq, &positions, config.heads);
    let dk = config.rotate_back(&dk, &positions, config.kv_heads);
    let mut d_norm1 = vec![0.0; rows * d];
    for (name, dy, outputs) in [("q", dq, d), ("k", dk, narrow), ("v", dv, narrow)] {
        let name = format!("self_attn.{name}_proj");
        let (dx, dw, _) = linear_gradient(&saved.norm1, get(&name), &dy, rows, d, outputs);
        d_norm1 = sum(&d_norm1, &dx);
        put(&name, &[outputs, d], dw);
    }
    let (d_input, dgain) = rms_norm_gradient(&saved.input, get("input_layernorm"), &d_norm1, d, config.eps);
    put("input_layernorm", &[d], dgain);
    sum(&d_input, &d_mid)
}

/// Everything up to the logits: the table of embeddings, what the layers kept, the final norm's input and output, and
/// the logits.
struct Forward {
    table: Vec<f64>,
    layers: Vec<Saved>,
    last: Vec<f64>,
    hidden: Vec<f64>,
    logits: Vec<f64>,
}

fn forward(config: &Config, weights: &Tensors, batch: Batch<'_>) -> Forward {
    let table = config.table(weights);
    let mut x = embedding(&table, batch.inputs, config.d);
    let mut layers = Vec::new();
    for layer in 0..config.layers {
        let (output, saved) = layer_forward(config, weights, layer, batch, x);
        layers.push(saved);
        x = output;
    }
    let hidden = rms_norm(&x, &weights["model.norm.weight"].data, config.d, config.eps);
    let head = if config.tied { &table } else { &weights["lm_head.weight"].data };
    let logits = linear(&hidden, head, None, batch.inputs.len(), config.d, config.vocab);
    Forward { table, layers, last: x, hidden, logits }
}

/// The logits [sequences · length, vocab] of `inputs` [sequences, length].
pub fn logits(config: &Config, weights: &Tensors, inputs: &[u32], length: usize) -> Vec<f64> {
    forward(config, weights, Batch { inputs, targets: &[], length }).logits
}

/// Mean cross-entropy over the targets that are not ignored, in nats.
pub fn loss(config: &Config, weights: &Tensors, batch: Batch<'_>) -> f64 {
    cross_entropy(&forward(config, weights, batch).logits, batch.targets, config.vocab)
}

impl Oracle for Config {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn attention(&self) -> Pattern {
        self.attention
    }

    fn loss_and_gradients(&self, weights: &Tensors, batch: Batch<'_>) -> (f64, Tensors) {
        let (d, vocab, rows) = (self.d, self.vocab, batch.inputs.len());
        let Forward { table, layers, last, hidden, logits } = forward(self, weights, batch);
        let loss = cross_entropy(&logits, batch.targets, vocab);
        let mut gradients = Tensors::new();
        let d_logits = cross_entropy_gradient(&logits, batch.targets, vocab);
        let head = if self.tied { &table } else { &weights["lm_head.weight"].data };
        let (d_hidden, d_head, _) = linear_gradient(&hidden, head, &d_logits, rows, d, vocab);
        let (mut dx, dgain) = rms_norm_gradient(&last, &weights["model.norm.weight"].data, &d_hidden, d, self.eps);
        gradients.insert("model.norm.weight".to_owned(), Tensor::new(&[d], dgain));
        for (layer, saved) in layers.iter().enumerate().rev() {
            dx = layer_backward(self, weights, layer, batch, saved, &dx, &mut gradients);
        }
        let mut d_table = embedding_gradient(batch.inputs, &dx, vocab, d);
        if self.tied {
            d_table = sum(&d_table, &d_head);
        } else {
            gradients.insert("lm_head.weight".to_owned(), Tensor::new(&[vocab, d], d_head));
        }
        // The table is E · Pᵀ: dE = d_table · P, dP = d_tableᵀ · E.
        match self.rank {
            Some(rank) => {
                let [e, p] = ["E", "P"].map(|name| &weights[&format!("model.embed_tokens.{name}")].data);
                let de = linear(&d_table, &transposed(p, d, rank), None, vocab, d, rank);
                let dp = linear(&transposed(&d_table, vocab, d), &transposed(e, vocab, rank), None, d, vocab, rank);
                gradients.insert("model.embed_tokens.E".to_owned(), Tensor::new(&[vocab, rank], de));
                gradients.insert("model.embed_tokens.P".to_owned(), Tensor::new(&[d, rank], dp));
            }
            None => {
                gradients.insert("model.embed_tokens.weight".to_owned(), Tensor::new(&[vocab, d], d_table));
            }
        }
        (loss, gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::super::IGNORE;
    use super::super::differences::{assert_close, gradient};
    use super::*;
    use rayon::prelude::*;

    const INPUTS: [u32; 14] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7];
    const TARGETS: [u32; 14] = [1, 4, 1, 5, 9, 2, 6, 5, IGNORE, 5, 8, 9, 7, IGNORE];

    #[test]
    fn every_gradient_agrees_with_differences_tied_or_not_factorised_or_not() {
        let batch = Batch { inputs: &INPUTS, targets: &TARGETS, length: 7 };
        for (rank, tied) in [(Some(3), true), (None, true), (None, false)] {
            let config = Config {
                layers: 2,
                d: 12,
                heads: 6,
                kv_heads: 2,
                d_ff: 7,
                vocab: 11,
                rank,
                tied,
                rotary_base: 10_000.0,
                eps: 1e-5,
                attention: Pattern::Mixed { block: 1 },
            };
            let weights = config.formula_weights(0.4);
            let (_, gradients) = config.loss_and_gradients(&weights, batch);
            let names: Vec<String> = config.tensors().into_iter().map(|(name, _)| name).collect();
            assert_eq!(gradients.len(), names.len());
            names.into_par_iter().for_each(|name| {
                let mut moved = weights.clone();
                let f = |data: &[f64]| {
                    moved.get_mut(&name).unwrap().data.copy_from_slice(data);
                    loss(&config, &moved, batch)
                };
                let expected = gradient(f, &weights[&name].data, 5e-4);
                assert_eq!(gradients[&name].shape, weights[&name].shape);
                assert_close(&format!("{name}, {rank:?}, {tied}"), &gradients[&name].data, &expected, 1e-8);
            });
        }
    }
}
