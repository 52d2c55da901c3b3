//! Draws the next token on the device that has the logits, so that the next step can start at once.

use crate::device::{Operand, Operation, OperationError};
use crate::generate::Sampler;
use crate::memory::{Arena, Region};
use crate::ops::MostLikely;
use crate::random::Random;
use crate::views;

/// `id` becomes the token that a sampler draws from the first `limit` logits with number `drawn` of its random numbers,
/// or [`MostLikely::NO_TOKEN`] where it draws none; so does `chosen[cursor mod n]`. Then `cursor` and `drawn` increase
/// by one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// [1, vocabulary].
    pub logits: Region,
    /// `[1]` u32: ids from this one on are never chosen.
    pub limit: Region,
    /// [[`Sample::SETTINGS`]] u32: see [`Sample::settings`].
    pub settings: Region,
    /// `[2]` u32: the count of numbers drawn before, the lower half first.
    pub drawn: Region,
    /// `[1]` u32.
    pub id: Region,
    /// `[1]` u32: the position of the token that the logits follow.
    pub cursor: Region,
    /// `[n]` u32: the tokens that followed the last n positions.
    pub chosen: Region,
}

/// The number of ids that the reference sorts without starting again.
const ROOM: usize = 512;

impl Sample {
    /// The number of words that describe the sampler.
    pub const SETTINGS: usize = 7;

    /// The words of a sampler and its random numbers; `None` where the sampler depends on the history.
    pub fn settings(sampler: &Sampler, random: &Random) -> Option<[u32; Sample::SETTINGS]> {
        let [a, b, c, d] = random.words();
        let words = [sampler.temperature.to_bits(), sampler.top_k, sampler.top_p.to_bits(), a, b, c, d];
        Some(words).filter(|_| sampler.repetition_penalty == 1.0)
    }
}

impl Operation for Sample {
    const NAME: &'static str = "sample";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("logits", self.logits).exact());
        visit(Operand::read("limit", self.limit).ids());
        visit(Operand::read("settings", self.settings).ids());
        visit(Operand::update("drawn", self.drawn).ids());
        visit(Operand::write("id", self.id).ids());
        visit(Operand::update("cursor", self.cursor).ids());
        visit(Operand::update("chosen", self.chosen).ids());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.logits.rows() == 1 && self.logits.columns() > 0, "logits")?;
        for (name, region) in [("limit", self.limit), ("id", self.id), ("cursor", self.cursor)] {
            self.expect(region.elements() == 1, name)?;
        }
        self.expect(self.settings.elements() == Sample::SETTINGS as u64, "settings")?;
        self.expect(self.drawn.elements() == 2, "drawn")?;
        self.expect(self.chosen.elements() > 0, "chosen")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            logits = Some(self.logits),
            limit = Some(self.limit),
            settings = Some(self.settings),
            mut drawn = Some(self.drawn),
            mut id = Some(self.id),
            mut cursor = Some(self.cursor),
            mut chosen = Some(self.chosen),
        );
        let (logits, limit) = (logits.f32()?, limit.u32()?.first().map_or(0, |limit| *limit as usize));
        let &[temperature, top_k, top_p, ref random @ ..] = settings.u32()? else {
            return Err(self.misfit("settings"));
        };
        let random = Random::of_words(random.try_into().map_err(|_| self.misfit("settings"))?);
        let [low, high] = drawn.u32_mut()? else { return Err(self.misfit("drawn")) };
        let [temperature, top_p] = [temperature, top_p].map(f32::from_bits);
        let sampler = Sampler { temperature, top_k, top_p, repetition_penalty: 1.0 };
        let index = u64::from(*low) | u64::from(*high) << 32;
        let token = sampler.draw(&logits[..limit.min(logits.len())], &mut [0; ROOM], &random, index);
        let next = index.wrapping_add(1);
        (*low, *high) = (next as u32, (next >> 32) as u32);
        MostLikely::keep(token, id.u32_mut()?, cursor.u32_mut()?, chosen.u32_mut()?).ok_or(self.misfit("chosen"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn what_the_sampler_draws_is_kept_by_its_position() {
        let mut b = Bench::<512>::new();
        let sampler = Sampler { temperature: 0.7, top_k: 3, top_p: 0.9, repetition_penalty: 1.0 };
        let random = Random::new(1 << 40 | 5, 1 << 35 | 3);
        let values = [0.5, 1.5, 1.4, 1.3, 1.2, 9.0];
        let words = |b: &Bench<512>, region| bytemuck::cast_slice::<u8, u32>(b.bytes(region)).to_vec();
        let op = Sample {
            logits: b.values([1, 1, 1, 6], &values),
            limit: b.ids(&[5]),
            settings: b.ids(&Sample::settings(&sampler, &random).unwrap()),
            drawn: b.ids(&[u32::MAX, 7]),
            id: b.ids(&[9]),
            cursor: b.ids(&[6]),
            chosen: b.ids(&[7, 7, 7, 7]),
        };
        let mut seen = [0; 6];
        for (step, place) in [2, 3, 0, 1, 2, 3, 0, 1].into_iter().enumerate() {
            b.run(op);
            let index = (7 << 32 | u64::from(u32::MAX)) + step as u64;
            let expected = sampler.draw(&values[..5], &mut [0; 5], &random, index).unwrap();
            assert_eq!((words(&b, op.id)[0], words(&b, op.chosen)[place]), (expected, expected), "{step}");
            assert_eq!(words(&b, op.drawn), [step as u32, 8]);
            assert_eq!(words(&b, op.cursor), [7 + step as u32]);
            seen[expected as usize] += 1;
        }
        assert!(seen[1..4].iter().all(|n| *n > 0) && seen[1..4].iter().sum::<i32>() == 8, "{seen:?}");
        b.set(op.logits, &[0.0, f32::NAN, 0.0, 0.0, 0.0, 0.0]);
        b.run(op);
        assert_eq!([words(&b, op.id)[0], words(&b, op.chosen)[2]], [MostLikely::NO_TOKEN; 2]);
        assert_eq!(Sample::settings(&Sampler { repetition_penalty: 1.1, ..sampler }, &random), None);
    }

    #[test]
    fn operands_that_do_not_belong_together_are_errors() {
        let mut b = Bench::<512>::new();
        let (logits, one, two) = (b.values([1, 1, 1, 5], &[0.0; 5]), b.ids(&[1]), b.ids(&[0, 0]));
        let [id, cursor] = [b.ids(&[0]), b.ids(&[0])];
        let (settings, chosen) = (b.ids(&[0; Sample::SETTINGS]), b.ids(&[0, 0]));
        let whole = Sample { logits, limit: one, settings, drawn: two, id, cursor, chosen };
        let none = chosen.reshaped([1, 1, 1, 0]);
        for (wrong, operand) in [
            (Sample { logits: logits.reshaped([1, 1, 5, 1]), ..whole }, "logits"),
            (Sample { limit: two, ..whole }, "limit"),
            (Sample { settings: two, ..whole }, "settings"),
            (Sample { drawn: one, ..whole }, "drawn"),
            (Sample { id: two, ..whole }, "id"),
            (Sample { cursor: two, ..whole }, "cursor"),
            (Sample { chosen: none, ..whole }, "chosen"),
        ] {
            assert_eq!(wrong.validate(), Err(wrong.misfit(operand)));
        }
        assert_eq!(b.fails(Sample { chosen: none, ..whole }), Some(whole.misfit("chosen")));
        assert_eq!(whole.validate(), Ok(()));
    }
}
