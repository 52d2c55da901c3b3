//! The ledger: the one description of a run's memory that planner, allocator, initialiser, checkpoint and step share.

use super::region::{Dtype, Region, Space, Stacked};
use crate::ops::RotaryScaling;
use crate::wiring::Wiring;

/// What a region is for. Decides its type, whether it is saved, and how it is initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A parameter in the type that the matrix multiplications read.
    Weight,
    /// The scales of a weight in integers: the factors of its codes.
    Scale,
    /// The part of an f32 master that its bf16 weight lacks.
    Master,
    /// The gradient of a parameter.
    Gradient,
    /// An optimizer moment.
    Moment,
    /// The average of a parameter over steps.
    Average,
    /// Other state that a step leaves for the next step, and that a checkpoint saves for a resumed run.
    State,
    /// A table that is computed once at start-up and only read afterwards.
    Constant,
    /// Values written before a step or read after it.
    Control,
    /// Tokens and targets of a batch.
    Batch,
    /// Activations saved by the forward pass for the backward pass.
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
    /// `[sources + 1]`: where the synapses of each source begin in [`WiringPart::Synapses`].
    Starts,
    /// [rows, fan-in]: synapses as row · fan-in + slot, ordered by source, then ascending.
    Synapses,
}

/// How a region's first values are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero, as in fresh storage.
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
        /// How the wavelengths are stretched for longer contexts.
        scaling: RotaryScaling,
    },
    /// A u32 table of a sparse wiring. It does not depend on the run's seed.
    Wiring {
        /// The rule that draws each row's sources.
        wiring: Wiring,
        /// The table to make.
        part: WiringPart,
        /// Rows of the wiring.
        neurons: u32,
        /// Sources of each row.
        fan_in: u32,
    },
}

/// A request to the ledger: a region's name, type and shape, before it has an offset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slot {
    /// A prefix of the name in files: empty for weights, `first_moment.` and the like for state that belongs to a
    /// weight.
    pub prefix: &'static str,
    /// The name; a `*` in it stands for the layer's number, `{a,b}` for the words that name its tensors.
    pub name: &'static str,
    /// What the region is for.
    pub role: Role,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major shape of one layer's region.
    pub shape: [u32; 4],
    /// The number of such regions, laid one after the other.
    pub layers: u32,
    /// How the first values are made.
    pub init: Init,
    /// Where the region is several tensors in files: the rows of each tensor (of a vector, the elements), one below the
    /// other, one for each word in the name's braces. The rows after the last part are padding: they stay zero and are
    /// in no file. All 0 where the region is one whole tensor.
    pub parts: [u32; 3],
}

impl Slot {
    /// A slot without a prefix, of one layer, initialised with zeros.
    pub const fn new(name: &'static str, role: Role, dtype: Dtype, shape: [u32; 4]) -> Slot {
        Slot { prefix: "", name, role, dtype, shape, layers: 1, init: Init::Zero, parts: [0; 3] }
    }

    /// The same slot, once for each of `layers` layers.
    pub const fn layers(self, layers: u32) -> Slot {
        Slot { layers, ..self }
    }

    /// Whether a layer's region is one row, whose parts are counted in elements.
    const fn is_vector(&self) -> bool {
        let [a, b, c, _] = self.shape;
        a == 1 && b == 1 && c == 1
    }

    /// Elements of a layer's region that belong to a tensor, without padded rows.
    pub const fn elements(&self) -> u64 {
        let ([a, b, c, columns], [p, q, r]) = (self.shape, self.parts);
        let parts = p as u64 + q as u64 + r as u64;
        match (parts, self.is_vector()) {
            (0, _) => a as u64 * b as u64 * c as u64 * columns as u64,
            (_, true) => parts,
            (_, false) => parts * columns as u64,
        }
    }

    /// Bytes of the elements that belong to a tensor.
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

/// A slot together with its place in memory.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The request.
    pub slot: Slot,
    /// The offset of its region.
    pub place: Stacked,
    /// Bytes of the elements, summed over the layers that have a region of their own.
    pub bytes: u64,
    /// Bytes added by alignment and padded rows, summed over the same layers.
    pub padding: u64,
    /// The part of the shared table that this region holds, if the region is a rank's share of one.
    pub window: Option<Window>,
    /// Whether these bytes also belong to another region, whose entry counts them.
    pub overlay: bool,
}

/// The part of a table in [`Space::Shared`] that a rank's share holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first byte of the first layer, and the byte after its last one.
    pub of: [u64; 2],
    /// Bytes from the first byte of a layer to that of the next layer.
    pub stride: u64,
    /// The number of layers in the window, at most the number that the region has room for.
    pub layers: u32,
}

/// The place of a part of a table that [`Ledger::table`] has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The space of the table.
    pub space: Space,
    /// The first byte of the first layer.
    pub offset: u64,
    /// Bytes from the first byte of a layer to that of the next layer; 0 where all layers use the same bytes.
    pub stride: u64,
    /// As [`Entry::overlay`].
    pub overlay: bool,
}

impl Entry {
    /// For a rank's share: the byte range in [`Space::Shared`] of each layer, and the region that holds it.
    pub fn windows(&self) -> impl Iterator<Item = ([u64; 2], Region)> + use<> {
        let place = self.place;
        let layer = move |window: Window| {
            (0..window.layers).map(move |l| (window.of.map(|byte| byte + u64::from(l) * window.stride), place.at(l)))
        };
        self.window.into_iter().flat_map(layer)
    }

