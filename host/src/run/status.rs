//! The state of a run in one line: complete in a file, and as much as fits in a terminal.

use crate::suggest::ending::Expected;
use capful_base::human_bytes;
use capful_base::words::{duration, grouped};

/// Columns between two parts.
const GAP: usize = 2;
/// Columns of the bar.
const BAR: std::ops::RangeInclusive<usize> = 8..=30;

/// The values to show.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    /// Steps done, and steps of the run.
    pub step: u64,
    pub steps: u64,
    /// The current stage, if there are several.
    pub stage: String,
    pub loss: Option<f64>,
    /// The plot of the loss so far, in a terminal.
    pub course: Option<String>,
    pub val_loss: Option<f64>,
    /// The validation loss of the averages of the weights.
    pub averaged: Option<f64>,
    /// The validation loss minus the mean training loss before it.
    pub gap: Option<f64>,
    /// The predicted final loss.
    pub end: Option<Expected>,
    /// Number of steps that changed nothing.
    pub skipped: u64,
    pub tokens_per_s: Option<f64>,
    /// Main memory in use, and planned.
    pub memory: Option<(u64, u64)>,
    /// Seconds until the end.
    pub left: Option<f64>,
}

impl Status {
    /// The parts from left to right, each with its rank: the part of the highest rank is omitted first.
    fn parts(&self) -> Vec<(u8, String)> {
        let Status { step, steps, stage, loss, val_loss, averaged, gap, end, .. } = self;
        let Status { course, skipped, tokens_per_s, memory, left, .. } = self;
        let parts = [
            (0, Some(format!("{}/{}", grouped(*step), grouped(*steps)))),
            (7, (!stage.is_empty()).then(|| stage.clone())),
            (1, loss.map(|loss| format!("loss {loss:.3}"))),
            (9, course.clone()),
            (5, val_loss.map(|loss| format!("val {loss:.3}"))),
            (6, averaged.map(|loss| format!("averaged {loss:.3}"))),
            (6, gap.map(|gap| format!("gap {gap:+.3}"))),
            (6, end.map(|end| format!("ends at {:.3} ± {:.3} bits a byte", end.bits, end.off()))),
            (2, (*skipped > 0).then(|| format!("{skipped} skipped"))),
            (4, tokens_per_s.map(|speed| format!("{} tokens/s", grouped(speed as u64)))),
            (8, memory.map(|(used, planned)| format!("{} of {}", human_bytes(used), human_bytes(planned)))),
            (3, left.map(|seconds| format!("{} left", duration(seconds)))),
        ];
        parts.into_iter().filter_map(|(rank, part)| Some((rank, part?))).collect()
    }

    /// The whole line, for files and pipes.
    pub(super) fn whole(&self) -> String {
        let parts: Vec<_> = self.parts().into_iter().map(|(_, part)| part).collect();
        format!("step {}", parts.join(&" ".repeat(GAP)))
    }

    /// At most `columns` columns of the line, with a bar in the remaining columns.
    pub(super) fn fitting(&self, columns: usize) -> String {
        let mut parts = self.parts();
        let width = |parts: &[(u8, String)]| {
            parts.iter().map(|(_, part)| part.chars().count()).sum::<usize>() + GAP * parts.len().saturating_sub(1)
        };
        while width(&parts) > columns
            && let Some(least) = parts.iter().map(|(rank, _)| *rank).max().filter(|rank| *rank > 0)
        {
            parts.retain(|(rank, _)| *rank != least);
        }
        let room = columns.saturating_sub(width(&parts) + GAP).min(*BAR.end());
        let bar = BAR.contains(&room).then(|| bar(self.step, self.steps, room));
        let parts: Vec<_> = bar.into_iter().chain(parts.into_iter().map(|(_, part)| part)).collect();
        // If the line still does not fit, the terminal has very few columns.
        parts.join(&" ".repeat(GAP)).chars().take(columns).collect()
    }
}

/// A bar for `part` of `all`, with this many columns.
fn bar(part: u64, all: u64, columns: usize) -> String {
    let full = (part.min(all) as f64 / all.max(1) as f64 * columns as f64) as usize;
    "█".repeat(full) + &"░".repeat(columns - full)
}

