//! The same operation on the GPU and on the Reference, over the same numbers.

use capful_core::device::{Device as _, Meter, Op, Operation, OperationError, Rates, Reference};
use capful_core::fp8::Format;
use capful_core::memory::{Arena, Dtype, Region, Space};
use capful_core::random::Random;
use capful_core::remainder;
use capful_core::train::{Results, Settings};

use crate::device::cuda::{Cuda, CudaProfile, Precision, Products, Room, require};

/// Bytes of the arena for operands, and of the scratch behind them.
const OPERANDS: u64 = 8 << 20;
const SCRATCH: u64 = 33 << 20;
const ALL_SCRATCH: Region =
    Region { space: Space::Arena, dtype: Dtype::F32, offset: OPERANDS, shape: [1, 1, 1, (SCRATCH / 4) as u32] };

/// Settings that are all different, so that none can be taken for another.
pub const SETTINGS: Settings =
    Settings { learning_rate: 0.01, clip: 1.5, loss_scale: 0.125, factored: 0.1, corrections: CORRECTIONS };
const CORRECTIONS: [[f32; 2]; 5] = [[0.2, 0.1], [0.3, 0.15], [0.4, 0.25], [0.5, 0.35], [0.6, 0.45]];

/// Opens the first GPU, or the stand-in where there is no driver. Products are our own.
pub fn open(arena: u64, scratch: Region, staging: u64) -> Cuda {
    open_with(arena, scratch, staging, Products::Own)
}

/// As [`open`].
pub fn open_with(arena: u64, scratch: Region, staging: u64, products: Products) -> Cuda {
    capful_driver::load_or(Some(capful_kernels::STAND_IN)).expect("a driver or the stand-in");
    Cuda::open(0, Room { arena, scratch, staging }, products).expect("a GPU")
}

/// Runs a test's body on the stand-in, once for every environment, in a process of its own; `name` is the test's,
/// below `tests`.
pub fn apart(name: &str, environments: &[&[(&str, &str)]], body: impl FnOnce()) {
    const APART: &str = "CAPFUL_TEST_APART";
    if std::env::var_os(APART).is_some() {
        return body();
    }
    let name = format!("device::cuda::tests::{name}");
    for settings in environments {
        let output = std::process::Command::new(std::env::current_exe().expect("this test's binary"))
            .args(["--exact", "--nocapture", &name])
            .envs(settings.iter().copied())
            .env(capful_driver::VARIABLE, capful_kernels::STAND_IN)
            .env(APART, "1")
            .output()
            .expect("a second process");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{name} with {settings:?}: {text}");
    }
}

/// All cases; with `CAPFUL_TEST_SHARE=i/n` those whose number is i modulo n: under a sanitizer a test takes minutes.
pub fn share<T>(cases: Vec<T>) -> Vec<T> {
    let Ok(share) = std::env::var("CAPFUL_TEST_SHARE") else { return cases };
    let parts: Vec<usize> = share.split('/').map(|n| n.parse().expect("i/n")).collect();
    cases.into_iter().enumerate().filter(|(at, _)| at % parts[1] == parts[0]).map(|(_, case)| case).collect()
}

/// The most bytes of operands of a case that is run, as `CAPFUL_TEST_MOST` says: a sanitizer takes hours for a large one.
/// Then a case is also run only once.
fn most() -> Option<u64> {
    std::env::var("CAPFUL_TEST_MOST").ok().map(|bytes| bytes.parse().expect("a number of bytes"))
}

/// Allocations that the stand-in ever made, the GPU's and pinned ones.
pub fn allocations() -> u64 {
    counted(b"capful_stand_in_allocations\0")
}

/// Groups of the stand-in's NCCL that were aborted.
pub fn aborts() -> u64 {
    counted(b"capful_stand_in_aborts\0")
}

/// What a counter of the stand-in's says.
fn counted(name: &[u8]) -> u64 {
    // SAFETY: the library that is loaded already; its counters take nothing.
    unsafe {
        let library = libloading::Library::new(capful_kernels::STAND_IN).expect("the stand-in");
        let count: libloading::Symbol<unsafe extern "C" fn() -> u64> = library.get(name).expect("its counter");
        count()
    }
}

/// Values in a region's own type.
pub fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        Dtype::Remainder => values.iter().flat_map(|v| remainder::split(*v).1.to_le_bytes()).collect(),
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Dtype::U32 => values.iter().flat_map(|v| (*v as u32).to_le_bytes()).collect(),
        Dtype::E4m3 => values.iter().map(|v| Format::E4m3.encode(*v)).collect(),
        Dtype::E5m2 => values.iter().map(|v| Format::E5m2.encode(*v)).collect(),
        Dtype::F16 | Dtype::I8 | Dtype::I4 => unreachable!("no operand of a kernel"),
    }
}

