//! The scaling law: the loss at the end of a run of the quick recipe, by its size, text, batch and length. It was
//! fitted to runs; docs/scaling.md has the runs, the fit and its errors.
//!
//! Losses are bits a byte of text. Data is counted in tokens of 3.396 bytes, so that it does not depend on the
//! tokenizer.

/// Bytes a token, for the text and the tokenizer of the fit.
const REFERENCE: f64 = 3.396;

/// The properties of a run that the law needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Course {
    /// Parameters of the matrices in the layers: neither tables nor the head.
    pub matrices: f64,
    /// Number of tokens trained on.
    pub tokens: f64,
    /// Tokens of the training text.
    pub unique: f64,
    /// Bytes of text a token.
    pub bytes_a_token: f64,
    /// Number of ids of the vocabulary.
    pub vocabulary: f64,
    /// Tokens of a step.
    pub step: f64,
    /// Tokens of a sequence.
    pub length: f64,
    /// The learning rate as a multiple of the preset's.
    pub rate: f64,
}

/// How a text differs from that of the fit: its losses are `scale` times those of the law minus `less`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Text {
    /// A factor.
    pub scale: f64,
    /// Bits a byte that are subtracted before scaling.
    pub less: f64,
}

/// The text of the fit: English technical prose and code.
pub const PROSE: Text = Text { scale: 1.0, less: 0.0 };

/// The lowest possible loss: of an unlimited model on unlimited text.
const E: f64 = 0.571_461;
/// The loss that a model of a million parameters adds to `E`, and the exponent with which it falls with the number of
/// parameters.
const SIZE: [f64; 2] = [0.450_805, 0.211_637];
/// The loss that training on ten million tokens adds to `E`, and the exponent with which it falls with the number of
/// tokens.
const DATA: [f64; 2] = [0.539_779, 0.328_609];
/// How both losses add up: as the p-th root of the sum of their p-th powers.
const P: f64 = 1.251_958;
/// The noise of small steps: its size at 16,384 tokens and the preset's rate, its exponent in the rate, and the
/// exponent with which it falls with the tokens of a step.
const NOISE: [f64; 3] = [0.004_633, -0.502_105, 1.302_637];
/// The relative loss that a context of 256 tokens adds to that of 512.
const CONTEXT: f64 = 0.026_824;
/// Overfitting on a text that is read repeatedly: its size, and its exponents in parameters, text (it falls with the
/// text's size) and passes.
const AGAIN: [f64; 4] = [0.018_062, 0.499_895, 1.228_360, 1.576_922];

/// The exponent with which losses fall with the number of ids over ten thousand, in addition to what their bytes a
/// token explain: three runs were 1.8, 1.0 and -1.0 % off with 2,000, 5,000 and 20,000 ids.
const IDS: f64 = 0.0125;

/// Parameters of the matrices in `layers` layers: queries, keys, values and outputs of `width` columns, and SwiGLU's
/// matrices of `feed` columns.
pub fn matrices(layers: u32, width: u32, feed: u32) -> f64 {
    let [layers, width, feed] = [layers, width, feed].map(f64::from);
    layers * (4.0 * width * width + 3.0 * width * feed)
}

impl Course {
    /// Passes over the text.
    pub fn passes(&self) -> f64 {
        self.tokens / self.unique
    }

    /// Bits a byte at the end of the run on a `text`.
    pub fn bits(&self, text: Text) -> f64 {
        let Course { matrices, tokens, unique, bytes_a_token, vocabulary, step, length, rate } = *self;
        let scale = bytes_a_token / REFERENCE / 1e6;
        let (seen, there) = (tokens * scale, unique * scale);
        let size = SIZE[0] * (matrices / 1e6).powf(-SIZE[1]);
        let data = DATA[0] * (seen / 10.0).powf(-DATA[1]);
        let noise = NOISE[0] * rate.powf(NOISE[1]) * (step / 16_384.0).powf(-NOISE[2]);
        let base = E + (size.powf(P) + data.powf(P)).powf(1.0 / P) + noise;
        let context = 1.0 + CONTEXT * (512.0 / length - 1.0);
        let passes = self.passes() - 1.0;
        let again = if passes > 0.0 {
            AGAIN[0] * (matrices / 4e6).powf(AGAIN[1]) * (there / 4.0).powf(-AGAIN[2]) * passes.powf(AGAIN[3])
        } else {
            0.0
        };
        let ids = (vocabulary / 10_000.0).powf(-IDS);
        text.scale * (base * context - text.less) * (1.0 + again.ln_1p()) * ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values come from `tests/scaling/law.py`, which made the fit.
    #[test]
    fn it_says_what_the_fit_says() {
        let clean = 75_571_558.0 / 22_252_691.0;
        for (matrices, tokens, unique, bytes_a_token, step, length, rate, text, bits) in [
            (19_267_584.0, 16_384_000.0, 22_252_691.0, clean, 16_384.0, 512.0, 1.0, PROSE, 1.192_425_534_179_287_5),
            (1_204_224.0, 1_024_000.0, 22_252_691.0, clean, 2048.0, 256.0, 2.0, PROSE, 2.080_266_204_129_833_4),
            (
                10_838_016.0,
                5_758_976.0,
                1_455_922.0,
                5_066_608.0 / 1_455_922.0,
                4096.0,
                512.0,
                1.0,
                Text { scale: 1.2, less: 0.1 },
                2.264_807_234_032_178_8,
            ),
        ] {
            let vocabulary = 10_000.0;
            let course = Course { matrices, tokens, unique, bytes_a_token, vocabulary, step, length, rate };
            approx::assert_relative_eq!(course.bits(text), bits, max_relative = 1e-12);
        }
    }

    /// The constants are those in the file of the fit.
    #[test]
    fn its_constants_are_those_that_were_fitted() {
        let file = include_str!("../../../tests/scaling/law.json");
        let file: serde_json::Value = serde_json::from_str(file).unwrap();
        let fitted = |name: &str| file["constants"][name].as_f64().unwrap();
        for (found, names) in [
            (&[E, P, CONTEXT][..], &["E", "p", "G"][..]),
            (&SIZE, &["A", "alpha"]),
            (&DATA, &["B", "beta"]),
            (&AGAIN, &["F", "phi", "psi", "omega"]),
            (&[NOISE[0], NOISE[1], -NOISE[2]], &["C", "x", "y"]),
        ] {
            for (found, name) in found.iter().zip(names) {
                let sign = if *name == "y" { -1.0 } else { 1.0 };
                assert_eq!(*found, sign * fitted(name), "{name}");
            }
        }
        assert_eq!(file["reference_bytes_a_token"].as_f64(), Some(REFERENCE));
    }
}
