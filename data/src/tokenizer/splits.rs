//! Cuts text like the published patterns of byte-level BPE, without a regex engine.
//!
//! Each pattern matches a piece at every position, so a single pass suffices: the class of a character and the
//! characters after it determine the piece that begins there. The pieces together are the text.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split as LibrarySplit, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::classes::{Class, Classes};

/// GPT-2's pattern, which `ByteLevel` uses itself.
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Llama 3's pattern.
pub(super) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The pattern of Qwen2 to Qwen3.
pub(super) const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// SuperBPE's patterns, applied one after the other: numbers are separate, and cut in groups of three from the right.
pub(super) const NUMBERS: &str = r"\p{N}+";
/// The second of SuperBPE's patterns.
pub(super) const THREES: &str = r"(?=(\d{3})+(?!\d))";

/// A known way of cutting text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// `GPT2`
    Gpt2,
    /// `LLAMA3` and `QWEN2`, which differ in the most digits of a piece.
    Modern {
        /// 3 or 1.
        digits: u32,
    },
    /// `NUMBERS`, then `THREES`.
    Threes,
}

impl Split {
    /// The split that matches the `pre_tokenizer` of a `tokenizer.json`; `None` for a pre-tokenizer that is none of
    /// these.
    pub fn of_file(part: &serde_json::Value) -> Option<Self> {
        Self::of(&serde_json::from_value(part.clone()).ok()?)
    }

    /// The split that matches a pre-tokenizer of the library; `None` for one that is none of these.
    pub(super) fn of(part: &PreTokenizerWrapper) -> Option<Self> {
        let plain = |part: &ByteLevel| !part.add_prefix_space;
        let parts = match part {
            PreTokenizerWrapper::Sequence(parts) => parts.as_ref(),
            part => std::slice::from_ref(part),
        };
        match parts {
            [PreTokenizerWrapper::ByteLevel(last)] if plain(last) && last.use_regex => Some(Self::Gpt2),
            [PreTokenizerWrapper::Split(one), PreTokenizerWrapper::ByteLevel(last)]
                if plain(last) && !last.use_regex =>
            {
                match pattern(one)? {
                    GPT2 => Some(Self::Gpt2),
                    LLAMA3 => Some(Self::Modern { digits: 3 }),
                    QWEN2 => Some(Self::Modern { digits: 1 }),
                    _ => None,
                }
            }
            [
                PreTokenizerWrapper::Split(one),
                PreTokenizerWrapper::Split(two),
                PreTokenizerWrapper::ByteLevel(last),
            ] if plain(last) && !last.use_regex => {
                (pattern(one)? == NUMBERS && pattern(two)? == THREES).then_some(Self::Threes)
            }
            _ => None,
        }
    }

    /// Calls `each` with the pieces of `text`, in order. The time is linear in the text's length for any content.
    pub(super) fn pieces<'t>(self, text: &'t str, each: impl FnMut(&'t str)) {
        let text = Text { text, classes: Classes::get() };
        match self {
            Self::Gpt2 => text.walk(Text::gpt2, each),
            Self::Modern { digits } => text.walk(|text, at| text.modern(at, digits), each),
            Self::Threes => text.threes(each),
        }
    }
}

/// The pattern of a pre-tokenizer that makes pieces of its matches and of the text between them.
fn pattern(part: &LibrarySplit) -> Option<&str> {
    match &part.pattern {
        SplitPattern::Regex(pattern) if part.behavior == SplitDelimiterBehavior::Isolated && !part.invert => {
            Some(pattern)
        }
        _ => None,
    }
}

#[derive(Clone, Copy)]
struct Text<'t> {
    text: &'t str,
    classes: &'static Classes,
}