/// The values of a region's bytes.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
        // In units: without the bf16 they are no numbers.
        Dtype::Remainder => bytes.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b).into()).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::U32 => bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b) as f32).collect(),
        Dtype::E4m3 => bytes.iter().map(|b| Format::E4m3.decode(*b)).collect(),
        Dtype::E5m2 => bytes.iter().map(|b| Format::E5m2.decode(*b)).collect(),
        Dtype::F16 | Dtype::I8 | Dtype::I4 => unreachable!("no operand of a kernel"),
    }
}

/// ‖found − expected‖ / ‖expected‖; infinite where one is a number and the other is not.
pub fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (a, b) in found.iter().zip(expected) {
        if a.is_nan() != b.is_nan() {
            return f64::INFINITY;
        }
        // Infinities are their own difference.
        if !a.is_nan() && a != b {
            difference += (f64::from(*a) - f64::from(*b)).powi(2);
        }
        norm += if b.is_finite() { f64::from(*b).powi(2) } else { 0.0 };
    }
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

/// The largest difference of an element, as a share of it or of the root mean square of all, whichever is larger.
fn farthest(found: &[f32], expected: &[f32]) -> f64 {
    let finite = || expected.iter().filter(|b| b.is_finite()).map(|b| f64::from(*b).powi(2));
    let mean = (finite().sum::<f64>() / finite().count().max(1) as f64).sqrt().max(1e-30);
    let off = |(a, b): (&f32, &f32)| match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false => (f64::from(*a) - f64::from(*b)).abs() / f64::from(*b).abs().max(mean),
    };
    found.iter().zip(expected).map(off).fold(0.0, f64::max)
}

/// How much farther than all of an operand, by their norm, one element may be off.
const ELEMENTS: f64 = 32.0;

struct Operand {
    region: Region,
    /// What is there before; in the Reference's bytes where it is ids.
    values: Vec<f32>,
    ids: Vec<u32>,
    /// Whether the operation says what is there afterwards.
    compared: bool,
}

/// Lays operands for one operation.
pub struct Lay {
    kept: Dtype,
    /// The type of parameters' gradients, and whether there are any.
    gradients: Dtype,
    has_gradients: bool,
    offset: u64,
    stream: u64,
    operands: Vec<Operand>,
}

impl Lay {
    /// Of this type where the precision decides.
    pub fn new(kept: Dtype) -> Lay {
        let (gradients, has_gradients) = (Dtype::F32, false);
        Lay { kept, gradients, has_gradients, offset: 0, stream: 0, operands: Vec::new() }
    }

    /// For the GPU in this precision, and for the Reference.
    fn both(precision: Precision) -> [Lay; 2] {
        [Lay::new(if precision == Precision::F32 { Dtype::F32 } else { Dtype::Bf16 }), Lay::new(Dtype::F32)]
    }

