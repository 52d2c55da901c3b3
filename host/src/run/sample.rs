//! Samples of a model's text, at an evaluation and when its run ends.

use std::ops::ControlFlow;
use std::sync::Arc;

use capful_core::data::{CONTEXT, as_input};
use capful_core::generate::Sampler;

use super::Session;
use super::generate::Generator;
use crate::config::Config;
use crate::data::tokenizer::Tokenizer;
use crate::data::validation::ValidationSet;
use crate::device::DeviceError;

/// The most tokens of a sample.
const MOST: usize = 120;

/// Draws samples of a model: a document from its beginning; for a model that learns answers, its answer to the first
/// held-out question. Every sample uses the same random choices, so that it changes only with the weights.
pub struct Samples {
    generator: Generator,
    seed: u64,
    sampler: Sampler,
    prompt: Vec<u32>,
    /// The question, if there is one.
    question: Option<String>,
    tokenizer: Arc<dyn Tokenizer>,
    most: usize,
    ids: Vec<u32>,
}

impl Samples {
    /// Samples of the model of `config` in `session`.
    pub fn new(config: &Config, session: &Session, tokenizer: Arc<dyn Tokenizer>, held_out: &ValidationSet) -> Samples {
        let context = session.laid.sections.decoding.unwrap_or(1);
        let question = held_out.iter().find_map(|document| question(document, context as usize));
        let begin = vec![tokenizer.bos().or(tokenizer.eos()).unwrap_or(0)];
        let usual = Sampler { temperature: 0.8, top_k: 0, top_p: 0.95, repetition_penalty: 1.0 };
        // An answer is right or wrong; many tales are equally good.
        let sampler = if question.is_some() { Sampler { temperature: 0.0, ..usual } } else { usual };
        let text = question.as_ref().map(|ids| tokenizer.decode(ids));
        let prompt = question.unwrap_or(begin);
        let most = (context as usize).saturating_sub(prompt.len()).min(MOST);
        let generator = Generator::new(context, config.vocab_size(), config.seed);
        Samples { generator, seed: config.seed, sampler, prompt, question: text, tokenizer, most, ids: Vec::new() }
    }

    /// A sample of the model's current text.
    ///
    /// # Errors
    /// The device; weights that give no numbers.
    pub fn draw(&mut self, session: &mut Session) -> Result<String, DeviceError> {
        let Samples { generator, sampler, prompt, tokenizer, ids, .. } = self;
        ids.clear();
        generator.clear();
        generator.reseed(self.seed);
        let limit = tokenizer.vocab_size() as usize;
        generator.run(session, sampler, prompt, self.most, limit, tokenizer.eos().as_slice(), &mut |id| {
            ids.push(id);
            ControlFlow::Continue(())
        })?;
        let said = tokenizer.decode(ids);
        Ok(self.question.as_ref().map_or(said.clone(), |question| format!("{}\n{said}", question.trim_end())))
    }
}

/// The ids of a conversation up to its first answer, if there is one that leaves room for the answer.
fn question(document: &[u32], context: usize) -> Option<Vec<u32>> {
    let end = document.iter().position(|id| id & CONTEXT == 0)?;
    (end > 0 && end < context).then(|| document[..end].iter().map(|id| as_input(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_what_comes_before_the_first_answer() {
        let c = CONTEXT;
        assert_eq!(question(&[5 | c, 6 | c, 7, 8 | c, 9], 3), Some(vec![5, 6]));
        assert_eq!(question(&[5 | c, 6 | c, 7], 2), None);
        assert_eq!(question(&[5, 6, 7], 9), None);
        assert_eq!(question(&[5 | c], 9), None);
    }
}
