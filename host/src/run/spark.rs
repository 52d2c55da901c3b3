//! A plot of a loss in a few characters.

/// Columns of a full plot.
const COLUMNS: usize = 16;
/// From the lowest level to the highest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Means of the values; each column has as many values as are needed for all columns to fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spark {
    /// Sums of finished columns.
    sums: [f64; COLUMNS],
    columns: usize,
    /// Values of a column, and the sum and number of values of the current column.
    each: u32,
    sum: f64,
    count: u32,
}

impl Spark {
    /// An empty plot.
    pub(super) fn new() -> Spark {
        Spark { sums: [0.0; COLUMNS], columns: 0, each: 1, sum: 0.0, count: 0 }
    }

    /// Adds a value; a value that is not finite is ignored.
    pub(super) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        (self.sum, self.count) = (self.sum + value, self.count + 1);
        if self.count < self.each {
            return;
        }
        if self.columns == COLUMNS {
            // Each two columns are merged into one.
            for pair in 0..COLUMNS / 2 {
                self.sums[pair] = self.sums[2 * pair] + self.sums[2 * pair + 1];
            }
            (self.columns, self.each) = (COLUMNS / 2, self.each * 2);
            return;
        }
        self.sums[self.columns] = self.sum;
        (self.columns, self.sum, self.count) = (self.columns + 1, 0.0, 0);
    }

    /// The plot; `None` with fewer than two columns.
    pub(super) fn draw(&self) -> Option<String> {
        let sums = &self.sums[..self.columns];
        let (least, most) = sums.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &s| (a.min(s), b.max(s)));
        let level = |sum: &f64| {
            let share = if most > least { (sum - least) / (most - least) } else { 0.0 };
            LEVELS[(share * LEVELS.len() as f64).min(LEVELS.len() as f64 - 1.0) as usize]
        };
        (self.columns > 1).then(|| sums.iter().map(level).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_falling_loss_falls_however_many_values_it_has() {
        let mut spark = Spark::new();
        assert_eq!(spark.draw(), None);
        [8.0, f64::NAN, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0].into_iter().for_each(|loss| spark.add(loss));
        assert_eq!(spark.draw().unwrap(), "█▇▆▅▄▃▂▁");
        for many in [17, 100, 12_345] {
            let mut spark = Spark::new();
            (0..many).for_each(|i| spark.add(f64::from(many - i)));
            let drawn: Vec<char> = spark.draw().unwrap().chars().collect();
            assert!((COLUMNS / 2..=COLUMNS).contains(&drawn.len()), "{drawn:?}");
            assert!(drawn.windows(2).all(|pair| pair[0] >= pair[1]), "{drawn:?}");
            assert_eq!((drawn[0], drawn[drawn.len() - 1]), ('█', '▁'));
        }
        let mut flat = Spark::new();
        (0..5).for_each(|_| flat.add(2.0));
        assert_eq!(flat.draw().unwrap(), "▁▁▁▁▁");
    }
}
