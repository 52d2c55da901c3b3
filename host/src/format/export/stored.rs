//! A transformer's parameters by their function, whatever their names in a checkpoint.

use std::rc::Rc;

use capful_core::memory::{Dtype, Entry, Layout, Region, Role, Stacked};
use capful_core::model::transformer::{Dense, Gain, Weights};
use capful_core::model::{Parameters as _, Transformer};
use capful_core::ops::Heads;

use super::tensor::{Rows, Tensor, Values};

/// The kind of a layer's tensor: weight or bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightOrBias {
    /// The matrix, or a norm's gain.
    Weight,
    /// The vector that is added to the result.
    Bias,
}

/// The parameters of a transformer, in the form of a checkpoint.
pub struct Stored {
    /// The model.
    pub model: Transformer,
    heads: Heads,
    weights: Weights,
    entries: Vec<Entry>,
}

impl Stored {
    /// The parameters of `model`, which must be valid.
    pub fn new(model: Transformer) -> Stored {
        let mut entries = Vec::new();
        let mut visit = |entry: &Entry| entries.push(*entry);
        let mut layout = Layout::new(&mut visit);
        let mut place = |parameter: &capful_core::model::Parameter| {
            use capful_core::memory::Ledger as _;
            layout.region(parameter.slot("", Role::Weight, Dtype::F32))
        };
        let weights = model.parameters(&mut place);
        Stored { model, heads: model.attention_heads(), weights, entries }
    }

    /// Number of the model's parameters, without padded rows.
    pub fn parameters(&self) -> u64 {
        self.entries.iter().map(|e| e.slot.elements() * u64::from(e.slot.layers)).sum()
    }

    /// The parameters as checkpoint entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Every stored tensor of an entry: name and region.
    fn tensors(&self, layer: u32, of: Stacked) -> impl Iterator<Item = (Rc<str>, Region)> {
        let entry = self.entries.iter().find(|entry| entry.place.first.offset == of.first.offset).copied();
        let inside = move |region: &Region| {
            let whole = of.at(layer);
            (whole.offset..whole.end()).contains(&region.offset)
        };
        let all = entry.into_iter().flat_map(|entry| entry.tensors());
        all.filter(move |(_, region)| inside(region)).map(|(name, region)| (name.to_string().into(), region))
    }

    /// Rows `first` to `first + count` of a region, as rows of the stored tensors that it consists of.
    fn slice(&self, layer: u32, of: Stacked, first: u64, count: u64, out: &mut Vec<Rows>) {
        let mut begin = 0;
        for (tensor, region) in self.tensors(layer, of) {
            let rows = if region.rows() == 1 { u64::from(region.columns()) } else { u64::from(region.rows()) };
            let (from, to) = (first.max(begin), (first + count).min(begin + rows));
            if from < to {
                let (first, count) = (from - begin, to - from);
                match out.last_mut() {
                    Some(last) if last.tensor == tensor && !last.paired && last.first + last.count == first => {
                        last.count += count;
                    }
                    _ => out.push(Rows { tensor, first, count, paired: false }),
                }
            }
            begin += rows;
        }
    }

    /// A whole matrix or vector of a layer.
    fn whole(&self, layer: u32, of: Stacked) -> Tensor {
        let (mut rows, mut shape) = (Vec::new(), Vec::new());
        for (tensor, region) in self.tensors(layer, of) {
            let dims = if region.rows() == 1 { vec![region.columns()] } else { vec![region.rows(), region.columns()] };
            let dims: Vec<u64> = dims.into_iter().map(u64::from).collect();
            rows.push(Rows { tensor, first: 0, count: dims[0], paired: false });
            match shape.first_mut() {
                Some(count) => *count += dims[0],
                None => shape = dims,
            }
        }
        Tensor { shape, values: Values::Rows(rows) }
    }

    fn of(dense: Dense, kind: WeightOrBias) -> Option<Stacked> {
        match kind {
            WeightOrBias::Weight => Some(dense.weight),
            WeightOrBias::Bias => dense.bias,
        }
    }

    /// Part `i` of `parts` equal parts of a layer's projection.
    fn part(&self, layer: u32, dense: Dense, kind: WeightOrBias, (i, parts): (u64, u64)) -> Option<Tensor> {
        let of = Self::of(dense, kind)?;
        let Tensor { mut shape, .. } = self.whole(layer, of);
        let count = shape[0] / parts;
        let mut rows = Vec::new();
        self.slice(layer, of, i * count, count, &mut rows);
        shape[0] = count;
        Some(Tensor { shape, values: Values::Rows(rows) })
    }

