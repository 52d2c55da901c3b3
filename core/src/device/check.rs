//! Checks of an operation against a device's profile, from its operands alone, before anything runs.

use super::{Op, Operand, OperationError, Profile};
use crate::memory::Space;

/// The largest number of operands of an operation.
const OPERANDS: usize = 24;

/// Whether shapes, element types and regions of the operands of `op` are valid, no written operand is read-only, and no
/// written operand shares bytes with another operand.
///
/// # Errors
/// The error, with the names of the operands.
pub fn check(op: &Op, profile: &dyn Profile) -> Result<(), OperationError> {
    op.validate()?;
    let operation = op.name();
    let mut seen = heapless::Vec::<Operand, OPERANDS>::new();
    let mut room = true;
    op.operands(&mut |operand| room &= seen.push(operand).is_ok());
    if !room {
        return Err(OperationError::Shape { operation, operand: "(too many operands)" });
    }
    for (i, operand) in seen.iter().enumerate() {
        check_alone(operation, operand, profile)?;
        let clashes =
            |other: &&Operand| (operand.is_written() || other.is_written()) && operand.region.overlaps(&other.region);
        if let Some(other) = seen[..i].iter().find(clashes) {
            return Err(OperationError::Overlap { operation, operands: [other.name, operand.name] });
        }
    }
    Ok(())
}

/// The checks of an operand by itself.
fn check_alone(operation: &'static str, operand: &Operand, profile: &dyn Profile) -> Result<(), OperationError> {
    let Operand { name, region, element, .. } = *operand;
    if !element.admits(region.dtype, profile) {
        return Err(OperationError::Type { operation, operand: name });
    }
    if !region.offset.is_multiple_of(region.dtype.size()) {
        return Err(OperationError::Misaligned { operation, operand: name });
    }
    if operand.is_written() && region.space == Space::Image {
        return Err(OperationError::ReadOnly { operation, operand: name });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Single;
    use crate::memory::{Dtype, Region};
    use crate::ops::{Carry, Embed, Quantise, Quantised, Scaling};
    use core::fmt::Write as _;

    fn region(dtype: Dtype, offset: u64, rows: u32, columns: u32) -> Region {
        Region { space: Space::Arena, dtype, offset, shape: [1, 1, rows, columns] }
    }

    /// Three rows out of five, f32 unless `dtype` says otherwise.
    fn embed(dtype: Dtype) -> Embed {
        Embed {
            ids: region(Dtype::U32, 0, 1, 3),
            table: region(dtype, 16, 5, 4),
            scales: None,
            out: region(dtype, 256, 3, 4),
        }
    }

    fn refused(op: impl Into<Op>) -> OperationError {
        check(&op.into(), &Single).unwrap_err()
    }

    #[test]
    fn an_operation_that_is_broken_in_one_way_is_refused_with_the_operand_s_name() {
        let (sound, operation) = (embed(Dtype::F32), "embed");
        let image = |r: Region| Region { space: Space::Image, ..r };
        assert_eq!(check(&sound.into(), &Single), Ok(()));
        assert_eq!(check(&Embed { table: image(sound.table), ..sound }.into(), &Single), Ok(()));
        let broken = [
            (
                Embed { out: region(Dtype::F32, 256, 2, 4), ..sound },
                OperationError::Shape { operation, operand: "out" },
                "embed: the shape of out does not fit the other operands",
            ),
            (
                Embed { ids: region(Dtype::F32, 0, 1, 3), ..sound },
                OperationError::Type { operation, operand: "ids" },
                "embed: the device does not take elements of the type of ids",
            ),
            (
                Embed { table: region(Dtype::F32, 18, 5, 4), ..sound },
                OperationError::Misaligned { operation, operand: "table" },
                "embed: table begins within an element",
            ),
            (
                // The table's last row.
                Embed { out: region(Dtype::F32, 80, 3, 4), ..sound },
                OperationError::Overlap { operation, operands: ["table", "out"] },
                "embed: table and out share bytes, and one of them is written",
            ),
            (
                Embed { out: image(sound.out), ..sound },
                OperationError::ReadOnly { operation, operand: "out" },
                "embed: out is written and lies in the read-only image",
            ),
        ];
        for (op, error, line) in broken {
            assert_eq!(refused(op), error);
            let mut printed = heapless::String::<96>::new();
            write!(printed, "{error}").unwrap();
            assert_eq!(printed, line);
        }
    }

    #[test]
    fn every_kind_of_element_admits_its_types_and_no_other() {
        /// A profile that computes in bf16, too.
        struct Both;
        impl Profile for Both {
            fn dtype(&self, role: crate::memory::Role) -> Dtype {
                Single.dtype(role)
            }
            fn computes(&self, dtype: Dtype) -> bool {
                matches!(dtype, Dtype::F32 | Dtype::Bf16)
            }
        }
        let all = [Dtype::F32, Dtype::Bf16, Dtype::Remainder, Dtype::U32, Dtype::E4m3, Dtype::E5m2];
        for (dtype, [single, both]) in
            all.into_iter().zip([[true, true], [false, true], [false; 2], [false; 2], [false; 2], [false; 2]])
        {
            let op = Op::from(embed(dtype));
            assert_eq!([check(&op, &Single).is_ok(), check(&op, &Both).is_ok()], [single, both], "{dtype:?}");
            let bytes = Carry { from: region(dtype, 0, 1, 4), to: region(dtype, 16, 1, 4) };
            assert_eq!(check(&bytes.into(), &Single), Ok(()));
        }
        // The check of the format follows those of the shapes, which already require 8 bits.
        let out = Quantised { codes: region(Dtype::E5m2, 64, 2, 4), scaling: Scaling::at(128, 132, 136) };
        let quantise = Quantise::new(region(Dtype::F32, 0, 2, 4), out);
        assert_eq!(check(&quantise.into(), &Single), Ok(()));
        let ids = Quantise { x: region(Dtype::U32, 0, 2, 4), ..quantise };
        assert_eq!(refused(ids), OperationError::Type { operation: "quantise", operand: "x" });
    }
}
