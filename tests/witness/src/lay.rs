//! The operands of an operation, laid out in the same order for a device and for the Reference, and their contents
//! after the operation.

use std::ops::Range;

use capful_core::compressed::{BLOCK, BYTES, Code};
use capful_core::device::{Device as _, Op, Reference};
use capful_core::fp8::Format;
use capful_core::memory::{Arena, Dtype, Region, Space};
use capful_core::random::Random;
use capful_core::remainder;
use capful_core::train::{Results, Settings};

/// Encodes values in a region's own type.
pub fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::Remainder => values.iter().flat_map(|v| remainder::split(*v).1.to_le_bytes()).collect(),
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Dtype::U32 => values.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        Dtype::E4m3 => values.iter().map(|v| Format::E4m3.encode(*v)).collect(),
        Dtype::E5m2 => values.iter().map(|v| Format::E5m2.encode(*v)).collect(),
        Dtype::Remainder8 => values.iter().map(|v| remainder::split8(*v).1 as u8).collect(),
        Dtype::Moment8 | Dtype::Square8 => {
            let code = dtype.code().expect("a code");
            let mut values = values.to_vec();
            values.resize(values.len().next_multiple_of(BLOCK), 0.0);
            let mut blocks = vec![[0; BYTES]; values.len() / BLOCK];
            values.as_chunks().0.iter().zip(&mut blocks).for_each(|(numbers, block)| code.pack(numbers, block));
            blocks.concat()
        }
        Dtype::F16 | Dtype::I8 | Dtype::I4 => unreachable!("laid as bytes"),
    }
}

/// Decodes a region's bytes to values.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
        // In units of the last place: without the bf16 they are no numbers.
        Dtype::Remainder => bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b).into()).collect(),
        Dtype::Remainder8 => bytes.iter().map(|b| f32::from(*b as i8)).collect(),
        Dtype::Moment8 | Dtype::Square8 => {
            let code = dtype.code().expect("a code");
            let mut numbers = vec![[0.0; BLOCK]; bytes.len() / BYTES];
            bytes.as_chunks().0.iter().zip(&mut numbers).for_each(|(block, numbers)| code.unpack(block, numbers));
            numbers.concat()
        }
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::U32 => bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b) as f32).collect(),
        Dtype::E4m3 => bytes.iter().map(|b| Format::E4m3.decode(*b)).collect(),
        Dtype::E5m2 => bytes.iter().map(|b| Format::E5m2.decode(*b)).collect(),
        // Weights in integers, which are only read.
        Dtype::F16 | Dtype::I8 | Dtype::I4 => bytes.iter().map(|b| f32::from(*b)).collect(),
    }
}

/// ‖found − expected‖ / ‖expected‖; infinite where one value is a number and the other is not.
pub fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (a, b) in found.iter().zip(expected) {
        if a.is_nan() != b.is_nan() {
            return f64::INFINITY;
        }
        // Equal infinities have no difference.
        if !a.is_nan() && a != b {
            difference += (f64::from(*a) - f64::from(*b)).powi(2);
        }
        norm += if b.is_finite() { f64::from(*b).powi(2) } else { 0.0 };
    }
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// The largest difference of an element, relative to the element or to the root mean square of all elements, whichever
/// is larger.
fn farthest(found: &[f32], expected: &[f32]) -> f64 {
    let finite = || expected.iter().filter(|b| b.is_finite()).map(|b| f64::from(*b).powi(2));
    let mean = (finite().sum::<f64>() / finite().count().max(1) as f64).sqrt().max(1e-30);
    let off = |(a, b): (&f32, &f32)| match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false => (f64::from(*a) - f64::from(*b)).abs() / f64::from(*b).abs().max(mean),
    };
    found.iter().zip(expected).map(off).fold(0.0, f64::max)
}

/// How many times as large an error a single element may have as the whole operand has by its norm.
const ELEMENTS: f64 = 32.0;

/// The range of a region's bytes.
pub fn at(region: Region) -> Range<usize> {
    region.offset as usize..region.end() as usize
}

struct Operand {
    region: Region,
    /// The content before the operation.
    bytes: Vec<u8>,
    /// Whether the operation defines the content afterwards.
    compared: bool,
}

/// Lays out operands for one operation.
pub struct Lay {
    kept: Dtype,
    /// The type of parameters' gradients.
    pub gradients: Dtype,
    /// Whether there are gradients of parameters.
    pub has_gradients: bool,
    /// Where the next operand begins.
    pub offset: u64,
    operands: Vec<Operand>,
}

