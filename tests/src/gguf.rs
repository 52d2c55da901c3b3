//! A reader of GGUF files, independent of the writer: the format's description in code, with every length checked.

use std::collections::BTreeMap;

/// A value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any integer or switch.
    Number(i64),
    /// A float.
    Float(f32),
    /// Text.
    Text(String),
    /// An array.
    List(Vec<Value>),
}

/// A tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Row-major, reversed compared with the file.
    pub shape: Vec<u64>,
    /// The number of its type.
    pub kind: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Numbers of an f32, f16 or bf16 tensor; for blocks the dequantised numbers.
    pub fn numbers(&self) -> Vec<f32> {
        let half = |b: &[u8]| half_number(u16::from_le_bytes([b[0], b[1]]));
        match self.kind {
            0 => self.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            1 => self.bytes.chunks(2).map(half).collect(),
            30 => self.bytes.chunks(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect(),
            8 => self.bytes.chunks(34).flat_map(|b| (2..34).map(move |i| half(b) * f32::from(b[i] as i8))).collect(),
            2 => {
                let digit = |b: &[u8], i: usize| if i < 16 { b[2 + i] & 15 } else { b[2 + i - 16] >> 4 };
                let block = |b: &[u8]| (0..32).map(|i| half(b) * (f32::from(digit(b, i)) - 8.0)).collect::<Vec<_>>();
                self.bytes.chunks(18).flat_map(block).collect()
            }
            kind => panic!("type {kind}"),
        }
    }
}

/// An f16 as f32.
pub fn half_number(bits: u16) -> f32 {
    let (sign, exponent, digits) = (bits >> 15, i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => digits * 2f32.powi(-24),
        31 => f32::INFINITY,
        _ => (1024.0 + digits) * 2f32.powi(exponent - 25),
    };
    if sign == 1 { -size } else { size }
}

/// A file.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// Keys with their values.
    pub metadata: BTreeMap<String, Value>,
    /// Names of tensors in the file's order.
    pub names: Vec<String>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len()).expect("the file is long enough");
        let taken = &self.bytes[self.at..end];
        self.at = end;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.take(length).to_vec()).expect("text is UTF-8")
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            4 => Value::Number(self.u32().into()),
            5 => Value::Number(self.u32().cast_signed().into()),
            6 => Value::Float(f32::from_bits(self.u32())),
            7 => Value::Number(self.take(1)[0].into()),
            8 => Value::Text(self.text()),
            9 => {
                let (of, count) = (self.u32(), self.u64());
                Value::List((0..count).map(|_| self.value(of)).collect())
            }
            kind => panic!("a value of type {kind}"),
        }
    }
}

impl Gguf {
    /// Reads a whole file.
    ///
    /// # Panics
    /// On any deviation from version 3.
    pub fn read(bytes: &[u8]) -> Gguf {
        let mut file = Reader { bytes, at: 0 };
        assert_eq!((file.take(4), file.u32()), (b"GGUF".as_slice(), 3));
        let (tensors, keys) = (file.u64(), file.u64());
        let mut metadata = BTreeMap::new();
        for _ in 0..keys {
            let (key, kind) = (file.text(), file.u32());
            let value = file.value(kind);
            assert!(metadata.insert(key.clone(), value).is_none(), "{key} is there twice");
        }
        let mut infos = Vec::new();
        for _ in 0..tensors {
            let (name, dims) = (file.text(), file.u32());
            let mut shape: Vec<u64> = (0..dims).map(|_| file.u64()).collect();
            shape.reverse();
            infos.push((name, shape, file.u32(), file.u64()));
        }
        let alignment = match metadata.get("general.alignment") {
            Some(Value::Number(n)) => *n as usize,
            _ => 32,
        };
        let data = file.at.next_multiple_of(alignment);
        let mut end = data;
        let read = |(name, shape, kind, offset): &(String, Vec<u64>, u32, u64)| {
            let elements: u64 = shape.iter().product();
            let (block, size) = match kind {
                0 => (1, 4),
                1 | 30 => (1, 2),
                2 => (32, 18),
                8 => (32, 34),
                kind => panic!("{name} is of type {kind}"),
            };
            assert!(shape.last().unwrap().is_multiple_of(block), "{name}: a row is whole blocks");
            let begin = data + *offset as usize;
            // Contiguous, each at an aligned offset.
            assert_eq!(begin, end.next_multiple_of(alignment), "{name}");
            end = begin + (elements / block * size) as usize;
            let bytes = bytes.get(begin..end).expect("the file is long enough").to_vec();
            (name.clone(), Tensor { shape: shape.clone(), kind: *kind, bytes })
        };
        let tensors: BTreeMap<_, _> = infos.iter().map(read).collect();
        assert_eq!(end.next_multiple_of(alignment), bytes.len(), "nothing stands behind the last tensor");
        Gguf { metadata, names: infos.into_iter().map(|(name, ..)| name).collect(), tensors }
    }

    /// A number of the metadata.
    #[track_caller]
    pub fn number(&self, key: &str) -> i64 {
        match self.metadata.get(key) {
            Some(Value::Number(n)) => *n,
            other => panic!("{key} is {other:?}"),
        }
    }

    /// A text of the metadata.
    #[track_caller]
    pub fn text(&self, key: &str) -> &str {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => text,
            other => panic!("{key} is {other:?}"),
        }
    }

    /// A list of the metadata.
    #[track_caller]
    pub fn list(&self, key: &str) -> &[Value] {
        match self.metadata.get(key) {
            Some(Value::List(list)) => list,
            other => panic!("{key} is {other:?}"),
        }
    }
}