impl<'t> Text<'t> {
    /// Calls `each` with one piece after the other; `end` gives the end of the piece that begins at an offset.
    fn walk(self, end: impl Fn(Self, usize) -> usize, mut each: impl FnMut(&'t str)) {
        let mut at = 0;
        while at < self.text.len() {
            let from = at;
            at = end(self, from);
            each(&self.text[from..at]);
        }
    }

    fn byte(self, at: usize) -> u8 {
        self.text.as_bytes().get(at).copied().unwrap_or(0)
    }

    /// The class of the character at `at` and its length in bytes.
    fn class(self, at: usize) -> Option<(Class, usize)> {
        let &byte = self.text.as_bytes().get(at)?;
        if byte < 128 {
            return Some((self.classes.of_ascii(byte), 1));
        }
        let c = self.text[at..].chars().next()?;
        Some((self.classes.of(c), c.len_utf8()))
    }

    /// The end of the characters of a kind from `at` on.
    fn run(self, mut at: usize, is: impl Fn(Class) -> bool) -> usize {
        while let Some((class, len)) = self.class(at)
            && is(class)
        {
            at += len;
        }
        at
    }

    fn is(self, at: usize, class: Class) -> bool {
        self.class(at).is_some_and(|(found, _)| found == class)
    }

    /// The end of the piece that begins at `at`, by [`GPT2`].
    fn gpt2(self, at: usize) -> usize {
        if let Some(end) = self.contraction(at, false) {
            return end;
        }
        // A space belongs to the text after it, unless that is white space too.
        let from = if self.byte(at) == b' ' { at + 1 } else { at };
        match self.class(from) {
            Some((Class::Letter, len)) => self.run(from + len, |class| class == Class::Letter),
            Some((Class::Digit | Class::Number, len)) => self.run(from + len, Class::is_number),
            Some((Class::Other, len)) => self.run(from + len, |class| class == Class::Other),
            Some((Class::Space, _)) | None => self.spaces(at),
        }
    }

    /// The end of the piece that begins at `at`, by [`LLAMA3`] and [`QWEN2`].
    fn modern(self, at: usize, digits: u32) -> usize {
        if let Some(end) = self.contraction(at, true) {
            return end;
        }
        let Some((class, len)) = self.class(at) else { return self.text.len() };
        let letter = |class| class == Class::Letter;
        match class {
            Class::Letter => return self.run(at + len, letter),
            Class::Digit | Class::Number => {
                return (1..digits).fold(at + len, |at, _| match self.class(at) {
                    Some((class, len)) if class.is_number() => at + len,
                    _ => at,
                });
            }
            Class::Space | Class::Other => {}
        }
        // A single sign or space, but no line end, belongs to the letters after it.
        if !self.is_line_end(at) && self.is(at + len, Class::Letter) {
            return self.run(at + len, letter);
        }
        let from = if self.byte(at) == b' ' { at + 1 } else { at };
        if self.is(from, Class::Other) {
            let mut end = self.run(from, |class| class == Class::Other);
            while self.is_line_end(end) {
                end += 1;
            }
            return end;
        }
        self.lines(at)
    }

    fn is_line_end(self, at: usize) -> bool {
        matches!(self.byte(at), b'\r' | b'\n')
    }

    /// The end of an apostrophe with its contraction, if one begins at `at`.
    fn contraction(self, at: usize, any_case: bool) -> Option<usize> {
        if self.byte(at) != b'\'' {
            return None;
        }
        let [one, two] = [1, 2].map(|i| {
            let byte = self.byte(at + i);
            if any_case { byte.to_ascii_lowercase() } else { byte }
        });
        match (one, two) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
            // The long s equals an s when case is ignored.
            _ if any_case && self.text[at + 1..].starts_with('ſ') => Some(at + 3),
            _ => None,
        }
    }

    /// The end of white space, without a last character that may belong to the text after it: \s+(?!\S)|\s+
    fn spaces(self, at: usize) -> usize {
        let (mut last, mut end) = (at, at);
        while let Some((Class::Space, len)) = self.class(end) {
            (last, end) = (end, end + len);
        }
        if end == self.text.len() || last == at { end } else { last }
    }

    /// The end of white space up to its last line end, or [`Text::spaces`] where it has no line end: \s*[\r\n]+ first
    fn lines(self, at: usize) -> usize {
        let end = self.run(at, |class| class == Class::Space);
        match self.text.as_bytes()[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
            Some(last) => at + last + 1,
            None => self.spaces(at),
        }
    }

