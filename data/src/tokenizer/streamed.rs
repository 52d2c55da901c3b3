//! Decodes ids that arrive one by one.

use super::Tokenizer;

/// Ids that are decoded again with each new id: a token's text depends on the tokens before it.
const KEPT: usize = 16;

/// Returns text as soon as it is certain. A character with bytes in several tokens waits for its last token; where
/// bytes in a row have a text only together ([`Tokenizer::unsettled`]), all of them wait for the token after them.
pub struct Streamed<'a> {
    tokenizer: &'a dyn Tokenizer,
    window: Vec<u32>,
    /// Bytes of the window's text that were already returned.
    shown: usize,
}

impl<'a> Streamed<'a> {
    /// A decoder without any ids yet.
    pub fn new(tokenizer: &'a dyn Tokenizer) -> Streamed<'a> {
        Streamed { tokenizer, window: Vec::with_capacity(2 * KEPT), shown: 0 }
    }

    /// The text that `id` adds.
    pub fn push(&mut self, id: u32) -> String {
        // If such ids filled the window, it would lack the context of the next word.
        if self.tokenizer.silent(id) {
            return String::new();
        }
        self.window.push(id);
        if self.tokenizer.unsettled(&self.window) > 0 {
            return String::new();
        }
        let more = self.rest(true);
        if self.window.len() >= 2 * KEPT {
            self.window.drain(..self.window.len() - KEPT);
            self.shown = 0;
            self.rest(true);
        }
        more
    }

    /// The rest of the text, which was waiting.
    pub fn finish(mut self) -> String {
        self.rest(false)
    }

    /// The text that was not returned yet, only up to where it is certain if `certain`.
    fn rest(&mut self, certain: bool) -> String {
        let text = self.tokenizer.decode(&self.window);
        let whole = text.strip_suffix(char::REPLACEMENT_CHARACTER).filter(|_| certain).unwrap_or(&text);
        let more = whole.get(self.shown..).unwrap_or_default().to_owned();
        self.shown = self.shown.max(whole.len());
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{BYTES, build};

    #[test]
    fn pieces_are_the_whole_and_no_character_is_cut() {
        let text = "Zwölf Boxkämpfer — 日本語 🦀 ".repeat(20);
        for kind in ["byte", "bpe", "word"] {
            let mut documents = [text.as_str()].into_iter().map(|text| Ok(text.to_owned()));
            let built = build(kind, Some(400), false, &mut documents).unwrap();
            let mut ids = Vec::new();
            built.tokenizer.encode(&text, &mut ids).unwrap();
            let mut streamed = Streamed::new(built.tokenizer.as_ref());
            let mut pieces: Vec<_> = ids.iter().map(|id| streamed.push(*id)).collect();
            assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() > 40, "{kind}");
            assert!(!pieces.concat().contains(char::REPLACEMENT_CHARACTER), "{kind}");
            pieces.push(streamed.finish());
            assert_eq!(pieces.concat(), built.tokenizer.decode(&ids), "{kind}");
        }
    }

    #[test]
    fn what_gives_no_text_leaves_no_trace() {
        let mut documents = ["one two"].into_iter().map(|text| Ok(text.to_owned()));
        let built = build("word", Some(10), false, &mut documents).unwrap();
        let mut ids = Vec::new();
        built.tokenizer.encode("one two", &mut ids).unwrap();
        let end = built.tokenizer.eos().unwrap();
        ids.splice(1..1, vec![end; 5 * KEPT]);
        let mut streamed = Streamed::new(built.tokenizer.as_ref());
        let shown: String = ids.iter().map(|id| streamed.push(*id)).collect();
        assert_eq!(shown + &streamed.finish(), "one two");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_in_a_bounded_window() {
        let built = build("byte", Some(BYTES), false, &mut std::iter::empty()).unwrap();
        let first = built.tokenizer.vocab_size() - 256;
        let ids: Vec<u32> = (0..1000).map(|i| first + [0x80, 0xe6, 0x97, 0xff][i % 4]).collect();
        let mut streamed = Streamed::new(built.tokenizer.as_ref());
        let mut shown = String::new();
        for id in &ids {
            shown += &streamed.push(*id);
            assert!(streamed.window.len() < 2 * KEPT);
        }
        shown += &streamed.finish();
        assert_eq!(shown, built.tokenizer.decode(&ids));
    }
}
