//! Dropout of a norm's outputs, computed together with the norm and found by a pass over a program. Combined it needs
//! no additional memory traffic; as a separate kernel it needs as much as the norm.

use capful_core::device::Op;
use capful_core::ops::Dropout;

/// The dropouts of both outputs of operation `at`, a norm, among the operations directly after it.
pub(crate) fn dropped_by(ops: &[Op], at: usize) -> [Option<Dropout>; 2] {
    let mut drops = [None; 2];
    let Op::Norm(norm) = &ops[at] else { return drops };
    if norm.copy.is_some() {
        // The copy has the values without dropout.
        return drops;
    }
    let outs = [Some(norm.first.out), norm.second.map(|second| second.out)];
    for op in &ops[at + 1..] {
        let Op::Dropout(dropout) = op else { break };
        let which = outs.iter().position(|out| *out == Some(dropout.x));
        match which.map(|which| &mut drops[which]) {
            Some(none @ None) => *none = Some(*dropout),
            // A dropout of another tensor, or of the same one again.
            _ => break,
        }
    }
    drops
}

/// Whether operation `at`, a dropout, is computed together with the norm before it.
pub(crate) fn dropped_before(ops: &[Op], at: usize) -> bool {
    let norm = ops[..at].iter().rposition(|op| !matches!(op, Op::Dropout(_)));
    let made = |norm| dropped_by(ops, norm).iter().flatten().count();
    matches!(ops[at], Op::Dropout(_)) && norm.is_some_and(|norm| at - norm <= made(norm))
}
