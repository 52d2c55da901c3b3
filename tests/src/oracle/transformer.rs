//! Transformers: GPT-NeoX (Black et al. 2022), such as Pythia, Llama (Touvron et al. 2023) with grouped queries and an
//! embedding that may be E · Pᵀ, and every mix of their parts.
//!
//! Embedding; layers of attention and feed-forward; final norm h; the logits are h · embeddingᵀ where the head is tied,
//! otherwise h · headᵀ. Weights have the names and layouts of transformers; E and P replace the embedding.

mod block;
mod mixtures;
mod named;
mod names;

pub use mixtures::{adapted_mixtures, mixtures};
pub use names::Names;

use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{Chance, Dropout};

use super::attention::Pattern;
use super::ops::{
    cross_entropy, cross_entropy_gradient, embedding, embedding_gradient, frequencies, linear, linear_gradient,
    transposed,
};
use super::tensor::{Tensor, Tensors};
use super::{Batch, Oracle};
use block::{Block, Saved, sum};
use named::Named;

/// The kind of the norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// LayerNorm, with a gain and a bias.
    Layer,
    /// RMSNorm, with a gain.
    Rms,
}

/// How attention and feed-forward are added to the residual stream x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// x + attention(norm1 x) + feed(norm2 x).
    Parallel,
    /// m + feed(norm2 m) with m = x + attention(norm1 x).
    Sequential,
}

/// The feed-forward's function of its input n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// down(gelu(up n)), GELU in its exact form.
    Gelu,
    /// down(silu(gate n) ∘ up n).
    SwiGlu,
}

/// Which linear layers of a block have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// The biases of queries, keys and values.
    pub qkv: bool,
    /// The bias of attention's output projection.
    pub output: bool,
    /// The biases of the feed-forward.
    pub feed: bool,
}

impl Biases {
    /// No biases.
    pub const NONE: Biases = Biases { qkv: false, output: false, feed: false };
    /// All biases.
    pub const ALL: Biases = Biases { qkv: true, output: true, feed: true };
}

/// How rotary wavelengths are stretched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// Not stretched.
    None,
    /// By a factor.
    Linear(f64),
    /// As in Llama 3.1: by `factor` where a wavelength exceeds `original / low` positions, not at all below `original /
    /// high`, and by an interpolated factor in between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// The lower number of rotations in the original context.
        low: f64,
        /// The higher number of rotations in the original context.
        high: f64,
        /// Positions of the original context.
        original: f64,
    },
}

/// The number of tokens of a row's first document that are before the row.
pub const BEFORE: usize = 3;

/// A model's sizes and parts, and its attention pattern.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub d: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Dimensions of a head.
    pub head_size: usize,
    /// Width inside the feed-forward.
    pub d_ff: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Columns of E, where the embedding is factorised; the head is then tied.
    pub rank: Option<usize>,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// The kind of the norms.
    pub norm: Norm,
    /// How attention and feed-forward are added to the residual stream.
    pub residual: Residual,
    /// The kind of the feed-forward.
    pub feed: Feed,
    /// Which linear layers of a block have biases. The head and P have none.
    pub bias: Biases,
    /// Whether norms have gains and biases that learn; otherwise their gradients are left out.
    pub norm_gains: bool,
    /// Whether queries and keys are normalised, head by head, before their rotation.
    pub qk_norm: bool,
    /// The number of value tables: layer l adds row `id` of table l mod this number to its values, times a gain; 0 for
    /// none.
    pub value_tables: usize,
    /// Whether a layer's output x becomes eˢ · x + t · the embedding.
    pub stream_scalars: bool,
    /// C of C tanh(z / C), the cap of the logits.
    pub softcap: Option<f64>,
    /// The probability of dropping an element in training; the core decides which elements.
    pub dropout: Option<f32>,
    /// Tokens of a document, where attention stays inside documents in training; [`BEFORE`] tokens of a row's first one
    /// are before the row.
    pub documents: Option<usize>,
    /// Dimensions of each head that rotate, an even number.
    pub rotary: usize,
    /// Base of the rotary frequencies.
    pub rotary_base: f64,
    /// How the rotary wavelengths are stretched.
    pub scaling: Scaling,
    /// Added to the variance or mean square in every norm.
    pub eps: f64,
    /// For every linear layer of a block: the rank r of its adapters and α, where only these learn. Then a layer is y =
    /// W x + α / r · B (A x).
    pub adapters: Option<(usize, f64)>,
    /// Whether the model has the frozen weights in 8 bits, with a scale for each row. The oracle receives the
    /// dequantised numbers.
    pub eight_bits: bool,
    /// The naming of the weights.
    pub names: Names,
    /// The attention pattern.
    pub attention: Pattern,
}

