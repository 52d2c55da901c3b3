//! The most likely next token, chosen on the device that has the logits, so that the next step can start at once.

use crate::device::{Operand, Operation, OperationError};
use crate::generate::most_likely;
use crate::memory::{Arena, Region};

/// `id` becomes the id of the largest of the first `limit` logits, the lower id of a tie, or [`NO_TOKEN`] where the
/// largest is not finite; so does `chosen[cursor mod n]`. Then `cursor` increases by one.
///
/// [`NO_TOKEN`]: MostLikely::NO_TOKEN
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MostLikely {
    /// [1, vocabulary].
    pub logits: Region,
    /// `[1]` u32: ids from this one on are never chosen.
    pub limit: Region,
    /// `[1]` u32.
    pub id: Region,
    /// `[1]` u32: the position of the token that the logits follow.
    pub cursor: Region,
    /// `[n]` u32: the tokens that followed the last n positions.
    pub chosen: Region,
}

impl MostLikely {
    /// The id that stands for the failure to choose a token.
    pub const NO_TOKEN: u32 = u32::MAX;

    /// Records `token` as the successor of position `cursor`, and advances the cursor. `None` if there are no slots.
    pub(crate) fn keep(token: Option<u32>, id: &mut [u32], cursor: &mut [u32], chosen: &mut [u32]) -> Option<()> {
        let token = token.unwrap_or(MostLikely::NO_TOKEN);
        let now = cursor.first_mut()?;
        let place = (*now as usize).checked_rem(chosen.len())?;
        chosen[place] = token;
        *now = now.wrapping_add(1);
        id.fill(token);
        Some(())
    }
}

impl Operation for MostLikely {
    const NAME: &'static str = "most_likely";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("logits", self.logits).exact());
        visit(Operand::read("limit", self.limit).ids());
        visit(Operand::write("id", self.id).ids());
        visit(Operand::update("cursor", self.cursor).ids());
        visit(Operand::update("chosen", self.chosen).ids());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.logits.rows() == 1 && self.logits.columns() > 0, "logits")?;
        for (name, region) in [("limit", self.limit), ("id", self.id), ("cursor", self.cursor)] {
            self.expect(region.elements() == 1, name)?;
        }
        self.expect(self.chosen.elements() > 0, "chosen")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [logits, limit, mut id, mut cursor, mut chosen] =
            arena.views([Some(self.logits), Some(self.limit), Some(self.id), Some(self.cursor), Some(self.chosen)])?;
        let (logits, limit) = (logits.f32()?, limit.u32()?.first().map_or(0, |limit| *limit as usize));
        let next = most_likely(&logits[..limit.min(logits.len())]);
        MostLikely::keep(next, id.u32_mut()?, cursor.u32_mut()?, chosen.u32_mut()?).ok_or(self.misfit("chosen"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn the_largest_is_chosen_and_kept_by_its_position() {
        let mut b = Bench::<256>::new();
        let logits = b.values([1, 1, 1, 5], &[0.0; 5]);
        let (limit, id, cursor, chosen) = (b.ids(&[4]), b.ids(&[9]), b.ids(&[6]), b.ids(&[7, 7, 7, 7]));
        let op = MostLikely { logits, limit, id, cursor, chosen };
        let words = |b: &Bench<256>, region| bytemuck::cast_slice::<u8, u32>(b.bytes(region)).to_vec();
        const NO: u32 = MostLikely::NO_TOKEN;
        for (values, expected, kept) in [
            // The lower id of a tie; logits beyond the limit do not count.
            ([-3.0, 2.0, 2.0, -0.5, 9.0], 1, [7, 7, 1, 7]),
            ([-3.0, f32::NEG_INFINITY, -1.0, -2.0, 0.0], 2, [7, 7, 1, 2]),
            ([0.0, f32::INFINITY, 0.0, 0.0, 0.0], NO, [NO, 7, 1, 2]),
            ([0.0, f32::NAN, 0.0, 0.0, 0.0], NO, [NO, NO, 1, 2]),
            ([f32::NEG_INFINITY; 5], NO, [NO, NO, NO, 2]),
            ([-0.0, 0.0, 0.0, -1.0, 0.0], 1, [NO, NO, NO, 1]),
        ] {
            b.set(logits, &values);
            let before = words(&b, cursor)[0];
            b.run(op);
            assert_eq!(words(&b, id), [expected], "{values:?}");
            assert_eq!(words(&b, chosen), kept, "{values:?}");
            assert_eq!(words(&b, cursor), [before + 1]);
        }
    }

    #[test]
    fn operands_that_do_not_belong_together_are_errors() {
        let mut b = Bench::<256>::new();
        let (logits, one) = (b.values([1, 1, 1, 5], &[0.0; 5]), b.ids(&[1]));
        let [id, cursor, chosen] = [b.ids(&[0]), b.ids(&[0]), b.ids(&[0, 0])];
        let whole = MostLikely { logits, limit: one, id, cursor, chosen };
        let none = chosen.reshaped([1, 1, 1, 0]);
        for (wrong, operand) in [
            (MostLikely { logits: logits.reshaped([1, 1, 5, 1]), ..whole }, "logits"),
            (MostLikely { limit: chosen, ..whole }, "limit"),
            (MostLikely { id: chosen, ..whole }, "id"),
            (MostLikely { cursor: chosen, ..whole }, "cursor"),
            (MostLikely { chosen: none, ..whole }, "chosen"),
        ] {
            assert_eq!(wrong.validate(), Err(wrong.misfit(operand)));
        }
        assert_eq!(b.fails(MostLikely { chosen: none, ..whole }), Some(whole.misfit("chosen")));
        assert_eq!(whole.validate(), Ok(()));
    }
}
