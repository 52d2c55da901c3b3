//! Decides whether the ids of a `tokenizer.json` determine every byte of the text.
//!
//! Only byte-level BPE is known to do so. Any part that is not listed here counts as one that changes or drops text.

use std::collections::HashSet;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Library,
};

use super::byte_level::characters;

/// Whether two texts that differ in a byte always differ in their ids.
pub(super) fn restores_bytes(library: &Library) -> bool {
    let ModelWrapper::BPE(model) = library.get_model() else { return false };
    let added = library.get_added_tokens_decoder();
    library.get_normalizer().is_none()
        && library.get_pre_tokenizer().is_some_and(only_cuts)
        && matches!(library.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
        && has_every_byte(model)
        && added.values().all(|token| says_its_text(token, model))
}

/// Whether a pre-tokenizer only cuts text and finally writes bytes as characters.
fn only_cuts(part: &PreTokenizerWrapper) -> bool {
    let parts = match part {
        PreTokenizerWrapper::Sequence(parts) => parts.as_ref(),
        part => std::slice::from_ref(part),
    };
    let cuts = |part: &PreTokenizerWrapper| match part {
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        PreTokenizerWrapper::Digits(_) => true,
        _ => false,
    };
    match parts {
        [before @ .., PreTokenizerWrapper::ByteLevel(ByteLevel { add_prefix_space: false, .. })] => {
            before.iter().all(cuts)
        }
        _ => false,
    }
}

/// Whether the model encodes every byte of UTF-8, to tokens that stand for the bytes alone, each with an id of its own.
fn has_every_byte(model: &BPE) -> bool {
    let vocabulary = model.get_vocab();
    let has = |c: char| vocabulary.contains_key(c.encode_utf8(&mut [0; 4]) as &str);
    let in_utf8 = |byte: u8| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
    let ids: HashSet<&u32> = vocabulary.values().collect();
    ids.len() == vocabulary.len()
        && (0..=255).zip(characters()).all(|(byte, c)| has(c) || !in_utf8(byte))
        && model.continuing_subword_prefix.as_ref().is_none_or(String::is_empty)
        && model.end_of_word_suffix.as_ref().is_none_or(String::is_empty)
}

/// Whether an added token stands for exactly its own text: it takes no white space with it, and where the model has a
/// token of the same name, both names mean the same bytes.
fn says_its_text(token: &AddedToken, model: &BPE) -> bool {
    let same = token.content.bytes().all(|byte| byte.is_ascii_graphic());
    !token.lstrip && !token.rstrip && (same || model.token_to_id(&token.content).is_none())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};

    use super::*;

    fn byte_level(prefix: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true})
    }

    fn split(behavior: &str) -> Value {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": behavior, "invert": false}, byte_level(false)]})
    }

    fn added(content: &str, lstrip: bool) -> Value {
        json!([{"id": 257, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": false,
            "normalized": false, "special": true}])
    }

    fn restores(change: impl FnOnce(&mut Value)) -> bool {
        let mut vocabulary: HashMap<String, u32> = characters().map(String::from).zip(0..).collect();
        vocabulary.insert("Ġa".to_owned(), 256);
        let mut file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": byte_level(false), "post_processor": null, "decoder": byte_level(true),
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [["Ġ", "a"]]}
        });
        change(&mut file);
        restores_bytes(&serde_json::from_value(file).unwrap())
    }

    #[test]
    fn byte_level_bpe_that_changes_no_text_restores_it() {
        assert!(restores(|_| {}));
        assert!(restores(|file| file["pre_tokenizer"] = split("Isolated")));
        assert!(restores(|file| file["added_tokens"] = added("<|end|>", false)));
        assert!(restores(|file| _ = file["model"]["vocab"].as_object_mut().unwrap().remove("\u{ff}")));
    }

    #[test]
    fn what_changes_or_drops_text_does_not_restore_it() {
        for (pointer, value) in [
            ("/normalizer", json!({"type": "Lowercase"})),
            ("/normalizer", json!({"type": "NFC"})),
            ("/pre_tokenizer", byte_level(true)),
            ("/pre_tokenizer", split("Removed")),
            ("/pre_tokenizer", json!({"type": "Whitespace"})),
            ("/pre_tokenizer", json!(null)),
            ("/decoder", json!(null)),
            ("/added_tokens", added("<|end|>", true)),
            ("/model", json!({"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"})),
        ] {
            assert!(!restores(|file| *file.pointer_mut(pointer).unwrap() = value.clone()), "{pointer} {value}");
        }
        // The letter é is two bytes, one of which has no token.
        assert!(!restores(|file| _ = file["model"]["vocab"].as_object_mut().unwrap().remove("\u{c3}")));
        // One id for two tokens; an added token whose text differs in bytes from the model's token of that name.
        assert!(!restores(|file| file["model"]["vocab"]["zz"] = json!(5)));
        let same_name = json!([{"id": 256, "content": "Ġa", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false}]);
        assert!(!restores(|file| file["added_tokens"] = same_name));
    }
}
