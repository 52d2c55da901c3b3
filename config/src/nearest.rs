//! Finds the name that a user may have meant.

/// The name among `known` that is closest to `word`, if one is close: at most one letter in three is different, missing
/// or added, or one of the two contains the other.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mistakes = |name: &'a str| {
        let shorter = word.len().min(name.len());
        let mistakes = strsim::damerau_levenshtein(word, name);
        let contained = shorter > 3 && (name.contains(word) || word.contains(name));
        (contained || mistakes <= (shorter / 3).max(1) && shorter > 1).then_some((!contained, mistakes, name))
    };
    // No name is longer, and computing the distance takes time proportional to the product of both lengths.
    let word_is_short = word.len() <= 64;
    known.into_iter().filter(|_| word_is_short).filter_map(mistakes).min().map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_meant() {
        let flags = ["batch-size", "recompute", "steps", "lr", "dropout-free", "seq-len", "precision", "preset"];
        for (word, expected) in [
            ("batchsize", Some("batch-size")),
            ("batch", Some("batch-size")),
            ("max-steps", Some("steps")),
            ("step", Some("steps")),
            ("seqlen", Some("seq-len")),
            ("persicion", Some("precision")),
            ("dropped", None),
            ("l", None),
            ("momentum", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, flags), expected, "{word}");
        }
        assert_eq!(nearest("dropout", ["recompute", "device", "out", "order"]), None);
        assert_eq!(nearest(&"a".repeat(100), ["a"]), None);
    }
}