    fn region(&mut self, dtype: Dtype, shape: [u32; 4], values: Vec<f32>, ids: Vec<u32>, compared: bool) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.offset, shape };
        // A gap behind each, which nobody may touch.
        self.offset = (region.end() + 64).next_multiple_of(256);
        self.stream += 1;
        self.operands.push(Operand { region, values, ids, compared });
        region
    }

    fn drawn(&self, shape: [u32; 4], scale: f32) -> Vec<f32> {
        let random = Random::new(23, self.stream);
        (0..shape.iter().map(|n| u64::from(*n)).product()).map(|i| random.normal(i) * scale).collect()
    }

    /// Normal numbers in the precision's type.
    pub fn normal(&mut self, shape: [u32; 4], scale: f32) -> Region {
        let values = self.drawn(shape, scale);
        self.region(self.kept, shape, values, Vec::new(), true)
    }

    /// Normal numbers in the precision's type, of which the operation may leave anything.
    pub fn spent(&mut self, shape: [u32; 4], scale: f32) -> Region {
        let values = self.drawn(shape, scale);
        self.region(self.kept, shape, values, Vec::new(), false)
    }

    /// Normal numbers in f32.
    pub fn exact(&mut self, shape: [u32; 4], scale: f32) -> Region {
        let values = self.drawn(shape, scale);
        self.region(Dtype::F32, shape, values, Vec::new(), true)
    }

    /// The gradient of parameters: normal numbers that it is added to, or to be written.
    pub fn gradient(&mut self, shape: [u32; 4], there: bool) -> Region {
        self.has_gradients = true;
        let values = if there { self.drawn(shape, 1.0) } else { Self::nothing(shape) };
        self.region(self.gradients, shape, values, Vec::new(), true)
    }

    /// These numbers in f32.
    pub fn values(&mut self, shape: [u32; 4], values: Vec<f32>) -> Region {
        self.region(Dtype::F32, shape, values, Vec::new(), true)
    }

    /// These settings of a step.
    pub fn settings(&mut self, settings: Settings) -> Region {
        self.values([1, 1, 1, Settings::LEN as u32], <[f32; 14]>::from(settings).to_vec())
    }

    /// These results.
    pub fn results(&mut self, loss: f32, squared_norm: f32) -> Region {
        let results = Results { loss, squared_norm };
        self.values([1, 1, 1, Results::LEN as u32], <[f32; 2]>::from(results).to_vec())
    }

    /// These numbers in the precision's type.
    pub fn kept(&mut self, shape: [u32; 4], values: Vec<f32>) -> Region {
        self.region(self.kept, shape, values, Vec::new(), true)
    }

    /// What the bf16 of these numbers lack, where the precision's type is bf16. The Reference has none, so this comes last.
    pub fn remainders(&mut self, shape: [u32; 4], values: Vec<f32>) -> Option<Region> {
        let bf16 = self.kept == Dtype::Bf16;
        bf16.then(|| self.region(Dtype::Remainder, shape, values, Vec::new(), true))
    }

    fn nothing(shape: [u32; 4]) -> Vec<f32> {
        vec![f32::NAN; shape.iter().product::<u32>() as usize]
    }

    /// To be written, in the precision's type.
    pub fn poison(&mut self, shape: [u32; 4]) -> Region {
        self.region(self.kept, shape, Self::nothing(shape), Vec::new(), true)
    }

    /// To be written, in f32.
    pub fn poison_exact(&mut self, shape: [u32; 4]) -> Region {
        self.region(Dtype::F32, shape, Self::nothing(shape), Vec::new(), true)
    }

    /// What the operation may leave anything in, of this type or the precision's.
    pub fn left(&mut self, shape: [u32; 4], dtype: Option<Dtype>) -> Region {
        self.region(dtype.unwrap_or(self.kept), shape, Self::nothing(shape), Vec::new(), false)
    }

    /// Normal numbers times `scale` / 8, in 8 bits on the Reference too.
    pub fn codes(&mut self, dtype: Dtype, shape: [u32; 4], scale: f32) -> Region {
        let values = self.drawn(shape, scale / 8.0);
        self.region(dtype, shape, values, Vec::new(), true)
    }

    /// To be written, in 8 bits on the Reference too.
    pub fn poison_codes(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        self.region(dtype, shape, Self::nothing(shape), Vec::new(), true)
    }

    /// Token ids.
    pub fn ids(&mut self, ids: Vec<u32>) -> Region {
        self.region(Dtype::U32, [1, 1, 1, ids.len() as u32], Vec::new(), ids, true)
    }
}

