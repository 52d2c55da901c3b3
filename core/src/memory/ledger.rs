//! The ledger: the one description of a run's memory that planner, allocator, initialiser, checkpoint and step share.

use super::region::{Dtype, Region, Space, Stacked};
use crate::ops::RotaryScaling;
use crate::wiring::Wiring;

/// What a region is for. Decides its type, whether it is saved, and how it is initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A parameter as the products read it.
    Weight,
    /// What the codes of a weight in integers are multiplied with.
    Scale,
    /// The f32 of a parameter that is kept in bf16: what that lacks of it.
    Master,
    /// The gradient of a parameter.
    Gradient,
    /// An optimizer moment.
    Moment,
    /// The average of a parameter over steps.
    Average,
    /// What else a step leaves for the next one, and a checkpoint for the run that goes on.
    State,
    /// A table made once at start-up and only read afterwards.
    Constant,
    /// Values written before a step or read after it.
    Control,
    /// Tokens and targets of a batch.
    Batch,
    /// Activations kept from the forward pass for the backward pass.
    Saved,
    /// Scratch that no later operation relies on.
    Work,
}

impl Role {
    /// The name used in ledgers.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Weight => "weight",
            Role::Scale => "scale",
            Role::Master => "master",
            Role::Gradient => "gradient",
            Role::Moment => "moment",
            Role::Average => "average",
            Role::State => "state",
            Role::Constant => "constant",
            Role::Control => "control",
            Role::Batch => "batch",
            Role::Saved => "saved",
            Role::Work => "work",
        }
    }
}

/// The tables of a sparse wiring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WiringPart {
    /// [rows, fan-in]: the sources of each row.
    Sources,
    /// `[sources + 1]`: where each source's synapses begin among those by source.
    Starts,
    /// [rows, fan-in]: synapses, row · fan-in + place, by source and then rising.
    Synapses,
}

/// How a region's first values are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero: what fresh storage holds.
    Zero,
    /// All one.
    One,
    /// All a half.
    Half,
    /// Independent normal numbers of mean 0 and this standard deviation.
    Normal(f32),
    /// Independent numbers, uniform between minus and plus this.
    Uniform(f32),
    /// Cosine and sine of position / base^(2 j / dims), pairs (cos, sin): shape [positions, dims / 2, 2].
    Rotary {
        /// The base of the geometric sequence of wavelengths.
        base: f32,
        /// How the wavelengths are stretched.
        scaling: RotaryScaling,
    },
    /// A table of u32 of a sparse wiring, whatever the seed.
    Wiring {
        /// Who reads whom.
        wiring: Wiring,
        /// Which table.
        part: WiringPart,
        /// Its rows.
        neurons: u32,
        /// Sources of a row.
        fan_in: u32,
    },
}

/// What is asked of the ledger: a name and a shape, before it has a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slot {
    /// Put before the name in files: empty for weights, `first_moment.` and the like for what belongs to them.
    pub prefix: &'static str,
    /// The name; a `*` in it stands for the layer's number, `{a,b}` for the words of its tensors.
    pub name: &'static str,
    /// What the region is for.
    pub role: Role,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major shape of one layer's region.
    pub shape: [u32; 4],
    /// How many such regions are laid one after the other.
    pub layers: u32,
    /// How the first values are made.
    pub init: Init,
    /// Rows of each tensor that the region is in files, one below the other, one a word of the name's braces; of a
    /// vector its elements. What is behind them is padding: it stays zero and is in no file. All 0 where the region is one
    /// whole tensor.
    pub parts: [u32; 3],
}

impl Slot {
    /// A slot without prefix, of one layer, that begins as zeros.
    pub const fn new(name: &'static str, role: Role, dtype: Dtype, shape: [u32; 4]) -> Slot {
        Slot { prefix: "", name, role, dtype, shape, layers: 1, init: Init::Zero, parts: [0; 3] }
    }

    /// The same slot, once a layer.
    pub const fn layers(self, layers: u32) -> Slot {
        Slot { layers, ..self }
    }

    /// Whether a layer's region is one row, whose parts are counted in elements.
    const fn is_vector(&self) -> bool {
        let [a, b, c, _] = self.shape;
        a == 1 && b == 1 && c == 1
    }

