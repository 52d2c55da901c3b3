//! Compares an operation on the GPU with the Reference, on the same numbers.

use capful_core::device::{Device as _, Meter, Op, Operation, OperationError, Rates};
use capful_core::memory::{Dtype, Region, Space};

use crate::{Cuda, CudaProfile, Precision, Products, Room, require};
use capful_witness::lay::decode;
use capful_witness::{Lay, Witness};

/// Bytes of the arena for operands, and of the scratch after them.
const OPERANDS: u64 = 8 << 20;
const SCRATCH: u64 = 33 << 20;
const ALL_SCRATCH: Region =
    Region { space: Space::Arena, dtype: Dtype::F32, offset: OPERANDS, shape: [1, 1, 1, (SCRATCH / 4) as u32] };

/// Opens the first GPU, or the stand-in where there is no driver, with this program's own matrix multiplication.
pub fn open(arena: u64, scratch: Region, staging: u64) -> Cuda {
    open_with(arena, scratch, staging, Products::Own)
}

/// As [`open`], with a choice of matrix multiplication.
pub fn open_with(arena: u64, scratch: Region, staging: u64, products: Products) -> Cuda {
    capful_driver::load_or(Some(capful_kernels::STAND_IN)).expect("a driver or the stand-in");
    Cuda::open(0, Room { arena, scratch, staging }, products).expect("a GPU")
}

