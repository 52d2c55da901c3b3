//! A tokenizer with the files of other programs next to it. They are stored as they were read and affect no id: neither
//! the encoding of a text nor the tokenizer's identity.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use super::error::EncodeError;
use super::marks::Beside;
use super::{Tables, Tokenizer};

/// The tokenizer and the files that are stored with it.
pub(super) struct Kept {
    own: Arc<dyn Tokenizer>,
    beside: Beside,
}

impl Kept {
    /// `own` with the files `beside` it; `own` itself, where those files are what this program wrote.
    pub(super) fn with(own: Box<dyn Tokenizer>, mut beside: Beside) -> Box<dyn Tokenizer> {
        beside.forget_config(&own.config());
        if beside.is_empty() { own } else { Box::new(Self { own: own.into(), beside }) }
    }

    /// `own` with a template for conversations, which replaces an earlier template.
    pub(super) fn with_template(own: Arc<dyn Tokenizer>, template: &str) -> Arc<dyn Tokenizer> {
        Arc::new(Self { own, beside: Beside::of_template(template) })
    }
}

impl Tokenizer for Kept {
    fn vocab_size(&self) -> u32 {
        self.own.vocab_size()
    }

    fn bos(&self) -> Option<u32> {
        self.own.bos()
    }

    fn eos(&self) -> Option<u32> {
        self.own.eos()
    }

    fn unk(&self) -> Option<u32> {
        self.own.unk()
    }

    fn restores_bytes(&self) -> bool {
        self.own.restores_bytes()
    }

    fn tables(&self) -> Option<Tables<'_>> {
        self.own.tables()
    }

    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        self.own.encode(text, ids)
    }

    fn encode_rest(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        self.own.encode_rest(text, ids)
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.own.decode(ids)
    }

    fn silent(&self, id: u32) -> bool {
        self.own.silent(id)
    }

    fn unsettled(&self, ids: &[u32]) -> usize {
        self.own.unsettled(ids)
    }

    fn token(&self, id: u32) -> Option<String> {
        self.own.token(id)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.own.write(out)
    }

    fn config(&self) -> Cow<'_, str> {
        if !self.beside.has_config() {
            return self.own.config();
        }
        let name = |id: Option<u32>| id.and_then(|id| self.token(id));
        Cow::Owned(self.beside.config(self.bos().is_some(), name(self.bos()), name(self.eos())))
    }

    fn beside(&self) -> Vec<(&'static str, Cow<'_, str>)> {
        let ours = self.beside.files();
        let others = self.own.beside().into_iter().filter(|(name, _)| ours.iter().all(|(our, _)| our != name));
        let others: Vec<_> = others.collect();
        others.into_iter().chain(ours.into_iter().map(|(name, text)| (name, Cow::Owned(text)))).collect()
    }

    fn write_identity(&self, out: &mut dyn Write) -> io::Result<()> {
        self.own.write_identity(out)
    }
}