    /// Elements of a layer's region that belong to a tensor: padded rows left out.
    pub const fn elements(&self) -> u64 {
        let ([a, b, c, columns], [p, q, r]) = (self.shape, self.parts);
        let parts = p as u64 + q as u64 + r as u64;
        match (parts, self.is_vector()) {
            (0, _) => a as u64 * b as u64 * c as u64 * columns as u64,
            (_, true) => parts,
            (_, false) => parts * columns as u64,
        }
    }

    /// Bytes of those.
    const fn bytes(&self) -> u64 {
        let ([a, b, c, columns], [p, q, r]) = (self.shape, self.parts);
        if self.dtype.is_coded() {
            return Region { space: Space::Arena, dtype: self.dtype, offset: 0, shape: self.shape }.bytes();
        }
        match (p as u64 + q as u64 + r as u64, self.is_vector()) {
            (0, _) => a as u64 * b as u64 * c as u64 * self.dtype.row_bytes(columns),
            (parts, true) => parts * self.dtype.size(),
            (parts, false) => parts * self.dtype.row_bytes(columns),
        }
    }
}

/// A slot that has its place.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// What was asked for.
    pub slot: Slot,
    /// Where it lies.
    pub place: Stacked,
    /// Bytes of the elements, over all layers that have some of their own.
    pub bytes: u64,
    /// Bytes that alignment and padded rows add, over the same.
    pub padding: u64,
    /// Of what it is this rank's share, if it is one.
    pub window: Option<Window>,
    /// Whether another region has its bytes too, and they are counted there.
    pub overlay: bool,
}

/// What a rank's share of a table is a window on, in [`Space::Shared`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first layer's first byte, and the one after its last.
    pub of: [u64; 2],
    /// Bytes from a layer's first to the next one's.
    pub stride: u64,
    /// How many layers it has: no more than there is room for.
    pub layers: u32,
}

/// Where a part of a table lies that [`Ledger::table`] made room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The space of the table.
    pub space: Space,
    /// The first layer's first byte.
    pub offset: u64,
    /// Bytes from a layer's first to the next one's; 0 where all layers use the same.
    pub stride: u64,
    /// As [`Entry::overlay`].
    pub overlay: bool,
}

impl Entry {
    /// Of a rank's share the bytes of [`Space::Shared`] that each layer has, and where they lie.
    pub fn windows(&self) -> impl Iterator<Item = ([u64; 2], Region)> + use<> {
        let place = self.place;
        let layer = move |window: Window| {
            (0..window.layers).map(move |l| (window.of.map(|byte| byte + u64::from(l) * window.stride), place.at(l)))
        };
        self.window.into_iter().flat_map(layer)
    }

    /// Every tensor that the entry is in files, with its place.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorName, Region)> + use<> {
        let Entry { mut slot, place, .. } = *self;
        // Blocks are no elements: where a tensor ends, one may go on.
        if slot.dtype.is_coded() {
            slot.parts = [0; 3];
        }
        let part = move |layer: u32, part: usize| {
            let region = match slot.parts[part] {
                0 => place.at(layer).stored(),
                count => {
                    let (whole, first) = (place.at(layer), slot.parts[..part].iter().sum());
                    if slot.is_vector() { whole.slice_columns(first, count) } else { whole.slice_rows(first, count) }
                }
            };
            (TensorName { slot, layer, part }, region)
        };
        let parts = slot.parts.iter().filter(|&&rows| rows > 0).count().max(1);
        (0..slot.layers).flat_map(move |layer| (0..parts).map(move |i| part(layer, i)))
    }
}

/// A tensor's name in files, made as it is shown.
#[derive(Debug, Clone, Copy)]
pub struct TensorName {
    slot: Slot,
    layer: u32,
    part: usize,
}

impl TensorName {
    /// The layer whose tensor it is.
    pub const fn layer(&self) -> u32 {
        self.layer
    }
}

impl core::fmt::Display for TensorName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.slot.prefix)?;
        let mut name = self.slot.name;
        if let Some((before, after)) = name.split_once('*') {
            write!(f, "{before}{}", self.layer)?;
            name = after;
        }
        if let Some((before, (words, after))) = name.split_once('{').and_then(|(b, a)| Some((b, a.split_once('}')?))) {
            write!(f, "{before}{}", words.split(',').nth(self.part).unwrap_or_default())?;
            name = after;
        }
        f.write_str(name)
    }
}

