// Sizes of int8.img, for the firmware that runs it; written by `host export`.
/// Bytes of the image.
pub const IMAGE_BYTES: usize = 284692;
/// Words of 64 bits of storage that a decoder of CONTEXT positions needs.
pub const ARENA_WORDS: usize = 14304;
/// Ids of the model.
pub const IDS: usize = 512;
/// Positions that the decoder keeps.
pub const CONTEXT: usize = 80;
