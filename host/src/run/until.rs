//! Where a generated text ends: at a token, or before a text.

use std::ops::ControlFlow;

use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer::streamed::Streamed;
use crate::format::hugging_face::Generation;

/// The ends of a model's texts.
#[derive(Debug, Clone, Default)]
pub struct Until {
    /// Tokens that end a text and are not part of it.
    pub ends: Vec<u32>,
    /// Texts before which a text ends.
    pub texts: Vec<String>,
}

impl Until {
    /// The end tokens of the model of `ids` ids with its tokenizer, and the texts `stop`. A text that is the name of a
    /// token without text (`<|im_end|>`) counts as that token.
    pub fn new(generation: &Generation, tokenizer: &dyn Tokenizer, ids: u32, stop: &[String]) -> Until {
        let mut until = Until { ends: generation.ends(tokenizer, ids), texts: Vec::new() };
        for text in stop {
            let named = |id: &u32| tokenizer.token(*id).as_ref() == Some(text) && tokenizer.silent(*id);
            match (0..tokenizer.vocab_size()).find(named) {
                Some(id) => until.ends.push(id),
                None => until.texts.push(text.clone()),
            }
        }
        until
    }
}

/// The text of ids that arrive one by one, up to where one of `texts` begins. A possible beginning of such a text is
/// held back until it is certain.
pub struct Output<'a> {
    streamed: Option<Streamed<'a>>,
    texts: &'a [String],
    held: String,
    stopped: bool,
}

impl<'a> Output<'a> {
    /// An empty output.
    pub fn new(tokenizer: &'a dyn Tokenizer, texts: &'a [String]) -> Output<'a> {
        Output { streamed: Some(Streamed::new(tokenizer)), texts, held: String::new(), stopped: false }
    }

    /// The text that `id` adds.
    pub fn push(&mut self, id: u32) -> String {
        let more = self.streamed.as_mut().map_or(String::new(), |streamed| streamed.push(id));
        self.show(&more)
    }

    /// The text that was held back.
    pub fn finish(&mut self) -> String {
        let more = self.streamed.take().map_or(String::new(), Streamed::finish);
        self.show(&more) + &std::mem::take(&mut self.held)
    }

    /// Whether one of the texts occurred.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Whether generation should continue.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn show(&mut self, more: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(more);
        if let Some(at) = self.texts.iter().filter_map(|text| self.held.find(text)).min() {
            self.stopped = true;
            let shown = self.held[..at].to_owned();
            self.held.clear();
            return shown;
        }
        let begun = |text: &String| {
            let lengths = (1..text.len()).rev().filter(|length| text.is_char_boundary(*length));
            lengths.into_iter().find(|length| self.held.ends_with(&text[..*length])).unwrap_or(0)
        };
        let certain = self.held.len() - self.texts.iter().map(begun).max().unwrap_or(0);
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::build;

    /// The output for `text`, byte by byte, and whether it stopped.
    fn shown(text: &str, stop: &[&str]) -> (Vec<String>, bool) {
        let tokenizer = build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer;
        let stop: Vec<String> = stop.iter().map(|text| (*text).to_owned()).collect();
        let until = Until::new(&Generation::default(), tokenizer.as_ref(), 260, &stop);
        let mut output = Output::new(tokenizer.as_ref(), &until.texts);
        let mut ids = Vec::new();
        tokenizer.encode(text, &mut ids).unwrap();
        let mut all: Vec<String> = Vec::new();
        for id in ids {
            all.push(output.push(id));
            if output.flow().is_break() {
                break;
            }
        }
        all.push(output.finish());
        (all, output.stopped())
    }

    #[test]
    fn output_ends_before_the_text_and_shows_nothing_of_it() {
        for (text, stop, expected, stopped) in [
            ("he went home . User: hi", &["User:"][..], "he went home . ", true),
            // A beginning that continues differently is shown.
            ("Us Use User. end", &["User:"], "Us Use User. end", false),
            ("aaab", &["aab"], "a", true),
            ("one two", &["two", "on"], "", true),
            // A beginning of a stop text at the end of the text is shown.
            ("one tw", &["two"], "one tw", false),
            ("größer 日本 x", &["日本語", "ö"], "gr", true),
            ("a 日本", &["日本語"], "a 日本", false),
            ("text", &[], "text", false),
        ] {
            let (pieces, ended) = shown(text, stop);
            assert_eq!((pieces.concat().as_str(), ended), (expected, stopped), "{text}: {stop:?}");
        }
        // Text is shown as soon as it is certain, and no earlier.
        let (pieces, _) = shown("Us-User:", &["User:"]);
        assert_eq!(pieces, ["", "", "Us-", "", "", "", "", "", ""]);
    }

    #[test]
    fn the_name_of_a_token_without_text_is_that_token() {
        let tokenizer = build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer;
        let until = Until::new(&Generation::default(), tokenizer.as_ref(), 260, &["<bos>".into(), "bos".into()]);
        assert_eq!((until.ends, until.texts), (vec![3, 2], vec!["bos".to_owned()]));
    }
}
