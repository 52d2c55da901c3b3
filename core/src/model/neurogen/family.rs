//! A NeuroGen as a family: its memory, and its steps.

use super::connectome::{MODULES, Module};
use super::regions::{Decoding, Evaluation, Index, LEAST_TILE, Lasting, MemoryBackward, Network, TILE, Training};
use super::{NeuroGen, Pass, SynapseLearning};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, WiringPart};
use crate::model::activations::larger;
use crate::model::checks::check_updater;
use crate::model::family::{
    Batch, Capability, Control, Family, Gauge, Measure, MicroBatch, ModelError, Purpose, UNLEARNT,
};
use crate::model::{Parameter, Parameters as _};
use crate::ops::{Carry, HeadGrad, Linear, Modulate, Pattern, ReadoutGrad, Spike, TapsGrad};
use crate::optimizer::{self, Group, Room};
use crate::train::Ranks;

impl NeuroGen {
    /// Lays only what a forward pass reads, as [`Family::lay_lasting`] does for decoding.
    pub fn lay_network(&self, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Network {
        let dtype = |p: &Parameter| self.weight_type(p, Purpose::Decoding, profile);
        let weights = self.parameters(&mut |p| ledger.region(p.slot("", Role::Weight, dtype(p))));
        Network { weights, sources: self.lay_wiring(WiringPart::Sources, ledger) }
    }

    /// The logits after one more token: [`Family::decode`], for a network without other persistent regions.
    ///
    /// # Errors
    /// As [`Family::decode`].
    pub fn decode_with(&self, device: &mut dyn Device, network: &Network, s: &Decoding) -> Result<(), OperationError> {
        let (w, c) = (&network.weights, &s.segment);
        self.forward(device, network, c, Pass { fresh: false, learning: false })?;
        device.emit(Linear::new(c.stream, w.decoder, Some(w.decoder_bias), s.logits))?;
        // One token is a segment by itself.
        device.emit(Carry { from: Spike::slot(c.signals, 1), to: Spike::slot(c.signals, 0) })?;
        for spikes in c.spikes {
            device.emit(Carry { from: Spike::slot(spikes, 1), to: Spike::slot(spikes, 0) })?;
        }
        let Some(m) = &c.memory else { return Ok(()) };
        device.emit(Carry { from: m.after.matrix, to: m.before.matrix })?;
        device.emit(Carry { from: m.after.key, to: m.before.key })
    }

    /// The element type of a parameter.
    fn weight_type(&self, p: &Parameter, purpose: Purpose, profile: &dyn Profile) -> Dtype {
        // The time of a single token is bound by how fast the decoder's weights are read.
        let table = purpose == Purpose::Decoding && p.group == Group::Head;
        if table { profile.dtype(Role::Weight) } else { Dtype::F32 }
    }
}

/// The reason why a step is one micro-batch.
const ONE_MICRO_BATCH: &str = "a NeuroGen moves its decoder in every micro-batch";
/// The reason why it has no averages.
const AVERAGES: &str = "a NeuroGen moves its decoder, its embedding and its thresholds within a step";

impl Family for NeuroGen {
    type Lasting = Lasting;
    type Training = Training;
    type Evaluation = Evaluation;
    type Decoding = Decoding;

    fn validate(&self) -> Result<(), ModelError> {
        self.check()
    }

    fn validate_micro_batch(&self, micro: &MicroBatch) -> Result<(), ModelError> {
        self.check_step(micro)
    }

