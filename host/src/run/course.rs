//! How long a run is, in words.

use capful_core::train::{Curriculum, Stage};

/// The steps of a session, and the tokens of them.
#[derive(Debug, Clone)]
pub struct Course {
    /// Steps of the run.
    pub steps: u64,
    /// Steps that were done before this session.
    pub first: u64,
    /// What a step is, by its number.
    pub stages: Vec<Stage>,
    /// Tokens of an epoch, where they are known.
    pub epoch: Option<u64>,
}

impl Course {
    /// Tokens of the first `step` steps.
    fn tokens(&self, step: u64) -> u64 {
        Curriculum::new(&self.stages).map_or(0, |curriculum| curriculum.tokens(step))
    }

    /// How long the run is: steps, tokens and, where they are known, epochs.
    pub fn length(&self) -> String {
        self.describe(self.steps, 0)
    }

    /// `steps` steps behind `from` others.
    fn describe(&self, steps: u64, from: u64) -> String {
        let tokens = self.tokens(from + steps).saturating_sub(self.tokens(from));
        let epochs = self
            .epoch
            .filter(|epoch| *epoch > 0)
            .map_or(String::new(), |epoch| format!(", {} epochs", rounded(tokens as f64 / epoch as f64)));
        format!("{} ({} tokens{epochs})", counted(steps, "step"), short(tokens))
    }

    /// What this session will take: so many seconds, at so many tokens a second.
    pub(super) fn estimate(&self, seconds: f64, tokens_per_s: f64) -> String {
        let left = self.steps.saturating_sub(self.first);
        let behind = if self.first > 0 { " that are left" } else { "" };
        let work = self.describe(left, self.first).replacen(" (", &format!("{behind} ("), 1);
        format!("about {} for {work} at {} tokens/s", lasting(seconds), grouped(tokens_per_s as u64))
    }
}

/// A number of things.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// A number for people who want its size: up to 9,999 as it is, else one decimal and thousands, millions, …
pub fn short(number: u64) -> String {
    if number < 10_000 {
        return grouped(number);
    }
    let (mut value, mut unit) = (number as f64 / 1000.0, 0);
    while value >= 999.95 && unit < 4 {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", ["k", "M", "G", "T", "P"][unit])
}

/// One decimal, or two of what is small.
fn rounded(number: f64) -> String {
    if number < 0.95 { format!("{number:.2}") } else { format!("{number:.1}") }
}

/// A time for people, to two digits or so.
pub fn lasting(seconds: f64) -> String {
    match seconds {
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
        s if s < 99.5 * 60.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86400.0),
    }
}

/// A time in seconds since 1970 as a date and a time of day, both of Greenwich.
pub fn date(seconds: u64) -> String {
    // Days since the first of March of the year 0: leap days are then at the ends of years, and a cycle of 400 years has
    // 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March on have 153 days in five.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * cycle + year + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(from: u64, batch: u32) -> Stage {
        Stage { from, batch, seq_len: 128, accumulate: 1, rate: 1.0, clip: 1.0 }
    }

    fn course(first: u64) -> Course {
        Course { steps: 2000, first, stages: vec![stage(0, 32)], epoch: Some(2_400_000) }
    }

    #[test]
    fn an_estimate_is_of_the_steps_of_this_session() {
        let line = course(0).estimate(999.5, 8192.0);
        assert_eq!(line, "about 17 min for 2,000 steps (8.2 M tokens, 3.4 epochs) at 8,192 tokens/s");
        // 1,989 steps were done by another session.
        let line = course(1989).estimate(22.0, 2048.0);
        assert_eq!(line, "about 22 s for 11 steps that are left (45.1 k tokens, 0.02 epochs) at 2,048 tokens/s");
        let unknown = Course { epoch: None, ..course(0) };
        assert_eq!(unknown.length(), "2,000 steps (8.2 M tokens)");
        let stages = Course { steps: 20, first: 0, stages: vec![stage(0, 1), stage(10, 3)], epoch: None };
        assert_eq!(stages.length(), "20 steps (5,120 tokens)");
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0, 9_999, 10_000, 999_949, 999_951, 8_192_000, 1 << 40].map(short);
        assert_eq!(shown, ["0", "9,999", "10.0 k", "999.9 k", "1.0 M", "8.2 M", "1.1 T"]);
        let times = [0.2, 9.97, 99.0, 100.0, 5900.0, 6000.0, 1e6].map(lasting);
        assert_eq!(times, ["0.2 s", "10 s", "99 s", "2 min", "98 min", "1.7 h", "11.6 days"]);
        assert_eq!([counted(1, "step"), counted(2, "step")], ["1 step", "2 steps"]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_800, "2000-03-01 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (1_772_323_200, "2026-03-01 00:00"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
