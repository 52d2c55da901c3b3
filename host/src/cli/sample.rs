//! What a model says when its run ends.

use std::ops::ControlFlow;

use capful_core::data::{CONTEXT, as_input};
use capful_core::generate::Sampler;

use super::{Failure, work};
use crate::config::Config;
use crate::data::tokenizer::Tokenizer;
use crate::data::validation::ValidationSet;
use crate::run::Session;
use crate::run::generate::Generator;

/// The most tokens of it.
const MOST: usize = 120;

/// A document from its beginning; of a model that learns answers, what it says to the first question that is held out.
pub(super) fn sample(
    config: &Config,
    session: &mut Session,
    tokenizer: &dyn Tokenizer,
    held_out: &ValidationSet,
) -> Result<String, Failure> {
    let context = session.laid.sections.decoding.unwrap_or(1);
    let question = held_out.iter().find_map(|document| question(document, context as usize));
    let begin = vec![tokenizer.bos().or(tokenizer.eos()).unwrap_or(0)];
    let asks = question.as_ref().map(|ids| tokenizer.decode(ids));
    let prompt = question.unwrap_or(begin);
    let mut generator = Generator::new(context, config.vocab_size(), config.seed);
    let usual = Sampler { temperature: 0.8, top_k: 0, top_p: 0.95, repetition_penalty: 1.0 };
    // An answer is right or wrong; of tales there are many.
    let sampler = if asks.is_some() { Sampler { temperature: 0.0, ..usual } } else { usual };
    let mut ids = Vec::with_capacity(context as usize);
    let limit = tokenizer.vocab_size() as usize;
    let most = (context as usize).saturating_sub(prompt.len()).min(MOST);
    let ended = generator.run(session, &sampler, &prompt, most, limit, tokenizer.eos().as_slice(), &mut |id| {
        ids.push(id);
        ControlFlow::Continue(())
    });
    ended.map_err(work)?;
    let said = tokenizer.decode(&ids);
    Ok(asks.map_or(said.clone(), |asks| format!("{}\n{said}", asks.trim_end())))
}

/// The ids of a conversation up to its first answer, where there is one that leaves room for it.
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
