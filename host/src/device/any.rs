//! One type for every device, so that a run is compiled once.

use std::rc::Rc;

use capful_core::device::{Device, Op, OperationError, Profile, Single};
use capful_core::memory::{Dtype, Region, Role};

use super::cpu::{Cpu, CpuProfile};
use super::cuda::{self, Cuda, CudaProfile, Products};
use super::{Allocation, Collectives, DeviceError, Storage};
use crate::ranks::SharedPeers;
use capful_device::Reference;

/// The memory properties of the configured device.
#[derive(Debug, Clone)]
pub enum AnyProfile {
    /// The CPU, with SIMD and threads.
    Cpu(CpuProfile),
    /// The reference device, with plain loops.
    Reference(Single),
    /// A CUDA GPU.
    Cuda {
        /// The GPU's number.
        gpu: u32,
        /// The GPU's memory properties.
        profile: CudaProfile,
    },
}

impl AnyProfile {
    /// Whether the device is there, before anything is read or allocated for it.
    ///
    /// # Errors
    /// The reason why the device is not available.
    pub fn require(&self) -> Result<(), DeviceError> {
        match self {
            AnyProfile::Cuda { gpu, profile } => Ok(cuda::require(*gpu, profile.precision)?),
            _ => Ok(()),
        }
    }
}

impl Profile for AnyProfile {
    fn dtype(&self, role: Role) -> Dtype {
        match self {
            AnyProfile::Cpu(profile) => profile.dtype(role),
            AnyProfile::Reference(profile) => profile.dtype(role),
            AnyProfile::Cuda { profile, .. } => profile.dtype(role),
        }
    }

    fn computes(&self, dtype: Dtype) -> bool {
        match self {
            AnyProfile::Cpu(profile) => profile.computes(dtype),
            AnyProfile::Reference(profile) => profile.computes(dtype),
            AnyProfile::Cuda { profile, .. } => profile.computes(dtype),
        }
    }

    fn multiplies_integers(&self) -> bool {
        match self {
            AnyProfile::Cpu(profile) => profile.multiplies_integers(),
            AnyProfile::Reference(profile) => profile.multiplies_integers(),
            AnyProfile::Cuda { profile, .. } => profile.multiplies_integers(),
        }
    }

    fn quantises(&self) -> bool {
        match self {
            AnyProfile::Cuda { profile, .. } => profile.quantises(),
            _ => false,
        }
    }

    fn scratch(&self, op: &Op) -> u64 {
        match self {
            AnyProfile::Cpu(profile) => profile.scratch(op),
            AnyProfile::Reference(profile) => profile.scratch(op),
            AnyProfile::Cuda { profile, .. } => profile.scratch(op),
        }
    }
}

/// The configured device.
pub enum AnyDevice {
    /// The CPU, with SIMD and threads.
    Cpu(Cpu),
    /// The reference device, with plain loops.
    Reference(Reference),
    /// A CUDA GPU.
    Cuda(Box<Cuda>),
}

/// Requested results of a step: a copy that is under way, or the region to read from if the device computes in main
/// memory.
#[derive(Debug, Clone, Copy)]
pub struct Ticket {
    region: Region,
    /// The number of the step, in main memory.
    step: u64,
    pending: Option<cuda::Pending>,
}

impl AnyDevice {
    /// Starts the device with a zeroed arena of `bytes` that contains `scratch`, and with `staging` bytes of pinned
    /// memory for the inputs and results of a step where the device needs it.
    ///
    /// # Errors
    /// The system refuses the memory or the threads; there is no such GPU, or too little memory on it.
    pub fn start(profile: &AnyProfile, bytes: u64, scratch: Region, staging: u64) -> Result<AnyDevice, DeviceError> {
        match profile {
            AnyProfile::Cpu(profile) => Ok(AnyDevice::Cpu(Cpu::start(profile, Allocation::new(bytes)?, scratch)?)),
            AnyProfile::Reference(_) => {
                Ok(AnyDevice::Reference(Reference { memory: Allocation::new(bytes)?, others: Collectives::default() }))
            }
            AnyProfile::Cuda { gpu, profile } => {
                let room = cuda::Room { arena: bytes, scratch, staging };
                #[allow(unused_mut, reason = "the stand-in's methods all want it")]
                let mut device = Cuda::open(*gpu, room, Products::Library)?;
                device.allow_tf32(profile.precision != cuda::Precision::F32);
                if profile.precision == cuda::Precision::Fp8 {
                    device.require_library()?;
                }
                Ok(AnyDevice::Cuda(Box::new(device)))
            }
        }
    }

    /// Zeroes the arena after all queued work.
    ///
    /// # Errors
    /// A lost GPU.
    pub fn clear(&mut self) -> Result<(), DeviceError> {
        match self {
            AnyDevice::Cpu(device) => device.memory.words().fill(0),
            AnyDevice::Reference(device) => device.memory.words().fill(0),
            AnyDevice::Cuda(device) => device.clear()?,
        }
        Ok(())
    }

