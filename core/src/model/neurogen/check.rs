//! What a NeuroGen must be, and what its steps can do.

use super::NeuroGen;
use super::connectome::Module;
use crate::model::Recompute;
use crate::model::checks::{Must, check_constants, check_limits, check_sizes};
use crate::model::family::{MicroBatch, ModelError, Products};

impl NeuroGen {
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let c = &self.connectome;
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("embedding", self.embedding),
            ("taps", self.taps),
            ("fan_out", self.fan_out),
            ("block", self.cell.block),
            ("batch-size", self.streams),
        ])?;
        check_constants(&[
            ("leak", self.cell.leak, Must::Share),
            ("threshold", self.cell.threshold, Must::Positive),
            ("adaptation_decay", self.cell.fatigue, Must::Share),
            ("adaptation", self.cell.adaptation, Must::Finite),
            ("filter", self.cell.filter, Must::Share),
            ("rate", self.cell.rate, Must::Share),
            ("homeostasis", self.cell.homeostasis, Must::Share),
            ("memory_decay", self.memory_decay, Must::Share),
            ("tap_share", c.tap_share, Must::Share),
            ("dopamine", self.dopamine, Must::Finite),
            ("novelty", self.novelty, Must::Finite),
        ])?;
        if self.cell.winners == 0 || self.cell.winners > self.cell.block {
            return Err(ModelError::Winners { winners: self.cell.winners, block: self.cell.block });
        }
        check_limits(&[("taps", c.taps), ("skip", self.skip), ("memory", self.memory)])?;
        for module in Module::ALL {
            let (m, name) = (module.index(), module.name());
            let (neurons, outputs, fan_in) = (c.neurons[m], c.outputs[m], c.fan_in[m]);
            check_limits(&[neurons, outputs, fan_in].map(|size| (name, size)))?;
            if neurons == 0 || outputs == 0 || fan_in == 0 {
                return Err(ModelError::Empty(name));
            }
            if outputs > neurons {
                return Err(ModelError::Outputs { module: name, outputs, neurons });
            }
            let (reserved, wiring) = (c.reserved(module), c.wiring(module));
            if reserved > c.taps || u64::from(fan_in - reserved) > wiring.others() {
                let sources = u64::from(c.taps.min(reserved)) + wiring.others();
                return Err(ModelError::FanIn { module: name, fan_in, sources });
            }
            if u64::from(neurons) * u64::from(fan_in) > u64::from(u32::MAX) {
                return Err(ModelError::TooLarge(name));
            }
        }
        if self.fan_out > self.width() {
            return Err(ModelError::FanOut { fan_out: self.fan_out, dims: self.width() });
        }
        Ok(())
    }

    pub(super) fn check_step(&self, micro: &MicroBatch) -> Result<(), ModelError> {
        check_sizes(&[("batch-size", micro.batch), ("seq-len", micro.seq_len), ("chunk", micro.chunk)])?;
        if micro.batch != self.streams {
            return Err(ModelError::Streams { batch: micro.batch, streams: self.streams });
        }
        let tokens = u64::from(micro.batch) * u64::from(micro.seq_len);
        let slots = (u64::from(micro.seq_len) + 1) * u64::from(micro.batch);
        let most = self.connectome.neurons.iter().copied().max().unwrap_or(0).max(self.connectome.signals());
        let widest = (tokens * u64::from(self.vocab_size.max(self.width()))).max(slots * u64::from(most));
        if widest > u64::from(u32::MAX) {
            return Err(ModelError::TooLarge("a micro-batch's widest activation"));
        }
        let cannot = [
            (micro.products != Products::Wide, "products in fp8 (--precision fp8); use bf16"),
            (micro.recompute != Recompute::NONE, "activations to compute again (--recompute); use none"),
            (!micro.pattern.dense(), "attention (--attention); leave it at dense"),
            (micro.documents, "attention to keep inside documents (--mask-documents); leave it out"),
            (micro.dropout.any(), "dropout (--dropout); leave it at 0"),
        ];
        match cannot.into_iter().find(|(wanted, _)| *wanted) {
            Some((_, what)) => Err(ModelError::Spiking(what)),
            None => Ok(()),
        }
    }
}
