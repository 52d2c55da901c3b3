//! `host chat` as a user uses it.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use capful_tests::binary::{Outcome, TINY, command, directory, host};

fn train(dir: &Path, flags: &str) {
    host(dir, &format!("train {TINY} {flags}")).ok();
}

/// `host chat` with the run in `dir` and the input `lines`.
#[track_caller]
fn chat(dir: &Path, flags: &str, lines: impl AsRef<[u8]>) -> Outcome {
    let line = format!("chat --run run {flags}");
    let mut chat = command(dir, &line);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(lines.as_ref()).unwrap();
    Outcome::of(&line, chat.wait_with_output().unwrap()).ok()
}

#[test]
fn a_chat_answers_remembers_and_saves() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --out run");
    let lines = "the bear\n/params temperature 0\n/params temperature hot\n\nand then\n/save talk.txt\n/clear\n/help\n/nonsense\n/quit\nunread\n";
    let outcome = chat(dir, "--max-tokens 5 --seed 1", lines);
    assert_eq!(outcome.out.lines().count(), 2, "{outcome:?}");
    let talk = fs::read_to_string(dir.join("talk.txt")).unwrap();
    assert!(talk.starts_with("> the bear\n") && talk.contains("> and then\n") && !talk.contains("unread"), "{talk}");
    for said in ["talk.txt", "/clear", "hot", "/nonsense"] {
        assert!(outcome.err.contains(said), "{said}: {}", outcome.err);
    }
}

#[test]
fn a_chat_goes_on_behind_what_is_no_text() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --out run");
    let long = "bear ".repeat(1 << 16);
    let lines = [b"the \xff\xfe bear\n".as_slice(), long.as_bytes(), b"\nthe bear\n"].concat();
    let outcome = chat(dir, "--max-tokens 5 --seed 1", lines);
    assert_eq!(outcome.out.lines().count(), 2, "{outcome:?}");
    assert!(outcome.err.contains("left out") && outcome.err.contains("write a shorter line"), "{}", outcome.err);
}

#[test]
fn a_chat_shows_and_sets_its_parameters() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --out run");
    let lines = "/params\nthe bear\n/params max-tokens 3\n/params seed 3\n/params\n/clear\nthe bear\n\
                 /params heat 1\n/params max-tokens 0\n/params seed\n";
    let outcome = chat(dir, "--max-tokens 40 --seed 1", lines);
    let answers: Vec<_> = outcome.out.lines().collect();
    for said in [
        "max-tokens 40, temperature 0.8",
        "seed 1",
        "last answer: none yet",
        "max-tokens 3,",
        "seed 3",
        "tokens/s",
        "in the arena",
        "resident",
        "there is no parameter heat; there are max-tokens,",
        "max-tokens 0",
        "/params NAME VALUE",
    ] {
        assert!(outcome.err.contains(said), "{said}: {}", outcome.err);
    }
    // Settings from flags and from commands have the same effect.
    let other = chat(dir, "--max-tokens 3 --seed 3", "the bear\n");
    assert_eq!(answers[1..], other.out.lines().collect::<Vec<_>>()[..], "{outcome:?}");
    assert_ne!(answers[0], answers[1]);
    let help = chat(dir, "", "/help\n").err;
    for command in ["/params", "/clear", "/save", "/load", "/help", "/quit", "seed", "max-tokens"] {
        assert!(help.contains(command), "{command}: {help}");
    }
}

#[test]
fn a_chat_drops_the_oldest_turns_when_its_context_is_full() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --set context=40 --out run");
    let greedy = "--temperature 0 --max-tokens 12";
    let lines = "the bear was there\n".repeat(6) + "/params\n";
    let outcome = chat(dir, greedy, lines);
    assert_eq!(outcome.out.lines().filter(|line| !line.is_empty()).count(), 6, "{outcome:?}");
    let dropped = |outcome: &Outcome| outcome.err.lines().filter(|line| line.contains("dropped")).count();
    assert!(dropped(&outcome) > 0 && outcome.err.contains("the context of 40 is full: the oldest"), "{outcome:?}");
    let held = outcome.err.lines().find(|line| line.starts_with("context: ")).unwrap();
    let held: u64 = held.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((17..=41).contains(&held), "{held}");
    // A turn that fills the context by itself ends with it, and the next one begins anew.
    let outcome = chat(dir, "--temperature 0.7 --max-tokens 400", "the bear\nthe bear\n");
    assert!(outcome.err.contains("the answer ends here") || dropped(&outcome) > 0, "{outcome:?}");
}

#[test]
fn a_chat_that_was_saved_is_loaded_and_goes_on_as_before() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --set context=128 --out run");
    let greedy = "--temperature 0 --max-tokens 6";
    let whole = chat(dir, greedy, "the bear\nand then\n/save my talk.txt\nat last\n/save all.txt\n");
    let loaded = chat(dir, greedy, "/load my talk.txt\nat last\n/save again.txt\n");
    assert_eq!(whole.out.lines().last(), loaded.out.lines().last());
    let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(text("all.txt"), text("again.txt"));
    assert!(loaded.err.contains("2 turns loaded from my talk.txt"), "{}", loaded.err);
    // Files that are no conversations are neither loaded nor replaced.
    let config = text("run/config.toml");
    let refused = chat(dir, greedy, "/load run/config.toml\n/save run/config.toml\n/load none\n/save none/x\n/save\n");
    assert_eq!(text("run/config.toml"), config);
    assert_eq!(refused.err.lines().count(), 6, "{}", refused.err);
    assert!(refused.err.contains("run/config.toml: line 1") && refused.err.contains("not replaced"), "{}", refused.err);
    let unfinished = |e: fs::DirEntry| e.file_name().to_string_lossy().contains(".tmp");
    assert!(!fs::read_dir(dir).unwrap().any(|e| unfinished(e.unwrap())));
}
