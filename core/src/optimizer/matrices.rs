//! Updates of whole matrices: the matrices of each parameter, the scratch in which they are orthogonalised, and the
//! operations that update them. Matrices of one shape are orthogonalised together, as many as there is room for. Rules
//! other than Muon update each layer's matrix by itself ([`each`]).

use core::num::NonZeroU32;

use super::learning::RANGES;
use super::{Group, Muon, Optimizer, Rule};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Layout, Ledger, Region, Role, Slot, Space, Stacked};
use crate::model::{Control, Parameter, Parameters};
use crate::ops::{BlendMomentum, Cut, MatrixMomentum, MatrixMove, Orthogonalise, RowFactors};

/// The largest number of elements of all four regions of a [`Room`] together, unless the matrices that one parameter
/// has in a layer need more: enough matrices to occupy a GPU, and small next to activations.
const MOST: u64 = 32 << 20;
/// The error of an update without scratch.
const NO_ROOM: OperationError = OperationError::Unsupported("no room was laid for an update of whole matrices");
/// The error of an update of too many matrices.
const TOO_MANY: OperationError = OperationError::Unsupported("a model has more matrices than an update takes apart");

#[cfg(feature = "compressed")]
mod each;

/// The matrices of a parameter: rows and columns of a layer's tensor, and how it is split into matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrices {
    /// Never 0, so that an `Option` of this takes no extra space.
    layers: NonZeroU32,
    shape: [u32; 2],
    /// Rows of the first two parts; the third part has the remaining rows.
    parts: [u32; 2],
    turns: u32,
}

impl Matrices {
    pub(super) const fn of(p: &Parameter) -> Matrices {
        let layers = match NonZeroU32::new(p.layers) {
            Some(layers) => layers,
            None => NonZeroU32::MIN,
        };
        Matrices { layers, shape: p.shape, parts: [p.parts[0], p.parts[1]], turns: p.turns }
    }

    /// The matrices of `layers` of its layers; `None` for no layers.
    pub(super) fn of_layers(self, layers: u32) -> Option<Matrices> {
        Some(Matrices { layers: NonZeroU32::new(layers)?, ..self })
    }

    /// Rows and columns of one layer's tensor.
    pub(super) const fn shape(&self) -> [u32; 2] {
        self.shape
    }

    /// The number of layers.
    pub(super) const fn layers(&self) -> u32 {
        self.layers.get()
    }

    /// A cut of one part that covers the whole tensor.
    fn whole(&self) -> Cut {
        let [rows, columns] = self.shape;
        let layer = (u64::from(rows) * u64::from(columns)).next_multiple_of(Layout::GRAIN);
        let layers = self.layers.get();
        Cut { layers, layer, parts: 1, rows, columns, first: 0, step: rows, run: rows, period: rows }
    }

    /// The cuts that together cover the whole tensor: adjacent parts of one shape are one cut.
    fn cuts(&self) -> impl Iterator<Item = Cut> + use<> {
        let ([rows, _], parts, turns, whole) = (self.shape, self.parts, self.turns, self.whole());
        let one = match (turns, parts) {
            (0, [0, 0]) => Some(whole),
            (0, _) => None,
            (run, _) => Some(Cut { parts: 3, rows: rows / 3, step: run, run, period: 3 * run, ..whole }),
        };
        let [a, b] = parts;
        let parts = if one.is_some() { [0; 3] } else { [a, b, rows.saturating_sub(a.saturating_add(b))] };
        let mut first = 0;
        let below = (0..3usize).filter_map(move |i| {
            let rows = parts[i];
            let start = first;
            first += rows;
            // The first of several equal parts stands for all of them.
            if rows == 0 || i > 0 && parts[i - 1] == rows {
                return None;
            }
            let alike = parts[i..].iter().take_while(|other| **other == rows).count() as u32;
            Some(Cut { parts: alike, rows, first: start, step: rows, run: rows, period: rows, ..whole })
        });
        one.into_iter().chain(below)
    }

