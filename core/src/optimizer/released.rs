//! Gradients that exist only during their layer's part of the backward pass: each section of the parameters is updated
//! as soon as its gradients are formed, and the next section's gradients reuse their bytes (LOMO, Lv et al. 2023).
//!
//! So the norm of all gradients is not known before the first parameter is updated, and cannot clip them. A section
//! with a gradient that is not finite stays unchanged; the others are updated. The norm of all gradients is known at
//! the end of the step.

use super::learning::{Kept, Learning, RANGES, Updater};
use super::matrices::{self, MatrixTables};
use super::shared::{self, Shared};
use super::{Optimizer, Room};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Layers, Ledger, Section, Sections};
use crate::model::{Control, Parameter, Parameters};
use crate::ops::SumNorms;
use crate::train::Ranks;

/// The reason why a step has no second micro-batch.
const ONE: OperationError =
    OperationError::Unsupported("gradients that are released layer by layer are those of one micro-batch");

/// The state of a process that releases gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Released {
    tables: Shared,
    /// Scratch for the matrices of a section. It cannot share bytes with activations, which are still needed.
    room: Option<Room>,
}

/// Lays the weights of `model` and the state of `optimizer`.
#[inline(never)]
pub(super) fn lay<M: Parameters>(
    model: &M,
    optimizer: &Optimizer,
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    let (own, gradients, tables) = shared::lay_tables(model, (Ranks::ALONE, optimizer), profile, weight, ledger);
    let room = Room::lay(model, optimizer, profile, ledger);
    let updater = Updater { optimizer: *optimizer, kept: Kept::Released(Released { tables, room }) };
    (own, Some(Learning { gradients, updater }))
}

impl Released {
    /// Updates the parameters of `section`, whose gradients the step's only micro-batch has formed. Writes the norm of
    /// these gradients alone to the results.
    ///
    /// # Errors
    /// An error of the device; a second micro-batch; a model of parameters that cannot be updated this way.
    #[inline(never)]
    pub(super) fn formed(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
        (section, first): (Section, bool),
    ) -> Result<(), OperationError> {
        if !first {
            return Err(ONE);
        }
        if let Some(why) = self.tables.refused {
            return Err(OperationError::Unsupported(why));
        }
        let Some(norms) = self.tables.norms_of(device, section)? else { return Ok(()) };
        let (pieces, results) = (norms.rows(), control.results);
        let sections = Sections { before: pieces, layer: 0, layers: 1, behind: 0 };
        device.emit(SumNorms { norms: norms.reshaped([1, 1, 1, pieces]), sections, whole: [false; 3], results })?;
        self.tables.each_of(optimizer, section, &mut |range, of, _| match range.matrices {
            None => optimizer.emit(device, control, range.group, of),
            Some(_) => Ok(()),
        })?;
        let first = if let Section::Layer(l) = section { l } else { 0 };
        let layers = Layers { first, every: 1, count: 1, most: 1 };
        let places = self.tables.ranges(section).filter_map(|range| self.tables.place(optimizer, range, layers));
        let places: heapless::Vec<MatrixTables, RANGES> = places.collect();
        matrices::update(device, control, optimizer, &places, self.room.as_ref())
    }

