//! Keeps inhibitory synapses at or below zero.

use capful_core::device::OperationError;
use capful_core::ops::Inhibit;

use crate::OnCuda;
use crate::arguments::InhibitArgs;
use crate::device::{Cuda, blocks};

impl OnCuda for Inhibit {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact("inhibit", [self.weights])?;
        let synapses = self.weights.elements();
        let (sources, weights) = (cuda.address(self.sources)?, cuda.address(self.weights)?);
        let arguments = InhibitArgs { sources, weights, synapses, first: self.first, count: self.count };
        cuda.launch("inhibit", "inhibit", [blocks(synapses, 256), 1, 1], 256, &arguments)
    }
}
