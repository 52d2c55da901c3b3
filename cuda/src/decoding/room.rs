//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{MostLikely, Sample};

use crate::room::without_scratch;

without_scratch!(MostLikely, Sample);
