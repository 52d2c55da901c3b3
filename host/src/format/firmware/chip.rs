//! The memory of a model on a microcontroller: flash and RAM, to the byte, and advice if they are too small.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use capful_core::model::Capability;
use serde::Serialize;

use super::{Model, Sizes, described, positions, tables, vocabulary};
use crate::config::{ByteSize, Config, ConfigError, TokenizerChoice, Weights};
use crate::data::tokenizer::{self, Tables, Tokenizer};

/// A microcontroller's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Chip {
    /// Its name, or its sizes as written by the user.
    pub name: String,
    /// Bytes of flash for code and constants.
    pub flash: u64,
    /// Bytes of the largest contiguous RAM.
    pub ram: u64,
}

const KIB: u64 = 1 << 10;

/// Name, flash and RAM, both in KiB. For chips without internal flash, that of the maker's board.
const CHIPS: [(&str, u64, u64); 5] = [
    // RM0090: 1 MiB; SRAM1 of 112 KiB and SRAM2 of 16 KiB are contiguous.
    ("stm32f407", 1024, 128),
    // RM0433: 2 MiB; AXI SRAM.
    ("stm32h743", 2048, 512),
    // RP2350 datasheet: ten contiguous banks; 4 MiB of flash on a Raspberry Pi Pico 2.
    ("rp2350", 4096, 520),
    // nRF52840 product specification.
    ("nrf52840", 1024, 256),
    // ESP32-S3 technical reference: internal SRAM1; 8 MiB of flash on an ESP32-S3-DevKitC-1 (N8).
    ("esp32s3", 8192, 416),
];

/// Bytes for code and constants that tests/firmware/link.x grants to its program. The program supports both kinds of
/// weights; it is compiled for a Cortex-M4F.
const CODE: u64 = 96 * KIB;
/// Bytes of stack that link.x reserves.
const STACK: u64 = 12_288;
/// Bytes of the program's static storage, without the ids of a text that fills all positions.
const STATICS: u64 = 272;

impl FromStr for Chip {
    type Err = String;

    fn from_str(text: &str) -> Result<Chip, String> {
        if let Some((name, flash, ram)) = CHIPS.into_iter().find(|(name, ..)| *name == text) {
            return Ok(Chip { name: name.to_owned(), flash: flash * KIB, ram: ram * KIB });
        }
        let sizes = text.split_once('/').map(|(flash, ram)| (flash.parse::<ByteSize>(), ram.parse::<ByteSize>()));
        match sizes {
            Some((Ok(flash), Ok(ram))) => Ok(Chip { name: text.to_owned(), flash: flash.0, ram: ram.0 }),
            _ => {
                let names = CHIPS.map(|(name, ..)| name).join(", ");
                Err(format!("'{text}' is no chip; write FLASH/RAM such as 1MiB/192KiB, or one of {names}"))
            }
        }
    }
}

/// A model on a chip, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OnChip {
    /// The chip.
    pub chip: Chip,
    /// The type of the weights.
    pub weights: &'static str,
    /// Number of the decoder's positions.
    pub context: u32,
    /// The sizes of the image's parts, and of the memory in addition to it.
    pub sizes: Sizes,
    /// Whether the vocabulary is included; its size is unknown before it is built.
    pub vocabulary_known: bool,
    /// Code and constants of the program.
    pub code: u64,
    /// The program's stack.
    pub stack: u64,
    /// The program's static storage, including the ids of a text.
    pub statics: u64,
    /// Bytes of flash: image, code and constants.
    pub flash_bytes: u64,
    /// Bytes of RAM: arena in whole words, stack and statics.
    pub ram_bytes: u64,
}

impl OnChip {
    fn of(
        chip: &Chip,
        (weights, model): (Weights, &Model),
        context: u32,
        vocabulary: Option<u64>,
    ) -> Result<Self, ConfigError> {
        let sizes = model.sizes(context, vocabulary.unwrap_or(super::vocabulary::none().len() as u64));
        let sizes = sizes.map_err(|e| ConfigError(e.to_string()))?;
        let statics = STATICS + 4 * u64::from(context);
        Ok(OnChip {
            chip: chip.clone(),
            weights: weights.name(),
            context,
            vocabulary_known: vocabulary.is_some(),
            code: CODE,
            stack: STACK,
            statics,
            flash_bytes: sizes.image() + CODE,
            ram_bytes: sizes.arena.next_multiple_of(8) + STACK + statics,
            sizes,
        })
    }

