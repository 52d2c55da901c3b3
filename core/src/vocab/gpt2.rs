//! Splits text as GPT-2 does, which most programs that read byte-level BPE know by name.
//!
//! Its pattern is `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. The pattern matches at
//! every position, so one pass over the text suffices.

#[derive(PartialEq, Clone, Copy)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

fn class(c: char) -> Class {
    if c.is_ascii_alphabetic() {
        Class::Letter
    } else if c.is_numeric() {
        Class::Number
    } else if c.is_whitespace() {
        Class::Space
    } else if c.is_alphabetic() && !is_mark(c) {
        Class::Letter
    } else {
        Class::Other
    }
}

/// Whether an alphabetic character is not in \p{L}: a mark, or a letter in a circle or a square.
fn is_mark(c: char) -> bool {
    let c = u32::from(c);
    let behind = MARKS.partition_point(|range| range >> 8 <= c);
    let range = behind.checked_sub(1).and_then(|at| MARKS.get(at));
    range.is_some_and(|range| c <= (range >> 8) + (range & 0xff))
}

/// Bytes of the first piece of `text`, if it has any.
pub(super) fn piece_len(text: &str) -> Option<usize> {
    let mut chars = text.chars();
    let first = chars.next()?;
    if first == '\''
        && let Some(len) = contraction(chars.as_str())
    {
        return Some(1 + len);
    }
    // A space belongs to what follows it, unless that is white space too.
    let behind = if first == ' ' { chars.as_str() } else { text };
    let kind = behind.chars().next().map_or(Class::Space, class);
    if kind == Class::Space {
        return Some(spaces(text));
    }
    let run = behind.find(|c| class(c) != kind).unwrap_or(behind.len());
    Some(text.len() - behind.len() + run)
}

/// The bytes of the contraction that `text`, which follows an apostrophe, begins with.
fn contraction(text: &str) -> Option<usize> {
    ["s", "t", "re", "ve", "m", "ll", "d"].into_iter().find(|end| text.starts_with(end)).map(str::len)
}

/// The bytes of white space at the beginning of `text`, without a last character that may belong to what follows.
fn spaces(text: &str) -> usize {
    let rest = text.trim_start();
    let len = text.len() - rest.len();
    let run = text.get(..len).unwrap_or(text);
    let last = run.chars().next_back().map_or(0, char::len_utf8);
    if rest.is_empty() || last == len { len } else { len - last }
}

/// Ranges of characters, each as its first character times 256 plus the number of further ones. The alphabetic
/// characters of a range include no letters.
static MARKS: [u32; 166] = [
    0x3452a, 0x5b017, 0x6100a, 0x64b14, 0x67000, 0x6d60e, 0x6e706, 0x71100, 0x7300f, 0x7a60a, 0x81601, 0x81b08,
    0x82502, 0x82903, 0x89700, 0x8d42f, 0x93a01, 0x93e11, 0x95502, 0x96201, 0x98102, 0x9be0e, 0x9d700, 0x9e201,
    0xa0102, 0xa3e13, 0xa7001, 0xa750e, 0xabe0e, 0xae201, 0xafa09, 0xb3e19, 0xb6201, 0xb8200, 0xbbe0e, 0xbd72d,
    0xc3e18, 0xc6201, 0xc8102, 0xcbe18, 0xce201, 0xcf310, 0xd3e0e, 0xd5700, 0xd6201, 0xd8102, 0xdcf24, 0xe3100,
    0xe3406, 0xe4d00, 0xeb100, 0xeb408, 0xecd00, 0xf7112, 0xf8d2f, 0x102b13, 0x105603, 0x105e02, 0x106202, 0x106706,
    0x107103, 0x10820b, 0x108f0e, 0x171201, 0x173201, 0x175201, 0x177201, 0x17b612, 0x188501, 0x18a900, 0x192018,
    0x1a1704, 0x1a551f, 0x1abf45, 0x1b350e, 0x1b8002, 0x1ba10c, 0x1be70a, 0x1c2412, 0x1dd321, 0x24b633, 0x2de01f,
    0xa67407, 0xa69e01, 0xa80200, 0xa80b00, 0xa82304, 0xa88001, 0xa8b411, 0xa8ff00, 0xa92604, 0xa9470b, 0xa98003,
    0xa9b40b, 0xa9e500, 0xaa290d, 0xaa4300, 0xaa4c01, 0xaa7b02, 0xaab000, 0xaab202, 0xaab701, 0xaabe00, 0xaaeb04,
    0xaaf500, 0xabe307, 0xfb1e00, 0x1037604, 0x10a010e, 0x10d2403, 0x10d6900, 0x10eab01, 0x10efc00, 0x1100002,
    0x110380d, 0x1107301, 0x1108002, 0x110b012, 0x1110002, 0x111270b, 0x1114501, 0x1118002, 0x111b30c, 0x111ce01,
    0x1122c12, 0x1124100, 0x112df24, 0x1133e0e, 0x1135700, 0x1136201, 0x113b815, 0x1143510, 0x114b011, 0x115af0f,
    0x115dc01, 0x1163010, 0x116ab0a, 0x1171d0d, 0x1182c0c, 0x119300c, 0x1194000, 0x1194200, 0x119d10e, 0x119e400,
    0x11a0109, 0x11a3504, 0x11a3b03, 0x11a510a, 0x11a8a0d, 0x11c2f0f, 0x11c9224, 0x11d3112, 0x11d4700, 0x11d8a0c,
    0x11ef30e, 0x11f0300, 0x11f340c, 0x1611e10, 0x16f4f00, 0x16f5141, 0x16ff001, 0x1bc9e00, 0x1e0002a, 0x1e08f00,
    0x1e94700, 0x1f13059,
];

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use crate::vocab::pieces::Cut;

    fn cut(text: &str) -> Vec<&str> {
        Cut::Gpt2.pieces(text).collect()
    }

    #[test]
    fn pieces_are_those_of_the_pattern() {
        assert_eq!(cut("I'Ll  don't\n\n x"), ["I", "'", "Ll", " ", " don", "'t", "\n\n", " x"]);
        assert_eq!(
            cut("we'll '  a\n\nb \u{3000}c  "),
            ["we", "'ll", " '", " ", " a", "\n", "\n", "b", " ", "\u{3000}", "c", "  "]
        );
        assert_eq!(cut(" 42nd (\u{24b6}) ''s"), [" 42", "nd", " (\u{24b6})", " ''", "s"]);
        // A vowel sign is alphabetic and no letter; a Roman number is a number.
        assert_eq!(cut("\u{915}\u{93f}\u{915} x\u{2167}"), ["\u{915}", "\u{93f}", "\u{915}", " x", "\u{2167}"]);
        assert!(cut("").is_empty());
    }
}
