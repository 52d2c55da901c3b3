//! A transformer as a family: its memory, and its steps.

use super::Transformer;
use super::backward::Backward;
use super::base::BaseType;
use super::copies::{Copies, Copying, lay_scales};
use super::forward::{Pass, Past};
use super::integers::Integers;
use super::masks::Masks;
use super::regions::{Decoding, Evaluation, Lasting, Network, Training};
use super::weights::Weights;
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot};
use crate::model::activations::{Keep, larger};
use crate::model::checks::{check_micro_batch, check_updater};
use crate::model::family::{Batch, Capability, Control, Family, MicroBatch, ModelError, Products, Purpose, UNLEARNT};
use crate::model::{Activation, Parameter, Parameters as _, Recompute};
use crate::ops::{HeadLoss, IntegerProduct, Pattern, QuantisedProduct};
use crate::optimizer::{self, Group, Learning, Room};
use crate::train::Ranks;

impl Transformer {
    /// Lays only what a forward pass reads, as [`Family::lay_lasting`] does for decoding.
    pub fn lay_network(&self, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Network {
        let weights = self.parameters(&mut |p| ledger.region(p.slot("", Role::Weight, self.weight_type(p, profile))));
        self.lay_beside(weights, profile, ledger)
    }

    /// Lays the regions that `weights` need: their scales, and the rotary table.
    fn lay_beside(&self, weights: Weights, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Network {
        let integers = self.integers(profile).map(|integer| Integers::lay(self, integer, ledger));
        let init = Init::Rotary { base: self.rotary_base, scaling: self.rotary_scaling };
        let shape = [1, self.context, self.rotary_dims / 2, 2];
        let table = Slot { init, ..Slot::new("rotary_table", Role::Constant, Dtype::F32, shape) };
        Network { weights, integers, table: ledger.region(table).first }
    }

    /// The logits after one more token: [`Family::decode`], for a network without other persistent regions.
    ///
    /// # Errors
    /// As [`Family::decode`].
    pub fn decode_with(
        &self,
        device: &mut dyn Device,
        network: &Network,
        s: &Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError> {
        let past = Past::Cache { cache: s.cache, cursor: s.cursor };
        let forward = &s.forward;
        let pass =
            Pass { model: self, network, forward, past, pattern, ids: s.id, copying: None, masks: None, again: false };
        let x = pass.run(device)?;
        self.head(device, network, forward, x, s.logits)
    }

    /// The training state among the persistent regions.
    fn learning<'a>(&self, lasting: &'a Lasting) -> Result<&'a Learning<Weights>, OperationError> {
        let missing = if lasting.network.integers.is_some() { OperationError::Untrainable } else { UNLEARNT };
        let learning = lasting.learning.as_ref().ok_or(missing)?;
        check_updater(self, &learning.updater)?;
        Ok(learning)
    }
}

/// The reason why a group cannot be frozen.
const LOGITS: &str =
    "the table that makes the logits always learns, which is the embedding where the head is tied to it";

impl Family for Transformer {
    type Lasting = Lasting;
    type Training = Training;
    type Evaluation = Evaluation;
    type Decoding = Decoding;

    fn validate(&self) -> Result<(), ModelError> {
        self.check()
    }

    fn validate_micro_batch(&self, micro: &MicroBatch) -> Result<(), ModelError> {
        check_micro_batch(micro, self.context)?;
        self.check_eighths(micro)?;
        if micro.products == Products::Wide {
            return Ok(());
        }
        if self.adapters().is_some_and(|adapters| adapters.base == BaseType::Int8) {
            return Err(ModelError::Adapters("fp8 has copies in 8 bits of its own; use bf16, or another base_type"));
        }
        let sides = [
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("the width of qkv", self.qkv_width()),
            ("heads * head_size", self.mixed_width()),
        ];
        let odd = sides.into_iter().find(|(_, size)| !size.is_multiple_of(QuantisedProduct::GRAIN));
        odd.map_or(Ok(()), |(name, size)| Err(ModelError::Sixteens { name, size }))
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        match capability {
            Capability::Accumulation | Capability::Bf16Gradients | Capability::Attention => None,
            Capability::Integers | Capability::Averages | Capability::ReleasedGradients => None,
            Capability::Adapters | Capability::Documents | Capability::Samples => None,
            // The next chunk of logits overwrites this one, so the gradient from it is formed at once.
            Capability::Frozen(Group::Head) => Some(LOGITS),
            Capability::Frozen(Group::Embedding) if self.tied => Some(LOGITS),
            Capability::Frozen(Group::Matrix | Group::Embedding | Group::Synapse) => None,
            Capability::Frozen(Group::Vector) => Some(
                "a transformer's biases and gains always learn: their gradients are formed with those of activations",
            ),
        }
    }