    /// Whether both memories are large enough.
    pub fn fits(&self) -> bool {
        self.flash_bytes <= self.chip.flash && self.ram_bytes <= self.chip.ram
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let s = &self.sizes;
        // A NeuroGen has no cache of keys and values, and its tables contain the wiring.
        let (tables, state) = match s.cache {
            0 => ("wiring", "state, activations and control"),
            _ => ("rotary table", "activations and control"),
        };
        let spelled = if self.vocabulary_known { "vocabulary" } else { "vocabulary: none yet; --run DIR counts it" };
        let flash = [
            (format!("weights, {}", self.weights), s.weights),
            ("scales of weights".to_owned(), s.scales),
            (tables.to_owned(), s.tables),
            (spelled.to_owned(), s.vocabulary),
            ("header, description, checksum".to_owned(), s.frame),
            ("code and constants, at most (tests/firmware)".to_owned(), self.code),
        ];
        let ram = [
            (format!("key/value cache of {} positions", self.context), s.cache),
            (state.to_owned(), s.arena - s.cache),
            ("stack (tests/firmware)".to_owned(), self.stack),
            ("the program's own (tests/firmware)".to_owned(), self.statics),
        ];
        let parts = [("flash", &flash[..], self.flash_bytes, self.chip.flash)];
        let parts = parts.into_iter().chain([("RAM", &ram[..], self.ram_bytes, self.chip.ram)]);
        let _ = writeln!(out, "{}", self.chip.name);
        for (memory, lines, used, there) in parts {
            for (name, bytes) in lines.iter().filter(|(_, bytes)| *bytes > 0) {
                let _ = writeln!(out, "  {memory:<6}{name:<46}{bytes:>14}");
            }
            let (word, left) = if used <= there { ("free", there - used) } else { ("too much", used - there) };
            let _ = writeln!(out, "  {memory:<6}{:<46}{used:>14} of {there}; {word}: {left}", "in all");
        }
        out
    }
}

/// The model of `config`, or of the run in `run`, on `chip`, with matrices in `weights` and `context` positions: see
/// [`positions`].
///
/// # Errors
/// Weights or positions that the model does not support, a tokenizer that a chip does not support; and a model that is
/// too large, in a line with advice.
pub fn on_chip(
    chip: &Chip,
    config: &Config,
    run: Option<&Path>,
    weights: Weights,
    context: Option<u32>,
) -> Result<OnChip, ConfigError> {
    let lacks = config.family().lacks(Capability::Integers);
    let types: &[Weights] = match lacks {
        None => &[weights, Weights::F32, Weights::Int8, Weights::Int4],
        Some(_) => &[Weights::F32],
    };
    if let Some(why) = lacks.filter(|_| !types.contains(&weights)) {
        return Err(ConfigError(format!("--weights {}: {why}; use --weights f32", weights.name())));
    }
    let vocabulary = match run {
        Some(dir) => Some(spelled(&*tokenizer::load(dir).map_err(|e| ConfigError(e.to_string()))?)?),
        None => match TokenizerChoice::parse(&config.tokenizer)? {
            TokenizerChoice::Byte => Some(vocabulary::bytes_of(&Tables::Bytes).len() as u64),
            TokenizerChoice::File(path) => {
                Some(spelled(&*tokenizer::load_file(&path).map_err(|e| ConfigError(e.to_string()))?)?)
            }
            TokenizerChoice::Word | TokenizerChoice::Bpe => None,
        },
    };
    let model = |weights: Weights| described(&Config { weights: weights.integer(), ..config.clone() });
    let context = positions(config, context)?;
    let plan = |weights, context| OnChip::of(chip, (weights, &model(weights)), context, vocabulary);
    let planned = plan(weights, context)?;
    if planned.fits() {
        return Ok(planned);
    }
    // Advice: first other weights, then fewer positions with each type of weights.
    let fits = |weights, context| plan(weights, context).is_ok_and(|p| p.fits());
    let advice = match types.iter().find(|&&w| fits(w, context)) {
        Some(w) => format!("--weights {} fits", w.name()),
        None => match types.iter().find(|&&w| fits(w, 1)) {
            Some(w) => {
                // The memory grows with the positions.
                let (mut fit, mut too_many) = (1, context);
                while too_many - fit > 1 {
                    let middle = fit + (too_many - fit) / 2;
                    if fits(*w, middle) { fit = middle } else { too_many = middle }
                }
                format!("--weights {} --context {fit} fits", w.name())
            }
            None if types.len() == 1 => "plan a smaller model or a larger chip".to_owned(),
            None => "no type of weights fits, whatever the context; plan a smaller model or a larger chip".to_owned(),
        },
    };
    let OnChip { flash_bytes, ram_bytes, .. } = planned;
    Err(ConfigError(format!(
        "{}: the model needs {flash_bytes} bytes of flash and {ram_bytes} of RAM in {}, and there are {} and {}; {advice}",
        chip.name,
        weights.name(),
        chip.flash,
        chip.ram
    )))
}

fn spelled(tokenizer: &dyn Tokenizer) -> Result<u64, ConfigError> {
    tables(tokenizer).map(|bytes| bytes.len() as u64).map_err(|e| ConfigError(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_have_names_or_sizes() {
        let chip: Chip = "stm32f407".parse().unwrap();
        assert_eq!((chip.flash, chip.ram), (1_048_576, 131_072));
        let chip: Chip = "1MiB/192KiB".parse().unwrap();
        assert_eq!((chip.flash, chip.ram), (1_048_576, 196_608));
        for wrong in ["stm32", "1MiB", "1MiB/", "/2KiB", "1MiB/x", ""] {
            assert!(wrong.parse::<Chip>().unwrap_err().contains("nrf52840"), "{wrong}");
        }
    }
}
