//! The program knows every command in the documents and accepts every configuration in them.

use std::fs;
use std::path::{Path, PathBuf};

use capful_tests::binary::{directory, host, host_with};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn pages() -> Vec<PathBuf> {
    let docs = root().join("docs");
    let mut pages = vec![root().join("README.md")];
    for dir in [docs.clone(), docs.join("performance"), docs.join("lab")] {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    pages
}

/// The blocks of a page: the language that each names, and its lines.
fn blocks(page: &Path) -> Vec<(String, Vec<String>)> {
    let (text, mut all, mut open) = (fs::read_to_string(page).unwrap(), Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), Vec::new())),
            (Some(_), Some(_)) => all.extend(open.take()),
            (None, Some((_, lines))) => lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block does not end", page.display());
    all
}

/// The commands of a block: lines continued with a backslash are joined, comments are removed.
fn commands(lines: &[String]) -> Vec<String> {
    let joined = lines.join("\n").replace("\\\n", " ");
    let bare = joined.lines().map(|line| line.split(" #").next().unwrap_or("").trim().to_owned());
    bare.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// The arguments as a shell splits them; `…` stands for those of the command above, a letter for a number.
fn arguments(line: &str) -> Vec<String> {
    let (mut all, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(q)) if c == q => quote = None,
            (' ', None) => all.push(String::new()),
            (c, _) => all.last_mut().unwrap().push(c),
        }
    }
    let number = |word: String| if word == "S" || word == "N" { "2".to_owned() } else { word };
    // The first of several values.
    let one = |word: String| word.split('|').next().unwrap_or_default().to_owned();
    all.into_iter().filter(|word| !word.is_empty() && word != "…").map(number).map(one).collect()
}

/// The arguments, where the command is capful's own.
fn ours(line: &str) -> Option<&str> {
    let starts = ["host ", "target/release/host ", "cargo run --release -- "];
    // After a launcher, whose own flags end where the program begins.
    let launched = ["mpirun ", "torchrun "].iter().any(|launcher| line.starts_with(launcher));
    let line = if launched { line.find("target/release/host ").map_or(line, |at| &line[at..]) } else { line };
    starts.iter().find_map(|start| line.strip_prefix(start))
}

#[test]
fn every_command_in_the_documents_is_known() {
    let dir = directory();
    let mut count = 0;
    for page in pages() {
        for (language, lines) in blocks(&page) {
            assert!(
                ["sh", "rust", "toml", "text", "json", "python"].contains(&&*language),
                "{}: '{language}'",
                page.display()
            );
            for line in commands(&lines).iter().filter(|_| language == "sh") {
                let place = format!("{}: {line}", page.display());
                let Some(own) = ours(line) else {
                    let words = arguments(line);
                    let others = ["cargo", "python3", "bash", "git"];
                    assert!(others.contains(&&*words[0]), "{place}: what is {}?", words[0]);
                    let script = words.get(1).filter(|word| word.ends_with(".py") || word.ends_with(".sh"));
                    assert!(script.is_none_or(|script| root().join(script).is_file()), "{place}: no such file");
                    continue;
                };
                let words = arguments(own);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                count += 1;
                // Flags are read in order, and help ends it: all flags before it must be known and have valid values.
                let help = host_with(dir.path(), "", &[&words[..], &["--help"]].concat());
                assert_eq!(help.status, Some(0), "{place}\n{}", help.err);
                // A plan needs no other files, unless it is for a file or for this machine's GPU.
                let files = ["--data", "--tokenizer", "--config", "--device", "--init-from"];
                if words[0] == "plan" && !words.iter().any(|word| files.contains(word)) {
                    host_with(dir.path(), "", &words).planned();
                }
            }
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn every_configuration_in_the_documents_is_one() {
    let dir = directory();
    let mut count = 0;
    for page in pages() {
        for (_, lines) in blocks(&page).iter().filter(|(language, _)| language == "toml") {
            fs::write(dir.path().join("run.toml"), lines.join("\n")).unwrap();
            host(dir.path(), "plan --config run.toml").planned();
            count += 1;
        }
    }
    assert!(count >= 2, "{count}");
}

/// Links to files have existing targets.
#[test]
fn every_link_to_a_file_leads_to_one() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") {
                assert!(page.parent().unwrap().join(file).exists(), "{}: {target}", page.display());
            }
        }
    }
}
