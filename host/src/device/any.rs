//! One type for every device, so that a run is compiled once.

use capful_core::device::{Operation, OperationError, Profile, Run, Scratch, Single};
use capful_core::memory::{Dtype, Region, Role};

use super::cpu::{Cpu, CpuProfile};
use super::reference::Reference;
use super::{DeviceError, Memory, Storage};
use crate::config::{Config, ConfigError, Device};

/// What the configured device implies for memory.
#[derive(Debug, Clone)]
pub enum AnyProfile {
    /// SIMD and threads.
    Cpu(CpuProfile),
    /// Plain loops.
    Reference(Single),
}

impl AnyProfile {
    /// The profile of the device that `config` names.
    ///
    /// # Errors
    /// A device that does not exist.
    pub fn of(config: &Config) -> Result<AnyProfile, ConfigError> {
        match config.device()? {
            Device::Reference => Ok(AnyProfile::Reference(Single)),
            Device::Cpu | Device::Cuda(_) => Ok(AnyProfile::Cpu(CpuProfile { threads: config.threads })),
        }
    }
}

impl Profile for AnyProfile {
    fn dtype(&self, role: Role) -> Dtype {
        match self {
            AnyProfile::Cpu(profile) => profile.dtype(role),
            AnyProfile::Reference(profile) => profile.dtype(role),
        }
    }
}

impl<O: Operation> Scratch<O> for AnyProfile
where
    CpuProfile: Scratch<O>,
{
    fn scratch(&self, operation: &O) -> u64 {
        match self {
            AnyProfile::Cpu(profile) => profile.scratch(operation),
            AnyProfile::Reference(profile) => profile.scratch(operation),
        }
    }
}

/// The configured device.
#[derive(Debug)]
pub enum AnyDevice {
    /// SIMD and threads.
    Cpu(Cpu),
    /// Plain loops.
    Reference(Reference),
}

impl AnyDevice {
    /// Starts the device with an arena of `bytes`, zeroed, and `scratch` inside it.
    ///
    /// # Errors
    /// The system refuses the memory or the threads.
    pub fn start(profile: &AnyProfile, bytes: u64, scratch: Region) -> Result<AnyDevice, DeviceError> {
        let memory = Memory::new(bytes)?;
        match profile {
            AnyProfile::Cpu(profile) => Ok(AnyDevice::Cpu(Cpu::start(profile, memory, scratch)?)),
            AnyProfile::Reference(_) => Ok(AnyDevice::Reference(Reference { memory })),
        }
    }

    fn memory(&mut self) -> &mut Memory {
        match self {
            AnyDevice::Cpu(device) => &mut device.memory,
            AnyDevice::Reference(device) => &mut device.memory,
        }
    }

    /// Bytes of its arena, as allocated.
    pub fn arena_bytes(&mut self) -> u64 {
        self.memory().bytes()
    }
}

impl Storage for AnyDevice {
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        self.memory().write(region, bytes)
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.memory().read(region, bytes)
    }
}

impl<O: Operation> Run<O> for AnyDevice
where
    Cpu: Run<O>,
{
    fn run(&mut self, operation: O) -> Result<(), OperationError> {
        match self {
            AnyDevice::Cpu(device) => device.run(operation),
            AnyDevice::Reference(device) => device.run(operation),
        }
    }
}
