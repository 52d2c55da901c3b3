//! What a Yxanul keeps in memory, and where.

use super::Yxanul;
use super::narrow::{Copies, Narrow, lay_scales};
use crate::device::{Profile, count};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, Stacked};
use crate::model::shared::{
    self, Activations, Grouped, Groups, Keep, Must, check_constants, check_sizes, check_stage, larger,
};
use crate::model::stage::{Batch, Control, Family, ModelError, Products, Purpose, Stage};
use crate::ops::QuantisedProduct;

/// Every parameter, or what belongs to every parameter: gradients, moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// [padded vocabulary, rank or d_model]: E, or the whole embedding.
    pub embed: Region,
    /// [d_model, rank]: P, where the embedding is factorised.
    pub project: Option<Region>,
    /// [(heads + 2 kv_heads) · size, d_model]: queries, keys, values.
    pub qkv: Stacked,
    /// [d_model, d_model].
    pub out: Stacked,
    /// [2 d_ff, d_model]: gate, up.
    pub gate_up: Stacked,
    /// [d_model, d_ff].
    pub down: Stacked,
    /// [padded vocabulary, d_model], where the head is untied.
    pub untied: Option<Region>,
    /// `[d_model]`: gain of RMSNorm₁, before attention.
    pub norm1: Stacked,
    /// `[d_model]`: gain of RMSNorm₂, before the feed-forward.
    pub norm2: Stacked,
    /// `[d_model]`: gain of the final RMSNorm.
    pub final_norm: Region,
    /// What is updated alike.
    pub groups: Groups,
}

impl Parameters {
    /// [padded vocabulary, rank or d_model]: the table that makes logits.
    pub fn head(&self) -> Region {
        self.untied.unwrap_or(self.embed)
    }
}

impl Grouped for Parameters {
    fn groups(&self) -> &Groups {
        &self.groups
    }
}

/// What lasts from step to step.
pub type State = shared::Lasting<Parameters>;

/// The activations of a forward pass. Shared slots (stride 0) are rebuilt by every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forward {
    /// [batch, seq_len, rank]: the tokens' rows of E, then the head's input, where the embedding is factorised.
    pub(super) low: Option<Region>,
    /// [batch, seq_len, d_model]: each layer's input, and the last one's output.
    pub(super) x: Stacked,
    /// [batch, seq_len, 1]: the scale of RMSNorm₁.
    pub(super) stats1: Stacked,
    /// [batch, seq_len, d_model]: RMSNorm₁ x.
    pub(super) norm1: Stacked,
    /// [batch, seq_len, (heads + 2 kv_heads) · size].
    pub(super) qkv: Stacked,
    /// [batch, heads, seq_len].
    pub(super) log_sum: Stacked,
    /// [batch, seq_len, d_model]: attention's output, before its projection.
    pub(super) mixed: Stacked,
    /// [batch, seq_len, d_model]: x after attention was added; the slot of x where nothing is kept.
    pub(super) mid: Stacked,
    /// [batch, seq_len, 1]: the scale of RMSNorm₂.
    pub(super) stats2: Stacked,
    /// [batch, seq_len, d_model]: RMSNorm₂ of that.
    pub(super) norm2: Stacked,
    /// [batch, seq_len, 2 d_ff]: gate and up; in the backward pass their gradients.
    pub(super) gate_up: Stacked,
    /// [batch, seq_len, d_ff]: silu(gate) ∘ up.
    pub(super) activated: Stacked,
    /// [batch, seq_len, 1].
    pub(super) final_stats: Region,
    /// [batch, seq_len, d_model]: h.
    pub(super) final_out: Region,
    /// [batch · seq_len]: nats.
    pub(super) losses: Region,
    /// Copies in 8 bits, in a step that makes them.
    pub(super) narrow: Option<Narrow>,
}

