//! Laying a family's regions: what lasts first, then the sections that take turns in the rest.

use capful_core::device::{Meter, OperationError, Rates};
use capful_core::memory::{Dtype, Entry, Layout, Ledger, Region, Role, Slot};
use capful_core::model::{Family, Products, Recompute, Stage, Steps};
use serde::Serialize;

use crate::config::{Config, ConfigError};
use crate::device::AnyProfile;

/// One line of the ledger: a region, or one a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The name; `*` stands for the layer's number.
    pub name: String,
    /// What it is for.
    pub role: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Shape of one layer's region.
    pub shape: [u32; 4],
    /// How many.
    pub layers: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes of the elements.
    pub bytes: u64,
    /// Bytes that alignment and padded rows add.
    pub padding: u64,
    #[serde(skip)]
    elements: u64,
}

impl Line {
    fn new(entry: &Entry) -> Line {
        let slot = &entry.slot;
        Line {
            name: format!("{}{}", slot.prefix, slot.name),
            role: slot.role.name(),
            dtype: slot.dtype.name(),
            shape: slot.shape,
            layers: slot.layers,
            offset: entry.place.first.offset,
            bytes: entry.bytes,
            padding: entry.padding,
            elements: slot.elements() * u64::from(slot.layers),
        }
    }

    /// Elements, over all layers; padded rows left out.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Type and shape, without leading ones.
    pub fn describe(&self) -> String {
        let first = self.shape.iter().position(|&n| n != 1).unwrap_or(3);
        let dims: Vec<_> = self.shape[first..].iter().map(u32::to_string).collect();
        let layers = if self.layers > 1 { format!("{} × ", self.layers) } else { String::new() };
        format!("{layers}{}[{}]", self.dtype, dims.join(", "))
    }
}

/// What takes turns in the part of the arena that does not last.
#[derive(Debug, Clone, Copy)]
pub struct Sections {
    /// Training steps.
    pub training: Option<Stage>,
    /// Evaluations, or logits.
    pub evaluation: Option<Stage>,
    /// Positions of token-by-token decoding.
    pub decoding: Option<u32>,
}

impl Sections {
    /// Everything a training run does: steps, evaluations, a sample.
    pub fn training(config: &Config) -> Sections {
        let stage = config.stage();
        let evaluation = Stage { recompute: Recompute::None, products: Products::Wide, ..stage };
        let decoding = Some(config.context().min(256));
        Sections { training: Some(stage), evaluation: Some(evaluation), decoding }
    }
}

/// Where everything lies: what the allocator, the initialiser, the checkpoint and the step agree on.
#[derive(Debug, Clone)]
pub struct Laid<F: Family> {
    /// What lasts.
    pub state: F::State,
    /// The training section.
    pub training: Option<F::Training>,
    /// The evaluation section.
    pub evaluation: Option<F::Evaluation>,
    /// The decoding section.
    pub decoding: Option<F::Decoding>,
    /// What was laid.
    pub sections: Sections,
    /// The devices' scratch.
    pub scratch: Region,
    /// The entries of what lasts, for initialiser and checkpoint.
    pub lasting: Vec<Entry>,
    /// Physical regions.
    pub lines: Vec<Line>,
    /// Regions that share their bytes.
    pub overlays: Vec<Line>,
    /// Bytes of the arena.
    pub bytes: u64,
}

/// The three kinds of section, so that they can be laid largest first.
#[derive(Clone, Copy)]
enum Section {
    Training(Stage),
    Evaluation(Stage),
    Decoding(u32),
}

fn refused(error: OperationError) -> ConfigError {
    ConfigError(format!("this configuration has no step: {error}"))
}

