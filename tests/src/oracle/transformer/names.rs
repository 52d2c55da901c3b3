//! The names, shapes and order of the weights.

use super::{Config, Feed, Norm, Residual};

/// The naming of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// GPT-NeoX's. Where every head has a key and a value of its own, one tensor projects all three, with rows ordered
    /// [head, (q, k, v), size].
    GptNeox,
    /// Llama's.
    Llama,
}

/// The norm before the attention.
pub(super) const NORM1: &str = "input_layernorm";
/// The norm before the feed-forward.
pub(super) const NORM2: &str = "post_attention_layernorm";

/// The names that differ: full names of the outer tensors, names of a block's parts without the layer, all without
/// `.weight`.
pub(super) struct Spelling {
    embedding: &'static str,
    layers: &'static str,
    last_norm: &'static str,
    head: &'static str,
    /// One tensor for query, key and value.
    fused: Option<&'static str>,
    /// Query, key and value.
    separate: [&'static str; 3],
    /// The norms of queries and of keys.
    pub(super) qk_norms: [&'static str; 2],
    /// The factor of the rows of a value table.
    pub(super) value_gain: &'static str,
    /// The attention's output.
    pub(super) output: &'static str,
    pub(super) gate: &'static str,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
}

const GPT_NEOX: Spelling = Spelling {
    embedding: "gpt_neox.embed_in",
    layers: "gpt_neox.layers",
    last_norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    fused: Some("attention.query_key_value"),
    separate: ["attention.query", "attention.key", "attention.value"],
    qk_norms: ["attention.query_norm", "attention.key_norm"],
    value_gain: "attention.value_gain",
    output: "attention.dense",
    gate: "mlp.gate",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
};

const LLAMA: Spelling = Spelling {
    embedding: "model.embed_tokens",
    layers: "model.layers",
    last_norm: "model.norm",
    head: "lm_head",
    fused: None,
    separate: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    value_gain: "self_attn.value_gain",
    output: "self_attn.o_proj",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
};

/// The projection of queries, keys and values.
pub(super) enum Projection {
    /// One tensor.
    Fused(&'static str),
    /// Three tensors.
    Separate([&'static str; 3]),
}

/// A tensor's name and shape.
type Shaped = (String, Vec<usize>);

fn linear_of(name: &str, outputs: usize, inputs: usize, bias: bool) -> Vec<Shaped> {
    let bias = bias.then(|| (format!("{name}.bias"), vec![outputs]));
    [(format!("{name}.weight"), vec![outputs, inputs])].into_iter().chain(bias).collect()
}

impl Config {
    /// Name and shape of every weight, in the order of the model's forward pass.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, vocab) = (self.d, self.vocab);
        let mut all = match self.rank {
            Some(rank) => self.factors().into_iter().zip([vec![vocab, rank], vec![d, rank]]).collect(),
            None => vec![(self.embedding(), vec![vocab, d])],
        };
        let width = self.kv_heads * self.head_size;
        all.extend((0..self.value_tables).map(|table| (self.value_table(table), vec![vocab, width])));
        for layer in 0..self.layers {
            let adapters = self.block().into_iter().flat_map(|shaped| self.adapters_of(&shaped));
            let parts = self.block().into_iter().chain(adapters);
            all.extend(parts.map(|(part, shape)| (self.part(layer, &part), shape)));
        }
        all.extend(self.norm_of(self.last_norm()));
        if !self.tied {
            all.push((self.head(), vec![vocab, d]));
        }
        all
    }

    /// A block's tensors, without the layer: both norms come first where they have the same input.
    fn block(&self) -> Vec<Shaped> {
        let [norm1, norm2] = [NORM1, NORM2].map(|name| self.norm_of(name));
        match self.residual {
            Residual::Parallel => [norm1, norm2, self.attention_of(), self.feed_of(), self.scalars_of()].concat(),
            Residual::Sequential => [norm1, self.attention_of(), norm2, self.feed_of(), self.scalars_of()].concat(),
        }
    }

    fn attention_of(&self) -> Vec<Shaped> {
        let (d, wide, narrow) = (self.d, self.heads * self.head_size, self.kv_heads * self.head_size);
        let qkv = |name, outputs| linear_of(name, outputs, d, self.bias.qkv);
        let mut all = match self.projection() {
            Projection::Fused(name) => qkv(name, 3 * wide),
            Projection::Separate(names) => {
                names.into_iter().zip([wide, narrow, narrow]).flat_map(|(name, n)| qkv(name, n)).collect()
            }
        };
        all.extend(linear_of(self.spelling().output, d, wide, self.bias.output));
        if self.value_tables > 0 {
            all.push((self.spelling().value_gain.to_owned(), vec![1]));
        }
        if self.qk_norm {
            all.extend(self.spelling().qk_norms.map(|name| (format!("{name}.weight"), vec![self.head_size])));
        }
        all
    }

    fn scalars_of(&self) -> Vec<Shaped> {
        self.stream_scalars.then(|| ("stream_scalars".to_owned(), vec![2])).into_iter().collect()
    }

    fn feed_of(&self) -> Vec<Shaped> {
        let (d, ff, names) = (self.d, self.d_ff, self.spelling());
        let bias = self.bias.feed;
        let gate = match self.feed {
            Feed::Gelu => vec![],
            Feed::SwiGlu => linear_of(names.gate, ff, d, bias),
        };
        [gate, linear_of(names.up, ff, d, bias), linear_of(names.down, d, ff, bias)].concat()
    }

    /// A and B of a matrix, if it has an adapter.
    fn adapters_of(&self, (name, shape): &Shaped) -> Vec<Shaped> {
        match (self.adapters, name.strip_suffix(".weight"), &shape[..]) {
            (Some((rank, _)), Some(name), &[outputs, inputs]) => {
                let name = |which| format!("{name}.lora_{which}.weight");
                vec![(name("A"), vec![rank, inputs]), (name("B"), vec![outputs, rank])]
            }
            _ => Vec::new(),
        }
    }

    fn norm_of(&self, name: &str) -> Vec<Shaped> {
        let bias = (self.norm == Norm::Layer).then(|| (format!("{name}.bias"), vec![self.d]));
        [(format!("{name}.weight"), vec![self.d])].into_iter().chain(bias).collect()
    }

    pub(super) fn spelling(&self) -> &'static Spelling {
        match self.names {
            Names::GptNeox => &GPT_NEOX,
            Names::Llama => &LLAMA,
        }
    }

    pub(super) fn projection(&self) -> Projection {
        let names = self.spelling();
        match names.fused {
            Some(name) if self.kv_heads == self.heads => Projection::Fused(name),
            _ => Projection::Separate(names.separate),
        }
    }

    /// The name of a part of a layer.
    pub(super) fn part(&self, layer: usize, part: &str) -> String {
        format!("{}.{layer}.{part}", self.spelling().layers)
    }

    /// The name of a value table.
    pub(super) fn value_table(&self, table: usize) -> String {
        let (root, _) = self.spelling().layers.rsplit_once('.').expect("layers of something");
        format!("{root}.value_tables.{table}.weight")
    }

    /// The name of the embedding where it is one tensor.
    pub(super) fn embedding(&self) -> String {
        format!("{}.weight", self.spelling().embedding)
    }

    /// The names of the embedding's factors E and P.
    pub(super) fn factors(&self) -> [String; 2] {
        ["E", "P"].map(|factor| format!("{}.{factor}", self.spelling().embedding))
    }

    /// The name of the final norm, without `.weight`.
    pub(super) fn last_norm(&self) -> &'static str {
        self.spelling().last_norm
    }

    /// The name of the head where it is not the embedding.
    pub(super) fn head(&self) -> String {
        format!("{}.weight", self.spelling().head)
    }
}
