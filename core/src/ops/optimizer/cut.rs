//! Where the matrices of one shape lie in the tables of a parameter: an update of whole matrices takes queries, keys and values
//! apart, whichever way their rows lie.

/// Matrices of one shape, `parts` in each of `layers` layers. Of part p, row r lies at row
/// `first + p · step + r / run · period + r % run` of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Layers.
    pub layers: u32,
    /// Elements from a layer to the next one, padding included.
    pub layer: u64,
    /// How many matrices a layer has.
    pub parts: u32,
    /// Rows of one.
    pub rows: u32,
    /// Columns of one, which are those of a layer.
    pub columns: u32,
    /// The first row of the first one.
    pub first: u32,
    /// Rows from there to the first one of the next part.
    pub step: u32,
    /// Rows of one that follow each other.
    pub run: u32,
    /// Rows from these to the next ones of the same matrix.
    pub period: u32,
}

impl Cut {
    /// How many matrices there are.
    pub const fn count(&self) -> u32 {
        self.layers * self.parts
    }

    /// Rows and columns of a matrix as it is orthogonalised: transposed where that makes it wide.
    pub const fn wide(&self) -> [u32; 2] {
        if self.is_tall() { [self.columns, self.rows] } else { [self.rows, self.columns] }
    }

    /// Whether a matrix has more rows than columns.
    pub const fn is_tall(&self) -> bool {
        self.rows > self.columns
    }

    /// Elements of a table of all layers.
    pub const fn elements(&self) -> u64 {
        (self.layers as u64).saturating_mul(self.layer)
    }

    /// Where row `r` of matrix `number` begins in a table; matrices are counted layer by layer.
    pub const fn row(&self, number: u32, r: u32) -> u64 {
        let (layer, part) = (number / self.parts, number % self.parts);
        let row = self.first + part * self.step + r / self.run * self.period + r % self.run;
        layer as u64 * self.layer + row as u64 * self.columns as u64
    }

    /// Whether all rows lie within their layer and no two matrices share one.
    pub const fn fits(&self) -> bool {
        if self.parts == 0 || self.run == 0 || self.rows == 0 || !self.rows.is_multiple_of(self.run) {
            return false;
        }
        let runs = self.rows / self.run;
        // Runs of all parts side by side within a period, or parts one after the other.
        let apart = self.parts == 1
            || self.step >= self.run && self.parts as u64 * self.step as u64 <= self.period as u64
            || self.step >= self.rows && (runs == 1 || self.period >= self.run);
        let last = self.first as u64
            + (self.parts - 1) as u64 * self.step as u64
            + (runs - 1) as u64 * self.period as u64
            + self.run as u64;
        apart && (runs == 1 || self.period >= self.run) && last * self.columns as u64 <= self.layer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of three interleaved matrices and of two below one another is met once.
    #[test]
    fn rows_of_all_matrices_are_different_ones() {
        let interleaved =
            Cut { layers: 2, layer: 24 * 5 + 8, parts: 3, rows: 8, columns: 5, first: 0, step: 2, run: 2, period: 6 };
        let below = Cut { first: 6, parts: 2, rows: 9, step: 9, run: 9, period: 9, ..interleaved };
        for (cut, skipped) in [(interleaved, 0), (below, 6)] {
            assert!(cut.fits());
            let mut seen = [false; 48];
            for number in 0..cut.count() {
                for r in 0..cut.rows {
                    let (layer, at) = (cut.row(number, r) / cut.layer, cut.row(number, r) % cut.layer);
                    assert!(at.is_multiple_of(5));
                    let row = &mut seen[layer as usize * 24 + at as usize / 5];
                    assert!(!*row);
                    *row = true;
                }
            }
            assert_eq!(seen.iter().filter(|seen| !**seen).count(), 2 * skipped);
        }
        assert!(!Cut { step: 1, ..interleaved }.fits() && !Cut { first: 8, ..below }.fits());
        assert!(!Cut { run: 3, ..interleaved }.fits() && !Cut { layer: 24 * 5 - 1, ..interleaved }.fits());
    }
}