    /// The pieces by [`NUMBERS`], then [`THREES`].
    fn threes(self, mut each: impl FnMut(&'t str)) {
        let mut at = 0;
        while at < self.text.len() {
            let number = self.run(at, |class| !class.is_number());
            if number > at {
                each(&self.text[at..number]);
            }
            at = self.number(number, &mut each);
        }
    }

    /// The pieces of the number that begins at `from`, if one does, and its end.
    fn number(self, from: usize, each: &mut impl FnMut(&'t str)) -> usize {
        let (mut from, mut at) = (from, from);
        loop {
            // A cut at each digit that is followed by two, five, eight … digits; signs like ½ stay with the characters
            // before them.
            let end = self.run(at, |class| class == Class::Digit);
            let mut left = self.text[at..end].chars().count();
            for c in self.text[at..end].chars() {
                if left.is_multiple_of(3) && at > from {
                    each(&self.text[from..at]);
                    from = at;
                }
                at += c.len_utf8();
                left -= 1;
            }
            match self.class(at) {
                Some((Class::Number, len)) => at += len,
                _ => break,
            }
        }
        if at > from {
            each(&self.text[from..at]);
        }
        at
    }
}

#[cfg(test)]
pub(super) mod tests {
    use capful_core::vocab::pieces::Cut;
    use proptest::prelude::*;
    use regex_syntax::hir::{Class, HirKind};
    use serde_json::{Value, json};
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    /// Texts of everything that the patterns distinguish, and of other characters.
    pub fn texts() -> impl Strategy<Value = String> {
        let words = prop::sample::select(vec![
            "let x = foo(&self.bar)?; // it's",
            "The cat",
            "we'LL",
            "DON'T",
            "'\u{17f}",
            "'\u{212a}",
            "I'Ve",
            "'re",
            "''S",
            "d'l",
            "l'ombre",
            "naïve",
            "e\u{301}\u{323}",
            "السَّلام",
            "हिन्दी की",
            "ภาษาไทย",
            "漢字かな",
            "한국어",
            "\u{1112}\u{1161}",
            "Русский",
            "ΟΔΟΣ",
            "👩‍👩‍👧‍👦",
            "👍🏽",
            "🐻",
            "❤\u{fe0f}",
            "ǅ",
            "ʰ",
            "ª",
            "_",
            "--",
            "...",
            "\u{200d}",
            "\u{feff}",
            "\u{2126}",
        ]);
        let spaces = prop::sample::select(vec![
            " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\u{b}", "\u{c}", "\u{85}", "\u{a0}",
            "\u{1680}", "\u{2009}", "\u{2028}", "\u{2029}", "\u{3000}", "\u{200b}", "\u{1c}",
        ]);
        let numbers = prop_oneof!["[0-9]{1,10}", "[٠-٩]{1,7}", "[०-९0-9]{1,7}", "[½²Ⅷ〇0-9]{1,7}", "[𝟎-𝟗]{1,5}",];
        let part = prop_oneof![
            4 => words.prop_map(str::to_owned),
            4 => prop::collection::vec(spaces, 1..4).prop_map(|all| all.concat()),
            2 => numbers,
            2 => "[a-zA-Z']{1,9}",
            1 => "\\PC{1,4}",
            1 => any::<String>(),
        ];
        prop::collection::vec(part, 0..12).prop_map(|all| all.concat())
    }

    fn sequence(patterns: &[&str], use_regex: bool) -> Value {
        let split = |pattern: &&str| {
            let pattern = json!({ "Regex": pattern });
            json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
        };
        let mut parts: Vec<Value> = patterns.iter().map(split).collect();
        parts.push(byte_level(use_regex));
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    fn byte_level(use_regex: bool) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    /// Pre-tokenizers as in files, and the split that each means.
    pub fn known() -> [(Value, Split); 6] {
        [
            (byte_level(true), Split::Gpt2),
            (sequence(&[], true), Split::Gpt2),
            (sequence(&[GPT2], false), Split::Gpt2),
            (sequence(&[LLAMA3], false), Split::Modern { digits: 3 }),
            (sequence(&[QWEN2], false), Split::Modern { digits: 1 }),
            (sequence(&[NUMBERS, THREES], false), Split::Threes),
        ]
    }

    fn library(part: &Value) -> PreTokenizerWrapper {
        serde_json::from_value(part.clone()).unwrap()
    }

    fn library_s_pieces(part: &PreTokenizerWrapper, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        part.pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (from, to), _)| text[from..to].to_owned()).collect()
    }

    fn pieces(split: Split, text: &str) -> Vec<&str> {
        let mut pieces = vec![];
        split.pieces(text, |piece| pieces.push(piece));
        pieces
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]

        #[test]
        fn pieces_are_the_library_s(text in texts()) {
            for (part, split) in known() {
                prop_assert_eq!(pieces(split, &text), library_s_pieces(&library(&part), &text), "{}", part);
            }
        }
    }

