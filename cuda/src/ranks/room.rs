//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{AllGather, AllToAll, MaxParts, SumParts};

use crate::room::without_scratch;

without_scratch!(AllGather, AllToAll, MaxParts, SumParts);
