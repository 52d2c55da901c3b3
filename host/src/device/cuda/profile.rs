//! What the CUDA device takes of memory: plain data, so that a run is planned where there is no GPU.

use std::ops::RangeInclusive;

use capful_core::device::{Op, Operation, Profile};
use capful_core::memory::{Dtype, Region, Role};
use capful_core::ops::{
    AdamW, AllGather, AllToAll, Attention, AttentionGrad, CachedAttention, Carry, Context, ContextGrad, Embed,
    EmbedGrad, EmbedUpdate, FactoredUpdate, Gelu, HeadLoss, Inhibit, Kind, Linear, LinearGrad, MaxParts, Memory,
    MemoryGrad, Modulate, MostLikely, Norm, NormGrad, NormKind, PieceNorms, QkNorm, QkNormGrad, Quantise, QuantiseRows,
    Readout, ReadoutGrad, Rescale, Rotate, Sample, Sgd, Spike, SpikeGrad, SquaredNorm, SumNorms, SumParts, SwiGlu,
    SwiGluGrad, SynapseGrad, SynapseInputGrad, Taps, TapsGrad,
};
use capful_core::with_operation;

/// How numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision everywhere.
    F32,
    /// Weights, activations and their gradients in bf16; masters, moments and, where nothing else is said, the parameters'
    /// gradients in f32.
    /// Sums are always f32.
    Bf16,
    /// As bf16; the products of a family's layers read copies of their operands in 8 bits, where the family has such.
    Fp8,
}

/// The memory of a step on the CUDA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaProfile {
    /// How numbers are kept.
    pub precision: Precision,
    /// Whether the parameters' gradients are bf16 too.
    pub bf16_gradients: bool,
}

impl CudaProfile {
    /// With the parameters' gradients in f32.
    pub const fn new(precision: Precision) -> CudaProfile {
        CudaProfile { precision, bf16_gradients: false }
    }
}

impl Profile for CudaProfile {
    fn dtype(&self, role: Role) -> Dtype {
        match role {
            Role::Batch => Dtype::U32,
            Role::Gradient if self.bf16_gradients => Dtype::Bf16,
            Role::Weight | Role::Saved | Role::Work if self.precision != Precision::F32 => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }

    fn computes(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F32 || dtype == Dtype::Bf16 && self.precision != Precision::F32
    }

    fn quantises(&self) -> bool {
        self.precision == Precision::Fp8
    }

    fn scratch(&self, op: &Op) -> u64 {
        with_operation!(op, o => o.scratch(self))
    }
}

/// What the CUDA device takes of memory for an operation, whether or not this build has the device.
pub trait CudaScratch: Operation {
    /// Bytes of scratch that it wants while it runs.
    fn scratch(&self, profile: &CudaProfile) -> u64;
}

/// Operations without scratch.
macro_rules! without_scratch {
    ($($name:ident),* $(,)?) => {
        $(impl CudaScratch for $name {
            fn scratch(&self, _: &CudaProfile) -> u64 {
                0
            }
        })*
    };
}

without_scratch!(
    AdamW,
    AllGather,
    AllToAll,
    Attention,
    Carry,
    Context,
    ContextGrad,
    Embed,
    Gelu,
    Inhibit,
    MaxParts,
    Memory,
    MostLikely,
    Norm,
    PieceNorms,
    QkNorm,
    Quantise,
    QuantiseRows,
    Readout,
    Rescale,
    Rotate,
    Sample,
    Sgd,
    SpikeGrad,
    SumNorms,
    SumParts,
    SwiGlu,
    SwiGluGrad,
    SynapseInputGrad,
    Taps,
    TapsGrad
);

impl CudaScratch for AttentionGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        AttentionGradRoom::of(self).bytes()
    }
}

impl CudaScratch for CachedAttention {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        TokenRoom::of(self).bytes()
    }
}

impl CudaScratch for EmbedGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        EmbedGradRoom::of(self).bytes()
    }
}

impl CudaScratch for EmbedUpdate {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        SortRoom::of(self.x_grad.rows()).bytes()
    }
}

