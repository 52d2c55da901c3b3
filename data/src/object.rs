//! Extracts the text of one JSON value: a string, or one field of an object.
//!
//! `NaN` and `Infinity`, which Python writes although JSON lacks them, are accepted in other fields. A surrogate
//! without its partner becomes U+FFFD.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::flaws::Flaws;

/// Why a value has no text.
#[derive(Debug)]
pub(super) enum NoText {
    /// The value is not JSON, or neither an object nor a string.
    Json(String),
    /// The object lacks the field; stores the names of its fields.
    NoField(String),
    /// The field is not a string.
    NotAString,
}

/// Appends the text of the value `json` to `text`: the string, or the string in field `field` of an object; appends
/// nothing if that is null. Numbers that JSON lacks are overwritten in `json`.
pub(super) fn text_of(json: &mut [u8], field: &str, text: &mut String, flaws: &mut Flaws) -> Result<(), NoText> {
    match parsed(json, field, text, false) {
        Err(NoText::Json(reason)) => {
            let patched = patch_numbers(json);
            if !patched && !has_surrogate(json) {
                return Err(NoText::Json(reason));
            }
            text.clear();
            parsed(json, field, text, true)
        }
        read => read,
    }
    .map(|read| {
        flaws.nulls += u64::from(read.found == Found::Null);
        flaws.surrogates += read.surrogates;
    })
}

fn parsed(json: &[u8], field: &str, text: &mut String, mend: bool) -> Result<Read, NoText> {
    let mut read = Read { found: Found::Missing, surrogates: 0, mend };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let string = json.trim_ascii_start().starts_with(b"\"");
    let parsed = if string {
        Value { text, read: &mut read }.deserialize(&mut reader)
    } else {
        Object { field, text, read: &mut read }.deserialize(&mut reader)
    };
    match (parsed.and_then(|()| reader.end()), &read.found) {
        (Err(e), Found::Other) if e.is_data() => Err(NoText::NotAString),
        (Err(e), _) => {
            // The column is useful for a single line, "at line 1" is not.
            let reason = e.to_string().replace(" at line 1 column 0", "").replace(" at line 1 column ", ", column ");
            Err(NoText::Json(reason))
        }
        (Ok(()), Found::Text | Found::Null) => Ok(read),
        (Ok(()), _) => Err(NoText::NoField(field_names(json))),
    }
}

/// Overwrites `NaN` and `Infinity` outside strings with JSON numbers; returns whether there were any.
fn patch_numbers(json: &mut [u8]) -> bool {
    let (mut at, mut string, mut any) = (0, false, false);
    while at < json.len() {
        let length = match &json[at..] {
            [b'\\', ..] if string => 2,
            [b'"', ..] => {
                string = !string;
                1
            }
            rest if !string => {
                let word = [&b"NaN"[..], b"Infinity"].into_iter().find(|word| rest.starts_with(word));
                if let Some(word) = word {
                    any = true;
                    json[at..at + word.len()].fill(b' ');
                    json[at] = b'0';
                }
                word.map_or(1, <[u8]>::len)
            }
            _ => 1,
        };
        at += length;
    }
    any
}

/// Whether an escape names half of a surrogate pair, with its partner or without.
fn has_surrogate(json: &[u8]) -> bool {
    json.windows(4).any(|four| matches!(four, [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F']))
}

#[derive(Debug, PartialEq)]
enum Found {
    Missing,
    Other,
    Null,
    Text,
}

/// The result of reading a value.
struct Read {
    found: Found,
    surrogates: u64,
    /// Whether surrogates without a partner are accepted.
    mend: bool,
}

/// Reads one field of an object directly into the document's text; no other field is stored in memory.
struct Object<'a> {
    field: &'a str,
    text: &'a mut String,
    read: &'a mut Read,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(wanted) = map.next_key_seed(Key { field: self.field, mend: self.read.mend })? {
            if wanted {
                // If a field occurs twice, its last value counts, as in most JSON readers.
                self.text.clear();
                self.read.found = Found::Other;
                map.next_value_seed(Value { text: self.text, read: self.read })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Key<'a> {
    field: &'a str,
    mend: bool,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<bool, D::Error> {
        if self.mend { input.deserialize_bytes(self) } else { input.deserialize_str(self) }
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }
    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.field)
    }
    fn visit_bytes<E>(self, name: &[u8]) -> Result<bool, E> {
        Ok(name == self.field.as_bytes())
    }
}

/// A value that is a string or null.
struct Value<'a> {
    text: &'a mut String,
    read: &'a mut Read,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        self.read.found = Found::Other;
        input.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_none<E>(self) -> Result<(), E> {
        self.read.found = Found::Null;
        Ok(())
    }
    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        if self.read.mend { input.deserialize_bytes(self) } else { input.deserialize_str(self) }
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        push(self.text, text)?;
        self.read.found = Found::Text;
        Ok(())
    }
    fn visit_bytes<E: serde::de::Error>(self, mut bytes: &[u8]) -> Result<(), E> {
        while !bytes.is_empty() {
            let valid = std::str::from_utf8(bytes).map_or_else(|e| e.valid_up_to(), str::len);
            let (text, rest) = bytes.split_at(valid);
            push(self.text, std::str::from_utf8(text).unwrap_or_default())?;
            // Half of a pair takes three bytes.
            bytes = rest.get(3..).unwrap_or_default();
            if !rest.is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
                self.read.surrogates += 1;
            }
        }
        self.read.found = Found::Text;
        Ok(())
    }
}

