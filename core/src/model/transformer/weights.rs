//! The list of a transformer's parameters.

use super::adapters::{ADAPTED, Adapter};
use super::copies::Projection;
use super::names::{self, Pair};
use super::{FirstValues, Transformer};
use crate::integer::ParameterKind;
use crate::memory::{Init, Region, Stacked};
use crate::model::{Parameter, Parameters};
use crate::ops::{Affine, AffineGrad, NormKind};
use crate::optimizer::{Group, Learns};

/// A linear layer's weight and bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    /// [out, in].
    pub weight: Stacked,
    /// `[out]`.
    pub bias: Option<Stacked>,
}

impl Dense {
    /// Layer `l`'s bias; for gradients, only if the bias learns.
    pub fn bias(&self, l: u32) -> Option<Region> {
        self.bias.and_then(|b| b.at(l).if_any())
    }
}

/// A norm's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    /// `[d_model]`.
    pub gain: Stacked,
    /// `[d_model]`, of a LayerNorm.
    pub bias: Option<Stacked>,
}

impl Gain {
    /// The affine operands of layer `l`'s norm, with the output `out`.
    pub(super) fn affine(&self, l: u32, out: Region) -> Affine {
        Affine { gain: self.gain.at(l), bias: self.bias.map(|b| b.at(l)), out }
    }

    /// The gradients of layer `l`'s gain and bias, written to `self`, from the gradient of the norm's output.
    pub(super) fn affine_grad(&self, weights: &Gain, l: u32, out_grad: Region) -> AffineGrad {
        let bias_grad = self.bias.and_then(|b| b.at(l).if_any());
        AffineGrad { gain: weights.gain.at(l), out_grad, gain_grad: self.gain.at(l).if_any(), bias_grad }
    }
}

/// Value embeddings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueTables {
    /// [padded vocabulary, kv_heads · size] for each table.
    pub tables: Stacked,
    /// `[1]` for each layer.
    pub gain: Stacked,
}

/// A region for every parameter: of the parameter itself or of its gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// [padded vocabulary, rank or d_model]: E, or the whole embedding.
    pub embed: Region,
    /// The tables that layers add to their values, if there are any.
    pub values: Option<ValueTables>,
    /// `[2]` for each layer: the scalars of [`crate::ops::Blend`], where the embedding is blended into the stream.
    pub scalars: Option<Stacked>,
    /// [d_model, rank]: P, where the embedding is factorised.
    pub factor: Option<Region>,
    /// [(heads + 2 kv_heads) · size, d_model]: queries, keys and values, as [`crate::ops::Heads`] says.
    pub qkv: Dense,
    /// [d_model, heads · size].
    pub out: Dense,
    /// [d_ff, d_model], or [2 d_ff, d_model]: gate, up.
    pub up: Dense,
    /// [d_model, d_ff].
    pub down: Dense,
    /// [padded vocabulary, d_model], where the head is untied.
    pub untied: Option<Region>,
    /// `[size]`: the gains of queries and keys, where they are normalised.
    pub qk_norm: Option<[Stacked; 2]>,
    /// The norm before attention.
    pub norm1: Gain,
    /// The norm before the feed-forward.
    pub norm2: Gain,
    /// The norm before the head.
    pub final_norm: Gain,
    /// The adapters of qkv, out, up and down, where they have any.
    pub adapters: [Option<Adapter>; ADAPTED],
}

impl Weights {
    /// [padded vocabulary, rank or d_model]: the table that computes the logits.
    pub fn head(&self) -> Region {
        self.untied.unwrap_or(self.embed)
    }
}

/// Initial values of most matrices, of those whose output is added to the residual stream, of the embedding, of a head.
struct Values {
    matrix: Init,
    residual: Init,
    embedding: Init,
    head: Init,
}