    /// The cut of the numbers that a table has for each row of `cut`.
    fn of_rows(&self, cut: &Cut) -> Cut {
        Cut { layer: u64::from(self.shape[0]).next_multiple_of(Layout::GRAIN), columns: 1, ..*cut }
    }
}

/// A table of a parameter's matrices: its first byte, and the distance between its layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stack {
    pub(super) dtype: Dtype,
    pub(super) first: u64,
    /// Bytes from one layer to the next; `None` where the layers are contiguous.
    pub(super) stride: Option<u64>,
}

/// The tables of a parameter's matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MatrixTables {
    pub(super) group: Group,
    pub(super) matrices: Matrices,
    pub(super) weight: Stack,
    pub(super) remainder: Option<Stack>,
    pub(super) gradient: Stack,
    pub(super) momentum: Stack,
    /// The rule's numbers for each row, or for each row and column.
    pub(super) squares: Stack,
}

impl MatrixTables {
    /// The largest number of layers that one operation can update: all of them where they are contiguous in every
    /// table.
    fn together(&self) -> u32 {
        let apart = [self.weight, self.gradient, self.momentum].iter().any(|stack| stack.stride.is_some());
        if apart { 1 } else { u32::MAX }
    }
}

/// Scratch in which matrices are orthogonalised. It may share bytes with everything that a micro-batch needs. Row
/// factors reuse the region of x, which is free by then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    x: Region,
    out: Region,
    gram: Region,
    polynomial: Region,
}

/// The number of matrices of this shape to update at a time, given the number of all such matrices, `all`, and the
/// largest number that one parameter has in a layer.
fn at_once([m, n]: [u32; 2], [all, of_layer]: [u32; 2]) -> u32 {
    let each = 2 * u64::from(m) * (u64::from(m) + u64::from(n));
    (MOST / each.max(1)).clamp(of_layer.into(), all.max(of_layer).into()) as u32
}

/// The number of matrices of `shape` in `cuts`, and the largest number that one parameter has in a layer.
fn counted(shape: [u32; 2], cuts: impl Iterator<Item = Cut>) -> [u32; 2] {
    let alike = cuts.filter(|cut| cut.wide() == shape);
    alike.fold([0; 2], |[all, of_layer], cut| [all.saturating_add(cut.count()), of_layer.max(cut.parts)])
}

impl Room {
    /// Lays the scratch that `optimizer` needs for the matrices of `model`; `None` where it updates no whole matrices.
    pub fn lay<M: Parameters + ?Sized>(
        model: &M,
        optimizer: &Optimizer,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Option<Room> {
        let (mut found, mut by_rows) = (heapless::Vec::<Matrices, RANGES>::new(), false);
        model.parameters(&mut |p| {
            if optimizer.moves_whole(p) && orthogonalises(optimizer, p.group) {
                by_rows |= matches!(optimizer.of(p.group).rule, Rule::Muon(Muon { row_norm: true, .. }));
                let all = Matrices::of(p);
                // Where gradients are released, each layer's matrices are updated separately.
                let layer = if optimizer.releases() && p.is_layered() { all.of_layers(1) } else { None };
                // Too many matrices are refused when they are updated.
                let _ = found.push(layer.unwrap_or(all));
            }
            Stacked::NOTHING
        });
        if found.is_empty() {
            return None;
        }
        let cuts = || found.iter().flat_map(Matrices::cuts);
        let dtype = profile.dtype(Role::Work);
        // Factors are f32, and a matrix has at most as many as its longer dimension.
        let least = if by_rows { Dtype::F32.size().div_ceil(dtype.size()) } else { 0 };
        let [mut matrices, mut squares] = [0u64; 2];
        for shape in cuts().map(|cut| cut.wide()) {
            let [count, m, n] = [at_once(shape, counted(shape, cuts())), shape[0], shape[1]].map(u64::from);
            matrices = matrices.max(count.saturating_mul(m.max(least)).saturating_mul(n));
            squares = squares.max(count.saturating_mul(m).saturating_mul(m));
        }
        let mut lay = |name, elements: u64| {
            let rows = elements.div_ceil(Layout::GRAIN).min(u32::MAX.into()) as u32;
            ledger.region(Slot::new(name, Role::Work, dtype, [1, 1, rows, Layout::GRAIN as u32])).first
        };
        Some(Room {
            x: lay("update.matrices", matrices),
            out: lay("update.orthogonal", matrices),
            gram: lay("update.gram", squares),
            polynomial: lay("update.polynomial", squares),
        })
    }

    /// The part of a scratch region for `count` matrices of [rows, columns], after `before` other matrices of that
    /// shape.
    const fn part(region: Region, before: u32, [count, rows, columns]: [u32; 3]) -> Region {
        let elements = before as u64 * rows as u64 * columns as u64;
        Region { offset: region.offset + elements * region.dtype.size(), shape: [1, count, rows, columns], ..region }
    }
}

/// Matrices in the scratch: their place, their layers, and the number of matrices before them.
#[derive(Clone, Copy)]
struct Piece {
    place: usize,
    cut: Cut,
    layer: u32,
    before: u32,
}

/// Whether the rule of `group` orthogonalises its matrices.
const fn orthogonalises(optimizer: &Optimizer, group: Group) -> bool {
    matches!(optimizer.of(group).rule, Rule::Muon(_))
}

/// An update of whole matrices and its operands.
struct Mover<'a> {
    control: &'a Control,
    optimizer: &'a Optimizer,
    places: &'a [MatrixTables],
    room: &'a Room,
}