    fn lacks(&self, capability: Capability) -> Option<&'static str> {
        Some(match capability {
            Capability::Accumulation => ONE_MICRO_BATCH,
            Capability::Bf16Gradients => "a NeuroGen's gradients are f32",
            Capability::Attention => "a NeuroGen has no attention",
            Capability::Integers => "a NeuroGen has no weights in integers",
            Capability::Averages => AVERAGES,
            Capability::ReleasedGradients => "a NeuroGen forms the gradients of all its parts together",
            Capability::Adapters => "a NeuroGen has no adapters",
            Capability::Documents => "rows of a NeuroGen are streams",
            Capability::Samples => "what a NeuroGen says changes its state, which training goes on from",
            Capability::Frozen(_) => {
                "a NeuroGen's backward pass forms every gradient; --set rule=frozen freezes its synapses"
            }
        })
    }

    fn flops_per_token(&self, _: u32) -> u64 {
        self.training_flops()
    }

    fn lay_lasting(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> Lasting {
        // A NeuroGen updates parameters in its backward pass, so it never runs on several ranks.
        let optimizer = if let Purpose::Training(_, optimizer) = purpose { Some(optimizer) } else { None };
        let training = optimizer.map(|optimizer| (Ranks::ALONE, optimizer));
        let dtype = |p: &Parameter| self.weight_type(p, purpose, profile);
        let (weights, learning) = optimizer::lay(self, training, profile, &dtype, ledger);
        let sources = self.lay_wiring(WiringPart::Sources, ledger);
        let index = (training.is_some() && self.rule.through_time()).then(|| {
            let starts = self.lay_wiring(WiringPart::Starts, ledger);
            let synapses = self.lay_wiring(WiringPart::Synapses, ledger);
            core::array::from_fn(|m| Index { starts: starts[m], synapses: synapses[m] })
        });
        let control = Control::lay(Ranks::ALONE, ledger);
        let learning = learning.map(|learning| self.lay_learning(learning, profile, ledger));
        Lasting { network: Network { weights, sources }, index, control, learning }
    }

    fn lay_training(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        let MicroBatch { batch: b, seq_len: t, .. } = *micro;
        let batch = Batch::lay(micro.tokens(), ledger).with_offsets(ledger);
        let io = (batch.ids, batch.offsets.unwrap_or(batch.ids));
        let segment = self.lay_segment(io, [b, t], true, profile, ledger);
        let (rows, d, k) = (self.connectome.signals(), self.width(), self.memory);
        let mut lay = |name, shape| ledger.region(Slot::new(name, Role::Work, Dtype::F32, shape)).first;
        let (logits, signals_grad) = ([1, 1, micro.tokens(), self.vocab_size], [1, t, rows, b]);
        let shared = lay("logits_or_grad.signals", larger(logits, signals_grad));
        let (logits, signals_grad) = (shared.reshaped(logits), shared.reshaped(signals_grad));
        let stream_grad = lay("grad.stream", [1, b, t, d]);
        let x_grad = lay("grad.x", [1, b, t, self.embedding]);
        let low_grad = (self.skip > 0).then(|| lay("grad.skip.low", [1, b, t, self.skip]));
        let memory = (k > 0).then(|| MemoryBackward {
            out_grad: lay("grad.memory.out", [1, b, t, k]),
            values_grad: lay("grad.memory.value", [1, b, t, k]),
            normed_grad: [lay("grad.memory.key", [1, b, t, k]), lay("grad.memory.query", [1, b, t, k])],
            raw_grad: lay("grad.memory.raw", [1, b, t, k]),
            context_grad: lay("grad.memory.context", [1, b, t, self.context()]),
            work: lay("grad.memory.matrix", [1, b, k, k]),
        });
        let mut each = |names: [&'static str; MODULES]| self.each(|m, [n, _]| lay(names[m], [1, 1, n, b]));
        let fatigue_grad = self.full.then(|| each(named!("grad.fatigue")));
        let spikes_grad = self.rule.through_time().then(|| each(named!("grad.spikes")));
        let factors = self.modulated().then(|| lay("factors", [1, 1, t, b]));
        // The decoder is updated before the memory's gradient is written, so that gradient's region is free until then.
        let enough = |place: &Region| place.elements() >= u64::from(LEAST_TILE.min(self.vocab_size)) * u64::from(d);
        let tile = match memory.map(|m| m.context_grad).filter(enough) {
            Some(place) => {
                let rows = (place.elements() / u64::from(d)).min(TILE.min(self.vocab_size).into());
                place.reshaped([1, 1, rows as u32, d])
            }
            None => lay("grad.decoder.tile", [1, 1, TILE.min(self.vocab_size), d]),
        };
        let slope = segment.slope.unwrap_or(segment.spikes);
        Training {
            batch,
            segment,
            slope,
            logits,
            stream_grad,
            signals_grad,
            x_grad,
            low_grad,
            memory,
            fatigue_grad,
            spikes_grad,
            factors,
            tile,
        }
    }

    fn lay_evaluation(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        let batch = Batch::lay(micro.tokens(), ledger).with_offsets(ledger);
        let io = (batch.ids, batch.offsets.unwrap_or(batch.ids));
        let segment = self.lay_segment(io, [micro.batch, micro.seq_len], false, profile, ledger);
        let shape = [1, 1, micro.chunk_rows(), self.vocab_size];
        let logits = ledger.region(Slot::new("logits", Role::Work, Dtype::F32, shape)).first;
        Evaluation { batch, segment, targets: batch.targets, logits }
    }

    fn lay_decoding(&self, _: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        let mut lay =
            |name, role, dtype, columns| ledger.region(Slot::new(name, role, dtype, [1, 1, 1, columns])).first;
        let id = lay("decode.id", Role::Batch, Dtype::U32, 1);
        // A token's position is also the number of tokens of its document before it.
        let cursor = lay("decode.cursor", Role::Batch, Dtype::U32, 1);
        let logits = lay("decode.logits", Role::Work, Dtype::F32, self.vocab_size);
        Decoding { segment: self.lay_segment((id, cursor), [1, 1], false, profile, ledger), logits }
    }

    fn introduce(&self, say: &mut dyn FnMut(core::fmt::Arguments<'_>)) {
        let (c, streams) = (&self.connectome, self.streams);
        let mode = if c.pipelined { "pipelined" } else { "sequential" };
        let rule = match self.rule {
            SynapseLearning::Eprop => "e-prop",
            SynapseLearning::EpropRandom => "e-prop with random feedback",
            SynapseLearning::Bptt => "backpropagation through time",
            SynapseLearning::Frozen => "frozen synapses",
        };
        say(format_args!("{mode} mode, {rule}, streams: {streams}"));
        for module in Module::ALL {
            let (m, name) = (module.index(), module.name());
            let (neurons, outputs, synapses) = (c.neurons[m], c.outputs[m], c.neurons[m] * c.fan_in[m]);
            say(format_args!("  {name:<14}{neurons:>8} neurons {outputs:>7} outputs {synapses:>10} synapses"));
        }
    }

    fn gauges(&self, lasting: &Lasting, visit: &mut dyn FnMut(Gauge)) {
        let Some(learning) = &lasting.learning else { return };
        for (name, spikes) in named!("firing").into_iter().zip(learning.kept.spikes) {
            visit(Gauge { name, measure: Measure::Mean(spikes) });
        }
        if let Some([weight, bias]) = lasting.network.weights.gate {
            let outputs = self.connectome.outputs(Module::BasalGanglia);
            let signals = learning.kept.signals.slice_rows(outputs.first, outputs.count);
            visit(Gauge { name: "gate", measure: Measure::Gate { signals, weight, bias } });
        }
        if let Some([_, running]) = learning.reward {
            let expected = running.reshaped([1, 1, 2, 1]).slice_rows(1, 1);
            visit(Gauge { name: "expected_reward", measure: Measure::Mean(expected) });
        }
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
        evaluation.segment.losses
    }

    fn decoding_io(decoding: &Decoding) -> (Region, Region, Region) {
        (decoding.segment.ids, decoding.segment.offsets, decoding.logits)
    }

    fn micro_batch(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        t: &Training,
        _: &MicroBatch,
        first: bool,
    ) -> Result<(), OperationError> {
        // Accumulating micro-batches would need gradients of the parameters that are updated in the backward pass.
        if !first {
            return Err(OperationError::Unsupported(ONE_MICRO_BATCH));
        }
        let learning = lasting.learning.as_ref().ok_or(UNLEARNT)?;
        check_updater(self, &learning.updater)?;
        let (w, c, grads) = (&lasting.network.weights, &learning.kept.serve(&t.segment), &learning.gradients);
        self.inhibit(device, lasting)?;
        self.resume(device, &learning.kept, c)?;
        self.forward(device, &lasting.network, c, Pass { fresh: false, learning: true })?;
        let gradient = HeadGrad { x_grad: t.stream_grad, weight_grad: None, accumulate: false };
        device.emit(self.head(lasting, c, t.batch.targets, t.logits, Some(gradient)))?;
        // Right away: the logits' region is then reused for the signals' gradient.
        let decoder = [w.decoder, w.decoder_bias];
        learning.decoder.update(device, &lasting.control, decoder, [c.stream, t.logits], t.tile)?;
        device.emit(ReadoutGrad {
            signals: c.signals,
            layout: self.connectome.readout(),
            weights: w.readout,
            gate: self.gate(w),
            feedback: learning.feedback,
            out_grad: t.stream_grad,
            signals_grad: t.signals_grad,
            weight_grad: grads.readout,
            gate_grad: grads.gate_grad(),
        })?;
        self.backward_dense(device, lasting, grads, t)?;
        if let (Some([predictor, running]), Some(factors)) = (learning.reward, t.factors) {
            device.emit(Modulate {
                losses: c.losses,
                signals: c.signals,
                outputs: self.connectome.outputs(Module::BasalGanglia).first,
                predictor,
                running,
                factors,
                signals_grad: t.signals_grad,
                first: self.connectome.taps,
                dopamine: self.dopamine,
                novelty: self.novelty,
            })?;
        }
        if self.rule.learns() {
            self.backward_spikes(device, lasting, grads, t)?;
        }
        device.emit(TapsGrad {
            signals_grad: t.signals_grad,
            offsets: c.offsets,
            x_grad: t.x_grad,
            taps: self.taps,
            fresh: false,
            accumulate: self.skip > 0,
        })?;
        learning.embedding.update(device, &lasting.control, w.embedding, [c.ids, t.x_grad])?;
        self.hand_over(device, &learning.kept, c)
    }

    fn update(&self, device: &mut dyn Device, lasting: &Lasting, room: Option<&Room>) -> Result<(), OperationError> {
        lasting.learning.as_ref().ok_or(UNLEARNT)?.updater.update(device, &lasting.control, room)?;
        self.inhibit(device, lasting)
    }

    fn exchange(&self, _: &mut dyn Device, _: &Lasting) -> Result<(), OperationError> {
        Err(OperationError::Unsupported(AVERAGES))
    }

    fn evaluate(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        e: &Evaluation,
        _: &MicroBatch,
    ) -> Result<(), OperationError> {
        self.forward(device, &lasting.network, &e.segment, Pass { fresh: true, learning: false })?;
        device.emit(self.head(lasting, &e.segment, e.targets, e.logits, None))
    }

    fn logits(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        e: &Evaluation,
        first: u32,
        count: u32,
    ) -> Result<(), OperationError> {
        let (w, x) = (&lasting.network.weights, e.segment.stream.slice_rows(first, count));
        device.emit(Linear::new(x, w.decoder, Some(w.decoder_bias), e.logits.slice_rows(0, count)))
    }

    fn decode(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        s: &Decoding,
        _: Pattern,
    ) -> Result<(), OperationError> {
        self.decode_with(device, &lasting.network, s)
    }
}