/// Lays regions one after the other. A family describes its memory to this and to nothing else.
pub trait Ledger {
    /// Gives `slot` its place.
    fn region(&mut self, slot: Slot) -> Stacked;

    /// The offset at which the next region will lie.
    fn mark(&self) -> u64;

    /// Goes back to `mark`: what is laid from here on shares bytes with what was laid since.
    fn rewind(&mut self, mark: u64);

    /// Makes room for a table of `bytes`, in the arena or in [`Space::Shared`], where it takes none of them here: its
    /// first byte. Its parts are then shown one by one.
    fn table(&mut self, name: &'static str, space: Space, bytes: u64) -> u64;

    /// Shows `slot` in its place in a table. Its layers need not follow each other.
    fn part(&mut self, slot: Slot, part: Part) -> Stacked;

    /// Gives `slot` its place: this rank's share of what `window` shows, which may be less than it has room for.
    fn window(&mut self, slot: Slot, window: Window) -> Region;

    /// What was laid from byte `start` to `end` as one region, for operations that take all of it; both lie on the
    /// grain.
    fn range(&mut self, name: &'static str, dtype: Dtype, start: u64, end: u64) -> Region;
}

/// Why regions cannot be laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutError {
    /// A region of more than 2³² − 1 rows.
    Rows(&'static str),
    /// With this region all of them are more than [`Layout::LIMIT`] bytes.
    Bytes(&'static str),
}

impl core::fmt::Display for LayoutError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LayoutError::Rows(name) => write!(f, "{name} is too large: its rows pass 32 bits"),
            LayoutError::Bytes(name) => write!(f, "{name} is too large: bytes up to it pass 63 bits"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// The ledger's arithmetic: places slots, keeps the high water, shows each entry to a visitor.
pub struct Layout<'v> {
    visit: &'v mut dyn FnMut(&Entry),
    offset: u64,
    high: u64,
    /// Where the next region of the image will lie, in a layout that has one.
    image: Option<u64>,
    /// Where the next part of a shared table will lie.
    shared: u64,
    refused: Option<LayoutError>,
}

impl<'v> Layout<'v> {
    /// Every region begins on a line of this many bytes.
    pub const ALIGNMENT: u64 = 256;
    /// Every region is padded to a multiple of this many elements, so that a parameter's weight, gradient and
    /// moments lie at the same element offsets whatever their types, and one optimizer call covers a range.
    pub const GRAIN: u64 = 128;
    /// The most bytes of all regions: half of what 64 bits count, so that sums of two totals fit.
    pub const LIMIT: u64 = i64::MAX as u64;

    /// A layout that begins at offset 0 and shows each entry to `visit`.
    pub fn new(visit: &'v mut dyn FnMut(&Entry)) -> Self {
        Self { visit, offset: 0, high: 0, image: None, shared: 0, refused: None }
    }

    /// The same, but weights, their scales and constant tables lie in a read-only image of their own.
    pub fn with_image(visit: &'v mut dyn FnMut(&Entry)) -> Self {
        Self { image: Some(0), ..Self::new(visit) }
    }

    /// Bytes of the image: where the next region of it would lie.
    pub fn image_bytes(&self) -> u64 {
        self.image.unwrap_or(0)
    }

    /// The most bytes that were in use at once: the size of the arena.
    ///
    /// # Errors
    /// The first region that could not be laid. It got no bytes, and nothing that was laid may be used.
    pub fn high_water(&self) -> Result<u64, LayoutError> {
        self.refused.map_or(Ok(self.high), Err)
    }

    /// Bytes of a layer's region with its padding, and the end of all layers that begin at `start`.
    fn place(slot: &Slot, start: u64) -> Result<(u64, u64), LayoutError> {
        let [a, b, c, columns] = slot.shape;
        let rows = a.checked_mul(b).and_then(|rows| rows.checked_mul(c)).ok_or(LayoutError::Rows(slot.name))?;
        let padded = match slot.dtype {
            // No optimizer moves them, so bytes are all that is padded.
            Dtype::I4 => u64::from(rows).checked_mul(slot.dtype.row_bytes(columns)),
            _ => (u64::from(rows) * u64::from(columns))
                .div_ceil(Self::GRAIN)
                .checked_mul(slot.dtype.row_bytes(Self::GRAIN as u32)),
        };
        let aligned = |bytes: u64| bytes.checked_next_multiple_of(Self::ALIGNMENT);
        let padded = if slot.dtype.packs() { padded } else { padded.and_then(aligned) };
        let end = padded.and_then(|bytes| bytes.checked_mul(slot.layers.into()));
        let end = end.and_then(|bytes| bytes.checked_add(start)).filter(|end| *end <= Self::LIMIT);
        padded.zip(end).ok_or(LayoutError::Bytes(slot.name))
    }

    /// Notes why something cannot be laid, and gives a region of nothing in its place.
    fn refuse(&mut self, error: LayoutError, dtype: Dtype) -> Region {
        self.refused.get_or_insert(error);
        Region { space: Space::Arena, dtype, offset: self.offset, shape: [0; 4] }
    }
}

impl Layout<'_> {
    /// Gives `slot` its place in `space`.
    fn lay(&mut self, slot: Slot, space: Space, window: Option<Window>) -> Stacked {
        let behind = self.next(space);
        let offset = if slot.dtype.packs() { behind } else { behind.next_multiple_of(Self::ALIGNMENT) };
        let (padded, end) = match Self::place(&slot, offset) {
            Ok(place) => place,
            Err(error) => return Stacked::new(self.refuse(error, slot.dtype), 0),
        };
        let first = Region { space, dtype: slot.dtype, offset, shape: slot.shape };
        let layers = u64::from(slot.layers);
        self.advance(space, end);
        let place = Stacked::new(first, if layers > 1 { padded } else { 0 });
        let bytes = slot.bytes() * layers;
        // With what is left of the line on which packed regions ended.
        let padding = padded * layers - bytes + (offset - behind);
        (self.visit)(&Entry { slot, place, bytes, padding, window, overlay: false });
        place
    }

    /// Where what comes next lies in `space`.
    fn next(&self, space: Space) -> u64 {
        match space {
            Space::Arena => self.offset,
            Space::Image => self.image_bytes(),
            Space::Shared => self.shared,
        }
    }

    /// What comes next in `space` lies at `end`.
    fn advance(&mut self, space: Space, end: u64) {
        match space {
            Space::Arena => (self.offset, self.high) = (end, self.high.max(end.next_multiple_of(Self::ALIGNMENT))),
            Space::Image => self.image = Some(end),
            Space::Shared => self.shared = end,
        }
    }
}

impl Ledger for Layout<'_> {
    fn region(&mut self, slot: Slot) -> Stacked {
        let image = self.image.is_some() && matches!(slot.role, Role::Weight | Role::Scale | Role::Constant);
        self.lay(slot, if image { Space::Image } else { Space::Arena }, None)
    }

    fn table(&mut self, name: &'static str, space: Space, bytes: u64) -> u64 {
        let start = self.next(space).next_multiple_of(Self::ALIGNMENT);
        match start.checked_add(bytes).filter(|end| *end <= Self::LIMIT) {
            Some(end) => self.advance(space, end),
            None => drop(self.refused.get_or_insert(LayoutError::Bytes(name))),
        }
        start
    }

    fn part(&mut self, slot: Slot, part: Part) -> Stacked {
        let Part { space, offset, stride, overlay } = part;
        let padded = match Self::place(&slot, offset) {
            Ok((padded, _)) => padded,
            Err(error) => return Stacked::new(self.refuse(error, slot.dtype), 0),
        };
        let first = Region { space, dtype: slot.dtype, offset, shape: slot.shape };
        let place = Stacked::new(first, if slot.layers > 1 { stride } else { 0 });
        let there = if place.is_shared() { 1 } else { slot.layers.into() };
        let bytes = slot.bytes() * there;
        (self.visit)(&Entry { slot, place, bytes, padding: padded * there - bytes, window: None, overlay });
        place
    }

    fn window(&mut self, slot: Slot, window: Window) -> Region {
        self.lay(slot, Space::Arena, Some(window)).first
    }

    fn mark(&self) -> u64 {
        self.offset
    }

    fn rewind(&mut self, mark: u64) {
        self.offset = mark;
    }

    fn range(&mut self, name: &'static str, dtype: Dtype, start: u64, end: u64) -> Region {
        match u32::try_from(end.saturating_sub(start) / dtype.row_bytes(Self::GRAIN as u32)) {
            Ok(rows) => Region { space: Space::Arena, dtype, offset: start, shape: [1, 1, rows, Self::GRAIN as u32] },
            Err(_) => self.refuse(LayoutError::Rows(name), dtype),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn regions_are_aligned_disjoint_and_sum_to_the_high_water() {
        let random = Random::new(3, 0);
        let mut seen = heapless::Vec::<Entry, 64>::new();
        let mut visit = |e: &Entry| seen.push(*e).expect("room for 64");
        let mut layout = Layout::new(&mut visit);
        for i in 0..60 {
            let dtype = [Dtype::F32, Dtype::Bf16, Dtype::U32][random.below(4 * i, 3) as usize];
            let shape = [1, 1, 1 + random.below(4 * i + 1, 9) as u32, 1 + random.below(4 * i + 2, 99) as u32];
            let layers = 1 + random.below(4 * i + 3, 4) as u32;
            layout.region(Slot::new("r", Role::Work, dtype, shape).layers(layers));
        }
        let total = layout.high_water().unwrap();
        assert_eq!(seen.iter().map(|e| e.bytes + e.padding).sum::<u64>(), total);
        let mut end = 0;
        for e in &seen {
            for layer in 0..e.slot.layers {
                let region = e.place.at(layer);
                assert_eq!(region.offset % Layout::ALIGNMENT, 0);
                assert!(region.offset >= end, "{region:?} begins before {end}");
                end = region.end();
            }
        }
        assert!(end <= total);
    }

    #[test]
    fn overlays_share_bytes_and_the_high_water_is_the_larger() {
        let mut visit = |_: &Entry| {};
        let mut layout = Layout::new(&mut visit);
        layout.region(Slot::new("kept", Role::Weight, Dtype::F32, [1, 1, 1, 128]));
        let mark = layout.mark();
        let a = layout.region(Slot::new("a", Role::Work, Dtype::F32, [1, 1, 4, 128]));
        layout.rewind(mark);
        let b = layout.region(Slot::new("b", Role::Work, Dtype::F32, [1, 1, 2, 128]));
        assert_eq!(a.first.offset, b.first.offset);
        assert_eq!(layout.high_water(), Ok(5 * 512));
    }

    #[test]
    fn parts_of_a_table_lie_where_they_are_put_and_nothing_lies_between_tables() {
        let mut seen = heapless::Vec::<Entry, 8>::new();
        let mut visit = |e: &Entry| seen.push(*e).expect("room for 8");
        let mut layout = Layout::new(&mut visit);
        let slot = |name, columns| Slot::new(name, Role::Weight, Dtype::F32, [1, 1, 1, columns]);
        // Three layers of two rows, of which each parameter has one; then both in one layer's place.
        let table = layout.table("apart", Space::Arena, 6 * 512);
        let part = |offset, stride| Part { space: Space::Arena, offset, stride, overlay: false };
        let a = layout.part(slot("a.*", 100).layers(3), part(table, 1024));
        let b = layout.part(slot("b.*", 128).layers(3), part(table + 512, 1024));
        let turns = layout.table("in turn", Space::Arena, 512);
        let c = layout.part(slot("c.*", 100).layers(3), part(turns, 0));
        assert_eq!([a.at(2).offset, b.at(0).offset, b.at(2).offset], [2048, 512, 2560]);
        assert_eq!((turns, c.at(0), c.is_shared()), (3072, c.at(2), true));
        assert_eq!(layout.table("shared", Space::Shared, 1 << 40), 0);
        let share = Slot::new("share", Role::Moment, Dtype::F32, [1, 1, 2, 128]).layers(3);
        layout.window(share, Window { of: [512, 1024], stride: 4096, layers: 3 });
        assert_eq!((layout.mark(), layout.high_water()), (3584 + 3072, Ok(3584 + 3072)));
        // The same room, of which the last layer stays empty.
        layout.window(share, Window { of: [512, 1024], stride: 4096, layers: 2 });
        layout.table("too long", Space::Arena, u64::MAX);
        assert_eq!(layout.high_water(), Err(LayoutError::Bytes("too long")));
        assert_eq!(seen.iter().map(|e| e.bytes + e.padding).sum::<u64>(), 3584 + 2 * 3072);
        assert_eq!(seen[4].windows().count(), 2);
        let windows = seen[3].windows().map(|(of, place)| (of, place.offset));
        assert!(windows.eq([([512, 1024], 3584), ([4608, 5120], 4608), ([8704, 9216], 5632)]));
    }

    #[test]
    fn what_does_not_fit_its_numbers_is_refused_by_name_and_never_wraps() {
        let laid = |slots: &[Slot]| {
            let mut visit = |_: &Entry| {};
            let mut layout = Layout::new(&mut visit);
            for slot in slots {
                layout.region(*slot);
            }
            layout.high_water()
        };
        let slot = |name, shape| Slot::new(name, Role::Work, Dtype::F32, shape);
        let small = slot("small", [1, 1, 1, 5]);
        // 2³² rows; 2⁶⁴ elements, whose bytes wrap to nothing; 2⁶² bytes twice; 2³¹ layers of 2³⁴ bytes.
        let rows = slot("rows", [1, 1 << 16, 1 << 16, 1]);
        assert_eq!(laid(&[small, rows, small]), Err(LayoutError::Rows("rows")));
        let wraps = slot("wraps", [1, 1, u32::MAX, u32::MAX]);
        assert_eq!(laid(&[small, wraps]), Err(LayoutError::Bytes("wraps")));
        let half = |name| slot(name, [1, 1, 1 << 30, 1 << 30]);
        assert_eq!(laid(&[half("half")]), Ok(1 << 62));
        assert_eq!(laid(&[half("half"), half("other")]), Err(LayoutError::Bytes("other")));
        assert_eq!(laid(&[small, half("layers").layers(u32::MAX)]), Err(LayoutError::Bytes("layers")));
        let mut visit = |_: &Entry| {};
        let mut layout = Layout::new(&mut visit);
        assert_eq!(layout.range("all", Dtype::F32, 512, 1024).shape, [1, 1, 1, 128]);
        layout.range("all", Dtype::F32, 0, 512 << 32);
        assert_eq!(layout.high_water(), Err(LayoutError::Rows("all")));
    }

    #[test]
    fn types_of_different_size_keep_the_same_element_offsets() {
        let mut visit = |_: &Entry| {};
        let mut layout = Layout::new(&mut visit);
        let mut lay = |dtype| {
            let start = layout.mark();
            let mut offsets = [0; 3];
            for (i, columns) in [5, 130, 999].into_iter().enumerate() {
                let r = layout.region(Slot::new("w", Role::Weight, dtype, [1, 1, 1, columns]));
                offsets[i] = (r.first.offset - start) / dtype.size();
            }
            offsets
        };
        assert_eq!(lay(Dtype::F32), lay(Dtype::Bf16));
    }

    #[test]
    fn a_region_is_as_many_tensors_as_it_has_parts() {
        let mut seen = heapless::Vec::<Entry, 4>::new();
        let mut visit = |e: &Entry| seen.push(*e).expect("room for 4");
        let mut layout = Layout::new(&mut visit);
        let slot = |name, rows| Slot::new(name, Role::Weight, Dtype::F32, [1, 1, rows, 5]);
        layout.region(Slot { parts: [4, 2, 2], prefix: "p.", ..slot("l.*.{q,k,v}.w", 8).layers(2) });
        layout.region(Slot { parts: [7, 0, 0], ..slot("padded", 64) });
        layout.region(slot("whole.*", 3).layers(2));
        let mut found = heapless::Vec::<(heapless::String<16>, u64, u32), 16>::new();
        for (name, region) in seen.iter().flat_map(Entry::tensors) {
            let mut text = heapless::String::new();
            core::fmt::write(&mut text, format_args!("{name}")).unwrap();
            found.push((text, region.offset, region.rows())).unwrap();
        }
        let expected = [
            ("p.l.0.q.w", 0, 4),
            ("p.l.0.k.w", 80, 2),
            ("p.l.0.v.w", 120, 2),
            ("p.l.1.q.w", 512, 4),
            ("p.l.1.k.w", 592, 2),
            ("p.l.1.v.w", 632, 2),
            ("padded", 1024, 7),
            ("whole.0", 2560, 3),
            ("whole.1", 3072, 3),
        ];
        assert!(found.iter().map(|(n, o, r)| (n.as_str(), *o, *r)).eq(expected), "{found:?}");
        assert_eq!((seen[1].bytes, seen[1].padding), (7 * 20, 57 * 20 + 256));
    }
}
