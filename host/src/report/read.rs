//! Reads a run's metrics line by line, into memory that does not grow with the run.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::series::{Bucket, Lowest, Series};
use crate::config::{ConfigError, MOST_SOURCES};
use crate::regular;
use crate::run::metrics::LINES;

/// The most buckets of a series.
pub const BUCKETS: usize = 400;
/// The most evaluations stored.
const EVALUATIONS: usize = 200;
/// The longest line; a run writes lines of less than a kilobyte.
const LONGEST: u64 = 64 << 10;
/// The most quantities stored in addition to those that every run has.
const MOST_GAUGES: usize = 32;

/// The most bytes that curves take: their buckets are in trees whose nodes may be half full.
pub const fn bytes() -> usize {
    let bucket = size_of::<(u64, Bucket)>();
    let evaluation = size_of::<(u64, (u64, f64, Evaluation))>();
    2 * ((4 + MOST_GAUGES + MOST_SOURCES) * (BUCKETS + 1) * bucket + (EVALUATIONS + 1) * evaluation)
}

/// An evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Steps done.
    pub step: u64,
    /// Nats a token.
    pub loss: f64,
    /// Its standard error.
    pub error: Option<f64>,
    /// Targets scored.
    pub tokens: Option<u64>,
    /// Bits a byte of text.
    pub bits: Option<f64>,
    /// The loss of the averages of the weights.
    pub averaged: Option<f64>,
    /// The bits a byte at which the run was predicted to end, and the bounds of the prediction.
    pub expected: Option<[f64; 3]>,
}

/// The content of a run's metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    /// Number of lines of steps.
    pub logged: u64,
    /// Number of lines of evaluations.
    pub evaluated: u64,
    /// The last step in any line.
    pub step: u64,
    /// Tokens trained on by the last logged step.
    pub tokens: u64,
    /// Steps that changed nothing.
    pub skipped: u64,
    /// Seconds of the logged steps, computed from their tokens and tokens a second; and the number of these tokens.
    pub trained: (f64, u64),
    /// Seconds that logged steps waited for text.
    pub waited: f64,
    /// Training loss, nats a token.
    pub loss: Series,
    /// Learning rate.
    pub lr: Series,
    /// The gradient's norm before the clip.
    pub norm: Series,
    /// Tokens a second.
    pub speed: Series,
    /// Everything else that was logged, by name.
    pub gauges: Vec<(String, Series)>,
    /// Validation loss of each source of a mixture, in the order of `--data`.
    pub by_source: Vec<Series>,
    /// Evaluations: the lowest of each stretch of steps.
    pub evaluations: Lowest<Evaluation>,
    /// The evaluation with the lowest loss.
    pub best: Option<Evaluation>,
    /// The last evaluation.
    pub last: Option<Evaluation>,
    /// The first evaluation that predicted the end of the run.
    pub foretold: Option<Evaluation>,
    /// Whether the last line is incomplete: the run is writing it, or was killed.
    pub cut: bool,
}

/// The keys and values of a line.
struct Row<'a>(Vec<(Cow<'a, str>, Value)>);

impl Row<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    fn whole(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Row<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Rows;
        impl<'de> Visitor<'de> for Rows {
            type Value = Vec<(Cow<'de, str>, Value)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut row = Vec::with_capacity(16);
                while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
                    row.push((name, map.next_value()?));
                }
                Ok(row)
            }
        }
        from.deserialize_map(Rows).map(Row)
    }
}

/// A key, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(name))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(name.to_owned()))
            }
        }
        from.deserialize_str(Names).map(Name)
    }
}

/// Keys of a step's line that are no gauges.
const OF_STEP: [&str; 12] =
    ["step", "stage", "loss", "lr", "norm", "skipped", "tokens", "drawn", "tokens_per_s", "cpu", "gpu", "waited_s"];

impl Default for Curves {
    fn default() -> Self {
        let series = || Series::new(BUCKETS);
        Curves {
            logged: 0,
            evaluated: 0,
            step: 0,
            tokens: 0,
            skipped: 0,
            trained: (0.0, 0),
            waited: 0.0,
            loss: series(),
            lr: series(),
            norm: series(),
            speed: series(),
            gauges: Vec::new(),
            by_source: Vec::new(),
            evaluations: Lowest::new(EVALUATIONS),
            best: None,
            last: None,
            foretold: None,
            cut: false,
        }
    }
}

