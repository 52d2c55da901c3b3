//! Laying a family's regions: what lasts first, then the sections that take turns in the rest.

use std::cell::Cell;

use capful_core::device::{Meter, OperationError, Rates};
use capful_core::memory::{Dtype, Entry, Layout, LayoutError, Ledger, Region, Role, Slot};
use capful_core::model::{Family, Optimizer, Purpose, Stage, Steps};
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
    /// What it is laid for; nothing where it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section: Option<String>,
    #[serde(skip)]
    elements: u64,
}

impl Line {
    fn new(entry: &Entry, section: Option<String>) -> Line {
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
            section,
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
#[derive(Debug, Clone)]
pub struct Sections {
    /// Training steps: a shape a stage of the curriculum.
    pub training: Vec<Stage>,
    /// Evaluations, or logits.
    pub evaluation: Option<Stage>,
    /// Positions of token-by-token decoding.
    pub decoding: Option<u32>,
}

impl Sections {
    /// Everything a training run does: steps, evaluations, a sample.
    pub fn training(config: &Config) -> Sections {
        let evaluation = config.evaluation();
        let decoding = Some(config.context().min(256));
        let training = config.periods().iter().map(|p| config.shaped(p.batch, p.seq_len)).collect();
        Sections { training, evaluation: Some(evaluation), decoding }
    }
}

/// Where everything lies: what the allocator, the initialiser, the checkpoint and the step agree on.
#[derive(Debug, Clone)]
pub struct Laid<F: Family> {
    /// What lasts.
    pub state: F::State,
    /// The training sections, as the stages.
    pub training: Vec<F::Training>,
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
    /// Bytes of an arena for each training section alone.
    pub training_bytes: Vec<u64>,
}

/// The three kinds of section, so that they can be laid largest first.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    /// Of the stage of this index.
    Training(usize, Stage),
    Evaluation(Stage),
    Decoding(u32),
}

impl Section {
    /// Its name where there are `stages` training sections.
    fn name(&self, stages: usize) -> String {
        match self {
            Section::Training(..) if stages == 1 => "training".to_owned(),
            Section::Training(index, _) => format!("stage {}", index + 1),
            Section::Evaluation(_) => "evaluation".to_owned(),
            Section::Decoding(_) => "decoding".to_owned(),
        }
    }
}

fn refused(error: OperationError) -> ConfigError {
    ConfigError(format!("this configuration has no step: {error}"))
}

fn too_large(error: LayoutError) -> ConfigError {
    ConfigError(format!("this run has no plan: {error}; choose smaller sizes"))
}

impl<F: Steps> Laid<F> {
    /// Lays `sections` of `family`. The section that takes most is physical; the others overlay it.
    ///
    /// # Errors
    /// A step that its operations refuse.
    pub fn new(family: &F, profile: &AnyProfile, rates: Rates, sections: &Sections) -> Result<Laid<F>, ConfigError> {
        let stages = sections.training.len();
        let mut wanted: Vec<Section> = Vec::new();
        wanted.extend(sections.training.iter().enumerate().map(|(i, stage)| Section::Training(i, *stage)));
        wanted.extend(sections.evaluation.map(Section::Evaluation));
        wanted.extend(sections.decoding.map(Section::Decoding));
        let size = |section: &Section| {
            let mut ignore = |_: &Entry| {};
            let mut layout = Layout::new(&mut ignore);
            match section {
                Section::Training(_, stage) => drop(family.lay_training(stage, profile, &mut layout)),
                Section::Evaluation(stage) => drop(family.lay_evaluation(stage, profile, &mut layout)),
                Section::Decoding(context) => drop(family.lay_decoding(*context, profile, &mut layout)),
            }
            Ok((*section, layout.high_water().map_err(too_large)?))
        };
        let mut wanted = wanted.iter().map(size).collect::<Result<Vec<(Section, u64)>, ConfigError>>()?;
        let mut training_bytes: Vec<u64> = wanted[..stages].iter().map(|(_, bytes)| *bytes).collect();
        wanted.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));

