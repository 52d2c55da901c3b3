//! What the operations of this folder take of memory, in every build: their launchers are in those with `cuda` only.

use capful_core::ops::{MostLikely, Sample};

use crate::room::without_scratch;

without_scratch!(MostLikely, Sample);
