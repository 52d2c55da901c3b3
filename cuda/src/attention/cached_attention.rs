//! Attention of one new token over the cache, as a step of `token`.

use capful_core::device::OperationError;
use capful_core::ops::CachedAttention;

use crate::arguments::{CachedAttentionArgs, HeadsArgs, PatternArgs};
use crate::device::Cuda;
use crate::room::attention::TokenRoom;

/// The largest supported head: LARGEST_SIZE of cached_attention.cuh.
pub(crate) const LARGEST_SIZE: u32 = 256;

impl Cuda {
    /// The arguments of the step. Its counters follow those of the launch.
    pub(crate) fn cached_attention(&mut self, o: &CachedAttention) -> Result<CachedAttentionArgs, OperationError> {
        let (heads, room) = (&o.rotary.heads, TokenRoom::of(o));
        self.padded("cached_attention", heads.size)?;
        Ok(CachedAttentionArgs {
            qkv: self.address(o.qkv)?,
            cache: self.address(o.cache)?,
            table: self.address(o.rotary.table)?,
            out: self.address(o.out)?,
            done: self.scratch_at(TokenRoom::DONE, 4 * u64::from(heads.queries))?,
            partial: self.scratch_at(room.before(), room.partial)?,
            context: o.cache.shape[2],
            dims: o.rotary.dims(),
            scale: heads.scale(),
            heads: HeadsArgs::new(heads),
            pattern: PatternArgs::new(&o.pattern),
        })
    }
}