    fn recomputable(&self) -> Recompute {
        // Parallel branches have no residual stream between them.
        if self.parallel() { Recompute::FULL.without(Activation::Mid) } else { Recompute::FULL }
    }

    fn flops_per_token(&self, seq_len: u32) -> u64 {
        self.training_flops(seq_len)
    }

    fn lay_lasting(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> Lasting {
        // Weights in integers do not learn: a training step is refused.
        let training = match purpose {
            Purpose::Training(ranks, optimizer) if profile.weights().is_none() => Some((ranks, optimizer)),
            _ => None,
        };
        let dtype = |p: &Parameter| self.weight_type(p, profile);
        let (weights, learning) = optimizer::lay(self, training, profile, &dtype, ledger);
        let network = self.lay_beside(weights, profile, ledger);
        let ranks = training.map_or(Ranks::ALONE, |(ranks, _)| ranks);
        let control = Control::lay(ranks, ledger);
        let scales = (training.is_some() && profile.quantises()).then(|| lay_scales(self.layers, ranks, ledger));
        Lasting { network, learning, control, scales }
    }

    fn lay_training(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        let MicroBatch { batch, seq_len, recompute, .. } = *micro;
        let regions = Batch::lay(micro.tokens(), ledger).with_key(micro.dropout, ledger);
        let regions = if micro.documents { regions.with_offsets(ledger) } else { regions };
        let forward = self.lay_forward([batch, seq_len], Keep::of(recompute, self.layers), profile, ledger);
        let dtype = profile.dtype(Role::Work);
        let mut lay = |name, shape| ledger.region(Slot::new(name, Role::Work, dtype, shape)).first;
        // The head no longer needs its input when the first gradient of the residual stream is written.
        let x_grad = forward.final_out;
        let mixed = [1, batch, seq_len, self.mixed_width()];
        let slot = lay("grad.norm1_or_mixed", larger([1, batch, seq_len, self.d_model], mixed));
        let (norm1_grad, mixed_grad) = (slot.reshaped(x_grad.shape), slot.reshaped(mixed));
        // Nor does the last norm need the residual stream that it normalised.
        let norm2_grad = if self.parallel() { forward.x.at(self.layers) } else { norm1_grad };
        let first_grad = self.stream_scalars.then(|| lay("grad.first", x_grad.shape));
        let low_grad = self.rank.map(|rank| lay("grad.low", [1, batch, seq_len, rank]));
        let widest = [1, batch, seq_len, self.d_ff.max(self.qkv_width())];
        let logits = [1, 1, micro.chunk_rows(), self.vocabulary_rows()];
        let wide = lay("logits_or_grad.activated_or_qkv", larger(logits, widest));
        let copies = profile.quantises().then(|| Copies::lay(self, micro.tokens(), ledger));
        let adapters = self.lay_adapter_grads(micro.tokens(), profile, ledger);
        Training {
            batch: regions,
            forward,
            x_grad,
            norm1_grad,
            mixed_grad,
            norm2_grad,
            first_grad,
            low_grad,
            wide,
            copies,
            adapters,
        }
    }

    fn lay_evaluation(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        let batch = Batch::lay(micro.tokens(), ledger);
        let forward = self.lay_forward([micro.batch, micro.seq_len], Keep::nothing(self.layers), profile, ledger);
        let rows = micro.chunk_rows();
        let shape = [1, 1, rows, self.vocabulary_rows()];
        let padded_logits = ledger.region(Slot::new("logits", Role::Work, Dtype::F32, shape)).first;
        let logits = padded_logits.reshaped([1, 1, rows, self.vocab_size]);
        Evaluation { batch, forward, padded_logits, logits }
    }

    fn lay_decoding(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        let forward = self.lay_forward([1, 1], Keep::nothing(self.layers), profile, ledger);
        let mut lay =
            |name, role, dtype, shape, layers| ledger.region(Slot::new(name, role, dtype, shape).layers(layers));
        let id = lay("decode.id", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let cursor = lay("decode.cursor", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let columns = self.kv_heads * self.head_size;
        let cache = lay("decode.cache", Role::Work, profile.dtype(Role::Work), [1, 2, context, columns], self.layers);
        let logits = lay("decode.logits", Role::Work, Dtype::F32, [1, 1, 1, self.vocab_size], 1).first;
        Decoding { forward, id, cursor, cache, logits }
    }

    fn control(lasting: &Lasting) -> Control {
        lasting.control
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

    fn evaluation_losses(evaluation: &Evaluation) -> Region {
        evaluation.forward.losses
    }

    fn decoding_io(decoding: &Decoding) -> (Region, Region, Region) {
        (decoding.id, decoding.cursor, decoding.logits)
    }

    fn micro_batch(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        training: &Training,
        micro: &MicroBatch,
        first: bool,
    ) -> Result<(), OperationError> {
        let learning = self.learning(lasting)?;
        let copying = Copying::of(lasting, training, micro);
        if let Some(copying) = copying.filter(|_| first) {
            copying.weights(device, self, lasting)?;
        }
        let past = Past::Sequence { seq_len: micro.seq_len, offsets: training.batch.offsets };
        let pattern = micro.pattern;
        let (network, control) = (&lasting.network, &lasting.control);
        let (ids, forward) = (training.batch.ids, &training.forward);
        let masks = training.batch.key.map(|key| Masks { key, chance: micro.dropout });
        let pass =
            Pass { model: self, network, forward, past, pattern, ids, copying: copying.as_ref(), masks, again: false };
        let head = pass.run(device)?;
        let accumulate = learning.updater.accumulates(first);
        let pass = Pass { again: true, ..pass };
        let backward = Backward { pass, control, learning, training, micro, first, accumulate };
        backward.head(device, head)?;
        backward.run(device)?;
        learning.updater.end_micro_batch(device, control, first)
    }

    fn update(&self, device: &mut dyn Device, lasting: &Lasting, room: Option<&Room>) -> Result<(), OperationError> {
        self.learning(lasting)?.updater.update(device, &lasting.control, room)?;
        lasting.scales.iter().flatten().try_for_each(|scales| scales.update(device))
    }

    fn exchange(&self, device: &mut dyn Device, lasting: &Lasting) -> Result<(), OperationError> {
        self.learning(lasting)?.updater.exchange(device)
    }

    fn evaluate(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        e: &Evaluation,
        micro: &MicroBatch,
    ) -> Result<(), OperationError> {
        let (past, pattern) = (Past::Sequence { seq_len: micro.seq_len, offsets: None }, micro.pattern);
        let network = &lasting.network;
        let (ids, forward) = (e.batch.ids, &e.forward);
        let pass = Pass { model: self, network, forward, past, pattern, ids, copying: None, masks: None, again: false };
        let head = pass.run(device)?;
        let mut weight = network.weights.head();
        let scales = forward.readable(device, &mut weight, network.head_scales())?;
        let (x, integer) = match (scales, &e.forward.codes) {
            (Some(of), Some(codes)) => {
                let (x, scales) = codes.make(device, head)?;
                (x, Some(IntegerProduct { x_scales: Some(scales), weight: of }))
            }
            _ => (head, None),
        };
        device.emit(HeadLoss {
            x,
            integer,
            weight,
            bias: None,
            softcap: self.softcap,
            ids: self.vocab_size,
            targets: e.batch.targets,
            logits: e.padded_logits,
            losses: e.forward.losses,
            settings: lasting.control.settings,
            results: lasting.control.results,
            add_loss: false,
            gradient: None,
        })
    }

    fn logits(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        e: &Evaluation,
        first: u32,
        count: u32,
    ) -> Result<(), OperationError> {
        let x = e.forward.low.unwrap_or(e.forward.final_out).slice_rows(first, count);
        self.head(device, &lasting.network, &e.forward, x, e.logits.slice_rows(0, count))
    }

    fn decode(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        s: &Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError> {
        self.decode_with(device, &lasting.network, s, pattern)
    }
}
