//! The names of tensors, as in `transformers` where it has such a tensor.

/// A system's tensor names, with the initial values that go with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// GPT-NeoX. Initial values have a deviation of √(2 / 5 d), those of matrices whose output is added to the residual
    /// stream 2 / (layers · √d) (Nguyen and Salazar 2019; Wang and Komatsuzaki 2021).
    GptNeox,
    /// Llama. The deviations are 0.02 and 0.02 / √(2 · layers) (Radford et al. 2019).
    Llama,
}

/// Names of weight and bias.
pub(super) type Pair = [&'static str; 2];

/// Names of a linear layer's weight and bias, and of its adapters.
pub(super) type Dense = [&'static str; 4];

/// A name for each parameter that a transformer may have.
pub(super) struct Names {
    pub embed: &'static str,
    pub factors: [&'static str; 2],
    /// One tensor of all heads; a dialect without it uses three tensors.
    pub fused: Dense,
    pub qkv: Dense,
    /// The gains of queries and of keys.
    pub qk_norm: [&'static str; 2],
    pub value_tables: &'static str,
    pub value_gain: &'static str,
    pub stream_scalars: &'static str,
    pub out: Dense,
    pub up: Dense,
    pub gate_up: Dense,
    pub down: Dense,
    pub head: &'static str,
    pub norm1: Pair,
    pub norm2: Pair,
    pub final_norm: Pair,
}

/// Names of weight and bias with a common stem.
macro_rules! pair {
    ($stem:literal) => {
        [concat!($stem, ".weight"), concat!($stem, ".bias")]
    };
}

/// The names of weight and bias, and those of adapters as in PEFT.
macro_rules! dense {
    ($stem:literal) => {
        [
            concat!($stem, ".weight"),
            concat!($stem, ".bias"),
            if cfg!(feature = "adapters") { concat!($stem, ".lora_A.weight") } else { "" },
            if cfg!(feature = "adapters") { concat!($stem, ".lora_B.weight") } else { "" },
        ]
    };
}

const GPT_NEOX: Names = Names {
    embed: "gpt_neox.embed_in.weight",
    factors: ["gpt_neox.embed_in.E", "gpt_neox.embed_in.P"],
    fused: dense!("gpt_neox.layers.*.attention.query_key_value"),
    qkv: dense!("gpt_neox.layers.*.attention.{query,key,value}"),
    qk_norm: ["gpt_neox.layers.*.attention.query_norm.weight", "gpt_neox.layers.*.attention.key_norm.weight"],
    value_tables: "gpt_neox.value_tables.*.weight",
    value_gain: "gpt_neox.layers.*.attention.value_gain",
    stream_scalars: "gpt_neox.layers.*.stream_scalars",
    out: dense!("gpt_neox.layers.*.attention.dense"),
    up: dense!("gpt_neox.layers.*.mlp.dense_h_to_4h"),
    gate_up: dense!("gpt_neox.layers.*.mlp.{gate,dense_h_to_4h}"),
    down: dense!("gpt_neox.layers.*.mlp.dense_4h_to_h"),
    head: "embed_out.weight",
    norm1: pair!("gpt_neox.layers.*.input_layernorm"),
    norm2: pair!("gpt_neox.layers.*.post_attention_layernorm"),
    final_norm: pair!("gpt_neox.final_layer_norm"),
};

const LLAMA: Names = Names {
    embed: "model.embed_tokens.weight",
    factors: ["model.embed_tokens.E", "model.embed_tokens.P"],
    fused: dense!("model.layers.*.self_attn.{q,k,v}_proj"),
    qkv: dense!("model.layers.*.self_attn.{q,k,v}_proj"),
    qk_norm: ["model.layers.*.self_attn.q_norm.weight", "model.layers.*.self_attn.k_norm.weight"],
    value_tables: "model.value_tables.*.weight",
    value_gain: "model.layers.*.self_attn.value_gain",
    stream_scalars: "model.layers.*.stream_scalars",
    out: dense!("model.layers.*.self_attn.o_proj"),
    up: dense!("model.layers.*.mlp.up_proj"),
    gate_up: dense!("model.layers.*.mlp.{gate,up}_proj"),
    down: dense!("model.layers.*.mlp.down_proj"),
    head: "lm_head.weight",
    norm1: pair!("model.layers.*.input_layernorm"),
    norm2: pair!("model.layers.*.post_attention_layernorm"),
    final_norm: pair!("model.norm"),
};

impl Dialect {
    pub(super) const fn names(self) -> &'static Names {
        match self {
            Dialect::GptNeox => &GPT_NEOX,
            Dialect::Llama => &LLAMA,
        }
    }

    /// Deviations of initial values: of most matrices, and of those whose output is added to the residual stream.
    pub(super) fn deviations(self, d_model: u32, layers: u32) -> [f32; 2] {
        let (width, layers) = (libm::sqrtf(d_model as f32), layers as f32);
        match self {
            Dialect::GptNeox => [libm::sqrtf(2.0 / 5.0) / width, 2.0 / (layers * width)],
            Dialect::Llama => [0.02, 0.02 / libm::sqrtf(2.0 * layers)],
        }
    }
}
