//! Lays out a model's regions: first the persistent regions, then the sections, which share the rest of the arena.

use std::cell::Cell;

use capful_core::device::{InIntegers, Meter, OperationError, Rates};
use capful_core::integer::Integer;
use capful_core::memory::{Dtype, Entry, Layout, LayoutError, Ledger, Region, Role, Slot, Space};
use capful_core::model::{MicroBatch, Products, Purpose};
use capful_core::optimizer::Optimizer;
use capful_core::train::Ranks;
use serde::Serialize;

use super::estimates::Generation;
use super::expected::Tally;
use super::program::{self, Constants, Model, Places, Programs, Sequence};
use super::timeline::{OverLinks, Timeline};
use crate::config::{AnyFamily, Config, ConfigError, Link};
use crate::device::{AnyProfile, Window};

/// One line of the ledger: a region, or one region for each layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The name; `*` stands for the layer's number.
    pub name: String,
    /// Its purpose.
    pub role: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Shape of one layer's region.
    pub shape: [u32; 4],
    /// Number of layers.
    pub layers: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes of the elements.
    pub bytes: u64,
    /// Bytes added by alignment and padded rows.
    pub padding: u64,
    /// The section that it belongs to; `None` for a persistent region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section: Option<String>,
    #[serde(skip)]
    elements: u64,
    /// Bytes from the first byte of a layer's region to that of the next.
    #[serde(skip)]
    stride: u64,
    /// Whether all layers of the model share the region in turn.
    #[serde(skip)]
    pub(super) in_turn: bool,
}

impl Line {
    pub(super) fn new(entry: &Entry, section: Option<String>) -> Line {
        let slot = &entry.slot;
        let in_turn = slot.layers > 1 && entry.place.is_shared();
        let layers = if in_turn { 1 } else { slot.layers };
        Line {
            name: format!("{}{}", slot.prefix, slot.name),
            role: slot.role.name(),
            dtype: slot.dtype.name(),
            shape: slot.shape,
            layers,
            offset: entry.place.first.offset,
            bytes: entry.bytes,
            padding: entry.padding,
            section,
            elements: slot.elements() * u64::from(layers),
            stride: entry.place.stride,
            in_turn,
        }
    }

    /// Number of elements over all layers, without padded rows.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The layer whose region contains byte `offset` of the arena, if that byte is in this line.
    pub fn layer_of(&self, offset: u64) -> Option<u32> {
        let each = (self.bytes + self.padding) / u64::from(self.layers.max(1));
        let (layer, within) = match offset.checked_sub(self.offset)? {
            first if self.stride == 0 => (0, first),
            from => (from / self.stride, from % self.stride),
        };
        (within < each && layer < self.layers.into()).then_some(layer as u32)
    }

    /// Type and shape, without leading dimensions of 1.
    pub fn describe(&self) -> String {
        let first = self.shape.iter().position(|&n| n != 1).unwrap_or(3);
        let dims: Vec<_> = self.shape[first..].iter().map(u32::to_string).collect();
        let layers = if self.layers > 1 { format!("{} × ", self.layers) } else { String::new() };
        format!("{layers}{}[{}]", self.dtype, dims.join(", "))
    }
}

/// The sections that share the part of the arena that is not persistent, and the constants of their steps.
#[derive(Debug, Clone)]
pub struct Sections {
    /// Training steps: one shape for each stage of the curriculum.
    pub training: Vec<MicroBatch>,
    /// Number of micro-batches that this rank computes in a step of each stage.
    pub accumulate: Vec<u32>,
    /// This rank and the run's number of ranks.
    pub ranks: Ranks,
    /// Evaluations, or logits.
    pub evaluation: Option<MicroBatch>,
    /// Positions of token-by-token decoding.
    pub decoding: Option<u32>,
    /// Further constants in the operations of steps.
    pub constants: Constants,
    /// The storage type of the weights if it is an integer type; then nothing is trained.
    pub weights: Option<Integer>,
}

