//! Conversations, from a file to a model that answers.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use capful_tests::binary::{Outcome, TINY, command, directory, host};
use serde_json::{Value, json};

/// Writes `count` short conversations to `chats.jsonl`: one in three has two turns, one in four is a prompt with its
/// completion.
fn write_chats(dir: &Path, count: usize) {
    let mut text = String::new();
    for i in 0..count {
        let (name, thing) = (["bear", "fox", "owl"][i % 3], ["honey", "bread", "fish", "a leaf"][i % 4]);
        let (ask, answer) = (format!("what does the {name} {i} eat ?"), format!("it eats {thing} ."));
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let mut messages = vec![message("user", &ask), message("assistant", &answer)];
        if i % 3 == 0 {
            messages.extend([message("user", "and then ?"), message("assistant", "it sleeps .")]);
        }
        let line =
            if i % 4 == 1 { json!({ "prompt": ask, "completion": answer }) } else { json!({ "messages": messages }) };
        writeln!(text, "{line}").unwrap();
    }
    fs::write(dir.join("chats.jsonl"), text).unwrap();
}

fn losses(run: &Path) -> Vec<(u64, f64, f64)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?, line["norm"].as_f64()?))).collect()
}

fn line(flags: &str) -> String {
    let tiny = TINY.replace("--seq-len 32", "--seq-len 96");
    let tiny = if flags.contains("--batch-size") { tiny.replace("--batch-size 4", "") } else { tiny };
    format!("train {tiny} --data chats.jsonl --log-every 1 --save-minutes 0 {flags}")
}

#[test]
fn the_loss_is_a_mean_over_a_step_s_answers_however_its_micro_batches_are_cut() {
    let dir = directory();
    let dir = dir.path();
    write_chats(dir, 200);
    let mut runs = Vec::new();
    for (name, shape) in [
        ("whole", "--batch-size 4"),
        ("two", "--batch-size 2 --accumulate 2"),
        ("four", "--batch-size 1 --accumulate 4"),
    ] {
        host(dir, &line(&format!("{shape} --steps 6 --out {name}"))).ok();
        runs.push(losses(&dir.join(name)));
    }
    // Nothing is learnt yet: all tokens of the vocabulary are about equally likely, and prompts and padding do not
    // count.
    let (_, first, _) = runs[0][0];
    assert!((first / 300f64.ln() - 1.0).abs() < 0.05, "{first}");
    for other in &runs[1..] {
        assert_eq!(other.len(), runs[0].len());
        for ((step, loss, norm), (_, others, norms)) in runs[0].iter().zip(other) {
            assert!((loss / others - 1.0).abs() < 1e-4 && (norm / norms - 1.0).abs() < 1e-3, "{step}: {loss} {others}");
        }
    }
}

#[test]
fn a_run_on_conversations_goes_on_exactly_and_knows_how_it_was_packed() {
    let dir = directory();
    let dir = dir.path();
    write_chats(dir, 120);
    let whole = host(dir, &line("--steps 8 --out whole")).ok();
    assert!(whole.err.contains("conversations in ") && whole.err.contains(" % full; "), "{}", whole.err);
    host(dir, &line("--steps 8 --save-every 3 --keep 5 --out part")).ok();
    fs::remove_dir_all(dir.join("part/checkpoint-00000006")).unwrap();
    fs::remove_dir_all(dir.join("part/checkpoint-00000008")).unwrap();
    host(dir, &line("--steps 8 --out part --resume")).ok();
    assert_eq!(losses(&dir.join("whole")), losses(&dir.join("part")));
    let long = host(dir, &line("--steps 2 --overflow drop --out drop").replace("--seq-len 96", "--seq-len 40")).ok();
    let cut = host(dir, &line("--steps 2 --out cut").replace("--seq-len 96", "--seq-len 40")).ok();
    assert!(
        long.err.contains(" left out, whose answers do not fit") && !long.err.contains("are longer and cut"),
        "{}",
        long.err
    );
    assert!(cut.err.contains(" are longer and cut (--overflow cut)"), "{}", cut.err);
}