impl Transformer {
    /// Rows of queries, keys and values, where they are separate tensors.
    pub(super) const fn qkv_parts(&self) -> [u32; 3] {
        let keys = self.kv_heads * self.head_size;
        if self.interleaved() { [0; 3] } else { [self.mixed_width(), keys, keys] }
    }

    // Not inlined, so that a chip does not have this code at each place that lists parameters.
    #[inline(never)]
    fn first_values(&self) -> Values {
        let [small, residual] = self.dialect.deviations(self.d_model, self.layers).map(Init::Normal);
        match self.first {
            FirstValues::Published => Values { matrix: small, residual, embedding: small, head: small },
            FirstValues::ZeroOutputs => {
                let matrix = Init::Normal(0.58 / libm::sqrtf(self.d_model as f32));
                // A tied table also computes the logits.
                let embedding = if self.tied { small } else { Init::Normal(1.0) };
                Values { matrix, residual: Init::Zero, embedding, head: Init::Zero }
            }
        }
    }

    /// A gain or bias of a norm.
    #[inline(never)]
    fn of_norm(&self, name: &'static str, layers: u32, len: u32, init: Init) -> Parameter {
        let learns = if self.norm_gains { Learns::FromGradient } else { Learns::Never };
        Parameter { learns, ..Parameter::vector(name, layers, len, init) }
    }

    fn norm(&self, names: &Pair, layers: u32, place: &mut dyn FnMut(&Parameter) -> Stacked) -> Gain {
        let mut vector = |name, init| place(&self.of_norm(name, layers, self.d_model, init));
        let gain = vector(names[0], Init::One);
        let bias = match self.norm {
            NormKind::Layer => Some(vector(names[1], Init::Zero)),
            NormKind::Rms => None,
        };
        Gain { gain, bias }
    }
}