impl<F: Family> Laid<F> {
    /// Lays `sections` of `family`. The section that takes most is physical; the others overlay it.
    ///
    /// # Errors
    /// A step that its operations refuse.
    pub fn new(family: &F, profile: &AnyProfile, rates: Rates, sections: &Sections) -> Result<Laid<F>, ConfigError>
    where
        for<'p> F: Steps<Meter<'p, AnyProfile>>,
    {
        let training = sections.training.is_some();
        let mut wanted: Vec<Section> = Vec::new();
        wanted.extend(sections.training.map(Section::Training));
        wanted.extend(sections.evaluation.map(Section::Evaluation));
        wanted.extend(sections.decoding.map(Section::Decoding));
        let size = |section: &Section| {
            let mut ignore = |_: &Entry| {};
            let mut layout = Layout::new(&mut ignore);
            match section {
                Section::Training(stage) => drop(family.lay_training(stage, profile, &mut layout)),
                Section::Evaluation(stage) => drop(family.lay_evaluation(stage, profile, &mut layout)),
                Section::Decoding(context) => drop(family.lay_decoding(*context, profile, &mut layout)),
            }
            layout.high_water()
        };
        wanted.sort_by_key(|section| std::cmp::Reverse(size(section)));

        let mut entries: Vec<Entry> = Vec::new();
        let mut visit = |entry: &Entry| entries.push(*entry);
        let mut layout = Layout::new(&mut visit);
        let state = family.lay_state(profile, training, &mut layout);
        let mark = layout.mark();
        let (mut train, mut evaluate, mut decode) = (None, None, None);
        for section in &wanted {
            layout.rewind(mark);
            match section {
                Section::Training(stage) => train = Some(family.lay_training(stage, profile, &mut layout)),
                Section::Evaluation(stage) => evaluate = Some(family.lay_evaluation(stage, profile, &mut layout)),
                Section::Decoding(context) => decode = Some(family.lay_decoding(*context, profile, &mut layout)),
            }
        }
        // The scratch lies behind everything: its size is known once every section's step was measured.
        layout.rewind(layout.high_water());
        let (high, scratch) = (layout.high_water(), layout.mark());
        let mut laid = Laid {
            state,
            training: train,
            evaluation: evaluate,
            decoding: decode,
            sections: *sections,
            scratch: Region {
                space: capful_core::memory::Space::Arena,
                dtype: Dtype::F32,
                offset: scratch,
                shape: [1, 1, 1, 0],
            },
            lasting: Vec::new(),
            lines: Vec::new(),
            overlays: Vec::new(),
            bytes: high,
        };
        let wants = laid.scratch_bytes(family, profile, rates).map_err(refused)?;
        if wants > 0 {
            let mut visit = |entry: &Entry| entries.push(*entry);
            let mut layout = Layout::new(&mut visit);
            layout.rewind(high);
            let shape = [1, 1, 1, wants.div_ceil(4) as u32];
            laid.scratch = layout.region(Slot::new("scratch", Role::Work, Dtype::F32, shape)).first;
            laid.bytes = layout.high_water();
        }
        let mut reached = 0;
        for entry in &entries {
            let end = entry.place.first.offset + entry.bytes + entry.padding;
            if end > reached {
                laid.lines.push(Line::new(entry));
                reached = end;
            } else {
                laid.overlays.push(Line::new(entry));
            }
            if end <= mark {
                laid.lasting.push(*entry);
            }
        }
        Ok(laid)
    }

    fn scratch_bytes(&self, family: &F, profile: &AnyProfile, rates: Rates) -> Result<u64, OperationError>
    where
        for<'p> F: Steps<Meter<'p, AnyProfile>>,
    {
        let mut meter = Meter::new(profile, rates);
        if let (Some(training), Some(stage)) = (&self.training, &self.sections.training) {
            for first in [true, false] {
                family.micro_batch(&mut meter, &self.state, training, stage, first)?;
            }
            let optimizer = capful_core::model::Optimizer { beta1: 0.0, beta2: 0.0, eps: 0.0, decay: 0.0 };
            family.update(&mut meter, &self.state, &optimizer)?;
        }
        if let (Some(evaluation), Some(stage)) = (&self.evaluation, &self.sections.evaluation) {
            family.evaluate(&mut meter, &self.state, evaluation, stage)?;
            let count = stage.chunk.min(stage.tokens());
            family.logits(&mut meter, &self.state, evaluation, 0, count)?;
        }
        if let (Some(decoding), Some(_)) = (&self.decoding, self.sections.decoding) {
            family.decode(&mut meter, &self.state, decoding, capful_core::ops::Pattern::DENSE)?;
        }
        Ok(meter.scratch)
    }

    /// A whole training step on the meter.
    ///
    /// # Errors
    /// A step that its operations refuse.
    pub fn measure<'p>(
        &self,
        family: &F,
        profile: &'p AnyProfile,
        rates: Rates,
        config: &Config,
    ) -> Result<Meter<'p, AnyProfile>, ConfigError>
    where
        F: Steps<Meter<'p, AnyProfile>>,
    {
        let mut meter = Meter::new(profile, rates);
        if let (Some(training), Some(stage)) = (&self.training, &self.sections.training) {
            for micro in 0..config.accumulate {
                family.micro_batch(&mut meter, &self.state, training, stage, micro == 0).map_err(refused)?;
            }
            family.update(&mut meter, &self.state, &config.optimizer()).map_err(refused)?;
        }
        Ok(meter)
    }
}