impl Curves {
    /// Reads the metrics of the run in `dir`; they are empty if the run has logged nothing yet.
    ///
    /// # Errors
    /// A file that cannot be read; a line that is neither a step nor an evaluation, with its number.
    pub fn read(dir: &Path) -> Result<Curves, ConfigError> {
        let path = dir.join(LINES);
        let at = |what: &dyn fmt::Display| ConfigError(format!("{}: {what}", path.display()));
        let file = match regular::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Curves::default()),
            file => file.map_err(|e| at(&e))?,
        };
        let (mut curves, mut lines, mut line) =
            (Curves::default(), BufReader::with_capacity(1 << 16, file), Vec::new());
        for number in 1u64.. {
            line.clear();
            let read = lines.by_ref().take(LONGEST).read_until(b'\n', &mut line).map_err(|e| at(&e))?;
            if read == 0 {
                break;
            }
            let damaged = |what: &dyn fmt::Display| at(&format_args!("line {number} {what}"));
            let whole = line.last() == Some(&b'\n');
            if !whole && read as u64 == LONGEST {
                return Err(damaged(&format_args!("is longer than {LONGEST} bytes: it is damaged")));
            }
            match serde_json::from_slice::<Row<'_>>(&line) {
                Ok(row) => curves.add(&row).map_err(|what| damaged(&what))?,
                // A running run is writing this line, or a run was killed while writing it.
                Err(_) if !whole => curves.cut = true,
                Err(_) => return Err(damaged(&"is no object of JSON: it is damaged; `host verify` compares the file")),
            }
        }
        Ok(curves)
    }

    /// Adds a line of a run's metrics, with or without its line end.
    ///
    /// # Errors
    /// Why the line is no metrics line.
    pub fn add_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        self.add(&serde_json::from_slice(line).map_err(|_| "is no object of JSON")?)
    }

    /// Adds the content of a line.
    fn add(&mut self, row: &Row<'_>) -> Result<(), &'static str> {
        const OTHER: &str = "is neither a step nor an evaluation: another version of capful wrote it";
        let step = row.whole("step").ok_or(OTHER)?;
        if let Some(loss) = row.get("val_loss") {
            self.evaluation(step, loss.as_f64(), row);
        } else if row.get("loss").is_some() {
            self.step(step, row);
        } else {
            return Err(OTHER);
        }
        self.step = self.step.max(step);
        Ok(())
    }

    fn step(&mut self, step: u64, row: &Row<'_>) {
        self.logged += 1;
        self.loss.add(step, row.number("loss"));
        self.lr.add(step, row.number("lr"));
        self.norm.add(step, row.number("norm"));
        let speed = row.number("tokens_per_s").filter(|speed| *speed > 0.0);
        self.speed.add(step, speed);
        let tokens = row.whole("tokens").unwrap_or(self.tokens);
        let more = tokens.saturating_sub(self.tokens);
        if let Some(speed) = speed {
            self.trained = (self.trained.0 + more as f64 / speed, self.trained.1 + more);
        }
        self.tokens = tokens;
        self.skipped = row.whole("skipped").unwrap_or(self.skipped);
        self.waited += row.number("waited_s").unwrap_or(0.0);
        for (name, value) in row.0.iter().filter(|(name, _)| !OF_STEP.contains(&&**name)) {
            let known = self.gauges.iter().position(|(known, _)| known == name);
            let at = match known {
                Some(at) => at,
                None if self.gauges.len() < MOST_GAUGES => {
                    self.gauges.push((name.clone().into_owned(), Series::new(BUCKETS)));
                    self.gauges.len() - 1
                }
                None => continue,
            };
            self.gauges[at].1.add(step, value.as_f64());
        }
    }

    fn evaluation(&mut self, step: u64, loss: Option<f64>, row: &Row<'_>) {
        self.evaluated += 1;
        let Some(loss) = loss.filter(|loss| loss.is_finite()) else { return };
        let between = |i: usize| row.get("expected_end_between")?.get(i)?.as_f64();
        let expected = row.number("expected_end_bits_per_byte");
        let expected = expected.and_then(|bits| Some([bits, between(0)?, between(1)?]));
        let evaluation = Evaluation {
            step,
            loss,
            error: row.number("val_loss_se"),
            tokens: row.whole("val_tokens"),
            bits: row.number("val_bits_per_byte"),
            averaged: row.number("val_loss_averaged"),
            expected,
        };
        self.evaluations.add(step, loss, evaluation);
        let each = row.get("val_by_source").and_then(Value::as_array);
        for (number, loss) in each.into_iter().flatten().take(MOST_SOURCES).enumerate() {
            if number == self.by_source.len() {
                self.by_source.push(Series::new(BUCKETS));
            }
            self.by_source[number].add(step, loss.as_f64());
        }
        self.best = self.best.filter(|best| best.loss <= loss).or(Some(evaluation));
        self.foretold = self.foretold.or(Some(evaluation).filter(|one| one.expected.is_some()));
        self.last = Some(evaluation);
    }

    /// Tokens a second of training, without the time of evaluations and saves.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let (seconds, tokens) = self.trained;
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STEP: &str =
        r#"{"step":1,"stage":1,"loss":6.5,"lr":1e-3,"norm":2.0,"tokens":100,"tokens_per_s":50.0,"waited_s":0.25}"#;

    fn read(text: &str) -> Result<Curves, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LINES), text).unwrap();
        Curves::read(dir.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn steps_evaluations_and_gauges_are_told_apart() {
        let gauged = r#"{"step":2,"stage":1,"loss":null,"lr":1e-3,"norm":1.0,"skipped":1,"tokens":300,"tokens_per_s":200.0,"waited_s":0.5,"gate":0.5}"#;
        let evaluation = r#"{"step":2,"val_loss":3.5,"val_loss_se":0.25,"val_tokens":9,"val_bits_per_byte":1.5,"expected_end_bits_per_byte":1.2,"expected_end_between":[1.1,1.3]}"#;
        let curves = read(&format!("{STEP}\n{gauged}\n{evaluation}\n")).unwrap();
        assert_eq!((curves.logged, curves.evaluated, curves.step, curves.tokens), (2, 1, 2, 300));
        assert_eq!((curves.skipped, curves.waited, curves.loss.lost), (1, 0.75, 1));
        // 100 tokens in 2 s, 200 tokens in 1 s.
        assert_eq!((curves.trained, curves.tokens_per_s()), ((3.0, 300), Some(100.0)));
        assert_eq!(curves.gauges.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["gate"]);
        let last = curves.last.unwrap();
        assert_eq!((last.loss, last.error, last.expected), (3.5, Some(0.25), Some([1.2, 1.1, 1.3])));
        assert_eq!((curves.best, curves.foretold, curves.cut), (Some(last), Some(last), false));
    }

    #[test]
    fn losses_of_sources_are_kept_apart() {
        let line = |step, each| format!("{{\"step\":{step},\"val_loss\":2.0,\"val_by_source\":{each}}}\n");
        let curves = read(&(line(1, "[1.0,3.0]") + &line(2, "[0.5,null]"))).unwrap();
        let last = curves.by_source.iter().map(|series| (series.count(), series.last)).collect::<Vec<_>>();
        assert_eq!(last, [(2, Some((2, 0.5))), (1, Some((1, 3.0)))]);
    }

    #[test]
    fn a_cut_last_line_is_passed_over_and_another_is_named() {
        for end in ["{\"step\":2,\"lo", "{", "\0\0\0", "{\"step\":2"] {
            let curves = read(&format!("{STEP}\n{end}")).unwrap();
            assert_eq!((curves.logged, curves.cut), (1, true), "{end}");
        }
        assert!(!read(STEP).unwrap().cut);
        assert_eq!(read("").unwrap(), Curves::default());
        for (text, says) in [
            (format!("{STEP}\n{{\"step\":2,\n{STEP}\n"), "line 2 is no object"),
            (format!("{STEP}\n\n{STEP}\n"), "line 2 is no object"),
            (format!("[1]\n{STEP}\n"), "line 1 is no object"),
            (format!("{STEP}\n{{\"step\":2}}\n"), "line 2 is neither"),
            ("{\"epoch\":2}\n".to_owned(), "line 1 is neither"),
            (format!("{STEP}\n{}", "x".repeat(100_000)), "line 2 is longer"),
        ] {
            let said = read(&text).unwrap_err();
            assert!(said.contains(LINES) && said.contains(says) && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn what_is_kept_does_not_grow_with_the_run() {
        let mut text = String::new();
        for step in 1..=20_000 {
            text += &STEP.replacen('1', &step.to_string(), 1).replacen("6.5", &format!("{}.5", step % 7), 1);
            text += &format!("\n{{\"step\":{step},\"val_loss\":{}.25,\"val_tokens\":9}}\n", step % 5);
        }
        let curves = read(&text).unwrap();
        assert_eq!((curves.logged, curves.evaluated, curves.step), (20_000, 20_000, 20_000));
        for series in [&curves.loss, &curves.lr, &curves.norm, &curves.speed] {
            assert!(series.buckets().count() <= BUCKETS && series.count() == 20_000);
        }
        assert!(curves.evaluations.iter().count() <= EVALUATIONS);
    }
}