    proptest! {
        #[test]
        fn the_core_cuts_as_gpt_2_too(text in texts()) {
            prop_assert_eq!(Cut::Gpt2.pieces(&text).collect::<Vec<_>>(), pieces(Split::Gpt2, &text));
        }
    }

    #[test]
    fn the_core_has_the_classes_of_every_character() {
        // A character may be assigned in one version of Unicode only: the language's tables are newer than the
        // engine's.
        let parsed = regex_syntax::parse(r"\P{Cn}").unwrap();
        let HirKind::Class(Class::Unicode(assigned)) = parsed.kind() else { panic!("a class of characters") };
        for c in assigned.ranges().iter().flat_map(|range| range.start()..=range.end()) {
            // The characters that it is joined with show its class.
            for joined in ["a", "1", " ", "-"] {
                let text = format!("{joined}{c}");
                assert_eq!(Cut::Gpt2.pieces(&text).count(), pieces(Split::Gpt2, &text).len(), "{c:?} {}", c as u32);
            }
        }
    }

    #[test]
    fn known_splits_are_known_and_no_others() {
        for (part, split) in known() {
            assert_eq!(Split::of(&library(&part)), Some(split), "{part}");
        }
        let mut prefix = byte_level(true);
        prefix["add_prefix_space"] = json!(true);
        let mut removed = sequence(&[LLAMA3], false);
        removed["pretokenizers"][0]["behavior"] = json!("Removed");
        let mut inverted = sequence(&[GPT2], false);
        inverted["pretokenizers"][0]["invert"] = json!(true);
        for other in [
            prefix,
            removed,
            inverted,
            byte_level(false),
            sequence(&[GPT2], true),
            sequence(&[THREES, NUMBERS], false),
            sequence(&[NUMBERS, THREES], true),
            sequence(&[NUMBERS], false),
            json!({"type": "Whitespace"}),
        ] {
            assert_eq!(Split::of(&library(&other)), None, "{other}");
        }
    }

    #[test]
    fn pieces_by_hand() {
        let modern = Split::Modern { digits: 3 };
        assert_eq!(pieces(Split::Gpt2, "I'Ll  don't\n\n x"), ["I", "'", "Ll", " ", " don", "'t", "\n\n", " x"]);
        assert_eq!(
            pieces(modern, "I'Ll  (don't)\r\n \n 12345"),
            ["I", "'Ll", " ", " (", "don", "'t", ")\r\n", " \n", " ", "123", "45"]
        );
        assert_eq!(pieces(Split::Modern { digits: 1 }, "\tx 12"), ["\tx", " ", "1", "2"]);
        assert_eq!(pieces(Split::Threes, "a b12345½123½ c"), ["a b", "12", "345½", "123½", " c"]);
        assert!(known().iter().all(|(_, split)| pieces(*split, "").is_empty()));
    }

    /// Quadratic work would take hours.
    #[test]
    fn long_runs_take_no_longer() {
        for (_, split) in known() {
            for unit in ["a", " ", "1", "\n", " \n", "'", "½1", "é", " a", "\r ", "\u{3000}"] {
                let text = unit.repeat(1 << 20);
                assert_eq!(pieces(split, &text).iter().map(|piece| piece.len()).sum::<usize>(), text.len());
            }
        }
    }
}
