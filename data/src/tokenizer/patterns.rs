//! Decides which patterns of a `tokenizer.json` mean the same in both engines: Oniguruma, which Python's `tokenizers`
//! uses, and fancy-regex, which this program uses.
//!
//! In Oniguruma's syntax `^` and `$` are the beginning and the end of any line, and the flag m has the meaning of s
//! elsewhere.

use serde_json::Value;

use super::error::Refusal;

/// Refuses the part `name` of a file if a pattern in it has a construct that the engines interpret differently.
pub(super) fn require_same(name: &str, part: &Value) -> Result<(), Refusal> {
    match part {
        Value::Object(all) => all.iter().try_for_each(|(key, value)| match (key.as_str(), value) {
            ("Regex", Value::String(pattern)) => match differs(pattern) {
                Some(what) => Err(Refusal::Unsupported(format!(
                    "in its {name}, its pattern `{pattern}` has `{what}`, which means something else to the library of Python"
                ))),
                None => Ok(()),
            },
            _ => require_same(name, value),
        }),
        Value::Array(all) => all.iter().try_for_each(|value| require_same(name, value)),
        _ => Ok(()),
    }
}

/// The construct in `pattern` that the engines interpret differently.
fn differs(pattern: &str) -> Option<String> {
    let mut depth = 0u32;
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => _ = rest.next(),
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            '^' | '$' if depth == 0 => return Some(c.to_string()),
            '(' if depth == 0 => {
                let flags = rest.as_str().strip_prefix('?').unwrap_or_default();
                let flags = &flags[..flags.find(|c: char| !c.is_ascii_alphabetic() && c != '-').unwrap_or(flags.len())];
                if flags.contains(|c| c != 'i' && c != '-') {
                    return Some(format!("(?{flags}"));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::splits::tests::known;
    use super::*;

    #[test]
    fn published_patterns_mean_the_same() {
        for (part, _) in known() {
            require_same("pre_tokenizer", &part).unwrap();
        }
        for pattern in
            [r"[^\r\n$^]?\p{L}+|\$\^|(?i:'s)(?=a)(?!b)(?<=c)(?<!d)(?:e)(f)(?>g)", r"[a&&[^$]]^".trim_end_matches('^')]
        {
            assert_eq!(differs(pattern), None, "{pattern}");
        }
    }

    #[test]
    fn what_differs_is_named() {
        for (pattern, what) in
            [(r"\s+$", "$"), ("^a", "^"), (r"[$]|\$|$", "$"), ("(?m:.)", "(?m"), ("(?i-s)a", "(?i-s")]
        {
            assert_eq!(differs(pattern).as_deref(), Some(what), "{pattern}");
            let part = json!({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}]});
            assert!(matches!(require_same("pre_tokenizer", &part), Err(Refusal::Unsupported(_))));
        }
    }
}
