//! File formats shared with other programs.

pub mod export;
pub mod firmware;
pub mod gguf;
pub mod hugging_face;
pub mod quantise;
pub mod safetensors;
pub mod states;
pub mod tensors;
