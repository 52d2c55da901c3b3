//! A description in words: every field is named once, and written and read in the same order.

use super::ImageError;

/// Writes fields to words, or reads them from words.
pub trait Words {
    /// The next word.
    fn word(&mut self, value: &mut u32);

    /// The next words.
    fn words<const N: usize>(&mut self, values: [&mut u32; N]) {
        values.into_iter().for_each(|value| self.word(value));
    }

    /// The bits of the next float.
    fn float(&mut self, value: &mut f32) {
        let mut word = value.to_bits();
        self.word(&mut word);
        *value = f32::from_bits(word);
    }

    /// The bits of the next floats.
    #[cfg(feature = "neurogen")]
    fn floats<const N: usize>(&mut self, values: [&mut f32; N]) {
        values.into_iter().for_each(|value| self.float(value));
    }

    /// The next choice.
    ///
    /// # Errors
    /// [`ImageError::Word`] for a word that stands for no choice.
    fn choice<T: Choice>(&mut self, value: &mut T) -> Result<(), ImageError> {
        let mut word = value.word();
        self.word(&mut word);
        *value = T::of(word).ok_or(ImageError::Word { field: T::FIELD, word })?;
        Ok(())
    }
}

/// Writes to the words from the first on; the rest stay 0.
pub struct Writer<'a>(pub core::slice::IterMut<'a, u32>);

impl Words for Writer<'_> {
    fn word(&mut self, value: &mut u32) {
        if let Some(word) = self.0.next() {
            *word = *value;
        }
    }
}

/// Reads words from the first on; 0 behind the last.
pub struct Reader<'a>(pub core::slice::Iter<'a, u32>);

impl Words for Reader<'_> {
    fn word(&mut self, value: &mut u32) {
        *value = self.0.next().copied().unwrap_or(0);
    }
}

impl Reader<'_> {
    /// Refuses words that no field reads.
    ///
    /// # Errors
    /// [`ImageError::Word`] for one that is not 0.
    pub fn require_rest(self) -> Result<(), ImageError> {
        match self.0.as_slice().iter().find(|word| **word != 0) {
            Some(&word) => Err(ImageError::Word { field: "reserved", word }),
            None => Ok(()),
        }
    }
}

/// A field that is one of a few choices, each with a word.
pub trait Choice: Copy {
    /// The field's name, for errors.
    const FIELD: &'static str;

    /// The word of this choice.
    fn word(&self) -> u32;

    /// The choice of this word.
    fn of(word: u32) -> Option<Self>;
}

/// Declares the words of a choice.
macro_rules! choice {
    ($name:literal: $type:ty { $($word:literal => $value:path,)* }) => {
        impl $crate::image::description::words::Choice for $type {
            const FIELD: &'static str = $name;

            fn word(&self) -> u32 {
                match self {
                    $($value => $word,)*
                }
            }

            fn of(word: u32) -> Option<$type> {
                match word {
                    $($word => Some($value),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use choice;

impl Choice for bool {
    const FIELD: &'static str = "yes";

    fn word(&self) -> u32 {
        u32::from(*self)
    }

    fn of(word: u32) -> Option<bool> {
        match word {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}
