//! Runs everything of a family on a meter, for the families' tests.

use super::{Capability, Family, MicroBatch, Purpose};
use crate::device::{Device, Meter, Op, OperationError, Profile, Rates, Single};
use crate::memory::{Dtype, Entry, Layout, Ledger as _, Role};
use crate::ops::Pattern;
use crate::optimizer::Optimizer;
use crate::train::Ranks;

/// bfloat16 activations.
pub struct Half;

impl Profile for Half {
    fn dtype(&self, role: Role) -> Dtype {
        match role {
            Role::Saved | Role::Work | Role::Weight => Dtype::Bf16,
            _ => Single.dtype(role),
        }
    }

    fn computes(&self, dtype: Dtype) -> bool {
        matches!(dtype, Dtype::F32 | Dtype::Bf16)
    }
}

/// A meter that also checks that every operand of an operation has its own name.
struct Named<'p>(Meter<'p>);

impl Device for Named<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let mut names = heapless::Vec::<&str, 24>::new();
        op.operands(&mut |operand| {
            assert!(!names.contains(&operand.name), "{}: two operands are called {}", op.name(), operand.name);
            names.push(operand.name).expect("room for 24");
        });
        self.0.run(op)
    }
}

/// Runs everything of `family` on a meter, and returns the entries of the regions that it was laid in.
pub fn metered<F: Family>(family: &F, micro: &MicroBatch, profile: &dyn Profile) -> heapless::Vec<Entry, 320> {
    let mut seen = heapless::Vec::new();
    let mut visit = |e: &Entry| seen.push(*e).expect("room for 320");
    let mut layout = Layout::new(&mut visit);
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    let lasting = family.lay_lasting(profile, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
    let mark = layout.mark();
    let training = family.lay_training(micro, profile, &mut layout);
    layout.rewind(mark);
    let evaluation = family.lay_evaluation(micro, profile, &mut layout);
    layout.rewind(mark);
    let decoding = family.lay_decoding(9, profile, &mut layout);
    let mut meter = Named(Meter::new(profile, Rates::ONE));
    family.micro_batch(&mut meter, &lasting, &training, micro, true).unwrap();
    if family.lacks(Capability::Accumulation).is_none() {
        family.micro_batch(&mut meter, &lasting, &training, micro, false).unwrap();
    }
    family.update(&mut meter, &lasting, None).unwrap();
    family.evaluate(&mut meter, &lasting, &evaluation, micro).unwrap();
    family.logits(&mut meter, &lasting, &evaluation, 3, 4).unwrap();
    family.decode(&mut meter, &lasting, &decoding, Pattern::DENSE).unwrap();
    seen
}
