//! Messages between ranks: through NCCL, in the same graph as all other work.

use capful_core::device::OperationError;
use capful_core::ops::{AllGather, AllToAll, Carry};

use super::nccl::{ID, Message, Nccl};
use crate::OnCuda;
use crate::device::Cuda;
use crate::error::CudaError;
use capful_ranks::agreement::share_bytes;
use capful_ranks::{SharedPeers, together};

impl OnCuda for AllGather {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.gather(&[self])
    }
}

impl OnCuda for AllToAll {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let row = self.from.dtype.row_bytes(self.from.columns());
        let own = self.rows_for(self.share.rank);
        let part = u64::from(self.to.shape[2]) * row;
        let to = |rank: u32| u64::from(rank) * part;
        if !own.is_empty() {
            let from = self.from.slice_rows(own.start, own.len() as u32);
            let offset = self.to.offset + to(self.share.rank);
            Carry { from, to: capful_core::memory::Region { offset, ..from } }.run(cuda)?;
        }
        let (from, received) = (cuda.address(self.from)?, cuda.address(self.to)?);
        let others = (0..self.share.ranks).filter(|rank| *rank != self.share.rank);
        let send = |rank: u32| {
            let rows = self.rows_for(rank);
            Message { rank, address: from + u64::from(rows.start) * row, bytes: rows.len() as u64 * row }
        };
        let receive = |rank: u32| Message { rank, address: received + to(rank), bytes: own.len() as u64 * row };
        let sends: Vec<_> = others.clone().map(send).collect();
        let receives: Vec<_> = others.map(receive).collect();
        cuda.exchange("all_to_all", &sends, &receives)
    }
}

impl Cuda {
    /// Connects the ranks of `peers`, each with a GPU. The ranks wait for each other.
    ///
    /// # Errors
    /// NCCL is missing, or returns an error.
    pub fn join(&mut self, peers: &SharedPeers) -> Result<(), CudaError> {
        let (rank, count) = (peers.borrow().rank(), peers.borrow().count());
        let ready = Nccl::load().and_then(|nccl| {
            let id = if rank == 0 { nccl.id()? } else { [0; ID] };
            Ok((nccl, id))
        });
        // If one rank lacks NCCL, no other rank waits in NCCL for it.
        let elsewhere = |elsewhere: together::Elsewhere| CudaError::NoNccl(elsewhere.what);
        let (nccl, mut id) = together::together(Some(peers), ready, ToString::to_string, elsewhere)?;
        let shared = share_bytes(&mut *peers.borrow_mut(), &mut id);
        shared.map_err(|e| CudaError::NoNccl(e.to_string()))?;
        let watch = peers.borrow().watch();
        self.ranks.communicator = Some(nccl.join(id, [rank, count], self.stream.as_inner(), watch)?);
        self.open_exchange()?;
        self.name_outside("NCCL")
    }

    /// Queues messages to and from other ranks, all at the same time.
    pub(crate) fn exchange(
        &mut self,
        operation: &'static str,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), OperationError> {
        // Copies that were requested before must be queued before.
        self.carry_all()?;
        let done = match &self.ranks.communicator {
            Some(communicator) => communicator.exchange(self.stream.as_inner(), sends, receives),
            None => Err(CudaError::Unsupported { operation, why: "the other ranks are not joined" }),
        };
        done.map_err(|e| self.fail(e))
    }

    /// Queues several gathers at the same time, in one NCCL kernel.
    pub(crate) fn gather(&mut self, gathers: &[AllGather]) -> Result<(), OperationError> {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for o in gathers {
            let (start, row) = (self.address(o.whole)?, o.whole.dtype.row_bytes(o.whole.columns()));
            let of = |rank: u32| {
                let rows = o.rows_of(rank);
                Message { rank, address: start + u64::from(rows.start) * row, bytes: rows.len() as u64 * row }
            };
            let own = of(o.share.rank);
            let others = (0..o.share.ranks).filter(|rank| *rank != o.share.rank);
            sends.extend(others.clone().map(|rank| Message { rank, ..own }));
            receives.extend(others.map(of));
        }
        self.exchange("all_gather", &sends, &receives)
    }
}