    /// Heads of the projection of queries, keys and values, in the given order; each is given by its first row.
    fn heads(&self, layer: u32, kind: WeightOrBias, firsts: &[usize], paired: bool) -> Option<Tensor> {
        let of = Self::of(self.weights.qkv, kind)?;
        let size = u64::from(self.heads.size);
        let mut rows = Vec::new();
        for &first in firsts {
            let mut head = Vec::new();
            self.slice(layer, of, first as u64, size, &mut head);
            // A head is within one tensor.
            if paired {
                rows.extend(head.into_iter().map(|head| Rows { paired, ..head }));
            } else {
                self.slice(layer, of, first as u64, size, &mut rows);
            }
        }
        let count = firsts.len() as u64 * size;
        let shape = if kind == WeightOrBias::Weight { vec![count, self.model.d_model.into()] } else { vec![count] };
        Some(Tensor { shape, values: Values::Rows(rows) })
    }

    /// Queries of all heads. `paired`: rotated pairs are adjacent instead of half a head apart.
    pub fn queries(&self, layer: u32, kind: WeightOrBias, paired: bool) -> Option<Tensor> {
        let firsts: Vec<_> = (0..self.heads.queries).map(|h| self.heads.query(h)).collect();
        self.heads(layer, kind, &firsts, paired)
    }

    /// Keys of all heads, as [`Stored::queries`].
    pub fn keys(&self, layer: u32, kind: WeightOrBias, paired: bool) -> Option<Tensor> {
        let firsts: Vec<_> = (0..self.heads.keys).map(|h| self.heads.key(h)).collect();
        self.heads(layer, kind, &firsts, paired)
    }

    /// Values of all heads.
    pub fn values(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        let firsts: Vec<_> = (0..self.heads.keys).map(|h| self.heads.value(h)).collect();
        self.heads(layer, kind, &firsts, false)
    }

    /// Query, key and value of each head in turn, the layout of GPT-NeoX.
    pub fn interleaved(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        let head = |h| [self.heads.query(h), self.heads.key(h), self.heads.value(h)];
        let firsts: Vec<_> = (0..self.heads.queries).flat_map(head).collect();
        self.heads(layer, kind, &firsts, false)
    }

    /// All queries, then all keys, then all values.
    pub fn fused(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        let (queries, keys) = (0..self.heads.queries, 0..self.heads.keys);
        let firsts = queries.map(|h| self.heads.query(h));
        let firsts = firsts.chain(keys.clone().map(|h| self.heads.key(h))).chain(keys.map(|h| self.heads.value(h)));
        self.heads(layer, kind, &firsts.collect::<Vec<_>>(), false)
    }

    /// The gains of queries and of keys, if they are normalised.
    pub fn head_norms(&self, layer: u32) -> Option<[Tensor; 2]> {
        self.weights.qk_norm.map(|gains| gains.map(|gain| self.whole(layer, gain)))
    }

    /// The projection from the heads to the residual stream.
    pub fn attention_output(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        Self::of(self.weights.out, kind).map(|of| self.whole(layer, of))
    }

    /// The gate of a SwiGLU.
    pub fn gate(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        self.part(layer, self.weights.up, kind, (0, 2))
    }

    /// The other half of a SwiGLU's first projection, or the whole first projection of a GELU.
    pub fn up(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        let gated = self.model.feed.gated();
        self.part(layer, self.weights.up, kind, if gated { (1, 2) } else { (0, 1) })
    }

    /// The second projection of a feed-forward.
    pub fn down(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        Self::of(self.weights.down, kind).map(|of| self.whole(layer, of))
    }

    fn gain(&self, layer: u32, gain: Gain, kind: WeightOrBias) -> Option<Tensor> {
        let of = if kind == WeightOrBias::Weight { Some(gain.gain) } else { gain.bias };
        of.map(|of| self.whole(layer, of))
    }

    /// The norm before attention.
    pub fn attention_norm(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        self.gain(layer, self.weights.norm1, kind)
    }

    /// The norm before the feed-forward.
    pub fn feed_norm(&self, layer: u32, kind: WeightOrBias) -> Option<Tensor> {
        self.gain(layer, self.weights.norm2, kind)
    }

    /// The norm before the head.
    pub fn final_norm(&self, kind: WeightOrBias) -> Option<Tensor> {
        self.gain(0, self.weights.final_norm, kind)
    }

    /// The embedding `[vocabulary, d_model]`; a factorised one is E · Pᵀ.
    pub fn embedding(&self) -> Tensor {
        let once = |first: Region| Stacked::new(first, 0);
        let table = self.whole(0, once(self.weights.embed));
        let Some(factor) = self.weights.factor else { return table };
        let name = |region: Region| self.tensors(0, once(region)).map(|(name, _)| name).next().unwrap_or_default();
        let shape = vec![table.shape[0], self.model.d_model.into()];
        Tensor { shape, values: Values::Product([name(self.weights.embed), name(factor)]) }
    }

    /// The head's own table; `None` if it shares the embedding.
    pub fn head(&self) -> Option<Tensor> {
        self.weights.untied.map(|first| self.whole(0, Stacked::new(first, 0)))
    }
}