#[test]
fn a_model_that_learnt_answers_answers() {
    let dir = directory();
    let dir = dir.path();
    write_chats(dir, 60);
    let ended = host(dir, &line("--steps 60 --lr 0.01 --out run")).ok();
    // Its sample is the answer to a held-out question.
    let sample = ended.out.split_once("<|assistant|>").expect("a question").1;
    assert!(sample.trim().starts_with("it "), "{sample}");
    fs::write(
        dir.join("ask.jsonl"),
        fs::read_to_string(dir.join("chats.jsonl")).unwrap().lines().take(3).collect::<Vec<_>>().join("\n"),
    )
    .unwrap();
    let said =
        host(dir, "generate --run run --messages ask.jsonl --temperature 0 --max-tokens 30 --json").ok().json_lines();
    assert_eq!(said.len(), 3);
    assert_eq!(said[0]["expected"], "it sleeps .");
    assert_eq!(said[1]["expected"], "it eats bread .");
    assert_eq!(said[0]["messages"].as_array().unwrap().len(), 3);
    for one in &said {
        // It has learnt how answers begin and when to end.
        assert_eq!(one["end"], "eos", "{one}");
        assert!(one["text"].as_str().unwrap().starts_with("it "), "{one}");
    }
    // A chat processes the same ids, turn by turn.
    let chat = |flags: &str, lines: &str| {
        let line = format!("chat --run run --temperature 0 --max-tokens 30 {flags}");
        let mut chat = command(dir, &line);
        let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        Outcome::of(&line, chat.wait_with_output().unwrap()).ok()
    };
    let talked = chat("", "what does the bear 0 eat ?\nand then ?\n");
    let answers: Vec<&str> = talked.out.lines().collect();
    assert!(talked.err.contains("chat template is applied"), "{}", talked.err);
    let turns = json!([{ "role": "user", "content": "what does the bear 0 eat ?" }, { "role": "assistant", "content": answers[0] },
                       { "role": "user", "content": "and then ?" }]);
    fs::write(dir.join("turns.json"), turns.to_string()).unwrap();
    let again = host(dir, "generate --run run --messages turns.json --temperature 0 --max-tokens 30").ok();
    assert_eq!(again.out.trim_end(), answers[1]);
    assert!(chat("--raw", "what\n").err.lines().all(|line| !line.contains("template")));
    // Exports include the template.
    host(dir, "export --run run --to hf there").ok();
    let template = fs::read_to_string(dir.join("there/chat_template.jinja")).unwrap();
    assert!(template.contains("add_generation_prompt"), "{template}");
}

#[test]
fn conversations_that_cannot_be_used_are_refused_in_one_line() {
    let dir = directory();
    let dir = dir.path();
    write_chats(dir, 60);
    fs::write(dir.join("broken.jinja"), "{% for m in messages %}").unwrap();
    fs::write(dir.join("plain.txt"), "no template at all\n").unwrap();
    fs::write(dir.join("strict.jinja"), "{{ raise_exception('only tools') }}").unwrap();
    fs::write(dir.join("silent.jsonl"), "{\"messages\": [{\"role\": \"user\", \"content\": \"hm\"}]}\n").unwrap();
    let stages = "steps = 4\n[[stage]]\nfrom = 0\nbatch_size = 4\nseq_len = 32\n[[stage]]\nfrom = 2\nbatch_size = 2\nseq_len = 64\n";
    fs::write(dir.join("stages.toml"), stages).unwrap();
    host(dir, &line("--steps 2 --out run")).ok();
    host(dir, &format!("train {TINY} --steps 2 --out plain")).ok();
    for (line, said) in [
        (line("--chat-template none.jinja --out x"), "the chat template none.jinja cannot be used"),
        (line("--chat-template broken.jinja --out x"), "the chat template broken.jinja cannot be used: "),
        (line("--chat-template strict.jinja --out x"), "refuses it: only tools"),
        (line("--out x").replace("chats.jsonl", "silent.jsonl"), "no message of the role \"assistant\""),
        (line("--chat-template plain.txt --out x"), "the chat template plain.txt writes nothing of its answers"),
        ("data --in chats.jsonl --out chats.jsonl".to_owned(), "--out chats.jsonl: it is a file; name a directory"),
        (line("--order consecutive --out x"), "holds conversations, which are read whole"),
        (line("--cache none --out x"), "holds conversations, which are read whole"),
        (line("--overflow keep --out x"), "keep"),
        (
            line("--config stages.toml --out x").replace("--seq-len 96", "").replace("--batch-size 4", ""),
            "packed into rows of one length",
        ),
        (
            "train --preset neurogen-39k --data chats.jsonl --steps 2 --out x".to_owned(),
            "holds conversations, and rows of a NeuroGen are streams",
        ),
        ("generate --run run --messages none.json".to_owned(), "none.json"),
        ("generate --run run --messages broken.jinja".to_owned(), "broken.jinja: line 1: "),
        ("generate --run run --messages silent.jsonl --prompt x".to_owned(), "--prompt"),
        ("chat --run plain --system brief".to_owned(), "--system needs a model with a chat template"),
    ] {
        let refused = host(dir, &line);
        assert_eq!(refused.status, Some(2), "{line}: {}", refused.err);
        let last = refused.err.trim_end().lines().last().unwrap();
        assert!(last.contains(said), "{line}: {last}");
        assert!(!dir.join("x").exists(), "{line}");
    }
}

#[test]
fn questions_about_tales_are_conversations() {
    let dir = directory();
    let dir = dir.path();
    host(dir, "tales --count 50 --questions --out qa.jsonl").ok();
    host(dir, "tales --count 3 --validation --seed 4 --out tales.jsonl").ok();
    let lines = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (asked, told) = (lines("qa.jsonl"), lines("tales.jsonl"));
    assert_eq!((asked.len(), told.len()), (50, 3));
    assert!(asked.iter().all(|one| one["messages"][1]["role"] == "assistant"));
    assert!(told.iter().all(|one| one["text"].as_str().unwrap().ends_with('.')));
    let refused = host(dir, "tales --count 0 --out none.jsonl");
    assert!(refused.status == Some(2) && !dir.join("none.jsonl").exists());
    assert_eq!(host(dir, "tales --out .").status, Some(2));
}
