//! A reader of safetensors files, independent of the writer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// F32, BF16 or F16.
    pub dtype: String,
    /// Row-major shape.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Its numbers.
    pub fn numbers(&self) -> Vec<f32> {
        let half = |b: &[u8]| crate::gguf::half_number(u16::from_le_bytes([b[0], b[1]]));
        match self.dtype.as_str() {
            "F32" => self.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            "BF16" => self.bytes.chunks(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect(),
            "F16" => self.bytes.chunks(2).map(half).collect(),
            other => panic!("{other}"),
        }
    }

    /// Rows `from` to `to`.
    pub fn rows(&self, from: u64, to: u64) -> &[u8] {
        let row = self.bytes.len() as u64 / self.shape[0];
        &self.bytes[(from * row) as usize..(to * row) as usize]
    }
}

/// Every tensor of a file, by name.
///
/// # Panics
/// On an invalid file.
pub fn read(path: &Path) -> BTreeMap<String, Tensor> {
    let file = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let tensor = |(name, info): (String, Value)| {
        let place = |i: usize| number(&info["data_offsets"][i]) as usize;
        let shape = info["shape"].as_array().unwrap().iter().map(number).collect();
        let dtype = info["dtype"].as_str().unwrap().to_owned();
        (name, Tensor { dtype, shape, bytes: data[place(0)..place(1)].to_vec() })
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(tensor).collect()
}

/// Overwrites the f32 numbers of one tensor in the file.
///
/// # Panics
/// If there is no such tensor, or it has another number of elements.
pub fn replace(path: &Path, name: &str, numbers: &[f32]) {
    let mut file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let place = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize + 8 + length;
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    file[place(0)..place(1)].copy_from_slice(&bytes);
    fs::write(path, file).unwrap();
}