impl Sections {
    /// No sections, only persistent regions.
    pub fn none(config: &Config) -> Sections {
        let constants = Constants { optimizer: config.optimizer(), pattern: config.pattern() };
        Sections {
            training: Vec::new(),
            accumulate: Vec::new(),
            ranks: Ranks::ALONE,
            evaluation: None,
            decoding: None,
            constants,
            weights: config.weights,
        }
    }

    /// All sections of a training run: steps, evaluations, a sample.
    pub fn training(config: &Config) -> Sections {
        let stages = config.stages();
        Sections {
            training: stages.iter().map(|p| config.shaped(p.batch, p.seq_len)).collect(),
            accumulate: stages.iter().map(|p| p.accumulate / config.ranks).collect(),
            ranks: config.ranks(),
            evaluation: Some(config.evaluation()),
            decoding: Some(config.context().min(256)),
            ..Sections::none(config)
        }
    }

    /// Whether the matrix multiplications of a stage read 8-bit copies, once the copies' scales are known.
    pub fn quantises(&self, stage: usize) -> bool {
        self.training.get(stage).is_some_and(|stage| stage.products == Products::Quantised)
    }

    /// Whether tokens are only generated: then several tokens can be chosen in a row without the host.
    fn continues(&self) -> bool {
        self.decoding.is_some() && self.training.is_empty()
    }

    /// All sequences of operations.
    pub(super) fn sequences(&self) -> Vec<Sequence> {
        let mut all = Vec::new();
        for (stage, accumulate) in (0..self.training.len()).zip(&self.accumulate) {
            let warming = if self.quantises(stage) { &[true, false][..] } else { &[false] };
            let first = if *accumulate > 1 { &[true, false][..] } else { &[true] };
            let both = warming.iter().flat_map(|w| first.iter().map(move |f| (*w, *f)));
            all.extend(both.map(|(warming, first)| Sequence::MicroBatch { stage, first, warming }));
        }
        if !self.training.is_empty() {
            all.push(Sequence::Update);
            all.extend(self.constants.optimizer.averages().then_some(Sequence::Exchange));
        }
        if let Some(stage) = &self.evaluation {
            all.push(Sequence::Evaluate);
            let chunks = stage.tokens().div_ceil(stage.chunk.min(stage.tokens()).max(1));
            all.extend((0..chunks).map(|chunk| Sequence::Logits { chunk }));
        }
        all.extend(self.decoding.map(|_| Sequence::Decode));
        if self.continues() {
            all.extend([Sequence::Continue, Sequence::Sample]);
        }
        all
    }
}

/// The cost of a whole step of a stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// See [`capful_core::model::Family::flops_per_token`].
    pub flops_per_token: u64,
    /// Floating-point operations of the matrix multiplications.
    pub flops: u64,
    /// The minimum memory traffic in bytes.
    pub bytes: u64,
    /// Number of operations.
    pub operations: u64,
    /// Bytes that this rank sends to others.
    pub sent: u64,
    /// Number of messages for these bytes.
    pub messages: u64,
    /// Seconds by the roofline model.
    pub seconds: f64,
    /// Its operations by kind.
    pub tally: Tally,
    /// Seconds by the roofline model including communication over each link.
    pub over_links: OverLinks,
}

/// The layout of all memory, which the allocator, the initialiser, the checkpoint and the step share.
#[derive(Debug, Clone)]
pub struct Laid {
    /// The regions of inputs and results.
    pub places: Places,
    /// The operations of steps, once they are recorded.
    pub programs: Programs,
    /// Bytes of the programs once they are recorded.
    pub program_bytes: u64,
    /// The cost of a step of each training section.
    pub costs: Vec<Cost>,
    /// The cost of a generated token, if tokens are generated.
    pub generation: Option<Generation>,
    /// A description of the model, in lines.
    pub introduction: Vec<String>,
    /// The sections that were laid out.
    pub sections: Sections,
    /// The scratch region of the devices.
    pub scratch: Region,
    /// The persistent entries, for initialiser and checkpoint: for tables that ranks share, the whole tables.
    pub lasting: Vec<Entry>,
    /// This rank's shares of those tables.
    pub windows: Vec<Window>,
    /// Regions with memory of their own.
    pub lines: Vec<Line>,
    /// Regions that share memory with the lines.
    pub overlays: Vec<Line>,
    /// Bytes of the arena.
    pub bytes: u64,
    /// For each training section, bytes of an arena that has only this section.
    pub training_bytes: Vec<u64>,
}