impl Config {
    /// A Pythia of these sizes: a quarter of each head rotates, base 10,000, eps 1e-5, untied, dense attention.
    pub fn pythia(layers: usize, d: usize, heads: usize, d_ff: usize, vocab: usize) -> Self {
        Self {
            layers,
            d,
            heads,
            kv_heads: heads,
            head_size: d / heads,
            d_ff,
            vocab,
            rank: None,
            tied: false,
            norm: Norm::Layer,
            residual: Residual::Parallel,
            feed: Feed::Gelu,
            bias: Biases::ALL,
            norm_gains: true,
            qk_norm: false,
            value_tables: 0,
            stream_scalars: false,
            softcap: None,
            dropout: None,
            documents: None,
            rotary: d / heads / 4,
            rotary_base: 10_000.0,
            scaling: Scaling::None,
            eps: 1e-5,
            adapters: None,
            eight_bits: false,
            names: Names::GptNeox,
            attention: Pattern::Dense,
        }
    }

    /// Pythia-70M with a vocabulary of `vocab`.
    pub fn pythia_70m(vocab: usize) -> Self {
        Self::pythia(6, 512, 8, 2048, vocab)
    }

    /// A Llama of these sizes: all of each head rotates, base 10,000, eps 1e-5, tied, not factorised, dense attention.
    pub fn llama(layers: usize, d: usize, heads: usize, kv_heads: usize, d_ff: usize, vocab: usize) -> Self {
        Self {
            kv_heads,
            tied: true,
            norm: Norm::Rms,
            residual: Residual::Sequential,
            feed: Feed::SwiGlu,
            bias: Biases::NONE,
            rotary: d / heads,
            names: Names::Llama,
            ..Self::pythia(layers, d, heads, d_ff, vocab)
        }
    }

    /// Whether position `i` of a row attends to position `j` of it.
    fn sees(&self, trains: bool, i: usize, j: usize) -> bool {
        let document = |n: usize, position: usize| (position + BEFORE) / n;
        let same = |n: usize| document(n, i) == document(n, j);
        self.attention.sees(i, j) && self.documents.filter(|_| trains).is_none_or(same)
    }

    /// The number of tokens of its document before position `i` of a row.
    pub fn offset(&self, i: usize) -> usize {
        self.documents.map_or(0, |n| (i + BEFORE) % n)
    }

    /// Radians per position of each rotating pair.
    fn frequencies(&self) -> Vec<f64> {
        let mut all = frequencies(self.rotary, self.rotary_base);
        match self.scaling {
            Scaling::None => {}
            Scaling::Linear(factor) => all.iter_mut().for_each(|f| *f /= factor),
            Scaling::Llama3 { factor, low, high, original } => {
                for f in &mut all {
                    let wavelength = 2.0 * std::f64::consts::PI / *f;
                    if wavelength > original / low {
                        *f /= factor;
                    } else if wavelength > original / high {
                        let smooth = (original / wavelength - low) / (high - low);
                        *f = (1.0 - smooth) * *f / factor + smooth * *f;
                    }
                }
            }
        }
        all
    }

    /// Whether a tensor learns, as far as adapters matter.
    pub fn learns(&self, name: &str) -> bool {
        self.adapters.is_none() || name.contains("lora")
    }