/// What a training step needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [batch, seq_len, d_model]: the gradient of the residual stream.
    pub(super) x_grad: Region,
    /// [batch, seq_len, d_model]: of a norm's or of attention's output, in turn.
    pub(super) narrow_grad: Region,
    /// [batch, seq_len, rank]: of the head's input, then of the tokens' rows of E.
    pub(super) low_grad: Option<Region>,
    /// [chunk, padded vocabulary]: logits; then, in each layer, of the activated values and of qkv.
    pub(super) wide: Region,
    /// Copies in 8 bits, on a device that multiplies them.
    pub(super) copies: Option<Copies>,
}

/// What an evaluation needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [chunk, padded vocabulary]: the loss's own.
    pub(super) padded_logits: Region,
    /// [chunk, vocab_size]: the same bytes, as a host reads them.
    pub(super) logits: Region,
}

/// What decoding needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    pub(super) forward: Forward,
    /// `[1]` u32.
    pub(super) id: Region,
    /// `[1]` u32.
    pub(super) cursor: Region,
    /// [2, context, kv_heads · size] a layer.
    pub(super) cache: Stacked,
    /// [1, vocab_size].
    pub(super) logits: Region,
}

impl Yxanul {
    /// Named as a Llama of `transformers`; a factorised embedding is `E` and `P` in the embedding's place.
    fn lay_parameters(&self, prefix: &'static str, role: Role, dtype: Dtype, ledger: &mut dyn Ledger) -> Parameters {
        let (d, ff, layers) = (self.d_model, self.d_ff, self.layers);
        let (size, rows) = (self.head_size(), self.vocabulary_rows());
        let plain = Init::Normal(0.02);
        let residual = Init::Normal(0.02 / libm::sqrtf(2.0 * layers as f32));
        let fresh = role == Role::Weight || role == Role::Master;
        let mut lay = |name, layers, shape: [u32; 2], init, parts| {
            let init = if fresh { init } else { Init::Zero };
            let slot = Slot::new(name, role, dtype, [1, 1, shape[0], shape[1]]);
            ledger.region(Slot { prefix, layers, init, parts, ..slot })
        };
        let (ids, whole) = ([self.vocab_size, 0, 0], [0; 3]);
        let name = if self.rank.is_some() { "model.embed_tokens.E" } else { "model.embed_tokens.weight" };
        let embed = lay(name, 1, [rows, self.rank.unwrap_or(d)], plain, ids).first;
        let project = self.rank.map(|rank| lay("model.embed_tokens.P", 1, [d, rank], plain, whole).first);
        let parts = [d, self.kv_heads * size, self.kv_heads * size];
        let width = self.heads().width();
        let qkv = lay("model.layers.*.self_attn.{q,k,v}_proj.weight", layers, [width, d], plain, parts);
        let out = lay("model.layers.*.self_attn.o_proj.weight", layers, [d, d], residual, whole);
        let gate_up = lay("model.layers.*.mlp.{gate,up}_proj.weight", layers, [2 * ff, d], plain, [ff, ff, 0]);
        let down = lay("model.layers.*.mlp.down_proj.weight", layers, [d, ff], residual, whole);
        let untied = (!self.tied).then(|| lay("lm_head.weight", 1, [rows, d], plain, ids).first);
        let mut gain = |name, layers| lay(name, layers, [1, d], Init::One, whole);
        let norm1 = gain("model.layers.*.input_layernorm.weight", layers);
        let norm2 = gain("model.layers.*.post_attention_layernorm.weight", layers);
        let final_norm = gain("model.norm.weight", 1).first;
        // Matrices were laid first: each group is one range.
        let groups = Groups::new(dtype, [embed.offset, norm1.first.offset, ledger.mark()], ledger);
        Parameters { embed, project, qkv, out, gate_up, down, untied, norm1, norm2, final_norm, groups }
    }