/// The kinds of sections, so that they can be laid out in the order of their sizes, the largest first.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Section {
    /// The stage of this index.
    Training(usize, MicroBatch),
    /// The optimizer's update.
    Update(Optimizer),
    Evaluation(MicroBatch),
    Decoding(u32),
}

impl Section {
    /// Its name among `stages` training sections.
    fn name(&self, stages: usize) -> String {
        match self {
            Section::Training(..) if stages == 1 => "training".to_owned(),
            Section::Training(index, _) => format!("stage {}", index + 1),
            Section::Update(_) => "update".to_owned(),
            Section::Evaluation(_) => "evaluation".to_owned(),
            Section::Decoding(_) => "decoding".to_owned(),
        }
    }
}

fn refused(error: OperationError) -> ConfigError {
    ConfigError(format!("this configuration has no step: {error}"))
}

pub(super) fn too_large(error: LayoutError) -> ConfigError {
    ConfigError(format!("this run has no plan: {error}; choose smaller sizes"))
}

/// Regions that are laid out, before the size of the scratch is known.
struct Regions {
    /// The entries in the order in which they were laid out, each with its section.
    entries: Vec<(Option<Section>, Entry)>,
    /// The end of the persistent regions.
    mark: u64,
    /// The end of all regions.
    high: u64,
    /// For each training section, bytes of an arena that has only this section.
    training_bytes: Vec<u64>,
}

/// Lays out the persistent regions, and after them the section that takes the most memory; the other sections share
/// that memory.
fn lay(model: &mut dyn Model, profile: &AnyProfile, sections: &Sections) -> Result<Regions, ConfigError> {
    let profile = &InIntegers { profile, weights: sections.weights };
    let stages = sections.training.len();
    let mut wanted: Vec<Section> = Vec::new();
    wanted.extend(sections.training.iter().enumerate().map(|(i, stage)| Section::Training(i, *stage)));
    wanted.extend((stages > 0).then_some(Section::Update(sections.constants.optimizer)));
    wanted.extend(sections.evaluation.map(Section::Evaluation));
    wanted.extend(sections.decoding.map(Section::Decoding));
    let continues = sections.continues();
    let lay = |section: Section, layout: &mut Layout<'_>, model: &mut dyn Model| {
        model.lay(section, profile, layout);
        if continues && matches!(section, Section::Decoding(_)) {
            model.lay_choice(layout);
        }
    };
    let mut size = |section: &Section| {
        let mut ignore = |_: &Entry| {};
        let mut layout = Layout::new(&mut ignore);
        lay(*section, &mut layout, model);
        Ok((*section, layout.high_water().map_err(too_large)?))
    };
    let mut wanted = wanted.iter().map(&mut size).collect::<Result<Vec<(Section, u64)>, ConfigError>>()?;
    let training_bytes = wanted[..stages].iter().map(|(_, bytes)| *bytes).collect();
    wanted.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    // Most optimizers need no section.
    wanted.retain(|(section, bytes)| *bytes > 0 || !matches!(section, Section::Update(_)));

    let (mut entries, under_way) = (Vec::new(), Cell::new(None));
    let mut visit = |entry: &Entry| entries.push((under_way.get(), *entry));
    let mut layout = Layout::new(&mut visit);
    let purpose = match sections {
        _ if stages > 0 => Purpose::Training(sections.ranks, sections.constants.optimizer),
        Sections { evaluation: Some(_), .. } => Purpose::Evaluation,
        _ => Purpose::Decoding,
    };
    model.lay_lasting(profile, purpose, &mut layout);
    let mark = layout.mark();
    for (section, _) in &wanted {
        layout.rewind(mark);
        under_way.set(Some(*section));
        lay(*section, &mut layout, model);
    }
    let high = layout.high_water().map_err(too_large)?;
    Ok(Regions { entries, mark, high, training_bytes })
}