impl CudaScratch for FactoredUpdate {
    fn scratch(&self, profile: &CudaProfile) -> u64 {
        FactoredRoom::of(self, profile.precision != Precision::F32).bytes()
    }
}

impl CudaScratch for HeadLoss {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        WORKSPACE.max(4 * u64::from(self.x.rows()))
    }
}

impl CudaScratch for Linear {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        WORKSPACE
    }
}

impl CudaScratch for LinearGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        let columns = self.out_grad.columns().max(self.x_bias_grad.map_or(0, |_| self.x.columns()));
        (WORKSPACE + SUMS).max(piece_bytes(self.out_grad.rows(), 1, columns))
    }
}

impl CudaScratch for MemoryGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        score_bytes(&self.keys)
    }
}

impl CudaScratch for Modulate {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        modulate_bytes(&self.factors)
    }
}

impl CudaScratch for NormGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        norm_bytes(self.kind, [self.x.rows(), 1 + u32::from(self.second.is_some()), self.x.columns()])
    }
}

impl CudaScratch for QkNormGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        piece_bytes(self.qkv_grad.rows(), 2, self.heads.size)
    }
}

impl CudaScratch for ReadoutGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        turned_bytes(&self.out_grad)
    }
}

impl CudaScratch for Spike {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        BitRoom::of(self)
    }
}

impl CudaScratch for SquaredNorm {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        4 * self.gradient.elements().div_ceil(SquaredNorm::PIECE as u64)
    }
}

impl CudaScratch for SynapseGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        bit_bytes(self.grad.shape[2], self.grad.columns(), self.grad.shape[1])
    }
}

/// Bytes of the scratch that a product may use, and behind them bytes for pieces of sums that wait: together what NVIDIA
/// recommends for products on its largest GPUs.
pub const WORKSPACE: u64 = 28 << 20;
pub const SUMS: u64 = 4 << 20;

/// Rows of a piece of a sum over rows and the number of pieces: a function of the rows only, so that sums have one
/// order.
pub fn pieces(rows: u32) -> (u32, u32) {
    let piece = rows.div_ceil(256).max(64);
    (piece, rows.div_ceil(piece))
}

/// Bytes of scratch for the pieces of `sums` sums over `rows` of `columns`.
pub fn piece_bytes(rows: u32, sums: u32, columns: u32) -> u64 {
    4 * u64::from(pieces(rows).1) * u64::from(sums) * u64::from(columns)
}

/// The same of a norm's gradient. Its blocks go through whole rows: as many as fill the largest GPUs.
pub fn norm_pieces(kind: NormKind, rows: u32) -> (u32, u32) {
    let most = match kind {
        NormKind::Layer => 256,
        NormKind::Rms => 512,
    };
    let piece = rows.div_ceil(most).max(32);
    (piece, rows.div_ceil(piece))
}

/// Bytes of scratch for the pieces of a norm's gradient, of so many rows, outputs and columns: of its sums, and of those of
/// x's gradient that are made with them.
pub fn norm_bytes(kind: NormKind, [rows, outputs, columns]: [u32; 3]) -> u64 {
    let sums = norm_sums(kind) * outputs + u32::from(kind == NormKind::Layer);
    4 * u64::from(norm_pieces(kind, rows).1) * u64::from(sums) * u64::from(columns)
}

/// Sums over rows that the gradient of one output of a norm takes: the gain's, and the bias's where there is one.
pub const fn norm_sums(kind: NormKind) -> u32 {
    match kind {
        NormKind::Layer => 2,
        NormKind::Rms => 1,
    }
}

/// Lengths of sequences of two tiles, which stay on the chip.
pub const SHORT: RangeInclusive<u32> = 65..=128;

/// The length from which a block of 128 keys has enough queries to go through: measured.
pub const LONG: u32 = 512;

/// The scratch of attention's gradient: the means of rows, then sums of the columns of what it writes.
pub struct AttentionGradRoom {
    /// Bytes of the means, and of the number of works that are taken behind them.
    pub means: u64,
    /// Bytes of the sums.
    pub sums: u64,
}

