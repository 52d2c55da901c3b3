//! Messages in a form for terminals.

use crate::name;

/// A word with more characters is cut: names may have a megabyte.
const LONGEST_WORD: usize = 200;
/// The parts of a longer message that are shown: its beginning, and its end with the advice.
const LONGEST: [usize; 2] = [1_600, 400];

/// A message in a form for terminals: names and fields of files may contain control sequences, and may have any length.
pub(super) fn shown(message: &str) -> String {
    let message = name::spelled(message);
    let mut text = String::with_capacity(message.len().min(4 * LONGEST[0]));
    for word in message.split_inclusive(char::is_whitespace) {
        let most = if word.chars().nth(LONGEST_WORD).is_some() { LONGEST_WORD - 1 } else { LONGEST_WORD };
        let cut = word.char_indices().nth(most).map_or(word.len(), |(at, _)| at);
        for c in word[..cut].chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        if cut < word.len() {
            text.push('…');
            // The closing of a quotation, and the space after it.
            let end = word[cut..].rfind(char::is_alphanumeric).map_or("", |last| &word[cut + last..]);
            text.extend(end.chars().skip(1).take(3).map(|c| if c.is_control() { ' ' } else { c }));
        }
    }
    let count = text.chars().count();
    if count <= LONGEST.iter().sum() {
        return text;
    }
    let [begin, end] = LONGEST;
    let (begin, end): (String, String) = (text.chars().take(begin).collect(), text.chars().skip(count - end).collect());
    format!("{begin} … {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(shown("a \u{1b}[2J name\nwith\ttabs"), "a \\u{1b}[2J name\\nwith\\ttabs");
    }

    #[test]
    fn what_is_echoed_is_bounded_and_the_advice_stays() {
        let longest = "é".repeat(LONGEST_WORD);
        assert_eq!(shown(&longest), longest);
        let message = format!("'{}' is no name; there are others", "x".repeat(1_000_000));
        let expected = format!("'{}…' is no name; there are others", "x".repeat(LONGEST_WORD - 2));
        assert_eq!(shown(&message), expected);
        let message = format!("'{}' is no name; there are others", "four ".repeat(300_000));
        let text = shown(&message);
        assert!(text.starts_with("'four four") && text.ends_with("is no name; there are others"), "{text}");
        assert_eq!(text.chars().count(), LONGEST[0] + LONGEST[1] + 3);
    }
}