    /// Number of weights.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Weights by formula: see [`super::tensor::formula_weights`].
    pub fn formula_weights(&self, scale: f64) -> Tensors {
        super::tensor::formula_weights(self.tensors(), scale)
    }
}

/// The embedding as one table [vocab, d].
fn table(model: Named<'_>) -> Vec<f64> {
    let Config { vocab, d, rank, .. } = *model.config;
    match rank {
        Some(rank) => {
            let [e, p] = model.config.factors().map(|name| model.data(&name));
            linear(e, p, None, vocab, rank, d)
        }
        None => model.data(&model.config.embedding()).to_vec(),
    }
}

/// The gradients of the table's factors. The table is E · Pᵀ: dE = d_table · P, dP = d_tableᵀ · E.
fn table_back(model: Named<'_>, d_table: Vec<f64>, gradients: &mut Tensors) {
    let Config { vocab, d, rank, .. } = *model.config;
    let Some(rank) = rank else {
        gradients.insert(model.config.embedding(), Tensor::new(&[vocab, d], d_table));
        return;
    };
    let names = model.config.factors();
    let [e, p] = names.each_ref().map(|name| model.data(name));
    let de = linear(&d_table, &transposed(p, d, rank), None, vocab, d, rank);
    let dp = linear(&transposed(&d_table, vocab, d), &transposed(e, vocab, rank), None, d, vocab, rank);
    let tensors = [Tensor::new(&[vocab, rank], de), Tensor::new(&[d, rank], dp)];
    gradients.extend(names.into_iter().zip(tensors));
}

/// The value after a layer: eˢ · output + t · first, where the embedding is blended in.
fn mixed(model: Named<'_>, layer: usize, output: &[f64], first: &[f64]) -> Vec<f64> {
    if !model.config.stream_scalars {
        return output.to_vec();
    }
    let scalars = model.data(&model.config.part(layer, "stream_scalars"));
    output.iter().zip(first).map(|(x, first)| scalars[0].exp() * x + scalars[1] * first).collect()
}

/// The gradient of a layer's output; adds that of `first` to `d_first`.
fn mixed_back(
    model: Named<'_>,
    layer: usize,
    [output, first, dy]: [&[f64]; 3],
    d_first: &mut [f64],
    gradients: &mut Tensors,
) -> Vec<f64> {
    if !model.config.stream_scalars {
        return dy.to_vec();
    }
    let name = model.config.part(layer, "stream_scalars");
    let scalars = model.data(&name);
    let (keep, dot) = (scalars[0].exp(), |a: &[f64]| a.iter().zip(dy).map(|(a, d)| a * d).sum::<f64>());
    gradients.insert(name.clone(), Tensor::new(&[2], vec![keep * dot(output), dot(first)]));
    d_first.iter_mut().zip(dy).for_each(|(to, d)| *to += scalars[1] * d);
    dy.iter().map(|d| keep * d).collect()
}

/// Applies the core's own dropout masks, of the first micro-batch of a run with seed 0, to rows `x` or their gradient.
/// Mask 0 is the embedding's, masks 2 l + 1 and 2 l + 2 are those of layer l's norms.
fn masked(config: &Config, trains: bool, place: usize, x: Vec<f64>) -> Vec<f64> {
    let Some(p) = config.dropout.filter(|_| trains) else { return x };
    let nothing = Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [0; 4] };
    let chance = Chance::nearest(p).expect("a probability");
    let dropout = Dropout { x: nothing, key: nothing, place: place as u32, chance };
    let rows = (0..).zip(x.chunks(config.d)).map(|(row, x)| {
        let mut mask = vec![1.0; x.len()];
        dropout.row(Dropout::key(0, 0), row, &mut mask);
        x.iter().zip(mask).map(|(x, m)| x * f64::from(m)).collect::<Vec<_>>()
    });
    rows.flatten().collect()
}

