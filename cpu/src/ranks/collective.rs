//! Communication between ranks.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{AllGather, AllToAll};

use crate::{Cpu, OnCpu};

impl OnCpu for AllGather {
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        cpu.others.all_gather(Arena::new(cpu.memory.words()), &self)
    }
}

impl OnCpu for AllToAll {
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        cpu.others.all_to_all(Arena::new(cpu.memory.words()), &self)
    }
}
