//! AdamW with a factored second moment: the sums of rows and columns, their totals, the update.

use capful_core::device::OperationError;
use capful_core::ops::AdamWFactored;

use crate::OnCuda;
use crate::arguments::AdamWFactoredArgs;
use crate::device::{Cuda, blocks};
use crate::room::optimizer::SidesRoom;

const NAME: &str = "adamw_factored";
/// Constant of adamw_factored.cu: columns of a block that adds the sums of the bands.
const COLUMNS: u32 = 32;

impl OnCuda for AdamWFactored {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let Self { beta1, beta2, eps, shape: [rows, columns], .. } = self;
        let room = SidesRoom::of(self.shape);
        let start = cuda.scratch_at(0, room.bytes())?;
        let [of_rows, inverse] = room.behind().map(|offset| start + offset);
        let [first, sides] = [cuda.address(self.first)?, cuda.address(self.sides)?];
        let (moved, launch) = cuda.moved(NAME, &self.moved, &[Some(self.first)])?;
        let (SidesRoom { band, pieces, .. }, bands) = (room, room.bands());
        let arguments = AdamWFactoredArgs {
            moved,
            first,
            sides,
            column_sums: start,
            row_sums: of_rows,
            inverse,
            rows,
            columns,
            band,
            bands,
            pieces,
            beta1,
            beta2,
            eps,
        };
        let kernel = format!("adamw_factored_sums_{}", self.moved.gradient.dtype.name());
        cuda.launch(NAME, &kernel, [bands, pieces, 1], 256, &arguments)?;
        cuda.launch(NAME, "adamw_factored_sides", [1 + blocks(columns.into(), COLUMNS), 1, 1], 1024, &arguments)?;
        cuda.launch(NAME, &launch.kernel, launch.grid, 256, &arguments)
    }
}
