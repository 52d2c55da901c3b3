use std::fs;

use tempfile::TempDir;

use super::super::files::tests::{message, texts, write};
use super::super::files::{Files, describe};
use super::*;

fn said(path: &Path) -> String {
    describe(path, &SourceOptions::default(), None).unwrap().unwrap()
}

/// `said` without the directory's name.
fn said_of(directory: &TempDir) -> String {
    said(directory.path()).replace(&directory.path().display().to_string(), "DIR")
}

fn make(directory: &TempDir, name: &str, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(directory.path().join(name).parent().unwrap()).unwrap();
    write(directory, name, bytes);
}

#[test]
fn directories_inside_are_read_in_order_and_what_is_left_out_is_said() {
    let directory = TempDir::new().unwrap();
    let line = |text: &str| format!("{{\"text\":\"{text}\"}}\n");
    for (name, text) in
        [("c.jsonl", "4"), ("b/z.jsonl", "2"), ("b/a/x.ndjson", "1"), ("b.jsonl", "3"), ("d/e.jsonl", "5")]
    {
        make(&directory, name, line(text));
    }
    for name in ["a.png", "b/B.PNG", "archive.tar.gz", "b/Makefile", ".hidden.jsonl", ".git/a.jsonl"] {
        make(&directory, name, line("not this"));
    }
    // Next to files of documents these files are documentation.
    for name in ["README.md", "b/notes.md", "LICENSE.txt", "d/readme.txt.gz"] {
        make(&directory, name, "not this");
    }
    make(&directory, "dataset_info.json", "{\"features\": {\"text\": \"string\"}, \"splits\": [1]}");
    make(&directory, "tsconfig.json", "{ // with a comment\n}");
    make(&directory, "labels.csv", "id,label\n1,2\n");
    make(&directory, "texts.csv", "id,text\n1,7\n");
    make(&directory, "plain.txt", "6");
    assert_eq!(texts(directory.path()), ["1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(
        said_of(&directory),
        "reading 7 files (4 .jsonl, 1 .csv, 1 .ndjson, 1 .txt) below DIR; not read: 13 (2 .md beside data, 2 .png, 2 hidden, \
         1 .csv without \"text\", 1 .json of another form, 1 .json without \"text\", 1 .tar.gz, 1 .txt beside data, 2 others): \
         .git, .hidden.jsonl, LICENSE.txt, README.md, a.png, …"
    );
}

#[test]
fn texts_alone_are_read_with_their_readme() {
    let directory = TempDir::new().unwrap();
    make(&directory, "README.md", "b");
    make(&directory, "LICENSE", "no known extension");
    make(&directory, "a.txt", "a");
    make(&directory, "package.json", "{\"name\": \"it\"}");
    assert_eq!(texts(directory.path()), ["b", "a"]);
    assert_eq!(
        said_of(&directory),
        "reading 2 files (1 .md, 1 .txt) below DIR; not read: 2 (1 .json without \"text\", 1 without an extension): LICENSE, \
         package.json"
    );
    // A file that is named directly is read whatever its name.
    assert_eq!(texts(&directory.path().join("LICENSE")), ["no known extension"]);
    assert!(describe(&directory.path().join("a.txt"), &SourceOptions::default(), None).unwrap().is_none());
}

#[test]
fn a_directory_without_data_says_what_is_there() {
    let directory = TempDir::new().unwrap();
    make(&directory, "a.png", "1");
    make(&directory, "b.csv", "id,body\n1,2\n");
    let said = message(directory.path());
    assert!(said.ends_with("; not read: 2 (1 .csv without \"text\", 1 .png): a.png, b.csv"), "{said}");
}

#[test]
fn what_runs_and_encoders_made_is_no_data() {
    let directory = TempDir::new().unwrap();
    make(&directory, "a.txt", "a");
    for name in ["runs/one/config.toml", "runs/one/plan.json", "runs/one/b.txt", "tokens/shards.json", "tokens/c.txt"] {
        make(&directory, name, "not this");
    }
    for name in ["model/config.json", "model/model.safetensors", "model/d.txt", "lost+found/e.txt"] {
        make(&directory, name, "not this");
    }
    assert_eq!(texts(directory.path()), ["a"]);
    let said = said_of(&directory);
    assert!(
        said.contains("not read: 4 (1 directory of token shards, 1 lost+found, 1 model, 1 run of capful)"),
        "{said}"
    );
}

#[cfg(unix)]
#[test]
fn links_are_followed_once_and_broken_ones_are_refused() {
    use std::os::unix::fs::symlink;
    let (directory, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let at = |name: &str| directory.path().join(name);
    make(&directory, "a.txt", "a");
    make(&directory, "inside/b.txt", "b");
    make(&other, "c.txt", "c");
    symlink(other.path(), at("out")).unwrap();
    symlink(other.path(), at("out2")).unwrap();
    symlink(directory.path(), at("inside/loop")).unwrap();
    symlink(at("inside"), at("again")).unwrap();
    symlink("/", at("root")).unwrap();
    symlink(directory.path(), other.path().join("back")).unwrap();
    symlink(other.path().join("c.txt"), at("linked.txt")).unwrap();
    symlink("nowhere", at("no data")).unwrap();
    assert_eq!(texts(directory.path()), ["a", "b", "c", "c"]);
    let said = said_of(&directory);
    assert!(
        said.contains(
            "not read: 6 (4 link to a directory of the same tree, 1 broken link, 1 link to a directory that is read already)"
        ),
        "{said}"
    );
    symlink("gone/x.jsonl", at("inside/x.jsonl")).unwrap();
    let said = message(directory.path());
    let expected =
        format!("{}: a link to gone/x.jsonl, which is not there; mend the link", at("inside/x.jsonl").display());
    assert!(said.starts_with(&expected), "{said}");
    // A link that is not read may be broken.
    fs::rename(at("inside/x.jsonl"), at("README.md")).unwrap();
    make(&directory, "d.jsonl", "{\"text\":\"d\"}\n");
    assert_eq!(texts(directory.path()).len(), 5);
}

#[cfg(unix)]
#[test]
fn a_file_that_links_of_its_tree_lead_to_is_read_once() {
    use std::os::unix::fs::symlink;
    let directory = TempDir::new().unwrap();
    let at = |name: &str| directory.path().join(name);
    make(&directory, "b.txt", "b");
    // As a download cache stores its files: the content under its digest, and names that link to it.
    make(&directory, "blobs/0af3", "c");
    make(&directory, "names/c.txt", "");
    fs::remove_file(at("names/c.txt")).unwrap();
    for (target, link) in
        [("b.txt", "a.txt"), ("b.txt", "z.txt"), ("../blobs/0af3", "names/c.txt"), ("blobs/0af3", "d.txt")]
    {
        symlink(target, at(link)).unwrap();
    }
    assert_eq!(texts(directory.path()), ["b", "c"]);
    let said = said_of(&directory);
    assert!(said.contains("3 link to a file of the same tree") && said.contains("a.txt, "), "{said}");
}

#[cfg(unix)]
#[test]
fn pipes_and_sockets_are_left_out_and_not_waited_for() {
    let directory = TempDir::new().unwrap();
    make(&directory, "a.txt", "a");
    let made = std::process::Command::new("mkfifo").arg(directory.path().join("b.jsonl")).status().unwrap();
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("c.txt")).unwrap();
    assert_eq!(texts(directory.path()), ["a"]);
    assert!(said_of(&directory).ends_with("not read: 2 (1 FIFO, 1 socket): b.jsonl, c.txt"), "{}", said_of(&directory));
}

#[test]
fn a_run_reads_what_it_began_with_and_says_what_came_since() {
    let directory = TempDir::new().unwrap();
    make(&directory, "b.jsonl", "{\"text\":\"b\"}\n");
    let began = Files::open(directory.path(), &SourceOptions::default()).unwrap().snapshot().unwrap();
    let said = |began: &_| {
        let said = describe(directory.path(), &SourceOptions::default(), Some(began)).unwrap().unwrap();
        said.replace(&directory.path().display().to_string(), "DIR")
    };
    assert_eq!(said(&began), "reading 1 file below DIR that the run began with");
    make(&directory, "sub/c.jsonl", "{\"text\":\"c\"}\n");
    let expected = "reading 1 file below DIR that the run began with; not read: 1 (1 not among them): sub/c.jsonl";
    assert_eq!(said(&began), expected);
    // Files that a run of an earlier version began with are read by that run, although a newer version leaves them out.
    make(&directory, "README.md", "about it");
    let mut saved = serde_json::to_value(&began).unwrap();
    let mut readme = saved["files"][0].clone();
    readme["path"] = directory.path().join("README.md").display().to_string().into();
    readme["length"] = 8.into();
    readme["digest"] = serde_json::Value::Null;
    saved["files"].as_array_mut().unwrap().insert(0, readme);
    let then: super::super::snapshot::Snapshot = serde_json::from_value(saved).unwrap();
    let options = SourceOptions { began: Some(std::sync::Arc::new(then)), ..SourceOptions::default() };
    let read = super::super::files::tests::texts_with(directory.path(), &options);
    assert_eq!(read, ["about it", "b"]);
    // The result is the same in another directory.
    let moved = TempDir::new().unwrap();
    fs::copy(directory.path().join("b.jsonl"), moved.path().join("b.jsonl")).unwrap();
    let there = began.moved(&moved.path().display().to_string()).unwrap();
    assert_eq!(there.fingerprint(), began.fingerprint());
    let options = SourceOptions { began: Some(std::sync::Arc::new(there)), ..SourceOptions::default() };
    assert_eq!(super::super::files::tests::texts_with(moved.path(), &options), ["b"]);
}

#[test]
fn a_run_that_remembers_no_files_reads_what_was_read_then() {
    let directory = TempDir::new().unwrap();
    make(&directory, "a.jsonl", "{\"text\":\"a\"}\n");
    for name in ["README.md", "b.txt.gz", "c.csv", "d/e.jsonl", "f.json", ".g.txt"] {
        make(&directory, name, "text\n1");
    }
    let options = SourceOptions { formerly: true, ..SourceOptions::default() };
    let texts_of = |path: &Path| super::super::files::tests::texts_with(path, &options);
    assert_eq!(texts_of(directory.path()), ["text\n1", "a"]);
    // A directly named file was read as text, and is still read as text.
    let path = directory.path().join("c.csv");
    assert_eq!(texts_of(&path), ["text\n1"]);
    let began = Files::open(&path, &options).unwrap().snapshot().unwrap();
    let options = SourceOptions { began: Some(std::sync::Arc::new(began)), ..SourceOptions::default() };
    assert_eq!(super::super::files::tests::texts_with(&path, &options), ["text\n1"]);
}

#[test]
fn many_kinds_are_counted_together() {
    let kinds = (0..12).flat_map(|kind| std::iter::repeat_n(format!(".k{kind:02}"), 13 - kind));
    assert_eq!(counted(kinds), "13 .k00, 12 .k01, 11 .k02, 10 .k03, 9 .k04, 8 .k05, 7 .k06, 6 .k07, 14 others");
}