impl Lay {
    /// With operands of this type where the precision determines the type.
    pub fn new(kept: Dtype) -> Lay {
        Lay { kept, gradients: Dtype::F32, has_gradients: false, offset: 0, operands: Vec::new() }
    }

    fn operand(&mut self, dtype: Dtype, shape: [u32; 4], bytes: Option<Vec<u8>>, compared: bool) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.offset, shape };
        // All bits set are a NaN.
        let bytes = bytes.unwrap_or_else(|| vec![0xff; region.bytes() as usize]);
        // A gap after each operand, which no operation may touch.
        self.offset = (region.end() + 64).next_multiple_of(256);
        self.operands.push(Operand { region, bytes, compared });
        region
    }

    fn numbers(&mut self, dtype: Dtype, shape: [u32; 4], values: &[f32]) -> Region {
        self.operand(dtype, shape, Some(encode(dtype, values)), true)
    }

    fn drawn(&self, shape: [u32; 4], scale: f32) -> Vec<f32> {
        let random = Random::new(23, self.operands.len() as u64);
        (0..shape.iter().map(|n| u64::from(*n)).product()).map(|i| random.normal(i) * scale).collect()
    }

    /// Normal numbers in the precision's type.
    pub fn normal(&mut self, shape: [u32; 4], scale: f32) -> Region {
        self.kept(shape, self.drawn(shape, scale))
    }

    /// Normal numbers in the precision's type; the operation may leave any content.
    pub fn spent(&mut self, shape: [u32; 4], scale: f32) -> Region {
        self.operand(self.kept, shape, Some(encode(self.kept, &self.drawn(shape, scale))), false)
    }

    /// Normal numbers in f32.
    pub fn exact(&mut self, shape: [u32; 4], scale: f32) -> Region {
        self.values(shape, self.drawn(shape, scale))
    }

    /// The gradient of parameters: normal numbers to add to, if `there`, or a region to be written.
    pub fn gradient(&mut self, shape: [u32; 4], there: bool) -> Region {
        self.has_gradients = true;
        let values = there.then(|| encode(self.gradients, &self.drawn(shape, 1.0)));
        self.operand(self.gradients, shape, values, true)
    }

    /// These numbers in f32.
    pub fn values(&mut self, shape: [u32; 4], values: Vec<f32>) -> Region {
        self.numbers(Dtype::F32, shape, &values)
    }

    /// The settings of a step.
    pub fn settings(&mut self, settings: Settings) -> Region {
        self.values([1, 1, 1, Settings::LEN as u32], <[f32; 16]>::from(settings).to_vec())
    }

    /// The results of a step.
    pub fn results(&mut self, loss: f32, squared_norm: f32) -> Region {
        let results = Results { loss, squared_norm };
        self.values([1, 1, 1, Results::LEN as u32], <[f32; 2]>::from(results).to_vec())
    }

    /// These numbers in the precision's type.
    pub fn kept(&mut self, shape: [u32; 4], values: Vec<f32>) -> Region {
        self.numbers(self.kept, shape, &values)
    }

    /// The remainders of these numbers as bf16, where the precision's type is bf16. The Reference has no remainders, so
    /// this operand comes last.
    pub fn remainders(&mut self, shape: [u32; 4], values: &[f32]) -> Option<Region> {
        (self.kept == Dtype::Bf16).then(|| self.numbers(Dtype::Remainder, shape, values))
    }

    /// The upper 8 bits of such remainders.
    pub fn remainders8(&mut self, shape: [u32; 4], values: &[f32]) -> Option<Region> {
        (self.kept == Dtype::Bf16).then(|| self.numbers(Dtype::Remainder8, shape, values))
    }

    /// Normal numbers or their squares in blocks of 8 bits, for the Reference too.
    pub fn coded(&mut self, code: Code, shape: [u32; 4], scale: f32) -> Region {
        let mut values = self.drawn(shape, scale);
        if code == Code::Square {
            values.iter_mut().for_each(|x| *x *= *x);
        }
        let dtype = if code == Code::Square { Dtype::Square8 } else { Dtype::Moment8 };
        self.numbers(dtype, shape, &values)
    }

    /// An output in the precision's type.
    pub fn poison(&mut self, shape: [u32; 4]) -> Region {
        self.poison_of(self.kept, shape)
    }

    /// An output in f32.
    pub fn poison_exact(&mut self, shape: [u32; 4]) -> Region {
        self.poison_of(Dtype::F32, shape)
    }

    /// An output in this type, for the Reference too.
    pub fn poison_of(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        self.operand(dtype, shape, None, true)
    }

    /// A region of this type or the precision's type, where the operation may leave any content.
    pub fn left(&mut self, shape: [u32; 4], dtype: Option<Dtype>) -> Region {
        self.operand(dtype.unwrap_or(self.kept), shape, None, false)
    }

    /// Normal numbers times `scale` / 8, in 8 bits, for the Reference too.
    pub fn codes(&mut self, dtype: Dtype, shape: [u32; 4], scale: f32) -> Region {
        self.numbers(dtype, shape, &self.drawn(shape, scale / 8.0))
    }

    /// Token ids.
    pub fn ids(&mut self, ids: Vec<u32>) -> Region {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.bytes(Dtype::U32, [1, 1, 1, ids.len() as u32], bytes)
    }

    /// These bytes.
    pub fn bytes(&mut self, dtype: Dtype, shape: [u32; 4], bytes: Vec<u8>) -> Region {
        self.operand(dtype, shape, Some(bytes), true)
    }

    /// The operands, in their order.
    pub fn regions(&self) -> impl Iterator<Item = Region> {
        self.operands.iter().map(|o| o.region)
    }

    /// The whole arena before the operation: the same numbers in the types of `own`.
    pub fn before(&self, own: &Lay) -> Vec<u64> {
        let mut words = vec![u64::MAX; (self.offset / 8) as usize];
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for (Operand { region, .. }, own) in self.operands.iter().zip(&own.operands) {
            let to = &mut all[at(*region)];
            match own.region.dtype == region.dtype {
                true => to.copy_from_slice(&own.bytes),
                false => to.copy_from_slice(&encode(region.dtype, &decode(own.region.dtype, &own.bytes))),
            }
        }
        words
    }

    /// The whole arena after `ops` on the Reference.
    pub fn after(&self, own: &Lay, ops: &[Op]) -> Vec<u64> {
        let mut words = self.before(own);
        let mut reference = Reference { arena: Arena::new(&mut words) };
        ops.iter().for_each(|op| reference.run(op).expect("the reference runs"));
        words
    }

    /// Runs `op` on the Reference and stores the result in the operands.
    pub fn run(&mut self, op: impl Into<Op>) {
        let after = self.after(self, &[op.into()]);
        self.operands.iter_mut().for_each(|o| o.bytes = bytemuck::cast_slice(&after)[at(o.region)].to_vec());
    }

    /// Compares the results of a device with those of the Reference, operand by operand.
    pub fn check(&self, name: &str, found: &[u8], theirs: &Lay, expected: &[u8], tolerance: f64) {
        let mut gaps = found.to_vec();
        self.regions().for_each(|region| gaps[at(region)].fill(0xff));
        assert!(gaps.iter().all(|b| *b == 0xff), "{name}: something beside the operands was written");
        for (i, (own, operand)) in self.operands.iter().zip(&theirs.operands).enumerate().filter(|(_, o)| o.0.compared)
        {
            let region = own.region;
            let found = decode(region.dtype, &found[at(region)]);
            let expected = decode(operand.region.dtype, &expected[at(operand.region)]);
            // An exact result is rounded once, to the device's type.
            let rounded = || decode(region.dtype, &encode(region.dtype, &expected));
            let exact = tolerance == 0.0 && region.dtype != operand.region.dtype;
            let expected = if exact { rounded() } else { expected };
            let (distance, farthest) = (distance(&found, &expected), farthest(&found, &expected));
            // A number between two codes may round to either of them; this concerns few numbers.
            let tolerance = if region.dtype.is_coded() { tolerance.max(1e-3) } else { tolerance };
            // Visible with `--nocapture`: the agreement of this device.
            println!("parity {name} {} operand {i} {distance:.1e} {farthest:.1e}", self.kept.name());
            assert!(
                distance <= tolerance && farthest <= ELEMENTS * tolerance,
                "{name}: operand {i}, {region:?}, is off by {distance:e}, an element by {farthest:e}\nfound {:?}\nexpected {:?}",
                &found[..found.len().min(8)],
                &expected[..expected.len().min(8)],
            );
        }
    }

    /// Whether both are equal, except for operands where the operation may leave any content.
    pub fn same(&self, found: &[u8], expected: &[u8]) -> bool {
        let mut all = found.to_vec();
        self.operands
            .iter()
            .filter(|o| !o.compared)
            .for_each(|o| all[at(o.region)].copy_from_slice(&expected[at(o.region)]));
        all == expected
    }
}