/// The cost of a whole step of the stage of index `stage`, computed by running it on the meter.
fn cost(
    model: &dyn Model,
    profile: &AnyProfile,
    rates: Rates,
    sections: &Sections,
    stage: usize,
) -> Result<Cost, OperationError> {
    let [mut once, mut further] = [(); 2].map(|()| Meter::new(profile, rates));
    let micro_batch = |first| Sequence::MicroBatch { stage, first, warming: false };
    model.run(micro_batch(true), sections, &mut once)?;
    model.run(Sequence::Update, sections, &mut once)?;
    // All micro-batches after the first have the same cost.
    let times = u64::from(sections.accumulate[stage]).saturating_sub(1);
    if times > 0 {
        model.run(micro_batch(false), sections, &mut further)?;
    }
    let [mut tally, mut more] = [(); 2].map(|()| Tally::new(rates));
    model.run(micro_batch(true), sections, &mut tally)?;
    model.run(Sequence::Update, sections, &mut tally)?;
    if times > 0 {
        model.run(micro_batch(false), sections, &mut more)?;
    }
    let tally = tally.and(times, &more);
    let total = |count: fn(&Meter<'_>) -> u64| {
        let all = count(&further).checked_mul(times).and_then(|all| all.checked_add(count(&once)));
        all.filter(|n| *n < u64::MAX).ok_or(OperationError::TooLarge { operation: "a step" })
    };
    let (flops, bytes, operations) = (total(|m| m.flops)?, total(|m| m.bytes)?, total(|m| m.operations)?);
    let (sent, messages) = (total(|m| m.sent)?, total(|m| m.messages)?);
    let seconds = once.seconds + times as f64 * further.seconds;
    let over_links = match sections.ranks.count {
        1 => [seconds; Link::ALL.len()],
        _ => over_links(model, profile, rates, sections, stage)?,
    };
    let flops_per_token = model.flops_per_token(sections.training[stage].seq_len);
    if flops_per_token == u64::MAX {
        return Err(OperationError::TooLarge { operation: "a token" });
    }
    Ok(Cost { flops_per_token, flops, bytes, operations, sent, messages, seconds, tally, over_links })
}

/// Seconds of a step of the stage of index `stage`, for one of several ranks. Its last micro-batch and the update are
/// one recording.
fn over_links(
    model: &dyn Model,
    profile: &AnyProfile,
    rates: Rates,
    sections: &Sections,
    stage: usize,
) -> Result<OverLinks, OperationError> {
    let time = |sequences: &[Sequence]| {
        let mut timeline = Timeline::new(rates, matches!(profile, AnyProfile::Cuda { .. }));
        sequences.iter().try_for_each(|sequence| model.run(*sequence, sections, &mut timeline))?;
        Ok(timeline.end())
    };
    let micro_batch = |first| Sequence::MicroBatch { stage, first, warming: false };
    let further = sections.accumulate[stage].saturating_sub(1);
    if further == 0 {
        return time(&[micro_batch(true), Sequence::Update]);
    }
    let [first, between, last] =
        [time(&[micro_batch(true)])?, time(&[micro_batch(false)])?, time(&[micro_batch(false), Sequence::Update])?];
    Ok(std::array::from_fn(|link| first[link] + f64::from(further - 1) * between[link] + last[link]))
}

/// The cost of a generated token, computed by running it on the meter.
fn generation(
    model: &dyn Model,
    profile: &AnyProfile,
    rates: Rates,
    sections: &Sections,
) -> Result<Option<Generation>, OperationError> {
    let Some(context) = sections.decoding else { return Ok(None) };
    let mut meter = Meter::new(profile, rates);
    model.run(Sequence::Decode, sections, &mut meter)?;
    Ok(Some(Generation::of(context, &meter)))
}