/// Everything up to the logits: the embedding table, the embedding itself, the layers' saved values and outputs, the
/// final norm's input and output, and the logits.
struct Forward {
    table: Vec<f64>,
    first: Vec<f64>,
    layers: Vec<Saved>,
    outputs: Vec<Vec<f64>>,
    last: Vec<f64>,
    hidden: Vec<f64>,
    logits: Vec<f64>,
}

impl Forward {
    fn new(model: Named<'_>, batch: Batch<'_>, trains: bool) -> Self {
        let Config { vocab, d, .. } = *model.config;
        let table = table(model);
        let first = masked(model.config, trains, 0, embedding(&table, batch.inputs, d));
        let (mut x, mut layers, mut outputs) = (first.clone(), Vec::new(), Vec::new());
        for layer in 0..model.config.layers {
            let (output, saved) = Block { model, batch, layer, trains }.forward(x);
            x = mixed(model, layer, &output, &first);
            layers.push(saved);
            outputs.push(output);
        }
        let hidden = model.norm(model.config.last_norm(), &x);
        let mut logits = linear(&hidden, head(model, &table), None, batch.inputs.len(), d, vocab);
        if let Some(cap) = model.config.softcap {
            logits.iter_mut().for_each(|z| *z = cap * (*z / cap).tanh());
        }
        Self { table, first, layers, outputs, last: x, hidden, logits }
    }
}

/// The head's weight [vocab, d].
fn head<'a>(model: Named<'a>, table: &'a [f64]) -> &'a [f64] {
    if model.config.tied { table } else { model.data(&model.config.head()) }
}

/// The logits [sequences · length, vocab] of `inputs` [sequences, length].
pub fn logits(config: &Config, weights: &Tensors, inputs: &[u32], length: usize) -> Vec<f64> {
    Forward::new(Named::new(config, weights), Batch { inputs, targets: &[], length }, false).logits
}

/// Mean cross-entropy over the targets that are not ignored, in nats, in a training step.
pub fn loss(config: &Config, weights: &Tensors, batch: Batch<'_>) -> f64 {
    cross_entropy(&Forward::new(Named::new(config, weights), batch, true).logits, batch.targets, config.vocab)
}

/// The loss and its gradient with respect to every weight, under the weight's name.
pub fn loss_and_gradients(config: &Config, weights: &Tensors, batch: Batch<'_>) -> (f64, Tensors) {
    let (d, vocab, rows) = (config.d, config.vocab, batch.inputs.len());
    let model = Named::new(config, weights);
    let Forward { table, first, layers, outputs, last, hidden, logits } = Forward::new(model, batch, true);
    let loss = cross_entropy(&logits, batch.targets, vocab);

    let mut gradients = Tensors::new();
    let mut d_logits = cross_entropy_gradient(&logits, batch.targets, vocab);
    if let Some(cap) = config.softcap {
        d_logits.iter_mut().zip(&logits).for_each(|(d, capped)| *d *= 1.0 - (capped / cap).powi(2));
    }
    let (d_hidden, d_head, _) = linear_gradient(&hidden, head(model, &table), &d_logits, rows, d, vocab);
    let mut dx = model.norm_back(config.last_norm(), &last, &d_hidden, &mut gradients);
    let mut d_first = vec![0.0; first.len()];
    for (layer, saved) in layers.iter().enumerate().rev() {
        let d_output = mixed_back(model, layer, [&outputs[layer], &first, &dx], &mut d_first, &mut gradients);
        dx = Block { model, batch, layer, trains: true }.backward(saved, &d_output, &mut gradients);
    }
    let dx = masked(config, true, 0, sum(&dx, &d_first));
    let d_embedded = embedding_gradient(batch.inputs, &dx, vocab, d);
    if config.tied {
        table_back(model, sum(&d_embedded, &d_head), &mut gradients);
    } else {
        gradients.insert(config.head(), Tensor::new(&[vocab, d], d_head));
        table_back(model, d_embedded, &mut gradients);
    }
    gradients.retain(|name, _| config.norm_gains || !name.contains("norm"));
    gradients.retain(|name, _| config.learns(name));
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
mod equivalences;
#[cfg(test)]
mod tests;
