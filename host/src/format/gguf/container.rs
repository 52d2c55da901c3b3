//! The container format: keys with values, then tensors.

use std::path::Path;

use super::weights::Weights;
use crate::format::export::{ExportError, Written};

/// Tensors begin at multiples of this many bytes.
pub(super) const ALIGNMENT: u64 = 32;

/// A value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    I32s(Vec<i32>),
}

/// A tensor's description, without its numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Info {
    pub name: String,
    /// Row-major shape; the file has the dimensions in reverse order.
    pub shape: Vec<u64>,
    pub weights: Weights,
}

impl Info {
    /// Bytes of its numbers.
    pub fn bytes(&self) -> u64 {
        self.weights.bytes(self.shape.iter().product())
    }
}

/// Constants of the format.
const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;

fn string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Value {
    /// Writes the number of its type, and the value.
    fn write(&self, out: &mut Vec<u8>) {
        let array = |of: u32, len: usize, out: &mut Vec<u8>| {
            out.extend(9u32.to_le_bytes());
            out.extend(of.to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Value::U32(n) => out.extend([4, *n].map(u32::to_le_bytes).concat()),
            Value::I32(n) => {
                out.extend(5u32.to_le_bytes());
                out.extend(n.to_le_bytes());
            }
            Value::F32(x) => out.extend([6, x.to_bits()].map(u32::to_le_bytes).concat()),
            Value::Bool(b) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*b));
            }
            Value::String(text) => {
                out.extend(8u32.to_le_bytes());
                string(text, out);
            }
            Value::Strings(all) => {
                array(8, all.len(), out);
                all.iter().for_each(|text| string(text, out));
            }
            Value::I32s(all) => {
                array(5, all.len(), out);
                all.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
        }
    }
}

/// Everything before the numbers, including the alignment.
fn header(metadata: &[(String, Value)], tensors: &[Info]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend([tensors.len(), metadata.len()].map(|n| (n as u64).to_le_bytes()).concat());
    for (key, value) in metadata {
        string(key, &mut out);
        value.write(&mut out);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        string(&tensor.name, &mut out);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(tensor.weights.number().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += tensor.bytes().next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out
}

/// Writes the file `path`, which must not exist: `numbers` writes the numbers of the tensor of an index. Returns the
/// file's bytes.
///
/// # Errors
/// The file system, and errors of `numbers`.
pub(super) fn write(
    path: &Path,
    metadata: &[(String, Value)],
    tensors: &[Info],
    mut numbers: impl FnMut(usize, &mut Written) -> Result<(), ExportError>,
) -> Result<u64, ExportError> {
    let mut file = Written::create(path)?;
    file.write(&header(metadata, tensors))?;
    for (i, tensor) in tensors.iter().enumerate() {
        let begun = file.bytes;
        numbers(i, &mut file)?;
        let bytes = file.bytes - begun;
        if bytes != tensor.bytes() {
            return Err(ExportError::Failed(format!("{}: {bytes} bytes of {}", tensor.name, tensor.bytes())));
        }
        let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
        file.write(&[0; ALIGNMENT as usize][..padding as usize])?;
    }
    file.finish()
}
