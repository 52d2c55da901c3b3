//! A conversation as a text file: a user's line begins with `> `, and the answer is below it.
//!
//! A line `---` says that the answer ended its document. A line of an answer that could be mistaken for another kind of
//! line begins with `\`.

/// A user's line, and the model's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The user's line.
    pub line: String,
    /// The answer.
    pub answer: String,
    /// Whether the answer ended the document.
    pub ended: bool,
}

const SAID: &str = "> ";
const ENDED: &str = "---";

/// The file's text.
pub fn write(turns: &[Turn]) -> String {
    let mut text = String::new();
    for Turn { line, answer, ended } in turns {
        text.push_str(&format!("{SAID}{line}\n"));
        for line in answer.split('\n') {
            let escape = if line.starts_with(['>', '-', '\\']) { "\\" } else { "" };
            text.push_str(&format!("{escape}{line}\n"));
        }
        if *ended {
            text.push_str(&format!("{ENDED}\n"));
        }
    }
    text
}

/// The turns in such a text.
///
/// # Errors
/// The line that does not fit the format, and why.
pub fn read(text: &str) -> Result<Vec<Turn>, String> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut answered = true;
    for (i, line) in text.split_terminator('\n').enumerate() {
        let wrong = |why: &str| Err(format!("line {}: {why}; /load reads what /save wrote", i + 1));
        if let Some(said) = line.strip_prefix(SAID) {
            if !answered {
                return wrong("there is no answer before it");
            }
            turns.push(Turn { line: said.to_owned(), answer: String::new(), ended: false });
            answered = false;
            continue;
        }
        match turns.last_mut().filter(|turn| !turn.ended) {
            None => return wrong("a turn begins with '> '"),
            Some(turn) if line == ENDED && answered => turn.ended = true,
            Some(turn) => {
                if answered {
                    turn.answer.push('\n');
                }
                turn.answer.push_str(line.strip_prefix('\\').unwrap_or(line));
                answered = true;
            }
        }
    }
    if answered { Ok(turns) } else { Err("the last answer is missing; /load reads what /save wrote".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_whatever_the_answers_look_like() {
        let answers = ["", "\n", "he went .", "> no\n---\n\\\n\\> x", "---", "two\n\nlines\r\n"];
        let turn = |(i, answer): (usize, &&str)| Turn {
            line: format!("> {i}"),
            answer: (*answer).to_owned(),
            ended: i % 2 == 0,
        };
        let turns: Vec<_> = answers.iter().enumerate().map(turn).collect();
        assert_eq!(read(&write(&turns)).unwrap(), turns);
        assert_eq!(read("").unwrap(), []);
        let one = [Turn { line: "the bear".to_owned(), answer: "slept .".to_owned(), ended: true }];
        assert_eq!(write(&one), "> the bear\nslept .\n---\n");
    }

    #[test]
    fn another_file_is_refused_by_its_line() {
        for (text, says) in
            [("[model]\n", "line 1:"), ("> a\nb\n---\nc\n", "line 4:"), ("> a\n> b\n", "line 2:"), ("> a\n", "missing")]
        {
            let why = read(text).unwrap_err();
            assert!(why.contains(says) && !why.contains('\n'), "{why}");
        }
    }
}
