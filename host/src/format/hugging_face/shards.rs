//! Writes a model as one safetensors file, or as several with an index, in the form of `transformers`.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use crate::format::export::{Checkpoint, Element, ExportError, Tensor, Written};

/// A tensor with its name and number format.
pub(super) struct Named {
    pub name: String,
    pub tensor: Tensor,
    pub element: Element,
}

impl Named {
    fn bytes(&self) -> u64 {
        self.tensor.elements() * self.element.size()
    }
}

/// Divides the list into files of at most `limit` bytes of tensors; a larger tensor has a file of its own.
fn cut(all: &[Named], limit: u64) -> Vec<&[Named]> {
    let (mut files, mut begin, mut bytes) = (Vec::new(), 0, 0u64);
    for (i, one) in all.iter().enumerate() {
        if i > begin && bytes + one.bytes() > limit {
            files.push(&all[begin..i]);
            (begin, bytes) = (i, 0);
        }
        bytes += one.bytes();
    }
    files.push(&all[begin..]);
    files
}

/// The header of a file: JSON padded with spaces to a multiple of 8 bytes.
fn header(tensors: &[Named]) -> String {
    let (mut text, mut offset) = ("{\"__metadata__\":{\"format\":\"pt\"}".to_owned(), 0);
    for one in tensors {
        let (dtype, end) = (one.element.safetensors(), offset + one.bytes());
        let shape: Vec<_> = one.tensor.shape.iter().map(u64::to_string).collect();
        let (name, shape) = (&one.name, shape.join(","));
        // Writing to a string cannot fail.
        let _ =
            write!(text, ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{offset},{end}]}}");
        offset = end;
    }
    text.push('}');
    let padding = text.len().next_multiple_of(8) - text.len();
    text.push_str(&"       "[..padding]);
    text
}

/// Writes all tensors into files in the directory `dir`, whose names begin with `stem`; returns each file's name and
/// bytes.
///
/// # Errors
/// Errors of the checkpoint and of the file system; a number that is too large for the requested type; the error names
/// its tensor.
pub(super) fn write(
    (dir, stem): (&Path, &str),
    all: &[Named],
    limit: u64,
    from: &mut Checkpoint<'_>,
) -> Result<Vec<(String, u64)>, ExportError> {
    let files = cut(all, limit);
    let name = |i: usize| match files.len() {
        1 => format!("{stem}.safetensors"),
        count => format!("{stem}-{:05}-of-{count:05}.safetensors", i + 1),
    };
    let mut written = Vec::new();
    for (i, tensors) in files.iter().enumerate() {
        let mut file = Written::create(&dir.join(name(i)))?;
        let header = header(tensors);
        file.write(&(header.len() as u64).to_le_bytes())?;
        file.write(header.as_bytes())?;
        tensors.iter().try_for_each(|one| tensor(one, from, &mut file))?;
        written.push((name(i), file.finish()?));
    }
    if files.len() > 1 {
        let places = files.iter().enumerate().flat_map(|(i, file)| file.iter().map(move |one| (&one.name, name(i))));
        let places: serde_json::Map<_, _> = places.map(|(tensor, file)| (tensor.clone(), file.into())).collect();
        let bytes: u64 = all.iter().map(Named::bytes).sum();
        let index = json!({ "metadata": { "total_size": bytes }, "weight_map": places });
        let (name, text) = (format!("{stem}.safetensors.index.json"), format!("{index:#}\n"));
        let mut file = Written::create(&dir.join(&name))?;
        file.write(text.as_bytes())?;
        written.push((name, file.finish()?));
    }
    Ok(written)
}

fn tensor(one: &Named, from: &mut Checkpoint<'_>, file: &mut Written) -> Result<(), ExportError> {
    let mut bytes = Vec::new();
    from.stream(&one.tensor, &mut |numbers| match one.element.encode(numbers, &mut bytes) {
        None => file.write(&bytes),
        Some(most) => Err(ExportError::Failed(format!(
            "{}: {most:e} has no room in {}; export in bf16 or f32",
            one.name,
            one.element.safetensors()
        ))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(lens: &[u64]) -> Vec<Named> {
        let one = |len: &u64| Named { name: len.to_string(), tensor: Tensor::zeros(*len), element: Element::F32 };
        lens.iter().map(one).collect()
    }

    #[test]
    fn files_are_cut_before_the_tensor_that_has_no_room() {
        let all = named(&[10, 10, 5, 50, 1, 24]);
        let lens: Vec<Vec<u64>> =
            cut(&all, 100).iter().map(|file| file.iter().map(|one| one.tensor.shape[0]).collect()).collect();
        assert_eq!(lens, [vec![10, 10, 5], vec![50], vec![1, 24]]);
        assert_eq!(cut(&all, 400).len(), 1);
        assert_eq!(cut(&all, 1).len(), 6);
    }
}