    /// Every tensor that this entry becomes in files, with its region.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorName, Region)> + use<> {
        let Entry { mut slot, place, .. } = *self;
        // Blocks are not elements: a block may span the end of one tensor and the beginning of the next.
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

/// A tensor's name in files, formatted when it is displayed.
#[derive(Debug, Clone, Copy)]
pub struct TensorName {
    slot: Slot,
    layer: u32,
    part: usize,
}

impl TensorName {
    /// The layer that the tensor belongs to.
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

/// Lays regions one after the other. A model family describes its memory through this trait alone.
pub trait Ledger {
    /// Gives `slot` a place.
    fn region(&mut self, slot: Slot) -> Stacked;

    /// The offset of the next region.
    fn mark(&self) -> u64;

    /// Goes back to `mark`: regions laid from now on share bytes with those laid since that mark.
    fn rewind(&mut self, mark: u64);

    /// Reserves a table of `bytes` bytes, in the arena or in [`Space::Shared`], where it takes no bytes of this rank,
    /// and returns its first byte. [`Ledger::part`] then declares its parts one by one.
    fn table(&mut self, name: &'static str, space: Space, bytes: u64) -> u64;

    /// Declares `slot` at its place in a table. Its layers need not be adjacent.
    fn part(&mut self, slot: Slot, part: Part) -> Stacked;

    /// Gives `slot` a place: this rank's share of the part of a table in `window`. The slot may have room for more
    /// layers than the window has.
    fn window(&mut self, slot: Slot, window: Window) -> Region;

    /// The regions laid from byte `start` to byte `end` as one region, for operations over all of them. Both bounds are
    /// multiples of the grain.
    fn range(&mut self, name: &'static str, dtype: Dtype, start: u64, end: u64) -> Region;
}

/// Why regions cannot be laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutError {
    /// A region of more than 2³² − 1 rows.
    Rows(&'static str),
    /// With this region the total exceeds [`Layout::LIMIT`] bytes.
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

/// The ledger's arithmetic: places slots, tracks the high-water mark, shows each entry to a visitor.
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
    /// Every region begins at a multiple of this many bytes.
    pub const ALIGNMENT: u64 = 256;
    /// Every region is padded to a multiple of this many elements, so that a parameter's weight, gradient and
    /// moments lie at the same element offsets whatever their types, and one optimizer call covers a range.
    pub const GRAIN: u64 = 128;
    /// The limit on the bytes of all regions: half of the range of 64 bits, so that the sum of two totals fits.
    pub const LIMIT: u64 = i64::MAX as u64;

    /// A layout that begins at offset 0 and shows each entry to `visit`.
    pub fn new(visit: &'v mut dyn FnMut(&Entry)) -> Self {
        Self { visit, offset: 0, high: 0, image: None, shared: 0, refused: None }
    }

    /// A layout as [`Layout::new`] makes, except that weights, their scales and constant tables lie in a read-only
    /// image.
    pub fn with_image(visit: &'v mut dyn FnMut(&Entry)) -> Self {
        Self { image: Some(0), ..Self::new(visit) }
    }

    /// Bytes of the image: the offset at which its next region would lie.
    pub fn image_bytes(&self) -> u64 {
        self.image.unwrap_or(0)
    }

    /// The largest number of bytes in use at once: the size of the arena.
    ///
    /// # Errors
    /// The first region that could not be laid. That region got no bytes, and no region of this layout may be used.
    pub fn high_water(&self) -> Result<u64, LayoutError> {
        self.refused.map_or(Ok(self.high), Err)
    }

    /// Bytes of a layer's region with its padding, and the end of all layers when the first one begins at `start`.
    fn place(slot: &Slot, start: u64) -> Result<(u64, u64), LayoutError> {
        let [a, b, c, columns] = slot.shape;
        let rows = a.checked_mul(b).and_then(|rows| rows.checked_mul(c)).ok_or(LayoutError::Rows(slot.name))?;
        let padded = match slot.dtype {
            // No optimizer moves elements of this type, so only bytes are padded.
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

    /// Records why something cannot be laid, and returns an empty region.
    fn refuse(&mut self, error: LayoutError, dtype: Dtype) -> Region {
        self.refused.get_or_insert(error);
        Region { space: Space::Arena, dtype, offset: self.offset, shape: [0; 4] }
    }
}

impl Layout<'_> {
    /// Gives `slot` a place in `space`.
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
        // Includes the rest of the line on which the packed regions before this one end.
        let padding = padded * layers - bytes + (offset - behind);
        (self.visit)(&Entry { slot, place, bytes, padding, window, overlay: false });
        place
    }

    /// The offset of the next region in `space`.
    fn next(&self, space: Space) -> u64 {
        match space {
            Space::Arena => self.offset,
            Space::Image => self.image_bytes(),
            Space::Shared => self.shared,
        }
    }

    /// Sets the offset of the next region in `space` to `end`.
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
        // Three layers of two rows, one row for each of two parameters; then both parameters in one layer's place.
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
        // A slot of the same size, whose last layer stays empty.
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