/// A GPU for the operations of one test, opened once or twice.
pub struct Bench {
    gpus: Vec<Cuda>,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { gpus: vec![Bench::gpu(Products::Own)] }
    }

    /// Twice: products by our own kernels, and by the library where there is one.
    pub fn of_products() -> Bench {
        let mut gpus = vec![Bench::gpu(Products::Own), Bench::gpu(Products::Library)];
        gpus.retain(|gpu| gpu.warnings.is_empty());
        Bench { gpus }
    }

    /// With the library, where there is one and the GPU has 8-bit units.
    pub fn of_eighths() -> Option<Bench> {
        let gpu = Bench::gpu(Products::Library);
        let able = gpu.warnings.is_empty() && require(0, Precision::Fp8).is_ok();
        able.then(|| Bench { gpus: vec![gpu] })
    }

    /// Up to three times: bf16 attention by the kernels for every GPU, on tensor cores, and by warpgroups, where the
    /// GPU has them.
    pub fn of_attention() -> Bench {
        let mut gpus = [(); 3].map(|()| Bench::gpu(Products::Own));
        let kinds = 1 + usize::from(gpus[0].tensor_cores) + usize::from(gpus[0].warpgroups);
        (gpus[0].tensor_cores, gpus[0].warpgroups, gpus[1].warpgroups) = (false, false, false);
        Bench { gpus: gpus.into_iter().take(kinds).collect() }
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[Cuda] {
        &self.gpus
    }

    /// The GPUs, to be set differently.
    pub fn gpus_mut(&mut self) -> &mut [Cuda] {
        &mut self.gpus
    }

    fn gpu(products: Products) -> Cuda {
        open_with(OPERANDS + SCRATCH, ALL_SCRATCH, 0, products)
    }

    /// Runs the operation that `build` lays, in both precisions, on the GPU twice and on the Reference; in bf16 with
    /// parameters' gradients of both types. The distance of the norm of a whole operand is bounded, and 32 times as large
    /// a one of each element; what is [exact](Operation::EXACT) is the same.
    pub fn agree<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O) {
        self.agree_in(Precision::F32, 1e-5, &build);
        self.agree_in(Precision::Bf16, 1e-2, &build);
    }

    /// As [`Bench::agree`], for products in 8 bits. A GPU's units for those keep some 13 bits of a sum's largest term
    /// while they add (DeepSeek-AI 2024, "DeepSeek-V3", 3.5.2), so that the last of them is in doubt; the stand-in adds
    /// in f32.
    pub fn agree_in_eighths<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O) {
        let exact = self.gpus.iter().all(|gpu| gpu.gpu.contains("stand-in"));
        self.agree_in(Precision::F32, if exact { 1e-5 } else { 1.0 / 4096.0 }, &build);
        self.agree_in(Precision::Bf16, 1e-2, &build);
    }

    /// Leaves NaN in all scratch, so that it shows where an operation reads what it did not write.
    pub fn poison_scratch(&mut self) {
        for gpu in &mut self.gpus {
            gpu.write(ALL_SCRATCH, &vec![0xff; SCRATCH as usize]).expect("in the arena");
        }
    }

    /// The operands, in the order they were laid, as the operation leaves them on the first GPU.
    pub fn left<O: Operation>(&mut self, precision: Precision, build: &impl Fn(&mut Lay) -> O) -> Vec<Vec<f32>> {
        let [mut lay, _] = Lay::both(precision);
        let operation = build(&mut lay);
        let bytes = after(&mut self.gpus[0], &lay, |cuda| cuda.run(&operation.into()));
        let values = |r: Region| decode(r.dtype, &bytes[r.offset as usize..r.end() as usize]);
        lay.operands.iter().map(|o| values(o.region)).collect()
    }

    /// As [`Bench::agree`], in one precision.
    pub fn agree_in<O: Operation>(&mut self, precision: Precision, tolerance: f64, build: &impl Fn(&mut Lay) -> O) {
        self.agree_by(precision, tolerance, build, &|cuda, operation| cuda.run(&operation.into()));
    }

    /// The same of an operation that the GPU computes as `run` says.
    pub fn agree_by<O: Operation>(
        &mut self,
        precision: Precision,
        tolerance: f64,
        build: &impl Fn(&mut Lay) -> O,
        run: &dyn Fn(&mut Cuda, O) -> Result<(), OperationError>,
    ) {
        for gradients in [Dtype::F32, Dtype::Bf16] {
            let [mut ours, mut theirs] = Lay::both(precision);
            ours.gradients = gradients;
            let (operation, reference) = (build(&mut ours), build(&mut theirs));
            let ops = [[operation.into()], [reference.into()]];
            let run = |cuda: &mut Cuda| run(cuda, operation);
            let tolerance = if O::EXACT { 0.0 } else { tolerance };
            self.compare(precision, tolerance, O::NAME, [&ours, &theirs], [&ops[0], &ops[1]], &run);
            if precision == Precision::F32 || !ours.has_gradients {
                break;
            }
        }
    }

    /// The same of a program.
    pub fn agree_program(
        &mut self,
        precision: Precision,
        tolerance: f64,
        name: &str,
        build: &impl Fn(&mut Lay) -> Vec<Op>,
    ) {
        let [mut ours, mut theirs] = Lay::both(precision);
        let (program, reference) = (build(&mut ours), build(&mut theirs));
        let run = |cuda: &mut Cuda| cuda.run_program(&program);
        self.compare(precision, tolerance, name, [&ours, &theirs], [&program, &reference], &run);
    }

    fn compare(
        &mut self,
        precision: Precision,
        tolerance: f64,
        name: &str,
        [ours, theirs]: [&Lay; 2],
        [program, reference]: [&[Op]; 2],
        run: &dyn Fn(&mut Cuda) -> Result<(), OperationError>,
    ) {
        let most = most();
        if most.is_some_and(|most| ours.offset > most) {
            return;
        }
        let profile = CudaProfile::new(precision);
        let mut meter = Meter::new(&profile, Rates::ONE);
        program.iter().for_each(|op| meter.run(op).expect("shapes that belong together"));
        assert!(meter.scratch <= SCRATCH && ours.offset <= OPERANDS);

        let mut storage = vec![u64::MAX; (theirs.offset / 8) as usize];
        for (own, operand) in ours.operands.iter().zip(&theirs.operands) {
            let mut arena = Arena::new(&mut storage);
            let [mut view] = arena.views([Some(operand.region)]).expect("room");
            if operand.ids.is_empty() {
                let rounded = decode(own.region.dtype, &encode(own.region.dtype, &operand.values));
                view.bytes_mut().expect("of this type").copy_from_slice(&encode(operand.region.dtype, &rounded));
            } else {
                view.u32_mut().expect("of this type").copy_from_slice(&operand.ids);
            }
        }
        let mut device = Reference { arena: Arena::new(&mut storage) };
        reference.iter().for_each(|op| device.run(op).expect("the reference runs"));
        for cuda in &mut self.gpus {
            let found = after(cuda, ours, run);
            if most.is_none() {
                let again = after(cuda, ours, run);
                assert!(found == again, "{name}: other bits the second time");
            }
            ours.check(name, &found, theirs, bytemuck::cast_slice(&storage), tolerance);
        }
    }
}