/// Updates all of `places`.
///
/// # Errors
/// An error of the device; missing scratch.
#[inline(never)]
pub(super) fn update(
    device: &mut dyn Device,
    control: &Control,
    optimizer: &Optimizer,
    places: &[MatrixTables],
    room: Option<&Room>,
) -> Result<(), OperationError> {
    if places.is_empty() {
        return Ok(());
    }
    #[cfg(feature = "compressed")]
    each::update(device, control, optimizer, places)?;
    if !places.iter().any(|place| orthogonalises(optimizer, place.group)) {
        return Ok(());
    }
    let mover = Mover { control, optimizer, places, room: room.ok_or(NO_ROOM)? };
    mover.blend_coded(device)?;
    let shapes = || mover.cuts().map(|(_, cut)| cut.wide());
    let mut all = shapes().enumerate();
    all.try_for_each(|(i, shape)| match shapes().take(i).any(|before| before == shape) {
        true => Ok(()),
        false => mover.of_shape(device, shape),
    })
}

impl Mover<'_> {
    /// The places whose matrices are orthogonalised, with their indices.
    fn places(&self) -> impl Iterator<Item = (usize, &MatrixTables)> {
        self.places.iter().enumerate().filter(|(_, place)| orthogonalises(self.optimizer, place.group))
    }

    fn cuts(&self) -> impl Iterator<Item = (usize, Cut)> {
        self.places().flat_map(|(i, place)| place.matrices.cuts().map(move |cut| (i, cut)))
    }

    /// Updates all momentum in blocks of 8 bits, which span the rows of a cut, and replaces each gradient with the
    /// blend.
    fn blend_coded(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        let Control { settings, results, .. } = *self.control;
        for (number, place) in self.places().filter(|(_, place)| place.momentum.dtype != Dtype::F32) {
            let (all, most) = (place.matrices.layers(), place.together());
            for layer in (0..all).step_by(most.min(all) as usize) {
                let cut = Cut { layers: most.min(all), ..place.matrices.whole() };
                let piece = Piece { place: number, cut, layer, before: 0 };
                let [gradient, momentum] = [place.gradient, place.momentum].map(|stack| Self::rows(&piece, stack));
                device.emit(BlendMomentum { gradient, momentum, settings, results, group: place.group })?;
            }
        }
        Ok(())
    }

    /// Updates all matrices of one shape, as many at a time as there is room for.
    fn of_shape(&self, device: &mut dyn Device, shape: [u32; 2]) -> Result<(), OperationError> {
        let most = at_once(shape, counted(shape, self.cuts().map(|(_, cut)| cut)));
        let mut pieces: heapless::Vec<Piece, { 3 * RANGES }> = heapless::Vec::new();
        let mut filled = 0;
        for (place, cut) in self.cuts().filter(|(_, cut)| cut.wide() == shape) {
            let mut layer = 0;
            while layer < cut.layers {
                let layers = (most - filled) / cut.parts;
                let layers = layers.min(cut.layers - layer).min(self.places[place].together());
                if layers == 0 || pieces.is_full() {
                    self.finish(device, shape, &pieces, filled)?;
                    pieces.clear();
                    filled = 0;
                    continue;
                }
                let piece = Piece { place, cut: Cut { layers, ..cut }, layer, before: filled };
                self.blend(device, shape, &piece)?;
                pieces.push(piece).map_err(|_| TOO_MANY)?;
                filled += piece.cut.count();
                layer += layers;
            }
        }
        self.finish(device, shape, &pieces, filled)
    }

    /// The rows of a piece in `stack`.
    const fn rows(piece: &Piece, Stack { dtype, first, stride }: Stack) -> Region {
        let stride = match stride {
            Some(stride) => stride,
            None => piece.cut.layer / Layout::GRAIN * dtype.row_bytes(Layout::GRAIN as u32),
        };
        let offset = first + piece.layer as u64 * stride;
        let rows = (piece.cut.elements() / Layout::GRAIN) as u32;
        Region { space: Space::Arena, dtype, offset, shape: [1, 1, rows, Layout::GRAIN as u32] }
    }

    /// Updates the momentum of a piece, and gathers the blend to be orthogonalised in the scratch.
    fn blend(&self, device: &mut dyn Device, [m, n]: [u32; 2], piece: &Piece) -> Result<(), OperationError> {
        let Piece { place, cut, before, .. } = *piece;
        let MatrixTables { group, gradient, momentum, .. } = self.places[place];
        let Control { settings, results, .. } = *self.control;
        let out = Room::part(self.room.x, before, [cut.count(), m, n]);
        let [gradient, momentum] = [gradient, momentum].map(|stack| Self::rows(piece, stack));
        let momentum = Some(momentum).filter(|momentum| momentum.dtype == Dtype::F32);
        device.emit(MatrixMomentum { gradient, momentum, out, settings, results, group, cut })
    }

    /// Orthogonalises `count` matrices, and updates the weights of `pieces` with the results.
    fn finish(
        &self,
        device: &mut dyn Device,
        [m, n]: [u32; 2],
        pieces: &[Piece],
        count: u32,
    ) -> Result<(), OperationError> {
        if count == 0 {
            return Ok(());
        }
        let [x, out] = [self.room.x, self.room.out].map(|region| Room::part(region, 0, [count, m, n]));
        let [gram, polynomial] = [self.room.gram, self.room.polynomial].map(|r| Room::part(r, 0, [count, m, m]));
        device.emit(Orthogonalise { x, out, gram, polynomial })?;
        let Control { settings, results, .. } = *self.control;
        pieces.iter().try_for_each(|piece| {
            let Piece { place, cut, before, .. } = *piece;
            let MatrixTables { group, matrices, weight, remainder, squares, .. } = self.places[place];
            let recipe = self.optimizer.of(group);
            let Rule::Muon(muon) = recipe.rule else { return Ok(()) };
            let (x, count) = (Room::part(self.room.out, before, [cut.count(), m, n]), cut.count());
            // The pieces use this region in turn.
            let room = Region { dtype: Dtype::F32, shape: [1, 1, count, cut.rows], ..self.room.x };
            let factors = muon.row_norm.then_some(room);
            if let Some(factors) = factors {
                let cut = matrices.of_rows(&cut);
                let squares = Self::rows(&Piece { cut, ..*piece }, squares);
                device.emit(RowFactors { x, squares, factors, results, cut })?;
            }
            device.emit(MatrixMove {
                weight: Self::rows(piece, weight),
                remainder: remainder.map(|stack| Self::rows(piece, stack)),
                x,
                factors,
                settings,
                results,
                group,
                cut,
                rate: recipe.rate,
                decay: recipe.decay,
                cautious: muon.cautious,
            })
        })
    }
}
