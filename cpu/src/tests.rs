//! Compares every operation with core's definition of it, for 1, 2 and 3 threads.

use capful_core::device::{Device as _, Op, Operation, Profile as _};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{AdamW, Gate, Lion, NormKind, Readout, ReadoutGrad, ReadoutLayout, Sgd};

use super::by_reference::BY_REFERENCE;
use super::{Cpu, CpuProfile};
use capful_device::Allocation;
use capful_witness::{Lay, Witness, attention, norm, optimizer, spiking};

/// The CPU device with each number of threads, in a precision of this type.
struct Threads(Dtype);

/// Operations whose definition fixes the order of roundings, and whose implementation follows that order.
const TO_THE_BIT: [&str; 3] = [AdamW::NAME, Lion::NAME, Sgd::NAME];

impl Witness for Threads {
    /// Operations that run core's own loops are skipped: comparing them would be meaningless.
    fn case<O: Operation>(&mut self, build: impl Fn(&mut Lay) -> O) {
        if !BY_REFERENCE.contains(&O::NAME) {
            let mut lay = Lay::new(self.0);
            let operation = build(&mut lay);
            compare(&lay, operation, O::EXACT || TO_THE_BIT.contains(&O::NAME));
        }
    }
}

impl Threads {
    fn new() -> Threads {
        Threads(Dtype::F32)
    }
}

/// The cases that apply to every device.
mod witness {
    capful_witness::tests!(crate::tests::Threads);
}

/// Runs `operation` by its definition and on 1, 2 and 3 threads, which must give the same bits, and compares the
/// results.
fn compare<O: Operation>(lay: &Lay, operation: O, to_the_bit: bool) {
    operation.validate().unwrap();
    let op = operation.into();
    let expected = lay.after(lay, &[op]);
    let found = after(lay, op, 1);
    for threads in [2, 3] {
        assert!(found == after(lay, op, threads), "{op:?}: {threads} threads give other bits");
    }
    let [found, expected] = [&found, &expected].map(|words| bytemuck::cast_slice(words));
    match to_the_bit {
        true => assert!(lay.same(found, expected), "{op:?}: other bits"),
        false => lay.check(O::NAME, found, lay, expected, 1e-5),
    }
}

/// The device with `threads` threads, with these regions and exactly the scratch that `op` needs.
fn cpu(lay: &Lay, op: &Op, threads: u32) -> Cpu {
    let profile = CpuProfile { threads };
    let scratch = profile.scratch(op);
    assert!(scratch.is_multiple_of(4));
    let shape = [1, 1, 1, (scratch / 4) as u32];
    let place = Region { space: Space::Arena, dtype: Dtype::F32, offset: lay.offset, shape };
    let mut memory = Allocation::new(place.end().next_multiple_of(8)).unwrap();
    memory.words().fill(u64::MAX);
    let before = lay.before(lay);
    memory.words()[..before.len()].copy_from_slice(&before);
    Cpu::start(&profile, memory, place).unwrap()
}

/// The arena after `op` on `threads` threads.
fn after(lay: &Lay, op: Op, threads: u32) -> Vec<u64> {
    let mut cpu = cpu(lay, &op, threads);
    cpu.run(&op).unwrap();
    cpu.memory.words()[..(lay.offset / 8) as usize].to_vec()
}

#[test]
fn rms_norm_with_biases() {
    let form = norm::Form { kind: NormKind::Rms, two: true, biased: true };
    for (size, add) in [([1, 1], true), ([33, 64], false), ([70, 130], true), ([2100, 5], false)] {
        Threads::new().case(|l| norm::norm(l, form, size));
        Threads::new().case(|l| norm::norm_grad(l, form, size, add));
        Threads::new().case(|l| norm::fixed(norm::norm_grad(l, form, size, add)));
    }
}

#[test]
fn matrices_are_orthogonalised() {
    for sides in optimizer::SIDES {
        Threads::new().case(|l| optimizer::orthogonalise(l, sides));
    }
}

/// No real wiring has outputs that are both direct and projected, or a gate by such outputs.
#[test]
fn readouts_of_outputs_that_overlap() {
    let layout = ReadoutLayout { first: 2, direct: 4 };
    for shape in [[1, 2, 7, 3, 9, 4], [16, 5, 12, 4, 17, 3], [41, 3, 27, 9, 30, 20]] {
        let moved = |gate: Option<Gate>| gate.map(|gate| Gate { first: 1, ..gate });
        Threads::new().case(|l| {
            let op = spiking::readout(l, shape);
            Readout { layout, gate: moved(op.gate), ..op }
        });
        for feedback in [false, true] {
            Threads::new().case(|l| {
                let op = spiking::readout_grad(l, shape, feedback, false);
                ReadoutGrad { layout, gate: moved(op.gate), ..op }
            });
        }
    }
}

#[test]
fn a_cursor_beyond_the_context_is_an_error() {
    let mut lay = Lay::new(Dtype::F32);
    let op = attention::cached(&mut lay, attention::attentions()[1], 70);
    assert!(std::panic::catch_unwind(|| after(&lay, op.into(), 1)).is_err());
}

#[test]
fn weights_in_halves_move_as_defined() {
    optimizer::rules(&mut Threads(Dtype::Bf16), true);
}

#[test]
fn state_that_is_no_f32_is_an_error_where_it_is_read() {
    for squared_norm in [16.0, f32::NAN] {
        let mut lay = Lay::new(Dtype::F32);
        let op = optimizer::adamw(&mut lay, &[1.0; 7], false, squared_norm);
        let op = AdamW { first: Region { dtype: Dtype::Bf16, ..op.first }, ..op }.into();
        let done = cpu(&lay, &op, 1).run(&op);
        assert_eq!(done.is_err(), squared_norm.is_finite(), "{done:?}");
    }
}

mod integer;