impl Lay {
    /// Holds what the GPU left against what the Reference left, operand by operand.
    fn check(&self, name: &str, found: &[u8], theirs: &Lay, expected: &[u8], tolerance: f64) {
        let at = |region: Region| region.offset as usize..region.end() as usize;
        let mut gaps = found.to_vec();
        self.operands.iter().for_each(|o| gaps[at(o.region)].fill(0xff));
        assert!(gaps.iter().all(|b| *b == 0xff), "{name}: something beside the operands was written");
        for (i, (own, operand)) in self.operands.iter().zip(&theirs.operands).enumerate().filter(|(_, o)| o.0.compared)
        {
            let found = decode(own.region.dtype, &found[at(own.region)]);
            let expected = decode(operand.region.dtype, &expected[at(operand.region)]);
            let region = own.region;
            // What is exact is rounded once, as the GPU keeps it.
            let rounded = || decode(region.dtype, &encode(region.dtype, &expected));
            let expected = if tolerance == 0.0 { rounded() } else { expected };
            let (distance, farthest) = (distance(&found, &expected), farthest(&found, &expected));
            // Shown by `--nocapture`: the parity on this GPU.
            println!("parity {name} {} operand {i} {distance:.1e} {farthest:.1e}", self.kept.name());
            assert!(
                distance <= tolerance && farthest <= ELEMENTS * tolerance,
                "{name}: operand {i}, {region:?}, is off by {distance:e}, an element by {farthest:e}\nfound {:?}\nexpected {:?}",
                &found[..found.len().min(8)],
                &expected[..expected.len().min(8)],
            );
        }
    }
}

/// Everything there after `run`.
fn after(cuda: &mut Cuda, lay: &Lay, run: impl FnOnce(&mut Cuda) -> Result<(), OperationError>) -> Vec<u8> {
    let all = Region { space: Space::Arena, dtype: Dtype::U32, offset: 0, shape: [1, 1, 1, (lay.offset / 4) as u32] };
    let mut bytes = vec![0xff; lay.offset as usize];
    for operand in &lay.operands {
        let filled = match operand.ids.is_empty() {
            true => encode(operand.region.dtype, &operand.values),
            false => operand.ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        };
        bytes[operand.region.offset as usize..operand.region.end() as usize].copy_from_slice(&filled);
    }
    cuda.write(all, &bytes).expect("the GPU takes it");
    if run(cuda).is_err() {
        panic!("{:?}", cuda.take_failure());
    }
    cuda.read(all, &mut bytes).expect("the GPU gives it back");
    bytes
}

/// Runs what `record` queues: recorded at the first call with `key`, replayed at every call.
pub fn replay(
    cuda: &mut Cuda,
    key: u64,
    record: impl FnOnce(&mut Cuda) -> Result<(), capful_core::device::OperationError>,
) -> Result<(), crate::device::cuda::CudaError> {
    if !cuda.recorded(key) {
        cuda.begin_recording()?;
        let queued = record(cuda);
        cuda.end_recording(key, queued)?;
    }
    cuda.replay_recorded(key)
}