    /// Number of bytes of the arena.
    pub fn arena_bytes(&mut self) -> u64 {
        match self {
            AnyDevice::Cpu(device) => device.memory.bytes(),
            AnyDevice::Reference(device) => device.memory.bytes(),
            AnyDevice::Cuda(device) => device.arena_bytes(),
        }
    }

    /// Number of threads that a preparation on this machine may use.
    pub fn threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    }

    /// The GPU, if this device is one: it runs queued work while the host continues.
    pub fn gpu(&mut self) -> Option<&mut Cuda> {
        match self {
            AnyDevice::Cuda(device) => Some(device),
            _ => None,
        }
    }

    /// Begins a step; the step's inputs are queued next.
    ///
    /// # Errors
    /// An error of an earlier step.
    pub fn next_step(&mut self) -> Result<(), DeviceError> {
        if let AnyDevice::Cuda(device) = self {
            return Ok(device.next_step()?);
        }
        if let Some(memory) = self.memory() {
            memory.steps += 1;
        }
        Ok(())
    }

    /// The arena, if it is in main memory.
    fn memory(&mut self) -> Option<&mut Allocation> {
        match self {
            AnyDevice::Cpu(device) => Some(&mut device.memory),
            AnyDevice::Reference(device) => Some(&mut device.memory),
            AnyDevice::Cuda(_) => None,
        }
    }

    /// Writes a step's input, in the region's own type, after all queued work.
    ///
    /// # Errors
    /// A region outside the arena, a lost device.
    pub fn queue_write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        match self {
            AnyDevice::Cuda(device) => Ok(device.queue_write(region, bytes)?),
            _ => self.write(region, bytes),
        }
    }

    /// Ends a step and requests the bytes of a region as its results.
    ///
    /// # Errors
    /// A region outside the arena, a lost device.
    pub fn queue_read(&mut self, region: Region) -> Result<Ticket, DeviceError> {
        let pending = match self {
            AnyDevice::Cuda(device) => Some(device.queue_read(region)?),
            _ => None,
        };
        let step = self.memory().map_or(0, |memory| memory.steps);
        Ok(Ticket { region, step, pending })
    }

    /// Waits for the step of `ticket` and returns its results. At most one more step may have been begun since then,
    /// and in main memory none.
    ///
    /// # Errors
    /// An error in that step; results that a later step has overwritten.
    pub fn results(&mut self, ticket: Ticket, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match (ticket.pending, &mut *self) {
            (Some(pending), AnyDevice::Cuda(device)) => {
                bytes.copy_from_slice(device.results(pending)?);
                Ok(())
            }
            _ => self.read_of(ticket, bytes),
        }
    }

    /// Returns results as [`AnyDevice::results`] does, for a step of less than a millisecond: no other thread is woken.
    /// The results of a GPU are in pinned memory already and are not copied to `bytes`: the caller receives that memory
    /// and may change it.
    ///
    /// # Errors
    /// An error in that step.
    pub fn results_soon<'a>(&'a mut self, ticket: Ticket, bytes: &'a mut [u8]) -> Result<&'a mut [u8], DeviceError> {
        let AnyDevice::Cuda(device) = self else {
            return self.read_of(ticket, bytes).map(|()| bytes);
        };
        let pending = ticket.pending.ok_or_else(|| DeviceError::Failed("the results are another device's".into()))?;
        Ok(device.results_soon(pending)?)
    }

    /// Reads the requested results from main memory, unless a later step has overwritten them.
    fn read_of(&mut self, ticket: Ticket, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (step, now) = (ticket.step, self.memory().map_or(0, |memory| memory.steps));
        if now > step {
            return Err(DeviceError::Failed(format!(
                "the results of step {step} were asked for in step {now}; they are kept until step {} begins",
                step + 1
            )));
        }
        self.read(ticket.region, bytes)
    }

    /// Runs operations one after the other.
    ///
    /// # Errors
    /// An operation that failed.
    pub fn run_all(&mut self, ops: &[Op]) -> Result<(), DeviceError> {
        ops.iter().try_for_each(|op| self.run(op)).map_err(|e| self.explain(e))
    }

    /// Runs programs one after the other. A GPU records them together under `key` at the first call and replays the
    /// recording at every call. While matrix multiplications are being tuned, the same kernels are queued without a
    /// recording.
    ///
    /// # Errors
    /// An operation that failed.
    pub fn replay(&mut self, key: u64, programs: &[&[Op]]) -> Result<(), DeviceError> {
        let Some(gpu) = self.gpu() else {
            return programs.iter().try_for_each(|ops| self.run_all(ops));
        };
        if gpu.tuning() {
            let queued = gpu.run_program(&programs.concat());
            return queued.map_err(|e| self.explain(e));
        }
        if !gpu.recorded(key) {
            let ops = programs.concat();
            gpu.begin_recording()?;
            let queued = gpu.run_program(&ops);
            gpu.end_recording(key, queued)?;
        }
        Ok(gpu.replay_recorded(key)?)
    }

    /// Connects the device with the ranks of `peers`.
    ///
    /// # Errors
    /// A GPU without NCCL.
    pub fn join(&mut self, peers: &SharedPeers) -> Result<(), DeviceError> {
        match self {
            AnyDevice::Cpu(device) => device.others.join(Rc::clone(peers)),
            AnyDevice::Reference(device) => device.others.join(Rc::clone(peers)),
            AnyDevice::Cuda(device) => device.join(peers)?,
        }
        Ok(())
    }

    /// The connection to other ranks from main memory.
    fn others(&mut self) -> Option<&mut Collectives> {
        match self {
            AnyDevice::Cpu(device) => Some(&mut device.others),
            AnyDevice::Reference(device) => Some(&mut device.others),
            AnyDevice::Cuda(_) => None,
        }
    }

    /// The reason why an operation failed, in one line.
    pub fn explain(&mut self, error: OperationError) -> DeviceError {
        if let Some(failure) = self.others().and_then(Collectives::take_failure) {
            return failure;
        }
        match self.gpu().and_then(|gpu| gpu.take_failure()) {
            Some(failure) => failure.into(),
            None => error.into(),
        }
    }
}