impl AttentionGradRoom {
    /// For this operation.
    pub fn of(o: &AttentionGrad) -> AttentionGradRoom {
        let [_, batch, seq_len, columns] = o.qkv_grad.shape;
        // The kernels for short sequences make them, two pieces a sequence at the most, and those for long ones.
        let pieces = match seq_len {
            _ if o.qkv_grad.dtype != Dtype::Bf16 => 0,
            _ if SHORT.contains(&seq_len) => 2,
            LONG.. if o.pattern.kind == Kind::Dense => seq_len.div_ceil(64),
            _ => 0,
        };
        let sums = 4 * u64::from(batch) * u64::from(pieces) * u64::from(columns);
        AttentionGradRoom { means: (o.log_sum.bytes() + 4).next_multiple_of(256), sums }
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.means + self.sums
    }
}

/// The scratch of a token's attention: counters, then what each piece of the positions gives for each head.
pub struct TokenRoom {
    /// Words that are 0 before: how many blocks wait, the best logits of tokens, and for each head how many pieces are done.
    pub counters: u64,
    /// Bytes of the pieces' sums.
    pub partial: u64,
}

impl TokenRoom {
    /// Positions of a piece: PIECE of cached_attention.cuh.
    const PIECE: u32 = 128;
    /// The most tokens that one launch chooses.
    pub const TOKENS: usize = 16;
    /// The first byte of their words, of 8 bytes each, and of the heads' counters.
    pub const BEST: u64 = 8;
    pub const DONE: u64 = TokenRoom::BEST + 8 * TokenRoom::TOKENS as u64;

    /// For this operation.
    pub fn of(o: &CachedAttention) -> TokenRoom {
        let heads = &o.rotary.heads;
        let pieces = u64::from(o.cache.shape[2].div_ceil(TokenRoom::PIECE));
        let partial = 4 * u64::from(heads.queries) * pieces * (2 + u64::from(heads.size));
        TokenRoom { counters: TokenRoom::DONE / 4 + u64::from(heads.queries), partial }
    }

    /// Bytes before the sums.
    pub fn before(&self) -> u64 {
        (4 * self.counters).next_multiple_of(256)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.before() + self.partial
    }
}

/// The scratch for sorting rows by their ids: counts of digits, then two lists of the rows.
pub struct SortRoom {
    /// Bytes of the counts: 256 digits of every piece.
    pub counts: u64,
    /// Bytes of a list.
    pub list: u64,
}

impl SortRoom {
    /// For so many rows.
    pub fn of(rows: u32) -> SortRoom {
        SortRoom { counts: 4 * 256 * u64::from(SortRoom::pieces(rows)), list: 4 * u64::from(rows) }
    }

    /// Pieces that the rows are counted in.
    pub fn pieces(rows: u32) -> u32 {
        rows.div_ceil(1024)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.counts + 2 * self.list
    }
}

/// The scratch of an embedding's gradient: for sorting, then the sums of pieces of rows.
pub struct EmbedGradRoom {
    /// Bytes for sorting.
    pub sort: u64,
    /// Bytes of the sums.
    pub partial: u64,
}

impl EmbedGradRoom {
    /// For an operation.
    pub fn of(o: &EmbedGrad) -> EmbedGradRoom {
        let [rows, columns] = [o.out_grad.rows(), o.out_grad.columns()];
        let sums = 4 * u64::from(EmbedGradRoom::pieces(rows)) * u64::from(columns);
        EmbedGradRoom { sort: SortRoom::of(rows).bytes().next_multiple_of(16), partial: sums }
    }

    /// Pieces of the sorted rows: PIECE of embed.cu.
    pub fn pieces(rows: u32) -> u32 {
        rows.div_ceil(32)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.sort + self.partial
    }
}

/// Bytes of a bit for each neuron, stream and token: whether it fired.
pub fn bit_bytes(neurons: u32, streams: u32, tokens: u32) -> u64 {
    4 * u64::from(neurons) * u64::from(streams.div_ceil(32)) * u64::from(tokens)
}