/// `text` in lines of at most `columns` columns, broken at spaces where a word is not longer than a line.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let mut used = 0;
        // Each word with the spaces before it; a line break replaces these spaces.
        let mut rest = line;
        while !rest.is_empty() {
            let blank = rest.len() - rest.trim_start_matches(' ').len();
            let end = rest[blank..].find(' ').map_or(rest.len(), |at| blank + at);
            let (word, after) = rest.split_at(end);
            let width = word.chars().count();
            if used > 0 && used + width > columns && !word[blank..].is_empty() {
                out.push('\n');
                out.push_str(&word[blank..]);
                used = width - blank;
            } else {
                out.push_str(word);
                used += width;
            }
            rest = after;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Status {
        Status {
            step: 1200,
            steps: 10_000,
            stage: "stage 2/10 (32 × 2048)".to_owned(),
            loss: Some(3.4567),
            course: None,
            val_loss: Some(3.5),
            averaged: None,
            gap: Some(0.0433),
            end: None,
            skipped: 2,
            tokens_per_s: Some(10_941.4),
            memory: Some((81 << 20, 95 << 20)),
            left: Some(700.0),
        }
    }

    #[test]
    fn parts_leave_a_narrow_terminal_in_their_order() {
        let status = full();
        assert_eq!(
            status.whole(),
            "step 1,200/10,000  stage 2/10 (32 × 2048)  loss 3.457  val 3.500  gap +0.043  2 skipped  10,941 tokens/s  \
             81.0 MiB of 95.0 MiB  12 min left"
        );
        let below = Status { gap: Some(-0.25), ..full() };
        assert!(below.whole().contains("val 3.500  gap -0.250"), "{}", below.whole());
        let end = Some(Expected { bits: 1.2345, between: [1.2, 1.3] });
        let end = Status { end, ..full() };
        assert!(end.whole().contains("gap +0.043  ends at 1.234 ± 0.050 bits a byte  2 skipped"));
        let averaged = Status { averaged: Some(3.25), ..full() };
        assert!(averaged.whole().contains("val 3.500  averaged 3.250  gap +0.043"), "{}", averaged.whole());
        let plain = Status { stage: String::new(), skipped: 0, gap: None, ..full() };
        assert_eq!(
            plain.fitting(99),
            "█░░░░░░░░░  1,200/10,000  loss 3.457  val 3.500  10,941 tokens/s  81.0 MiB of 95.0 MiB  12 min left"
        );
        let drawn = Status { course: Some("█▅▂▁".to_owned()), ..plain.clone() };
        assert!(drawn.fitting(110).contains("loss 3.457  █▅▂▁  val 3.500"), "{}", drawn.fitting(110));
        // The course is omitted first.
        assert_eq!(drawn.fitting(92), plain.fitting(92));
        assert_eq!(plain.fitting(59), "1,200/10,000  loss 3.457  10,941 tokens/s  12 min left");
        assert_eq!(plain.fitting(40), "1,200/10,000  loss 3.457  12 min left");
        assert_eq!(
            Status { step: 1, steps: 9, ..Status::default() }.fitting(59),
            format!("{}1/9", "███░".replace("███░", &("█".repeat(3) + &"░".repeat(27) + "  ")))
        );
        for columns in 0..200 {
            for status in [&status, &plain] {
                assert!(status.fitting(columns).chars().count() <= columns, "{columns}");
            }
        }
    }

    #[test]
    fn words_are_whole_and_lines_stay() {
        assert_eq!(wrapped("one two three\n\n  four", 8), "one two\nthree\n\n  four");
        assert_eq!(wrapped("incomprehensible it is", 8), "incomprehensible\nit is");
        assert_eq!(wrapped("a b c d", 1), "a\nb\nc\nd");
        assert_eq!(wrapped("naïve über", 5), "naïve\nüber");
        let text = "Many words of many lengths, and none of them is cut. ".repeat(9);
        assert!(wrapped(&text, 20).lines().all(|line| line.chars().count() <= 20));
        assert_eq!(
            wrapped(&text, 20).split_whitespace().collect::<Vec<_>>(),
            text.split_whitespace().collect::<Vec<_>>()
        );
        assert_eq!(wrapped(&text, 1000), text);
    }
}