/// Runs a test's body on the stand-in, once for each environment, each time in a process of its own; `name` is the
/// test's path below `tests`.
pub fn apart(name: &str, environments: &[&[(&str, &str)]], body: impl FnOnce()) {
    const APART: &str = "CAPFUL_TEST_APART";
    if std::env::var_os(APART).is_some() {
        return body();
    }
    let name = format!("tests::{name}");
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

/// All cases; with `CAPFUL_TEST_SHARE=i/n` only those with a number of i modulo n: under a sanitizer a test takes
/// minutes.
pub fn share<T>(cases: Vec<T>) -> Vec<T> {
    cases.into_iter().enumerate().filter(|(at, _)| shared(*at)).map(|(_, case)| case).collect()
}

/// Whether the case of this number is in the share.
fn shared(number: usize) -> bool {
    let Ok(share) = std::env::var("CAPFUL_TEST_SHARE") else { return true };
    let parts: Vec<usize> = share.split('/').map(|n| n.parse().expect("i/n")).collect();
    number % parts[1] == parts[0]
}

/// The most bytes of operands of a case that is run, from `CAPFUL_TEST_MOST`: a sanitizer takes hours for a large case.
/// With this limit a case is also run only once.
fn most() -> Option<u64> {
    std::env::var("CAPFUL_TEST_MOST").ok().map(|bytes| bytes.parse().expect("a number of bytes"))
}

/// Number of allocations that the stand-in ever made, on the GPU and pinned.
pub fn allocations() -> u64 {
    counted(b"capful_stand_in_allocations\0")
}

/// Number of groups that were aborted in the stand-in's NCCL.
pub fn aborts() -> u64 {
    counted(b"capful_stand_in_aborts\0")
}

/// The value of a counter of the stand-in.
fn counted(name: &[u8]) -> u64 {
    // SAFETY: the library that is already loaded; its counters take no arguments.
    unsafe {
        let library = libloading::Library::new(capful_kernels::STAND_IN).expect("the stand-in");
        let count: libloading::Symbol<unsafe extern "C" fn() -> u64> = library.get(name).expect("its counter");
        count()
    }
}

/// A GPU for the operations of one test, opened once or twice.
pub struct Bench {
    gpus: Vec<Cuda>,
    /// Number of cases so far.
    cases: usize,
}

/// Runs both precisions on each of the GPUs; in bf16 an operand may differ by at most 1e-2 of its norm.
impl Witness for Bench {
    fn case<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O) {
        self.cases += 1;
        if shared(self.cases - 1) {
            self.agree(build);
        }
    }

    fn by_all_products(&mut self) {
        self.gpus = Bench::of_products().gpus;
    }

    fn by_all_attention(&mut self) {
        self.gpus = Bench::of_attention().gpus;
    }
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(vec![Bench::gpu(Products::Own)])
    }

    fn with(gpus: Vec<Cuda>) -> Bench {
        Bench { gpus, cases: 0 }
    }

    /// Two devices: matrix multiplication by this program's own kernels, and by the library if there is one.
    pub fn of_products() -> Bench {
        let mut gpus = vec![Bench::gpu(Products::Own), Bench::gpu(Products::Library)];
        gpus.retain(|gpu| gpu.warnings.is_empty());
        Bench::with(gpus)
    }

    /// A device with the library, if there is one and the GPU has 8-bit units.
    pub fn of_eighths() -> Option<Bench> {
        let gpu = Bench::gpu(Products::Library);
        let able = gpu.warnings.is_empty() && require(0, Precision::Fp8).is_ok();
        able.then(|| Bench::with(vec![gpu]))
    }

    /// Up to three devices: bf16 attention by the kernels for every GPU, on tensor cores, and by warpgroups, where the
    /// GPU has them.
    pub fn of_attention() -> Bench {
        let mut gpus = [(); 3].map(|()| Bench::gpu(Products::Own));
        let kinds = 1 + usize::from(gpus[0].hardware.tensor_cores) + usize::from(gpus[0].hardware.warpgroups);
        (gpus[0].hardware.tensor_cores, gpus[0].hardware.warpgroups, gpus[1].hardware.warpgroups) =
            (false, false, false);
        Bench::with(gpus.into_iter().take(kinds).collect())
    }

    /// The GPUs.
    pub fn gpus(&self) -> &[Cuda] {
        &self.gpus
    }

    /// The GPUs, mutable.
    pub fn gpus_mut(&mut self) -> &mut [Cuda] {
        &mut self.gpus
    }

    fn gpu(products: Products) -> Cuda {
        open_with(OPERANDS + SCRATCH, ALL_SCRATCH, 0, products)
    }

    /// Runs the operation that `build` lays out, in both precisions, on the GPU twice and on the Reference; in bf16
    /// with parameters' gradients of both types. The difference is bounded relative to the norm of a whole operand, and
    /// by 32 times that for each element; [exact](Operation::EXACT) operations must agree exactly.
    pub fn agree<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O) {
        self.agree_in(Precision::F32, 1e-5, &build);
        self.agree_in(Precision::Bf16, 1e-2, &build);
    }

    /// As [`Bench::agree`], for 8-bit matrix multiplication. A GPU's 8-bit units keep only some 13 bits of a sum's
    /// largest term while they add (DeepSeek-AI 2024, "DeepSeek-V3", 3.5.2), so that the last of these bits is
    /// uncertain; the stand-in adds in f32.
    pub fn agree_in_eighths<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O) {
        let exact = self.gpus.iter().all(|gpu| gpu.hardware.name.contains("stand-in"));
        self.agree_in(Precision::F32, if exact { 1e-5 } else { 1.0 / 4096.0 }, &build);
        self.agree_in(Precision::Bf16, 1e-2, &build);
    }

    /// The operands in the order of `build`, as the operation leaves them on the first GPU.
    pub fn left<O: Operation>(&mut self, precision: Precision, build: &impl Fn(&mut Lay) -> O) -> Vec<Vec<f32>> {
        let [mut lay, _] = lays(precision);
        let operation = build(&mut lay);
        let scratch = scratch(precision, &[operation.into()]);
        let bytes = after(&mut self.gpus[0], &lay, scratch, |cuda| cuda.run(&operation.into()));
        lay.regions().map(|r| decode(r.dtype, &bytes[r.offset as usize..r.end() as usize])).collect()
    }

    /// As [`Bench::agree`], in one precision.
    pub fn agree_in<O: Operation>(&mut self, precision: Precision, tolerance: f64, build: &impl Fn(&mut Lay) -> O) {
        self.agree_by(precision, tolerance, build, &|cuda, operation| cuda.run(&operation.into()));
    }

    /// As [`Bench::agree_in`], for an operation that `run` computes on the GPU.
    pub fn agree_by<O: Operation>(
        &mut self,
        precision: Precision,
        tolerance: f64,
        build: &impl Fn(&mut Lay) -> O,
        run: &dyn Fn(&mut Cuda, O) -> Result<(), OperationError>,
    ) {
        for gradients in [Dtype::F32, Dtype::Bf16] {
            let [mut ours, mut theirs] = lays(precision);
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

    /// As [`Bench::agree_in`], for a program.
    pub fn agree_program(
        &mut self,
        precision: Precision,
        tolerance: f64,
        name: &str,
        build: &impl Fn(&mut Lay) -> Vec<Op>,
    ) {
        let [mut ours, mut theirs] = lays(precision);
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
        let scratch = scratch(precision, program);
        assert!(scratch.bytes() <= SCRATCH && ours.offset <= OPERANDS);
        let expected = theirs.after(ours, reference);
        for cuda in &mut self.gpus {
            let found = after(cuda, ours, scratch, run);
            if most.is_none() {
                let again = after(cuda, ours, scratch, run);
                assert!(found == again, "{name}: other bits the second time");
            }
            ours.check(name, &found, theirs, bytemuck::cast_slice(&expected), tolerance);
        }
    }
}

/// The operands for the GPU in this precision, and for the Reference.
fn lays(precision: Precision) -> [Lay; 2] {
    [if precision == Precision::F32 { Dtype::F32 } else { Dtype::Bf16 }, Dtype::F32].map(Lay::new)
}

/// The scratch that a program needs.
fn scratch(precision: Precision, program: &[Op]) -> Region {
    let profile = CudaProfile::new(precision);
    let mut meter = Meter::new(&profile, Rates::ONE);
    program.iter().for_each(|op| meter.run(op).expect("shapes that belong together"));
    Region { shape: [1, 1, 1, meter.scratch.div_ceil(4) as u32], ..ALL_SCRATCH }
}

/// The whole arena after `run`. The scratch contains NaN before it, so that reads of unwritten scratch become visible.
fn after(
    cuda: &mut Cuda,
    lay: &Lay,
    scratch: Region,
    run: impl FnOnce(&mut Cuda) -> Result<(), OperationError>,
) -> Vec<u8> {
    let all = Region { space: Space::Arena, dtype: Dtype::U32, offset: 0, shape: [1, 1, 1, (lay.offset / 4) as u32] };
    let mut bytes = bytemuck::cast_slice(&lay.before(lay)).to_vec();
    cuda.write(all, &bytes).expect("the GPU takes it");
    cuda.write(scratch, &vec![0xff; scratch.bytes() as usize]).expect("the GPU takes it");
    if run(cuda).is_err() {
        panic!("{:?}", cuda.take_failure());
    }
    cuda.read(all, &mut bytes).expect("the GPU gives it back");
    bytes
}

/// Runs the operations that `record` queues: recorded at the first call with `key`, replayed at every call.
pub fn replay(
    cuda: &mut Cuda,
    key: u64,
    record: impl FnOnce(&mut Cuda) -> Result<(), capful_core::device::OperationError>,
) -> Result<(), crate::CudaError> {
    if !cuda.recorded(key) {
        cuda.begin_recording()?;
        let queued = record(cuda);
        cuda.end_recording(key, queued)?;
    }
    cuda.replay_recorded(key)
}