    fn lay_forward(&self, shape: [u32; 2], keep: Keep, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Forward {
        let (d, ff, layers) = (self.d_model, self.d_ff, self.layers);
        let mut all = Activations { profile, ledger, shape };
        let low = self.rank.map(|rank| all.lay("embed.low", false, 1, rank).first);
        let x = all.lay("layers.x", keep.inputs, layers + 1, d);
        let stats1 = all.lay_f32("layers.stats1", keep.inputs, layers, 1);
        let norm1 = all.lay("layers.norm1", keep.element_wise, layers, d);
        let qkv = all.lay("layers.qkv", keep.products, layers, self.heads().width());
        let log_sum = all.log_sum(keep.products, layers, self.heads);
        let mixed = all.lay("layers.mixed", keep.products, layers, d);
        let mid = if keep.inputs { all.lay("layers.mid", keep.products, layers, d) } else { x };
        let stats2 = all.lay_f32("layers.stats2", keep.products, layers, 1);
        let norm2 = all.lay("layers.norm2", keep.element_wise, layers, d);
        let gate_up = all.lay("layers.gate_up", keep.products, layers, 2 * ff);
        let activated = all.lay("layers.activated", keep.element_wise, layers, ff);
        let final_stats = all.lay_f32("final.stats", false, 1, 1).first;
        let final_out = all.lay("final.out", false, 1, d).first;
        let losses = all.losses();
        Forward {
            low,
            x,
            stats1,
            norm1,
            qkv,
            log_sum,
            mixed,
            mid,
            stats2,
            norm2,
            gate_up,
            activated,
            final_stats,
            final_out,
            losses,
            narrow: None,
        }
    }

    /// Columns of the widest activation.
    pub(super) fn widest(&self) -> u32 {
        (2 * self.d_ff).max(self.heads().width())
    }
}

impl Family for Yxanul {
    type State = State;
    type Training = Training;
    type Evaluation = Evaluation;
    type Decoding = Decoding;

    fn validate(&self) -> Result<(), ModelError> {
        check_sizes(&[
            ("layers", self.layers),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("d_ff", self.d_ff),
            ("vocab_size", self.vocab_size),
            ("context", self.context),
            ("rank", self.rank.unwrap_or(1)),
        ])?;
        check_constants(&[
            ("rotary_base", self.rotary_base, Must::Positive),
            ("norm_eps", self.norm_eps, Must::Positive),
        ])?;
        let Yxanul { d_model, heads, kv_heads, .. } = *self;
        if !d_model.is_multiple_of(heads) {
            return Err(ModelError::Heads { d_model, heads });
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::Groups { heads, kv_heads });
        }
        let size = self.head_size();
        if !size.is_multiple_of(2) {
            return Err(ModelError::Rotary { dims: size, size });
        }
        match self.rank {
            Some(rank) if rank > d_model => Err(ModelError::Rank { rank, d_model }),
            Some(_) if !self.tied => Err(ModelError::Untied),
            _ => Ok(()),
        }
    }

    fn validate_stage(&self, stage: &Stage) -> Result<(), ModelError> {
        check_stage(stage, self.context)?;
        if stage.products == Products::Wide {
            return Ok(());
        }
        let sides = [("d_model", self.d_model), ("d_ff", self.d_ff), ("the width of qkv", self.heads().width())];
        let odd = sides.into_iter().find(|(_, size)| !size.is_multiple_of(QuantisedProduct::GRAIN));
        odd.map_or(Ok(()), |(name, size)| Err(ModelError::Sixteens { name, size }))
    }

    fn flops_per_token(&self, seq_len: u32) -> u64 {
        let [d, ff, layers, vocabulary] = [self.d_model, self.d_ff, self.layers, self.vocab_size].map(u64::from);
        let layer = count(&[d, u64::from(self.heads().width()) + d + 3 * ff]);
        // P is used twice, at both ends; without it the embedding is looked up and not multiplied with.
        let ends = match self.rank.map(u64::from) {
            Some(rank) => count(&[rank, vocabulary + 2 * d]),
            None => count(&[vocabulary, d]),
        };
        let products = count(&[layers, layer]).saturating_add(ends);
        count(&[6, products]).saturating_add(count(&[12, layers, d, seq_len.into()]))
    }