impl Laid {
    /// Lays out `sections` of a model of `family`, and counts the cost of the operations in its steps.
    ///
    /// # Errors
    /// A step that its operations refuse; a region that is too large for the numbers.
    pub fn new(
        family: &AnyFamily,
        profile: &AnyProfile,
        rates: Rates,
        sections: &Sections,
    ) -> Result<Laid, ConfigError> {
        let mut model = program::model(family);
        let regions = lay(&mut *model, profile, sections)?;
        let Regions { mut entries, mark, high, mut training_bytes } = regions;
        let model = &*model;
        let places = model.places().ok_or_else(|| refused(program::UNLAID))?;
        let mut meter = Meter::new(profile, rates);
        for sequence in sections.sequences() {
            model.run(sequence, sections, &mut meter).map_err(refused)?;
        }
        // The scratch is after all regions: its size is known once the steps of every section were measured.
        let mut visit = |entry: &Entry| entries.push((None, *entry));
        let mut layout = Layout::new(&mut visit);
        layout.rewind(high);
        let rows = meter.scratch.div_ceil(4 * Layout::GRAIN);
        let rows = u32::try_from(rows).map_err(|_| too_large(LayoutError::Rows("scratch")))?;
        let slot = Slot::new("scratch", Role::Work, Dtype::F32, [1, 1, rows, Layout::GRAIN as u32]);
        let none = Region { space: Space::Arena, dtype: Dtype::F32, offset: high, shape: [1, 1, 0, slot.shape[3]] };
        let scratch = if rows > 0 { layout.region(slot).first } else { none };
        let bytes = layout.high_water().map_err(too_large)?.max(high);
        training_bytes.iter_mut().for_each(|alone| *alone += mark + bytes - high);
        let mut laid = Laid {
            places,
            programs: Programs::default(),
            program_bytes: Programs::bytes(meter.operations),
            costs: Vec::new(),
            generation: None,
            introduction: model.introduction(),
            sections: sections.clone(),
            scratch,
            lasting: Vec::new(),
            windows: Vec::new(),
            lines: Vec::new(),
            overlays: Vec::new(),
            bytes,
            training_bytes,
        };
        let costs = (0..sections.training.len()).map(|stage| cost(model, profile, rates, sections, stage));
        laid.costs = costs.collect::<Result<_, _>>().map_err(refused)?;
        laid.generation = generation(model, profile, rates, sections).map_err(refused)?;
        laid.list(&entries, mark);
        Ok(laid)
    }

    /// Bytes of the regions alone, a lower bound for the arena. The operations are not run: a NeuroGen's long chunk has
    /// millions.
    ///
    /// # Errors
    /// A region that is too large for the numbers.
    pub(super) fn least(family: &AnyFamily, profile: &AnyProfile, sections: &Sections) -> Result<u64, ConfigError> {
        lay(&mut *program::model(family), profile, sections).map(|regions| regions.high)
    }

    /// This layout with the operations of its steps, for a session. Only called once the plan is known to fit: a long
    /// chunk of a NeuroGen has tens of thousands of operations.
    ///
    /// # Errors
    /// As [`Laid::new`].
    pub fn recorded(self, family: &AnyFamily, profile: &AnyProfile) -> Result<Laid, ConfigError> {
        let mut model = program::model(family);
        lay(&mut *model, profile, &self.sections)?;
        let programs = Programs::record(&*model, &self.sections).map_err(refused)?;
        Ok(Laid { programs, ..self })
    }

    /// Sorts the entries into lines, overlays and persistent entries; the persistent regions end at `mark`.
    fn list(&mut self, entries: &[(Option<Section>, Entry)], mark: u64) {
        let (mut reached, stages) = (mark, self.sections.training.len());
        for (section, entry) in entries {
            if entry.place.first.space == Space::Shared {
                self.lasting.push(*entry);
                continue;
            }
            self.windows.extend(entry.windows().map(|(of, place)| Window { of, place }));
            let end = entry.place.first.offset + entry.bytes + entry.padding;
            let line = Line::new(entry, section.map(|s| s.name(stages)));
            // Persistent regions are in the order of the arena, except for tables with parts that are declared to share
            // memory.
            let lasts = section.is_none() && !entry.overlay;
            if lasts || section.is_some() && end > reached {
                self.lines.push(line);
                reached = reached.max(end);
            } else {
                self.overlays.push(line);
            }
            if end <= mark && entry.window.is_none() {
                self.lasting.push(*entry);
            }
        }
    }
}
