//! Cuts text into pieces that no BPE merge crosses.
//!
//! A piece is one of the following, tried in this order at each place:
//! 1. a run of letters, of digits, or of other signs (Unicode's alphabetic, numeric, neither), with the one space before
//!    it if there is one;
//! 2. a run of white space, less a last space that belongs to the next piece.
//!
//! The pieces put together are the text.

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

/// The pieces of `text`, in order.
pub fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    core::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (piece, after) = rest.split_at(piece_len(rest, first));
        rest = after;
        Some(piece)
    })
}

fn piece_len(text: &str, first: char) -> usize {
    let (start, first) = match text[first.len_utf8()..].chars().next() {
        Some(second) if first == ' ' && class(second) != Class::Space => (1, second),
        _ => (0, first),
    };
    let kind = class(first);
    let end_of = |(at, c): (usize, char)| (class(c) != kind).then_some(at);
    match text[start..].char_indices().find_map(end_of) {
        // More than one: the last space goes with what follows.
        Some(len) if kind == Class::Space && len > 1 && text[..len].ends_with(' ') => len - 1,
        Some(len) => start + len,
        None => text.len(),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::String;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn cut(text: &str) -> Vec<&str> {
        pieces(text).collect()
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
            prop_assert_eq!(pieces(&text).collect::<String>(), text.clone());
            prop_assert!(pieces(&text).all(|piece| !piece.is_empty()));
        }
    }
}
