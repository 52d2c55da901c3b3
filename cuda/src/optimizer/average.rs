//! Averages parameters, and exchanges the average with the parameters.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Average, Exchange};

use super::moved::is_upper;
use crate::OnCuda;
use crate::arguments::AverageArgs;
use crate::device::{Cuda, blocks, threads, width};

impl OnCuda for Average {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let control = [self.settings, self.results];
        launch(cuda, "average", [self.weight, self.average], self.remainder, Some(control))
    }
}

impl OnCuda for Exchange {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        launch(cuda, "exchange", [self.weight, self.average], self.remainder, None)
    }
}

/// Launches the kernel `name` over `weight` and `average`.
fn launch(
    cuda: &mut Cuda,
    name: &str,
    [weight, average]: [Region; 2],
    remainder: Option<Region>,
    control: Option<[Region; 2]>,
) -> Result<(), OperationError> {
    let [settings, results] = [0, 1].map(|i| cuda.address_or_null(control.map(|control| control[i])));
    let mut arguments = AverageArgs {
        weight: cuda.address(weight)?,
        remainder: cuda.address_or_null(remainder)?,
        average: cuda.address(average)?,
        settings: settings?,
        results: results?,
        count: weight.elements(),
        wide: 0,
        upper: is_upper(remainder),
    };
    let width = width(weight.dtype, 0, &[arguments.weight, arguments.remainder, arguments.average]);
    arguments.wide = (width > 1).into();
    let kernel = format!("{name}_{}", weight.dtype.name());
    cuda.launch("average", &kernel, [blocks(threads(arguments.count, width), 256), 1, 1], 256, &arguments)
}
