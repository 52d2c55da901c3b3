//! A transformer as a family: its memory, and its steps.

use super::Transformer;
use super::backward::Backward;
use super::copies::Copying;
use super::forward::{Pass, Past};
use super::regions::{Decoding, Evaluation, State, Training};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Ledger, Region};
use crate::model::checks::check_stage;
use crate::model::stage::{Batch, Control, Family, ModelError, Products, Purpose, Stage};
use crate::ops::{HeadLoss, Pattern, QuantisedProduct};
use crate::optimizer::Optimizer;

impl Family for Transformer {
    type State = State;
    type Training = Training;
    type Evaluation = Evaluation;
    type Decoding = Decoding;

    fn validate(&self) -> Result<(), ModelError> {
        self.check()
    }

    fn validate_stage(&self, stage: &Stage) -> Result<(), ModelError> {
        check_stage(stage, self.context)?;
        if stage.products == Products::Wide {
            return Ok(());
        }
        let sides = [("d_model", self.d_model), ("d_ff", self.d_ff), ("the width of qkv", self.qkv_width())];
        let odd = sides.into_iter().find(|(_, size)| !size.is_multiple_of(QuantisedProduct::GRAIN));
        odd.map_or(Ok(()), |(name, size)| Err(ModelError::Sixteens { name, size }))
    }

    fn flops_per_token(&self, seq_len: u32) -> u64 {
        self.training_flops(seq_len)
    }

    fn lay_state(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> State {
        self.lay_lasting(profile, purpose, ledger)
    }

    fn lay_training(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        self.lay_step(stage, profile, ledger)
    }

    fn lay_evaluation(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        self.lay_loss(stage, profile, ledger)
    }

    fn lay_decoding(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        self.lay_token(context, profile, ledger)
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

    fn micro_batch(
        &self,
        device: &mut dyn Device,
        state: &State,
        training: &Training,
        stage: &Stage,
        first: bool,
    ) -> Result<(), OperationError> {
        let Some(learning) = &state.learning else { return Err(OperationError::Device) };
        let copying = Copying::of(state, training, stage);
        if let Some(copying) = copying.filter(|_| first) {
            copying.weights(device, self, state)?;
        }
        let (past, pattern) = (Past::Sequence { seq_len: stage.seq_len }, stage.pattern);
        let pass = Pass { model: self, state, forward: &training.forward, past, pattern, copying: copying.as_ref() };
        let head = pass.run(device, training.batch.ids)?;
        let backward = Backward { pass, grads: &learning.gradients, training, stage, accumulate: !first };
        backward.head(device, head)?;
        backward.run(device)
    }

    fn update(&self, device: &mut dyn Device, state: &State, optimizer: &Optimizer) -> Result<(), OperationError> {
        let Some(learning) = &state.learning else { return Err(OperationError::Device) };
        learning.moments.update(device, &state.control, optimizer)?;
        state.scales.iter().flatten().try_for_each(|scales| scales.update(device))
    }

    fn evaluate(
        &self,
        device: &mut dyn Device,
        state: &State,
        e: &Evaluation,
        stage: &Stage,
    ) -> Result<(), OperationError> {
        let (past, pattern) = (Past::Sequence { seq_len: stage.seq_len }, stage.pattern);
        let pass = Pass { model: self, state, forward: &e.forward, past, pattern, copying: None };
        let x = pass.run(device, e.batch.ids)?;
        device.emit(HeadLoss {
            x,
            weight: state.weights.head(),
            bias: None,
            ids: self.vocab_size,
            targets: e.batch.targets,
            logits: e.padded_logits,
            losses: e.forward.losses,
            settings: state.control.settings,
            results: state.control.results,
            add_loss: false,
            gradient: None,
        })
    }

    fn logits(
        &self,
        device: &mut dyn Device,
        state: &State,
        e: &Evaluation,
        first: u32,
        count: u32,
    ) -> Result<(), OperationError> {
        let x = e.forward.low.unwrap_or(e.forward.final_out).slice_rows(first, count);
        self.head(device, state, x, e.logits.slice_rows(0, count))
    }

    fn decode(
        &self,
        device: &mut dyn Device,
        state: &State,
        s: &Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError> {
        let past = Past::Cache { cache: s.cache, cursor: s.cursor };
        let pass = Pass { model: self, state, forward: &s.forward, past, pattern, copying: None };
        let x = pass.run(device, s.id)?;
        self.head(device, state, x, s.logits)
    }
}
