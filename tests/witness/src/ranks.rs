//! Operations on the parts of several ranks.

use capful_core::ops::{MaxParts, SumParts};

use super::{Witness, matrix, vector};

pub fn parts_are_added_with_the_reference_s_bits(w: &mut impl Witness) {
    for (n, rows, columns, summed) in
        [(1, 3, 128, 3), (2, 7, 128, 5), (5, 4, 3, 4), (8, 33, 128, 1), (3, 150, 128, 150)]
    {
        for adds in [false, true] {
            w.case(|l| SumParts {
                parts: l.exact([1, n, rows, columns], 1.0),
                sum: l.exact(matrix(summed, columns), 1.0),
                adds,
            });
        }
    }
}

pub fn the_largest_of_parts(w: &mut impl Witness) {
    for [n, columns] in [[1, 1], [2, 37], [5, 300]] {
        w.case(|l| MaxParts { parts: l.exact(matrix(n, columns), 1.0), largest: l.exact(vector(columns), 1.0) });
    }
}
