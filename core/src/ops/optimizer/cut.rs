//! The positions of matrices of one shape in the tables of a parameter: an update of whole matrices treats queries,
//! keys and values separately, whatever the order of their rows.

/// Matrices of one shape, `parts` in each of `layers` layers. Row r of part p is row `first + p · step + r / run ·
/// period + r % run` of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Layers.
    pub layers: u32,
    /// Elements from a layer to the next one, padding included.
    pub layer: u64,
    /// The number of matrices in a layer.
    pub parts: u32,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns of a matrix, which are those of the layer.
    pub columns: u32,
    /// The first row of the first matrix.
    pub first: u32,
    /// Rows from the first row of a part to the first row of the next part.
    pub step: u32,
    /// The number of consecutive rows of one matrix.
    pub run: u32,
    /// Rows from the beginning of such a run to the next run of the same matrix.
    pub period: u32,
}

impl Cut {
    /// The number of matrices.
    pub const fn count(&self) -> u32 {
        self.layers * self.parts
    }

    /// Rows and columns of a matrix when it is orthogonalised: transposed if that makes it wide.
    pub const fn wide(&self) -> [u32; 2] {
        if self.is_tall() { [self.columns, self.rows] } else { [self.rows, self.columns] }
    }

    /// Whether a matrix has more rows than columns.
    pub const fn is_tall(&self) -> bool {
        self.rows > self.columns
    }

    /// Elements of a table with all layers.
    pub const fn elements(&self) -> u64 {
        (self.layers as u64).saturating_mul(self.layer)
    }

    /// The index in a table of the first element of row `r` of matrix `number`, counted layer by layer.
    pub const fn row(&self, number: u32, r: u32) -> u64 {
        let (layer, part) = (number / self.parts, number % self.parts);
        let row = self.first + part * self.step + r / self.run * self.period + r % self.run;
        layer as u64 * self.layer + row as u64 * self.columns as u64
    }

    /// Whether all rows are within their layer and no two matrices share a row.
    pub const fn fits(&self) -> bool {
        if self.parts == 0 || self.run == 0 || self.rows == 0 || !self.rows.is_multiple_of(self.run) {
            return false;
        }
        let runs = self.rows / self.run;
        // Either the runs of all parts are next to each other within a period, or the parts follow each other.
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

    /// Every element of three interleaved matrices, and of two stacked ones, occurs once.
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