    fn lay_state(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> State {
        let training = purpose == Purpose::Training;
        let table = [self.context, self.head_size() / 2];
        let state = State::lay(profile, training, table, self.rotary_base, ledger, &|prefix, role, dtype, ledger| {
            self.lay_parameters(prefix, role, dtype, ledger)
        });
        let scales = (training && profile.quantises()).then(|| lay_scales(self.layers, ledger));
        State { scales, ..state }
    }

    fn lay_training(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        let Stage { batch, seq_len, chunk, recompute, .. } = *stage;
        let regions = Batch::lay(stage.tokens(), ledger);
        let forward = self.lay_forward([batch, seq_len], Keep::of(recompute), profile, ledger);
        let dtype = profile.dtype(Role::Work);
        let mut lay = |name, shape| ledger.region(Slot::new(name, Role::Work, dtype, shape)).first;
        let x_grad = lay("grad.x", [1, batch, seq_len, self.d_model]);
        let narrow_grad = lay("grad.norm_or_mixed", [1, batch, seq_len, self.d_model]);
        let low_grad = self.rank.map(|rank| lay("grad.low", [1, batch, seq_len, rank]));
        let rows = chunk.min(stage.tokens());
        let widest = [1, batch, seq_len, self.d_ff.max(self.heads().width())];
        let wide = lay("logits_or_grad.activated_or_qkv", larger([1, 1, rows, self.vocabulary_rows()], widest));
        let copies = profile.quantises().then(|| Copies::lay(self, stage.tokens(), ledger));
        Training { batch: regions, forward, x_grad, narrow_grad, low_grad, wide, copies }
    }

    fn lay_evaluation(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        let batch = Batch::lay(stage.tokens(), ledger);
        let forward = self.lay_forward([stage.batch, stage.seq_len], Keep::NOTHING, profile, ledger);
        let rows = stage.chunk.min(stage.tokens());
        let shape = [1, 1, rows, self.vocabulary_rows()];
        let padded_logits = ledger.region(Slot::new("logits", Role::Work, Dtype::F32, shape)).first;
        let logits = padded_logits.reshaped([1, 1, rows, self.vocab_size]);
        Evaluation { batch, forward, padded_logits, logits }
    }

    fn lay_decoding(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        let forward = self.lay_forward([1, 1], Keep::NOTHING, profile, ledger);
        let mut lay =
            |name, role, dtype, shape, layers| ledger.region(Slot::new(name, role, dtype, shape).layers(layers));
        let id = lay("decode.id", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let cursor = lay("decode.cursor", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let columns = self.kv_heads * self.head_size();
        let cache = lay("decode.cache", Role::Work, profile.dtype(Role::Work), [1, 2, context, columns], self.layers);
        let logits = lay("decode.logits", Role::Work, Dtype::F32, [1, 1, 1, self.vocab_size], 1).first;
        Decoding { forward, id, cursor, cache, logits }
    }

    fn control(state: &State) -> Control {
        state.control
    }

    fn training_batch(training: &Training) -> Batch {
        training.batch
    }

    fn evaluation_batch(evaluation: &Evaluation) -> Batch {
        evaluation.batch
    }

    fn evaluation_logits(evaluation: &Evaluation) -> Region {
        evaluation.logits
    }

    fn decoding_io(decoding: &Decoding) -> (Region, Region, Region) {
        (decoding.id, decoding.cursor, decoding.logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Meter, Rates, Single};
    use crate::memory::{Entry, Layout};
    use crate::model::{Optimizer, Recompute, Steps};
    use crate::ops::Pattern;

    const PUBLISHED: Yxanul = Yxanul {
        layers: 28,
        d_model: 768,
        heads: 12,
        kv_heads: 2,
        d_ff: 2048,
        vocab_size: 200_005,
        context: 4096,
        rank: Some(128),
        tied: true,
        rotary_base: 10_000.0,
        norm_eps: 1e-5,
    };

    /// bfloat16 activations.
    struct Half;

    impl Profile for Half {
        fn dtype(&self, role: Role) -> Dtype {
            match role {
                Role::Saved | Role::Work | Role::Weight => Dtype::Bf16,
                _ => Single.dtype(role),
            }
        }
    }

    fn parameters(model: &Yxanul) -> u64 {
        let mut sum = 0;
        let mut visit = |e: &Entry| {
            sum += e.slot.elements() * u64::from(e.slot.layers) * u64::from(e.slot.role == Role::Weight);
        };
        model.lay_state(&Single, Purpose::Evaluation, &mut Layout::new(&mut visit));
        sum
    }

    #[test]
    fn the_published_model_has_its_parameters() {
        assert_eq!(parameters(&PUBLISHED), 196_398_464);
        assert_eq!(PUBLISHED.vocabulary_rows(), 200_064);
        // A whole tied table, and another for the head.
        let plain = Yxanul { rank: None, ..PUBLISHED };
        assert_eq!(parameters(&plain), 196_398_464 - 200_005 * 128 - 768 * 128 + 200_005 * 768);
        assert_eq!(parameters(&Yxanul { tied: false, ..plain }), parameters(&plain) + 200_005 * 768);
    }

    #[test]
    fn a_layer_keeps_the_bytes_a_token_that_were_worked_out_by_hand() {
        let stage = Stage {
            batch: 1,
            seq_len: 128,
            chunk: 8,
            recompute: Recompute::None,
            pattern: Pattern::DENSE,
            products: Products::Wide,
        };
        let kept = |recompute| {
            let mut bytes = 0;
            let mut visit = |e: &Entry| bytes += if e.slot.layers > 1 { e.bytes / u64::from(e.slot.layers) } else { 0 };
            PUBLISHED.lay_training(&Stage { recompute, ..stage }, &Half, &mut Layout::new(&mut visit));
            bytes / u64::from(stage.tokens())
        };
        assert_eq!(kept(Recompute::None), 22_072);
        assert_eq!(kept(Recompute::Cheap), 14_904);
        // x and the scale of its norm.
        assert_eq!(kept(Recompute::Full), 2 * 768 + 4);
    }

    /// Runs everything of `model` on a meter; the regions it was laid in.
    fn metered(model: &Yxanul, stage: &Stage, profile: &dyn Profile) -> heapless::Vec<Entry, 192> {
        let mut seen = heapless::Vec::new();
        let mut visit = |e: &Entry| seen.push(*e).expect("room for 192");
        let mut layout = Layout::new(&mut visit);
        let state = model.lay_state(profile, Purpose::Training, &mut layout);
        let mark = layout.mark();
        let training = model.lay_training(stage, profile, &mut layout);
        layout.rewind(mark);
        let evaluation = model.lay_evaluation(stage, profile, &mut layout);
        layout.rewind(mark);
        let decoding = model.lay_decoding(9, profile, &mut layout);
        let mut meter = Meter::new(&Single, Rates::ONE);
        for first in [true, false] {
            model.micro_batch(&mut meter, &state, &training, stage, first).unwrap();
        }
        let optimizer = Optimizer { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };
        model.update(&mut meter, &state, &optimizer).unwrap();
        model.evaluate(&mut meter, &state, &evaluation, stage).unwrap();
        model.logits(&mut meter, &state, &evaluation, 3, 4).unwrap();
        model.decode(&mut meter, &state, &decoding, Pattern::DENSE).unwrap();
        seen
    }

    #[test]
    fn every_step_of_every_kind_passes_the_meter() {
        let small =
            Yxanul { layers: 3, d_model: 24, heads: 6, kv_heads: 2, d_ff: 20, vocab_size: 77, context: 9, ..PUBLISHED };
        let models = [
            Yxanul { rank: Some(5), ..small },
            Yxanul { rank: None, ..small },
            Yxanul { rank: None, tied: false, ..small },
        ];
        for (model, recompute) in
            models.iter().flat_map(|m| [Recompute::None, Recompute::Cheap, Recompute::Full].map(|r| (m, r)))
        {
            let stage =
                Stage { batch: 2, seq_len: 7, chunk: 4, recompute, pattern: Pattern::DENSE, products: Products::Wide };
            model.validate().and_then(|()| model.validate_stage(&stage)).unwrap();
            metered(model, &stage, &Half);
        }
    }

    /// The same with copies in 8 bits.
    struct Eighths;

    impl Profile for Eighths {
        fn dtype(&self, role: Role) -> Dtype {
            Half.dtype(role)
        }

        fn quantises(&self) -> bool {
            true
        }
    }

    #[test]
    fn copies_take_two_bytes_a_weight_and_a_byte_a_token_and_column() {
        let model = Yxanul { layers: 3, d_model: 32, heads: 4, kv_heads: 2, d_ff: 48, vocab_size: 77, ..PUBLISHED };
        let model = Yxanul { rank: Some(16), context: 9, ..model };
        let stage = Stage {
            batch: 2,
            seq_len: 7,
            chunk: 4,
            recompute: Recompute::None,
            pattern: Pattern::DENSE,
            products: Products::Wide,
        };
        for (recompute, products) in [Recompute::None, Recompute::Cheap, Recompute::Full]
            .into_iter()
            .flat_map(|r| [Products::Wide, Products::Warming, Products::Quantised].map(|p| (r, p)))
        {
            let stage = Stage { recompute, products, ..stage };
            model.validate_stage(&stage).unwrap();
            let seen = metered(&model, &stage, &Eighths);
            let bytes = |role: Role| -> u64 {
                let narrow = |e: &&Entry| e.slot.role == role && (e.slot.name.contains("fp8") || role == Role::State);
                seen.iter().filter(narrow).map(|e| e.bytes).sum()
            };
            let weights = 3 * (64 * 32 + 32 * 32 + 96 * 32 + 32 * 48);
            assert_eq!(bytes(Role::Work), 2 * weights + 14 * 48 + 14 * 96);
            // 8 values and 4 gradients a layer: 16 steps, the largest, scale, and four times its inverse.
            assert_eq!(bytes(Role::State), 3 * 12 * (16 + 1 + 1 + 4) * 4);
        }
        let odd = |model: Yxanul| model.validate_stage(&Stage { products: Products::Quantised, ..stage }).unwrap_err();
        assert_eq!(odd(Yxanul { d_ff: 40, ..model }), ModelError::Sixteens { name: "d_ff", size: 40 });
        assert_eq!(odd(Yxanul { d_model: 24, ..model }), ModelError::Sixteens { name: "d_model", size: 24 });
        assert!(model.validate_stage(&stage).is_ok());
    }

    #[test]
    fn sizes_that_do_not_belong_together_are_refused() {
        let refused = |model: Yxanul| model.validate().unwrap_err();
        assert_eq!(refused(Yxanul { kv_heads: 5, ..PUBLISHED }), ModelError::Groups { heads: 12, kv_heads: 5 });
        assert_eq!(refused(Yxanul { heads: 7, ..PUBLISHED }), ModelError::Heads { d_model: 768, heads: 7 });
        assert_eq!(refused(Yxanul { rank: Some(769), ..PUBLISHED }), ModelError::Rank { rank: 769, d_model: 768 });
        assert_eq!(refused(Yxanul { rank: Some(0), ..PUBLISHED }), ModelError::Zero("rank"));
        assert_eq!(refused(Yxanul { tied: false, ..PUBLISHED }), ModelError::Untied);
        assert_eq!(refused(Yxanul { heads: 256, kv_heads: 2, ..PUBLISHED }), ModelError::Rotary { dims: 3, size: 3 });
    }
}
