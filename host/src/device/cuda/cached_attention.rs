//! Attention of one new token over the cache.

use capful_core::device::OperationError;
use capful_core::ops::CachedAttention;

use super::device::Cuda;
use super::heads::{HeadsArgs, PatternArgs};

/// Mirrors CachedAttentionArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct CachedAttentionArgs {
    qkv: u64,
    cache: u64,
    cursor: u64,
    table: u64,
    out: u64,
    context: u32,
    dims: u32,
    scale: f32,
    heads: HeadsArgs,
    pattern: PatternArgs,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_cached_attention(&mut self, o: CachedAttention) -> Result<(), OperationError> {
        const NAME: &str = "cached_attention";
        let dtype = self.dtype(NAME, [o.qkv, o.cache, o.out])?.name();
        let heads = o.rotary.heads;
        self.padded(NAME, heads.size)?;
        let arguments = CachedAttentionArgs {
            qkv: self.address(o.qkv)?,
            cache: self.address(o.cache)?,
            cursor: self.address(o.cursor)?,
            table: self.address(o.rotary.table)?,
            out: self.address(o.out)?,
            context: o.cache.shape[2],
            dims: o.rotary.dims(),
            scale: heads.scale(),
            heads: HeadsArgs::new(&heads),
            pattern: PatternArgs::new(&o.pattern),
        };
        self.launch(NAME, &format!("cached_attention_store_{dtype}"), [1, 1, 1], 256, &arguments)?;
        self.launch(NAME, &format!("cached_attention_{dtype}"), [heads.queries, 1, 1], 256, &arguments)
    }
}