/// Places a matrix or table with these parts or alternating rows. Not inlined: a chip would have a dozen copies of it.
#[inline(never)]
fn matrix(
    place: &mut dyn FnMut(&Parameter) -> Stacked,
    (name, layers, shape): (&'static str, u32, [u32; 2]),
    init: Init,
    (parts, turns): ([u32; 3], u32),
    group: Group,
) -> Stacked {
    let kind = if group == Group::Matrix { ParameterKind::Matrix } else { ParameterKind::Table };
    place(&Parameter { parts, turns, kind, group, ..Parameter::matrix(name, layers, shape, init) })
}

impl Parameters for Transformer {
    type Table = Weights;

    fn parameters(&self, place: &mut dyn FnMut(&Parameter) -> Stacked) -> Weights {
        if self.adapters().is_none() {
            return self.own_parameters(place);
        }
        let weights = self.own_parameters(&mut |p| place(&Parameter { learns: Learns::Never, ..*p }));
        let mut adapters = [None; ADAPTED];
        for (adapter, (p, names)) in adapters.iter_mut().zip(self.adapter_names()) {
            *adapter = self.place_adapter(p, names, place);
        }
        Weights { adapters, ..weights }
    }

    fn ends_take_turns(&self) -> bool {
        // A tied table gets gradients from the head to the embedding, value tables from the last layer on.
        !self.tied && self.value_tables == 0
    }
}

impl Transformer {
    /// The names of weight, bias and adapters of queries, keys and values, and of the feed-forward's first product.
    const fn first_names(&self) -> [&'static names::Dense; 2] {
        let names = self.dialect.names();
        let qkv = if self.interleaved() { &names.fused } else { &names.qkv };
        [qkv, if self.feed.gated() { &names.gate_up } else { &names.up }]
    }

    /// The names of the adapters of every projection.
    fn adapter_names(&self) -> [(Projection, [&'static str; 2]); 4] {
        let (names, [qkv, up]) = (self.dialect.names(), self.first_names());
        let all = [(Projection::Qkv, qkv), (Projection::Out, &names.out), (Projection::Up, up)];
        let [qkv, out, up] = all;
        [qkv, out, up, (Projection::Down, &names.down)].map(|(p, [_, _, a, b])| (p, [*a, *b]))
    }

    /// All parameters except adapters.
    fn own_parameters(&self, place: &mut dyn FnMut(&Parameter) -> Stacked) -> Weights {
        let (d, ff, layers) = (self.d_model, self.d_ff, self.layers);
        let (names, Values { matrix: small, residual, embedding, head }) = (self.dialect.names(), self.first_values());
        let ([qkv_names, up_names], up_parts) = (self.first_names(), self.projection_parts(Projection::Up));
        let [qkv_parts, ids] = [self.qkv_parts(), [self.vocab_size, 0, 0]];
        let rows = self.vocabulary_rows();

        let turns = if self.interleaved() { self.head_size } else { 0 };
        let mut matrix =
            |name, layers, shape, init, parts, group| matrix(place, (name, layers, shape), init, parts, group);
        let (whole, ids) = (([0; 3], 0), (ids, 0));
        let name = if self.rank.is_some() { names.factors[0] } else { names.embed };
        let embed = matrix(name, 1, [rows, self.rank.unwrap_or(d)], embedding, ids, Group::Embedding).first;
        let width = self.attention_heads().values();
        let (tables, table) = (self.value_tables, (ids, Group::Embedding));
        let tables =
            (tables > 0).then(|| matrix(names.value_tables, tables, [rows, width], embedding, table.0, table.1));
        let factor = self.rank.map(|rank| matrix(names.factors[1], 1, [d, rank], small, whole, Group::Matrix).first);
        let qkv = matrix(qkv_names[0], layers, [self.qkv_width(), d], small, (qkv_parts, turns), Group::Matrix);
        let out = matrix(names.out[0], layers, [d, self.mixed_width()], residual, whole, Group::Matrix);
        let up = matrix(up_names[0], layers, [self.up_width(), d], small, (up_parts, 0), Group::Matrix);
        let down = matrix(names.down[0], layers, [d, ff], residual, whole, Group::Matrix);
        let untied = (!self.tied).then(|| matrix(names.head, 1, [rows, d], head, ids, Group::Head).first);

        let norm1 = self.norm(&names.norm1, layers, place);
        let norm2 = self.norm(&names.norm2, layers, place);
        let gain = |name| self.of_norm(name, layers, self.head_size, Init::One);
        let qk_norm = self.qk_norm.then(|| names.qk_norm.map(|name| place(&gain(name))));
        let mut scalars =
            |there: bool, name, len, init| there.then(|| place(&Parameter::vector(name, layers, len, init)));
        let gain = scalars(tables.is_some(), names.value_gain, 1, Init::Half);
        let values = tables.zip(gain).map(|(tables, gain)| ValueTables { tables, gain });
        let scalars = scalars(self.stream_scalars, names.stream_scalars, 2, Init::Zero);
        let mut bias = |there: bool, name, len, parts| {
            let parameter = Parameter { parts, ..Parameter::vector(name, layers, len, Init::Zero) };
            there.then(|| place(&parameter))
        };
        let biases = [
            bias(self.bias.qkv, qkv_names[1], self.qkv_width(), qkv_parts),
            bias(self.bias.out, names.out[1], d, [0; 3]),
            bias(self.bias.feed, up_names[1], self.up_width(), up_parts),
            bias(self.bias.feed, names.down[1], d, [0; 3]),
        ];
        let final_norm = self.norm(&names.final_norm, 1, place);
        let [qkv, out, up, down] = [(qkv, biases[0]), (out, biases[1]), (up, biases[2]), (down, biases[3])]
            .map(|(weight, bias)| Dense { weight, bias });
        Weights {
            embed,
            values,
            scalars,
            factor,
            qkv,
            out,
            up,
            down,
            untied,
            qk_norm,
            norm1,
            norm2,
            final_norm,
            adapters: [None; ADAPTED],
        }
    }
}