    /// Ends the step: computes the norm of all gradients, and averages the updated parameters.
    ///
    /// # Errors
    /// An error of the device.
    #[inline(never)]
    pub(super) fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
    ) -> Result<(), OperationError> {
        self.tables.norm(device, control.results)?;
        self.tables.each(optimizer, &mut |_, _, averaged| {
            averaged.map_or(Ok(()), |averaged| averaged.average(device, control))
        })
    }

    /// Swaps the weights with their averages.
    pub(super) fn exchange(&self, device: &mut dyn Device, optimizer: &Optimizer) -> Result<(), OperationError> {
        self.tables.exchange_averages(device, optimizer)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeMap;
    use std::string::{String, ToString as _};
    use std::vec::Vec;
    use std::{format, vec};

    use super::*;
    use crate::device::{Reference, Single};
    use crate::memory::{Arena, Entry, Layout, Region, Role};
    use crate::model::transformer::{Feed, Residual};
    use crate::model::{Family, FirstValues, MicroBatch, Products, Purpose, Recompute, Transformer};
    use crate::ops::{Chance, Pattern};
    use crate::optimizer::{AdamWFactored, Group, Muon, Recipe, Rule, Sgd, States};
    use crate::random::Random;
    use crate::train::{Results, Settings};

    /// An untied model with parallel branches and biases; the gradients before and after the layers share a region.
    const UNTIED: Transformer = Transformer {
        layers: 3,
        d_model: 24,
        heads: 2,
        kv_heads: 2,
        head_size: 12,
        d_ff: 40,
        vocab_size: 77,
        context: 8,
        rotary_dims: 4,
        ..Transformer::GPT_NEOX
    };
    /// A factorised, tied embedding.
    const FACTORISED: Transformer = Transformer {
        kv_heads: 1,
        rank: Some(10),
        tied: true,
        qk_norm: true,
        residual: Residual::Sequential,
        feed: Feed::SwiGlu,
        ..UNTIED
    };
    /// Value tables, and an embedding that is blended into the stream.
    const VALUES: Transformer =
        Transformer { value_tables: 2, stream_scalars: true, rank: None, tied: false, ..FACTORISED };
    const MICRO: MicroBatch = MicroBatch {
        batch: 2,
        seq_len: 8,
        chunk: 5,
        recompute: Recompute::CHEAP,
        pattern: Pattern::DENSE,
        products: Products::Wide,
        dropout: Chance::NONE,
        documents: false,
    };

    const ADAMW: Optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);

    /// Muon for matrices, which has fewer state tables than AdamW has for the rest.
    fn muon() -> Optimizer {
        let rule = Rule::Muon(Muon { momentum: 0.9, cautious: true, row_norm: true });
        ADAMW.with(Group::Matrix, Recipe { rule, rate: 20.0, decay: 0.1 })
    }

    /// Matrices and tables with factored moments, and AdamW for the rest.
    fn factored() -> Optimizer {
        let rule = Rule::AdamWFactored(AdamWFactored { beta1: 0.9, beta2: 0.95, eps: 1e-8 });
        let recipe = Recipe { rule, rate: 1.0, decay: 0.1 };
        [Group::Matrix, Group::Embedding, Group::Head].into_iter().fold(ADAMW, |all, group| all.with(group, recipe))
    }

    /// Two state tables for some groups, one for others, none for one, and a frozen group.
    fn mixed() -> Optimizer {
        let sgd = |momentum| Recipe { rule: Rule::Sgd(Sgd { momentum }), rate: 1.0, decay: 0.0 };
        let frozen = Recipe { rule: Rule::Frozen, rate: 1.0, decay: 0.0 };
        ADAMW.with(Group::Vector, sgd(0.5)).with(Group::Head, sgd(0.0)).with(Group::Embedding, frozen)
    }

    /// A model that trains on the reference device.
    struct Run {
        model: Transformer,
        lasting: <Transformer as Family>::Lasting,
        training: <Transformer as Family>::Training,
        room: Option<Room>,
        optimizer: Optimizer,
        entries: Vec<Entry>,
        device: Reference<'static>,
    }

    impl Run {
        fn new(model: Transformer, optimizer: Optimizer, ranks: Ranks) -> Run {
            let mut entries = Vec::new();
            let mut visit = |entry: &Entry| entries.push(*entry);
            let mut layout = Layout::new(&mut visit);
            let lasting = model.lay_lasting(&Single, Purpose::Training(ranks, optimizer), &mut layout);
            let training = model.lay_training(&MICRO, &Single, &mut layout);
            let room = model.lay_update(&optimizer, &Single, &mut layout);
            let bytes = layout.high_water().expect("a small model");
            let storage = vec![0u64; bytes as usize / 8].leak();
            let mut run = Run {
                model,
                lasting,
                training,
                room,
                optimizer,
                entries,
                device: Reference { arena: Arena::new(storage) },
            };
            for entry in run.entries.clone() {
                let own = entry.slot.role == Role::Weight;
                for layer in (0..entry.slot.layers).filter(|_| own || entry.slot.role == Role::Constant) {
                    let values = FirstValues::new(&entry.slot, layer, 3);
                    let noise = Random::new(7, entry.slot.name.len() as u64 + 100 * u64::from(layer));
                    let noise = |i| if own { 0.05 * noise.normal(i) } else { 0.0 };
                    run.fill(entry.place.at(layer), &|i| values.at(i) + noise(i));
                }
            }
            let batch = Transformer::training_batch(&run.training);
            for (region, stream) in [(batch.ids, 1), (batch.targets, 2)] {
                let random = Random::new(5, stream);
                let [mut ids] = run.device.arena.views([Some(region)]).unwrap();
                (0..).zip(ids.u32_mut().unwrap()).for_each(|(i, id)| *id = random.below(i, 77) as u32);
            }
            run
        }

        fn fill(&mut self, region: Region, value: &dyn Fn(u64) -> f32) {
            let [mut view] = self.device.arena.views([Some(region)]).unwrap();
            (0..).zip(view.f32_mut().unwrap()).for_each(|(i, x)| *x = value(i));
        }

        fn weight(&mut self, name: &str, layer: u32, value: &dyn Fn(u64) -> f32) {
            let of = |e: &&Entry| e.slot.role == Role::Weight && e.slot.name == name && e.slot.prefix.is_empty();
            let place = self.entries.iter().find(of).expect("a weight").place;
            self.fill(place.at(layer), value);
        }

        fn step(&mut self, step: u64) -> Result<Results, OperationError> {
            let settings = Settings { average: 0.5, ..Settings::of(step, 1e-2, &self.optimizer, 0.0, 16) };
            let settings = <[f32; 16]>::from(settings);
            self.fill(self.lasting.control.settings, &|i| settings[i as usize]);
            let Run { model, lasting, training, device, .. } = self;
            model.micro_batch(device, lasting, training, &MICRO, true)?;
            model.update(device, lasting, self.room.as_ref())?;
            let results = self.device.arena.f32(self.lasting.control.results)?;
            Ok(*Results::from_slice(results)?)
        }

        /// The bits of every tensor of parameters, moments and averages.
        fn bits(&mut self) -> BTreeMap<String, Vec<u8>> {
            let roles = [Role::Weight, Role::Moment, Role::Average];
            let kept = self.entries.iter().filter(|entry| roles.contains(&entry.slot.role));
            let tensors: Vec<_> = kept.flat_map(|e| (0..e.slot.layers).map(move |l| (*e, l))).collect();
            let mut bits = |region| self.device.arena.views([Some(region)]).unwrap()[0].bytes().to_vec();
            tensors
                .into_iter()
                .map(|(e, l)| (format!("{}{} {l}", e.slot.prefix, e.slot.name), bits(e.place.at(l))))
                .collect()
        }

        fn bytes(&self, role: Role) -> u64 {
            let own = self.entries.iter().filter(|e| e.slot.role == role && !e.overlay);
            own.map(|e| e.bytes + e.padding).sum()
        }
    }

    /// Without a clip only the order of the norm's summation differs.
    #[test]
    fn parameters_that_move_layer_by_layer_move_as_all_at_once() {
        for model in [UNTIED, FACTORISED, VALUES] {
            let coded = |optimizer: Optimizer| optimizer.keeping(States::EightBits, Some(Dtype::Remainder8));
            let some = [("adamw", ADAMW), ("muon", muon()), ("factored", factored()), ("mixed", mixed())];
            let in_8_bits = [("adamw, 8 bits", coded(ADAMW)), ("muon, 8 bits", coded(muon()))];
            for (name, optimizer) in some.into_iter().chain(in_8_bits) {
                if name == "mixed" && model.tied {
                    continue;
                }
                let optimizer = optimizer.averaging(true);
                let mut whole = Run::new(model, optimizer, Ranks::ALONE);
                let mut released = Run::new(model, optimizer.releasing(true), Ranks::ALONE);
                let before = whole.bits();
                assert_eq!(before, released.bits());
                for step in 0..3 {
                    let [expected, found] = [&mut whole, &mut released].map(|run| run.step(step).unwrap());
                    assert_eq!(expected.loss, found.loss, "{name} {step}");
                    approx::assert_relative_eq!(expected.squared_norm, found.squared_norm, max_relative = 1e-5);
                    let [expected, found] = [&mut whole, &mut released].map(Run::bits);
                    assert!(expected.keys().eq(found.keys()));
                    for (tensor, expected) in &expected {
                        assert!(*expected == found[tensor], "{name}: {tensor} after step {step}");
                    }
                }
                let moved = whole.bits().iter().filter(|(tensor, bits)| before[*tensor] != **bits).count();
                assert!(moved > 20, "{name}: only {moved} moved");
                for role in [Role::Weight, Role::Moment, Role::Average] {
                    // Blocks end within a line, and f32 states among them end within a row.
                    let room = if name.ends_with("8 bits") { 4096 } else { 0 };
                    let [whole, released] = [&whole, &released].map(|run| run.bytes(role));
                    assert!(whole.abs_diff(released) <= room, "{name}: {}: {whole} and {released}", role.name());
                }
                assert!(released.bytes(Role::Gradient) < whole.bytes(Role::Gradient), "{name}");
            }
        }
    }

    /// Compares the norm of all gradients with their sum in f64, at the beginning and after a step that changed them.
    #[test]
    fn the_norm_of_a_step_is_that_of_all_sections() {
        let mut whole = Run::new(UNTIED, ADAMW, Ranks::ALONE);
        let mut released = Run::new(UNTIED, ADAMW.releasing(true), Ranks::ALONE);
        for step in 0..2 {
            whole.step(step).unwrap();
            let found = released.step(step).unwrap().squared_norm;
            let gradients: Vec<Entry> =
                whole.entries.iter().filter(|e| e.slot.role == Role::Gradient).copied().collect();
            let tensors = gradients.iter().flat_map(|e| (0..e.slot.layers).map(move |l| e.place.at(l)));
            let squares =
                |region| whole.device.arena.f32(region).unwrap().iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            let expected: f64 = tensors.map(squares).sum();
            approx::assert_relative_eq!(f64::from(found), expected, max_relative = 1e-6);
        }
    }

    /// A layer whose second matrix is huge and whose first one is 0 adds nothing to the loss, nor to other gradients;
    /// the squares of its own gradients overflow f32.
    #[test]
    fn a_section_whose_gradient_is_not_finite_stays_and_the_others_move() {
        let [mut bad, mut good] = [(); 2].map(|()| Run::new(UNTIED, ADAMW.releasing(true), Ranks::ALONE));
        let names = ["mlp.dense_h_to_4h.weight", "mlp.dense_h_to_4h.bias", "mlp.dense_4h_to_h.weight"];
        let names = names.map(|name| format!("gpt_neox.layers.*.{name}"));
        for run in [&mut bad, &mut good] {
            names.iter().for_each(|name| run.weight(name, 1, &|_| 0.0));
        }
        // Chosen so that no row sums to about 0, as the sums after a LayerNorm do.
        bad.weight(&names[2], 1, &|i| if i % 3 == 0 { 1e25 } else { 0.0 });
        let before = bad.bits();
        let results = [&mut bad, &mut good].map(|run| run.step(0).unwrap());
        assert!(results[0].loss.is_finite() && !results[0].are_finite() && results[1].are_finite());
        assert_eq!(results[0].loss, results[1].loss);
        let [bad, good] = [&mut bad, &mut good].map(Run::bits);
        let mut stayed = 0;
        for (tensor, found) in &bad {
            let own = tensor.contains('*') && tensor.ends_with(" 1");
            stayed += u32::from(own);
            assert!(*found == if own { &before } else { &good }[tensor], "{tensor}");
        }
        assert!(stayed > 20 && before != good);
        // Without a finite loss no section is updated.
        let mut bad = Run::new(UNTIED, ADAMW.releasing(true), Ranks::ALONE);
        bad.weight("gpt_neox.final_layer_norm.bias", 0, &|_| f32::NAN);
        let before = bad.bits();
        assert!(!bad.step(0).unwrap().loss.is_finite());
        assert_eq!(bad.bits(), before);
    }

    #[test]
    fn a_second_micro_batch_and_ranks_are_refused() {
        let mut run = Run::new(UNTIED, ADAMW.releasing(true), Ranks::ALONE);
        let Run { model, lasting, training, device, .. } = &mut run;
        let later = model.micro_batch(device, lasting, training, &MICRO, false);
        assert!(later.unwrap_err().to_string().contains("one micro-batch"));
        let exact = Ranks { exact: true, ..Ranks::ALONE };
        let refused = Run::new(UNTIED, ADAMW.releasing(true), exact).step(0).unwrap_err();
        assert!(refused.to_string().contains("release none"), "{refused}");
    }
}
