//! Splits text into pieces that no BPE merge crosses. The concatenated pieces are the text.

use super::gpt2;

/// A way to split text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// A piece is one of the following, tried in this order at each position:
    /// 1. a run of letters, of digits, or of other signs (Unicode's alphabetic, numeric, neither), with the one space
    ///    before it if there is one;
    /// 2. a run of white space, without a last space that belongs to the next piece.
    ///
    /// The first tokenizers split text like this.
    Runs,
    /// By GPT-2's pattern, which other programs know.
    Gpt2,
}

#[derive(PartialEq, Clone, Copy)]
enum Class {
    Letter,
    Digit,
    Space,
    Other,
}

fn class(c: char) -> Class {
    if c.is_alphabetic() {
        Class::Letter
    } else if c.is_numeric() {
        Class::Digit
    } else if c.is_whitespace() {
        Class::Space
    } else {
        Class::Other
    }
}

impl Cut {
    /// The pieces of `text`, in order.
    pub fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        core::iter::from_fn(move || {
            let len = match self {
                Cut::Runs => piece_len(rest),
                Cut::Gpt2 => gpt2::piece_len(rest),
            };
            // A piece always ends at a character boundary; otherwise the rest would become one piece, and no text would
            // be lost.
            let (piece, after) = rest.split_at_checked(len?).unwrap_or((rest, ""));
            rest = after;
            Some(piece)
        })
    }
}

/// Bytes of the first piece of `text`, if it has any.
fn piece_len(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    let (_, first) = chars.next()?;
    let mut behind = chars.clone();
    let (mut last, chars) = match behind.next() {
        Some((_, second)) if first == ' ' && class(second) != Class::Space => (second, behind),
        _ => (first, chars),
    };
    let kind = class(last);
    for (at, c) in chars {
        if class(c) != kind {
            // Of several spaces the last one belongs to what follows.
            return Some(at - usize::from(kind == Class::Space && last == ' '));
        }
        last = c;
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::String;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn cut(text: &str) -> Vec<&str> {
        Cut::Runs.pieces(text).collect()
    }

    #[test]
    fn pieces_are_runs_with_their_space() {
        assert_eq!(
            cut("Don't go, 42nd  street!\n"),
            ["Don", "'", "t", " go", ",", " 42", "nd", " ", " street", "!", "\n"]
        );
        assert_eq!(cut("a \n b"), ["a", " \n", " b"]);
        assert_eq!(cut("a\n\nb  "), ["a", "\n\n", "b", "  "]);
        assert_eq!(cut("   x"), ["  ", " x"]);
        assert_eq!(cut(" é٣—ß"), [" é", "٣", "—", "ß"]);
        assert_eq!(cut(" "), [" "]);
        assert_eq!(cut("\u{3000}\u{3000}x"), ["\u{3000}\u{3000}", "x"]);
        assert!(cut("").is_empty());
    }

    proptest! {
        #[test]
        fn pieces_put_together_are_the_text(text in "([a-b0 .\n\u{3000}é]|\\PC){0,60}") {
            for cut in [Cut::Runs, Cut::Gpt2] {
                prop_assert_eq!(cut.pieces(&text).collect::<String>(), text.clone());
                prop_assert!(cut.pieces(&text).all(|piece| !piece.is_empty()));
            }
        }
    }
}