        let (mut entries, under_way) = (Vec::<(Option<Section>, Entry)>::new(), Cell::new(None));
        let mut visit = |entry: &Entry| entries.push((under_way.get(), *entry));
        let mut layout = Layout::new(&mut visit);
        let purpose = match sections {
            _ if stages > 0 => Purpose::Training,
            Sections { evaluation: Some(_), .. } => Purpose::Evaluation,
            _ => Purpose::Decoding,
        };
        let state = family.lay_state(profile, purpose, &mut layout);
        let mark = layout.mark();
        let (mut train, mut evaluate, mut decode) = (Vec::new(), None, None);
        for (section, _) in &wanted {
            layout.rewind(mark);
            under_way.set(Some(*section));
            match section {
                Section::Training(i, stage) => train.push((*i, family.lay_training(stage, profile, &mut layout))),
                Section::Evaluation(stage) => evaluate = Some(family.lay_evaluation(stage, profile, &mut layout)),
                Section::Decoding(context) => decode = Some(family.lay_decoding(*context, profile, &mut layout)),
            }
        }
        train.sort_by_key(|(i, _)| *i);
        // The scratch lies behind everything: its size is known once every section's step was measured.
        let high = layout.high_water().map_err(too_large)?;
        let mut laid = Laid {
            state,
            training: train.into_iter().map(|(_, training)| training).collect(),
            evaluation: evaluate,
            decoding: decode,
            sections: sections.clone(),
            scratch: Region {
                space: capful_core::memory::Space::Arena,
                dtype: Dtype::F32,
                offset: high,
                shape: [1, 1, 1, 0],
            },
            lasting: Vec::new(),
            lines: Vec::new(),
            overlays: Vec::new(),
            bytes: high,
            training_bytes: Vec::new(),
        };
        let wants = laid.scratch_bytes(family, profile, rates).map_err(refused)?;
        if wants > 0 {
            let mut visit = |entry: &Entry| entries.push((None, *entry));
            let mut layout = Layout::new(&mut visit);
            layout.rewind(high);
            let rows = wants.div_ceil(4 * Layout::GRAIN);
            let rows = u32::try_from(rows).map_err(|_| too_large(LayoutError::Rows("scratch")))?;
            let shape = [1, 1, rows, Layout::GRAIN as u32];
            laid.scratch = layout.region(Slot::new("scratch", Role::Work, Dtype::F32, shape)).first;
            laid.bytes = layout.high_water().map_err(too_large)?;
        }
        training_bytes.iter_mut().for_each(|bytes| *bytes += mark + laid.bytes - high);
        laid.training_bytes = training_bytes;
        let mut reached = 0;
        for (section, entry) in &entries {
            let end = entry.place.first.offset + entry.bytes + entry.padding;
            let line = Line::new(entry, section.map(|s| s.name(stages)));
            if end > reached {
                laid.lines.push(line);
                reached = end;
            } else {
                laid.overlays.push(line);
            }
            if end <= mark {
                laid.lasting.push(*entry);
            }
        }
        Ok(laid)
    }

    fn scratch_bytes(&self, family: &F, profile: &AnyProfile, rates: Rates) -> Result<u64, OperationError> {
        let mut meter = Meter::new(profile, rates);
        for (training, stage) in self.training.iter().zip(&self.sections.training) {
            for first in [true, false] {
                family.micro_batch(&mut meter, &self.state, training, stage, first)?;
            }
        }
        if !self.training.is_empty() {
            let optimizer = Optimizer { beta1: 0.0, beta2: 0.0, eps: 0.0, decay: 0.0 };
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

    /// A whole step of the stage of index `stage`, of `accumulate` micro-batches, on the meter.
    ///
    /// # Errors
    /// A step that its operations refuse.
    pub fn measure<'p>(
        &self,
        family: &F,
        profile: &'p AnyProfile,
        rates: Rates,
        optimizer: &Optimizer,
        stage: usize,
        accumulate: u32,
    ) -> Result<Meter<'p>, ConfigError> {
        let mut meter = Meter::new(profile, rates);
        let (Some(training), Some(stage)) = (self.training.get(stage), self.sections.training.get(stage)) else {
            return Ok(meter);
        };
        for micro in 0..accumulate {
            family.micro_batch(&mut meter, &self.state, training, stage, micro == 0).map_err(refused)?;
        }
        family.update(&mut meter, &self.state, optimizer).map_err(refused)?;
        Ok(meter)
    }
}
