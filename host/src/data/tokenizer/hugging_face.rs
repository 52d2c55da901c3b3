//! Any `tokenizer.json` of Hugging Face's `tokenizers` library, run by that library.

use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer as Library,
};

use super::Tokenizer;
use super::error::Refusal;

/// What files call the token that begins a document, the likeliest first.
const BOS_NAMES: [&str; 8] =
    ["<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "<|bos|>", "<|begin▁of▁sentence|>", "[BOS]", "[CLS]"];

/// What files call the token that ends a document, the likeliest first.
const EOS_NAMES: [&str; 9] = [
    "<eos>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eos|>",
    "<|im_end|>",
    "<|end▁of▁sentence|>",
    "[EOS]",
    "[SEP]",
];

/// A foreign tokenizer. Its content is kept as it was read, so that it is saved unchanged.
#[derive(Debug, Clone)]
pub struct HuggingFaceTokenizer {
    library: Library,
    content: String,
    vocab_size: u32,
    bos: Option<u32>,
    eos: Option<u32>,
}

impl HuggingFaceTokenizer {
    pub(super) fn parse(content: String) -> Result<Self, Refusal> {
        let mut library: Library = match serde_json::from_str(&content) {
            Ok(library) => library,
            Err(error) => return Err(blame(&content, &error)),
        };
        if let ModelWrapper::BPE(model) = library.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(Refusal::Unsupported(
                "its model has dropout: the same text would get different ids".to_owned(),
            ));
        }
        // Documents are never cut or filled up here.
        library.with_padding(None);
        library.with_truncation(None).map_err(Refusal::damaged)?;
        // An unknown character shows whether the model can do without an unknown token that it lacks.
        if let Err(error) = library.encode_fast("a \u{10ffff}\0é", false) {
            return Err(Refusal::Unsupported(format!("it cannot encode every text: {error}")));
        }
        let ids = library.get_vocab(true);
        let Some(&last) = ids.values().max() else {
            return Err(Refusal::damaged("its vocabulary is empty"));
        };
        let vocab_size = last.checked_add(1).ok_or_else(|| Refusal::damaged("an id is out of range"))?;
        let added = library.get_added_tokens_decoder();
        let named = |names: &[&str]| {
            let id = |name: &&str| added.iter().find(|(_, token)| token.content == **name).map(|(&id, _)| id);
            names.iter().find_map(id)
        };
        let (bos, eos) = (named(&BOS_NAMES), named(&EOS_NAMES));
        Ok(Self { library, content, vocab_size, bos, eos })
    }
}

/// Says which part of a file the library does not take.
fn blame(content: &str, error: &serde_json::Error) -> Refusal {
    let Ok(file) = serde_json::from_str::<Value>(content) else { return Refusal::damaged(error) };
    if file.get("model").is_none() {
        return Refusal::Damaged("it has no `model`, so it is no tokenizer.json".to_owned());
    }
    let parts = [
        part::<NormalizerWrapper>(&file, "normalizer", "normalizers"),
        part::<PreTokenizerWrapper>(&file, "pre_tokenizer", "pretokenizers"),
        part::<ModelWrapper>(&file, "model", ""),
        part::<PostProcessorWrapper>(&file, "post_processor", "processors"),
        part::<DecoderWrapper>(&file, "decoder", "decoders"),
    ];
    match parts.into_iter().flatten().next() {
        Some(what) => Refusal::Unsupported(what),
        None => Refusal::damaged(error),
    }
}

/// The member of part `name`, or of the sequence in it, that is refused.
fn part<T: DeserializeOwned>(file: &Value, name: &str, members: &str) -> Option<String> {
    let value = file.get(name).filter(|value| !value.is_null())?;
    if let Some(Value::Array(sequence)) = value.get(members) {
        return sequence.iter().find_map(|member| refused::<T>(name, member));
    }
    refused::<T>(name, value)
}

fn refused<T: DeserializeOwned>(name: &str, value: &Value) -> Option<String> {
    let error = serde_json::from_value::<T>(value.clone()).err()?;
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("of no type");
    // The library's message may run over several lines.
    let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    Some(format!("its {name} `{kind}` is not supported ({reason})"))
}

impl Tokenizer for HuggingFaceTokenizer {
    fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn eos(&self) -> Option<u32> {
        self.eos
    }

    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        // What makes a text fail was looked for when the file was read; such a text has no ids.
        if let Ok(encoding) = self.library.encode_fast(text, false) {
            ids.extend(encoding.get_ids());
        }
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.library.decode(ids, true).unwrap_or_default()
    }

    fn token(&self, id: u32) -> Option<String> {
        self.library.id_to_token(id)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.content.as_bytes())
    }
}
