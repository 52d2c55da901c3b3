//! How long the documents of a set are.

/// Counts of documents by their number of tokens: bucket b counts those of 2^b to 2^(b + 1) − 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lengths {
    buckets: Vec<u64>,
    documents: u64,
    tokens: u64,
}

/// Characters of the longest bar.
const BAR: u64 = 32;

impl Lengths {
    /// Adds a document.
    pub fn add(&mut self, tokens: u64) {
        let bucket = tokens.max(1).ilog2() as usize;
        self.buckets.resize(self.buckets.len().max(bucket + 1), 0);
        self.buckets[bucket] += 1;
        self.documents += 1;
        self.tokens += tokens;
    }

    /// For programs: the least number of tokens of a bucket, and its documents.
    pub fn pairs(&self) -> Vec<(u64, u64)> {
        (0u32..)
            .zip(&self.buckets)
            .map(|(bucket, count)| (1 << bucket, *count))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// For people, a line a bucket.
    pub fn lines(&self) -> Vec<String> {
        let most = self.buckets.iter().copied().max().unwrap_or(0).max(1);
        let first = self.buckets.iter().position(|count| *count > 0).unwrap_or(0);
        let line = |(bucket, count): (usize, &u64)| {
            let (from, to) = (1u64 << bucket, (2u64 << bucket) - 1);
            let range = if from == to { from.to_string() } else { format!("{from} to {to}") };
            let bar = "█".repeat((count * BAR).div_ceil(most) as usize);
            let share = 100.0 * *count as f64 / self.documents.max(1) as f64;
            format!("  {range:>20} tokens  {share:5.1} %  {bar}").trim_end().to_owned()
        };
        let mean = self.tokens as f64 / self.documents.max(1) as f64;
        std::iter::once(format!("lengths of documents, {mean:.0} tokens in the mean:"))
            .chain(self.buckets.iter().enumerate().skip(first).map(line))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_counted_by_the_power_of_two_below_their_length() {
        let mut lengths = Lengths::default();
        [2, 3, 3, 9, 15].into_iter().for_each(|tokens| lengths.add(tokens));
        assert_eq!(lengths.pairs(), [(2, 3), (8, 2)]);
        let lines = lengths.lines();
        assert_eq!(lines[0], "lengths of documents, 6 tokens in the mean:");
        assert_eq!(lines[1], format!("                2 to 3 tokens   60.0 %  {}", "█".repeat(32)));
        assert_eq!(lines[2], "                4 to 7 tokens    0.0 %");
        assert!(lines[3].starts_with("               8 to 15 tokens   40.0 %  █"), "{}", lines[3]);
    }
}