fn push<E: serde::de::Error>(to: &mut String, text: &str) -> Result<(), E> {
    if to.try_reserve_exact(text.len()).is_err() {
        return Err(E::custom("out of memory"));
    }
    to.push_str(text);
    Ok(())
}

/// The names of an object's fields, for an error message.
fn field_names(json: &[u8]) -> String {
    struct Names(Vec<String>);
    impl<'de> Visitor<'de> for &mut Names {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                self.0.push(name);
                if self.0.len() == 12 {
                    return Err(A::Error::custom("enough"));
                }
            }
            Ok(())
        }
    }
    let mut names = Names(Vec::new());
    // Stops early when there are many names; the error of stopping means nothing.
    let _ = serde_json::Deserializer::from_slice(json).deserialize_map(&mut names);
    match names.0.is_empty() {
        true => "none".to_owned(),
        false => names.0.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<(String, Flaws), NoText> {
        let (mut text, mut flaws) = (String::new(), Flaws::default());
        text_of(&mut json.as_bytes().to_vec(), "text", &mut text, &mut flaws).map(|()| (text, flaws))
    }

    #[test]
    fn what_json_has_not_is_passed_over_outside_the_text() {
        for json in [
            r#"{"a": NaN, "text": "NaN \" Infinity", "b": [-Infinity, {"c": Infinity}]}"#,
            r#"{"text": "NaN \" Infinity", "\"NaN": NaN}"#,
        ] {
            assert_eq!(read(json).unwrap(), ("NaN \" Infinity".to_owned(), Flaws::default()), "{json}");
        }
        assert!(matches!(read(r#"{"text": NaN}"#), Err(NoText::NotAString)));
        for json in [r#"{"text": "a", "b": Nan}"#, r#"{"text": "a", "b": NaNa}"#, r#"{"text": "a", "b": inf}"#] {
            assert!(matches!(read(json), Err(NoText::Json(_))), "{json}");
        }
    }

    #[test]
    fn halves_of_pairs_become_replacement_characters_and_are_counted() {
        for (json, text, surrogates) in [
            (r#"{"text": "a\ud800b"}"#, "a\u{FFFD}b", 1),
            (r#"{"text": "\uDBFF\ud83d\ude00\ude00"}"#, "\u{FFFD}😀\u{FFFD}", 2),
            (r#"{"text": "\ud800\ud800\n\ud800\u0041ä"}"#, "\u{FFFD}\u{FFFD}\n\u{FFFD}Aä", 3),
            // Surrogates in other fields are ignored.
            (r#"{"\ud800": "\ud800", "text": "whole"}"#, "whole", 0),
            (r#"{"text": "\\ud800"}"#, "\\ud800", 0),
        ] {
            let flaws = Flaws { surrogates, ..Flaws::default() };
            assert_eq!(read(json).unwrap(), (text.to_owned(), flaws), "{json}");
        }
        assert!(matches!(read(r#"{"text": "\ud8"}"#), Err(NoText::Json(_))));
    }

    #[test]
    fn the_last_of_two_fields_counts_and_null_is_no_text() {
        assert_eq!(read(r#"{"text": "a", "text": "b"}"#).unwrap().0, "b");
        let null = (String::new(), Flaws { nulls: 1, ..Flaws::default() });
        assert_eq!(read(r#"{"text": null}"#).unwrap(), null);
        assert_eq!(read(r#"{"text": "a", "text": null}"#).unwrap(), null);
        assert_eq!(read(r#" "a string""#).unwrap().0, "a string");
        assert!(matches!(read("17"), Err(NoText::Json(_))));
        assert!(matches!(read(r#"{"text": ["a"]}"#), Err(NoText::NotAString)));
    }
}
