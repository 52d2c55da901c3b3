//! Bounds how much text a part of a `tokenizer.json` may make of one byte.
//!
//! The library normalises in memory, so a file that replaces a letter by a book would take all of the memory. The bound
//! is computed from the file's content before the file is used.

use serde_json::Value;

/// The most bytes that may be made of one byte. Published tokenizers reach 44; encoding takes some dozens of times as
/// much memory.
pub(super) const MOST: u64 = 64;

/// Most bytes that the compatibility forms of Unicode make of one byte: the three bytes of U+FDFA become eighteen
/// letters.
const COMPATIBILITY: u64 = 11;

/// The longest string in a map of characters that contains only those forms.
const FORM_BYTES: usize = 40;

/// The most bytes that the normalizer or the decoder `part` makes of one byte.
pub(super) fn expansion(part: &Value) -> u64 {
    let mut leaves = Vec::new();
    collect(part, &mut leaves);
    // Applying a form twice makes nothing longer.
    let form = leaves.iter().map(|leaf| of_form(leaf)).max().unwrap_or(1);
    leaves.iter().map(|leaf| of_leaf(leaf)).fold(form, u64::saturating_mul)
}

fn collect<'v>(part: &'v Value, leaves: &mut Vec<&'v Value>) {
    let members = ["normalizers", "decoders"].iter().find_map(|name| part.get(name)?.as_array());
    match members {
        Some(members) => members.iter().for_each(|member| collect(member, leaves)),
        None => leaves.push(part),
    }
}

fn text<'v>(leaf: &'v Value, pointer: &str) -> Option<&'v str> {
    leaf.pointer(pointer).and_then(Value::as_str)
}

fn of_form(leaf: &Value) -> u64 {
    match text(leaf, "/type") {
        Some("NFC" | "NFD" | "BertNormalizer") => 3,
        Some("NFKC" | "NFKD") => COMPATIBILITY,
        Some("Precompiled") => match longest(text(leaf, "/precompiled_charsmap").unwrap_or_default()) {
            0..=FORM_BYTES => COMPATIBILITY,
            bytes => bytes as u64,
        },
        _ => 1,
    }
}

/// The longest string in a map of characters. The map consists of the length of an index, the index, and strings that
/// end in a zero. 0 for a damaged map, which the library refuses.
fn longest(map: &str) -> usize {
    let Ok(map) = base64::decode(map) else { return 0 };
    let Some((length, rest)) = map.split_first_chunk() else { return 0 };
    let strings = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    strings.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

fn of_leaf(leaf: &Value) -> u64 {
    let len = |pointer| text(leaf, pointer).unwrap_or_default().len() as u64;
    match text(leaf, "/type") {
        Some("Lowercase" | "ByteLevel") => 2,
        // Lower-casing, and spaces around characters of three bytes.
        Some("BertNormalizer") => 4,
        Some("Prepend") => 1 + len("/prepend"),
        Some("Replace") => match text(leaf, "/pattern/String") {
            Some(pattern) if !pattern.is_empty() => len("/content").div_ceil(pattern.len() as u64).max(1),
            // The pattern may match an empty text.
            _ => 1 + len("/content"),
        },
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sequence(parts: &[Value]) -> Value {
        json!({"type": "Sequence", "normalizers": parts})
    }

    fn replace(pattern: &str, content: &str) -> Value {
        json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
    }

    fn precompiled(string: &str) -> Value {
        let map = [&8u32.to_le_bytes()[..], &[0; 8], b"a\0", string.as_bytes(), b"\0"].concat();
        json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(map)})
    }

    #[test]
    fn published_normalizers_are_allowed() {
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
        let form = precompiled("صلى الله عليه وسلم");
        let [nfkd, lower] = ["NFKD", "Lowercase"].map(|kind| json!({ "type": kind }));
        let strip = json!({"type": "StripAccents"});
        for (normalizer, expected) in [
            (Value::Null, 1),
            (json!({"type": "NFC"}), 3),
            // Llama 2, XLM-RoBERTa and ALBERT.
            (sequence(&[json!({"type": "Prepend", "prepend": "▁"}), replace(" ", "▁")]), 12),
            (sequence(&[form.clone(), spaces]), 44),
            (sequence(&[replace("``", "\""), replace("''", "\""), nfkd, strip, lower, form]), 22),
            (json!({"type": "BertNormalizer", "lowercase": true}), 12),
        ] {
            assert_eq!(expansion(&normalizer), expected, "{normalizer}");
            assert!(expected <= MOST);
        }
    }

    #[test]
    fn what_expands_without_end_is_found() {
        let book = "a".repeat(1000);
        let nested = sequence(&[sequence(&[replace("a", &book)]), replace("a", &book)]);
        assert_eq!(expansion(&nested), 1_000_000);
        assert_eq!(expansion(&json!({"type": "Sequence", "decoders": [replace("ab", &book)]})), 500);
        assert_eq!(expansion(&json!({"type": "Prepend", "prepend": book})), 1001);
        assert_eq!(expansion(&json!({"type": "Replace", "pattern": {"Regex": "a|"}, "content": book})), 1001);
        assert_eq!(expansion(&precompiled(&book)), 1000);
        assert_eq!(expansion(&sequence(&vec![replace("a", "aaaa"); 40])), u64::MAX);
    }
}
