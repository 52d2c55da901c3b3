//! The classes of characters in the patterns that cut text for byte-level BPE: \p{L}, \p{N}, \d, \s or none of them.
//!
//! [`char`]'s own methods differ: `is_alphabetic` includes marks that \p{L} lacks. The ranges come from regex-syntax,
//! the source of the `tokenizers` library's engine too.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as Ranges, HirKind};

/// A class of characters; the classes are disjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// \p{L}
    Letter,
    /// \d, which is \p{Nd}
    Digit,
    /// \p{N} without \d
    Number,
    /// \s
    Space,
    /// All others.
    Other,
}

impl Class {
    /// \p{N}
    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Digit | Self::Number)
    }
}

/// Characters of a block. Most blocks equal another block.
const BLOCK: usize = 256;

/// The classes of all characters, in blocks; equal blocks are stored once.
pub(super) struct Classes {
    ascii: [Class; 128],
    /// The block of a character, indexed by the character's number without its last 8 bits.
    blocks: Vec<u8>,
    /// `[blocks × BLOCK]`
    classes: Vec<Class>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::new);

impl Classes {
    /// The table, built at the first call.
    pub(super) fn get() -> &'static Self {
        &CLASSES
    }

    fn new() -> Self {
        let mut all = vec![Class::Other; char::MAX as usize + 1];
        // \d is a subset of \p{N}.
        for (pattern, class) in
            [(r"\p{L}", Class::Letter), (r"\p{N}", Class::Number), (r"\d", Class::Digit), (r"\s", Class::Space)]
        {
            let parsed = regex_syntax::parse(pattern).expect("a class of characters");
            let HirKind::Class(Ranges::Unicode(ranges)) = parsed.kind() else { unreachable!("a class of characters") };
            for range in ranges.ranges() {
                all[range.start() as usize..=range.end() as usize].fill(class);
            }
        }
        let mut kept: Vec<&[Class]> = Vec::new();
        let mut number = |block| {
            let found = kept.iter().position(|other| *other == block);
            let place = found.unwrap_or(kept.len());
            if found.is_none() {
                kept.push(block);
            }
            u8::try_from(place).expect("fewer than 256 different blocks")
        };
        let blocks = all.chunks(BLOCK).map(&mut number).collect();
        Self { ascii: std::array::from_fn(|c| all[c]), blocks, classes: kept.concat() }
    }

    /// The class of a byte below 128.
    pub(super) fn of_ascii(&self, byte: u8) -> Class {
        self.ascii[usize::from(byte & 127)]
    }

    /// The class of a character.
    pub(super) fn of(&self, c: char) -> Class {
        let c = c as usize;
        self.classes[usize::from(self.blocks[c / BLOCK]) * BLOCK + c % BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::utils::SysRegex;

    use super::*;

    /// Checks every character with the engine that the library uses.
    #[test]
    fn classes_are_those_of_the_library_s_engine() {
        let all: String = ('\0'..=char::MAX).collect();
        for (pattern, has) in [
            (r"\p{L}", (|class| class == Class::Letter) as fn(Class) -> bool),
            (r"\p{N}", Class::is_number),
            (r"\d", |class| class == Class::Digit),
            (r"\s", |class| class == Class::Space),
        ] {
            let ours = all.char_indices().filter(|&(_, c)| has(Classes::get().of(c))).map(|(at, _)| at);
            let library = SysRegex::new(pattern).unwrap();
            assert!(library.find_iter(&all).map(|(at, _)| at).eq(ours), "{pattern}");
        }
        assert!((0..128u8).all(|b| Classes::get().of_ascii(b) == Classes::get().of(char::from(b))));
    }

    #[test]
    fn a_mark_is_no_letter() {
        // DEVANAGARI VOWEL SIGN I is alphabetic, and a mark.
        assert!('\u{93f}'.is_alphabetic());
        assert_eq!(Classes::get().of('\u{93f}'), Class::Other);
        assert_eq!(
            ['क', '٣', '½', '\u{85}'].map(|c| Classes::get().of(c)),
            [Class::Letter, Class::Digit, Class::Number, Class::Space]
        );
    }
}