/// The scratch of spiking modules of one stream that come in one launch: how many blocks wait, then bits of who fired at an
/// even token and at an odd one, module by module.
pub struct BitRoom;

impl BitRoom {
    /// The most modules of a launch: MOST_MODULES of spikes.cu.
    pub const MODULES: u64 = 8;
    /// The first byte of bits.
    pub const FIRST: u64 = 16;

    /// Words of the bits of so many neurons.
    pub const fn words(neurons: u32) -> u32 {
        neurons.div_ceil(32)
    }

    /// Bytes of a module of so many neurons.
    pub fn of_one(neurons: u32) -> u64 {
        8 * u64::from(BitRoom::words(neurons))
    }

    /// Bytes for a module, enough for a launch or a chain of which it is the largest.
    pub fn of(o: &Spike) -> u64 {
        let (neurons, streams) = (o.weights.rows(), o.signals.columns());
        match streams {
            1 => (BitRoom::FIRST + BitRoom::MODULES * BitRoom::of_one(neurons)).max(bit_bytes(neurons, 1, 1)),
            _ => BitRoom::MODULES * ChainRoom::of(o).bytes(),
        }
    }
}

/// The scratch of a spiking module of many streams in a chain of tokens, in this order.
pub struct ChainRoom {
    /// Bytes of who fired at an even token, and at an odd one.
    pub bits: u64,
    /// Bytes of how many synapses of each neuron are summed before.
    pub taken: u64,
}

impl ChainRoom {
    /// For this module.
    pub fn of(o: &Spike) -> ChainRoom {
        let (neurons, streams) = (o.weights.rows(), o.signals.columns());
        ChainRoom { bits: bit_bytes(neurons, streams, 1), taken: 4 * u64::from(neurons) }
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        2 * self.bits + self.taken
    }
}

/// Tokens of the readout's gradient that one launch takes: TOKENS of readout.cu.
pub const READOUT_TOKENS: u32 = 8;

/// Bytes of their gradients as signals lie.
pub fn turned_bytes(out_grad: &Region) -> u64 {
    let [_, streams, _, dims] = out_grad.shape;
    4 * u64::from(streams) * u64::from(READOUT_TOKENS) * u64::from(dims)
}

/// Bytes of the two scores of a memory's gradient for each pair of tokens.
pub fn score_bytes(keys: &Region) -> u64 {
    let [_, streams, tokens, _] = keys.shape;
    8 * u64::from(streams) * u64::from(tokens) * u64::from(tokens)
}

/// Bytes of three numbers a token, and of one.
pub fn modulate_bytes(factors: &Region) -> u64 {
    12 * factors.elements() + 4
}

/// The scratch of a factored update, in this order behind that of its products; then one number.
pub struct FactoredRoom {
    /// Bytes of the tile's columns of the logits' gradient.
    pub slab: u64,
    /// Bytes of the inputs in bf16.
    pub x: u64,
    /// Bytes of the biases' gradient.
    pub bias_grad: u64,
    /// Bytes of the pieces of sums.
    pub partial: u64,
}

impl FactoredRoom {
    /// For this update; `half` is whether its product may read bf16.
    pub fn of(o: &FactoredUpdate, half: bool) -> FactoredRoom {
        let (rows, vocabulary) = (o.x.rows(), o.weight.rows());
        let tile = o.tile.rows().min(vocabulary);
        let halves = |columns: u32| if half { 2 * u64::from(rows) * u64::from(columns) } else { 0 };
        let copied = if tile < vocabulary { 4 * u64::from(rows) * u64::from(tile) } else { halves(tile) };
        FactoredRoom {
            slab: copied.next_multiple_of(256),
            x: halves(o.x.columns()).next_multiple_of(256),
            bias_grad: (4 * u64::from(vocabulary)).next_multiple_of(256),
            partial: piece_bytes(rows, 1, vocabulary),
        }
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        WORKSPACE + self.slab + self.x + self.bias_grad + self.partial + 4
    }
}