impl Storage for AnyDevice {
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        match self {
            AnyDevice::Cpu(device) => device.memory.write(region, bytes),
            AnyDevice::Reference(device) => device.memory.write(region, bytes),
            AnyDevice::Cuda(device) => Ok(device.write(region, bytes)?),
        }
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            AnyDevice::Cpu(device) => device.memory.read(region, bytes),
            AnyDevice::Reference(device) => device.memory.read(region, bytes),
            AnyDevice::Cuda(device) => Ok(device.read(region, bytes)?),
        }
    }
}

impl Device for AnyDevice {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        match self {
            AnyDevice::Cpu(device) => device.run(op),
            AnyDevice::Reference(device) => device.run(op),
            AnyDevice::Cuda(device) => device.run(op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capful_core::memory::Space;

    #[test]
    fn in_main_memory_results_are_those_of_their_own_step_or_an_error() {
        let region = Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1, 1, 1, 1] };
        let scratch = Region { shape: [1, 1, 0, 64], ..region };
        for profile in [AnyProfile::Reference(Single), AnyProfile::Cpu(CpuProfile { threads: 1 })] {
            let mut device = AnyDevice::start(&profile, 64, scratch, 0).unwrap();
            let step = |device: &mut AnyDevice, value: f32| {
                device.next_step().unwrap();
                device.queue_write(region, &value.to_le_bytes()).unwrap();
                device.queue_read(region).unwrap()
            };
            let (first, mut bytes) = (step(&mut device, 1.0), [0; 4]);
            device.results(first, &mut bytes).unwrap();
            assert_eq!(f32::from_le_bytes(bytes), 1.0);
            let second = step(&mut device, 2.0);
            let mut soon = [0; 4];
            for late in [device.results(first, &mut bytes), device.results_soon(first, &mut soon).map(drop)] {
                let message = late.unwrap_err().to_string();
                assert!(message.contains("step 1") && !message.contains('\n'), "{message}");
            }
            device.results(second, &mut bytes).unwrap();
            assert_eq!(f32::from_le_bytes(bytes), 2.0);
            assert_eq!(*device.results_soon(second, &mut soon).unwrap(), 2.0f32.to_le_bytes());
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn results_that_come_soon_are_changed_where_they_lie() {
        capful_driver::load_or(Some(capful_kernels::STAND_IN)).expect("a driver or the stand-in");
        let region =
            |offset, columns| Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, columns] };
        let room = cuda::Room { arena: 512, scratch: region(0, 64), staging: 16 };
        let mut device = AnyDevice::Cuda(Box::new(Cuda::open(0, room, Products::Own).expect("a GPU")));
        device.next_step().expect("a step");
        device.queue_write(region(0, 1), &1.0f32.to_le_bytes()).expect("room");
        let (ticket, mut bytes) = (device.queue_read(region(0, 1)).expect("room"), [9; 4]);
        let found = device.results_soon(ticket, &mut bytes).expect("a good step");
        assert_eq!(*found, 1.0f32.to_le_bytes());
        found.fill(0);
        assert_eq!(bytes, [9; 4]);
        device.results(ticket, &mut bytes).expect("a good step");
        assert_eq!(bytes, [0; 4]);
    }
}
