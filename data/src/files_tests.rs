use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use capful_core::random::{Random, stream};
use tempfile::TempDir;

use super::super::source::{Document, Documents, SourceOptions, SourcePosition, TokenKind};
use super::super::token_file::TokenFileWriter;
use super::*;

fn open(path: &Path) -> Result<Files, SourceError> {
    Files::open(path, &SourceOptions::default())
}

fn open_with(path: &Path, options: &SourceOptions) -> Files {
    Files::open(path, options).unwrap()
}

/// Every document with the place before it, and the place at the end.
pub(crate) fn read_all(files: &mut Files) -> Result<(Vec<(SourcePosition, Document)>, SourcePosition), SourceError> {
    let mut all = Vec::new();
    let mut document = Document::default();
    loop {
        let place = files.place();
        if !files.next(&mut document)? {
            return Ok((all, files.place()));
        }
        all.push((place, document.clone()));
    }
}

pub(crate) fn texts(path: &Path) -> Vec<String> {
    texts_with(path, &SourceOptions::default())
}

pub(crate) fn texts_with(path: &Path, options: &SourceOptions) -> Vec<String> {
    read_all(&mut open_with(path, options)).unwrap().0.into_iter().map(|(_, d)| d.text).collect()
}

/// The error of opening or of reading `path`, as the user sees it.
pub(crate) fn message(path: &Path) -> String {
    let error = match open(path) {
        Err(error) => error,
        Ok(mut files) => read_all(&mut files).map(|all| all.0.len()).unwrap_err(),
    };
    let message = error.to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    message
}

/// Seeking to any place seen returns the documents that followed it.
pub(crate) fn check_places(path: &Path) {
    check_places_with(path, &SourceOptions::default());
}

pub(crate) fn check_places_with(path: &Path, options: &SourceOptions) {
    let mut files = open_with(path, options);
    let (all, _) = read_all(&mut files).unwrap();
    let mut document = Document::default();
    for (place, expected) in all.iter().rev().step_by(1 + all.len() / 60) {
        files.seek(*place).unwrap();
        assert!(files.next(&mut document).unwrap());
        assert_eq!((&document.text, &document.ids), (&expected.text, &expected.ids), "{place:?}");
        let mut fresh = open_with(path, options);
        fresh.seek(*place).unwrap();
        let rest = read_all(&mut fresh).unwrap().0;
        let from = all.iter().position(|(p, _)| p == place).unwrap();
        assert_eq!(rest.len(), all.len() - from);
        assert!(rest.iter().zip(&all[from..]).all(|(a, b)| a.0 == b.0 && a.1.text == b.1.text && a.1.ids == b.1.ids));
    }
}

pub(crate) fn write(directory: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// The rows of testdata/make_parquet.py that hold text.
fn rows() -> Vec<String> {
    (0..500)
        .filter(|i| i % 7 != 3 && i % 11 != 5)
        .map(|i| format!("Row {i}: {}end", "grüße 世界 ".repeat(i % 13)))
        .collect()
}

#[test]
fn parquet_of_another_writer_gives_its_rows() {
    for name in ["snappy.parquet", "zstd.parquet"] {
        assert_eq!(texts(&testdata(name)), rows(), "{name}");
        check_places(&testdata(name));
    }
}

#[test]
fn conversations_in_parquet_are_those_of_json_lines() {
    let options = SourceOptions::default();
    let read = |name: &str, options: &SourceOptions| -> Result<Vec<_>, String> {
        let (all, _) = read_all(&mut open_with(&testdata(name), options)).map_err(|e| e.to_string())?;
        Ok(all.into_iter().map(|(_, document)| (document.text, document.parts)).collect())
    };
    let lines = read("chats.jsonl", &options).unwrap();
    assert!(lines.len() == 267 && lines.iter().all(|(_, parts)| parts.iter().any(|part| part.answer)));
    for name in ["snappy", "zstd", "delta_1", "delta_2"] {
        let name = format!("chats_{name}.parquet");
        assert_eq!(read(&name, &options).unwrap(), lines, "{name}");
        check_places(&testdata(&name));
    }
    let message = read("pairs.parquet", &options).unwrap_err();
    assert!(
        message.contains("pairs.parquet, row 7: a conversation that cannot be used (it has no \"completion\")"),
        "{message}"
    );
    let all = read("pairs.parquet", &SourceOptions { skip_bad_lines: true, ..options }).unwrap();
    assert!(all.len() == 19 && all[18].0.contains("19 + 19?") && all[18].0.contains("38"), "{all:?}");
}

#[test]
fn compressed_lines_of_another_writer_give_their_texts() {
    assert_eq!(texts(&testdata("lines.jsonl.zst")), rows());
    check_places(&testdata("lines.jsonl.zst"));
}

#[test]
fn json_lines_are_read_with_escapes_blank_lines_and_any_field() {
    let directory = TempDir::new().unwrap();
    let lines = concat!(
        "\u{feff}{\"text\": \"a\\nb \\u00e4\\ud83d\\ude00\", \"n\": [1, {\"text\": 3}]}\r\n",
        "\n   \n",
        "{\"other\": \"x\", \"text\": \"second\"}\n",
        "{\"text\": \"\"}\n",
        "{\"text\": \"last, without an end\", \"other\": \"y\"}",
    );
    let path = write(&directory, "a.jsonl", lines);
    assert_eq!(texts(&path), ["a\nb ä😀", "second", "last, without an end"]);
    check_places(&path);
    let options = SourceOptions { text_field: "other".to_owned(), ..SourceOptions::default() };
    let error = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "{}, line 1: no field \"other\"; its fields are text, n; name one of them as the text field (a conversation has \
             messages, or prompt and completion)",
            path.display()
        )
    );
}

#[test]
fn text_pieces_are_the_file_and_end_where_the_rule_says() {
    let directory = TempDir::new().unwrap();
    // Paragraphs of 100 to 400 bytes; 1.4 MB, so that a piece has 2 KiB at least.
    let paragraph = |i: usize| format!("{}\n\n", format!("Paragraph {i} ä. ").repeat(6 + i * 7 % 19));
    let text: String = (0..5000).map(paragraph).collect();
    let path = write(&directory, "a.txt", &text);
    let pieces = texts(&path);
    assert_eq!(pieces.concat(), text);
    let longest = (0..5000).map(|i| paragraph(i).len()).max().unwrap();
    let (last, whole) = pieces.split_last().unwrap();
    assert!(last.len() < 2048 + longest);
    for piece in whole {
        assert!(piece.len() >= 2048 && piece.len() < 2048 + longest && piece.ends_with("\n\n"), "{}", piece.len());
    }
    check_places(&path);
}

#[test]
fn text_without_blank_lines_is_cut_at_lines_and_without_lines_at_spaces() {
    let directory = TempDir::new().unwrap();
    let lines = "A line of some length that ends.\n".repeat(60_000);
    let path = write(&directory, "lines.txt", &lines);
    let pieces = texts(&path);
    assert_eq!(pieces.concat(), lines);
    assert!(pieces[..pieces.len() - 1].iter().all(|p| p.ends_with('\n') && (16_384..16_384 + 33).contains(&p.len())));

    let words = "grüße an alle ".repeat(150_000);
    let path = write(&directory, "words.txt", &words);
    let pieces = texts(&path);
    assert_eq!(pieces.concat(), words);
    assert!(pieces[1..].iter().all(|p| p.starts_with(' ') && p.len() <= 65_536));
    check_places(&path);

    let characters = "世界é".repeat(300_000);
    let path = write(&directory, "characters.txt", &characters);
    let pieces = texts(&path);
    assert_eq!(pieces.concat(), characters);
    assert!(pieces[..pieces.len() - 1].iter().all(|p| (65_533..=65_536).contains(&p.len())));
}

#[test]
fn a_small_text_has_documents_enough_to_divide() {
    let directory = TempDir::new().unwrap();
    let text = "A short paragraph of a small file, as people try things with.\n\n".repeat(160);
    let path = write(&directory, "small.txt", text);
    assert!(texts(&path).len() >= 40);
    // Blank lines belong to the piece before them, and a file of one line is a single document.
    assert_eq!(texts(&write(&directory, "one.txt", "\u{feff}one line")), ["one line"]);
    let text = format!("{}\n \n\r\n\nb\n", "a".repeat(80));
    assert_eq!(texts(&write(&directory, "two.txt", &text)), [&text[..86], "b\n"]);
}

#[test]
fn token_files_round_trip_with_marks_and_without() {
    let directory = TempDir::new().unwrap();
    for (vocab, eos, width) in [(300, Some(2), 2), (65_535, None, 2), (65_536, Some(65_535), 4), (70_000, None, 4)] {
        let path = directory.path().join("a.tokens");
        let kind = TokenKind { vocab, bos: Some(1), eos, fingerprint: 77 };
        let documents: Vec<Vec<u32>> = (0..50u32)
            .map(|d| {
                (0..d * 3 % 17 + 1)
                    .map(|i| (d * 31 + i * 7) % vocab)
                    .map(|id| if Some(id) == eos { 3 } else { id })
                    .collect()
            })
            .collect();
        let mut writer = TokenFileWriter::create(&path, kind).unwrap();
        documents.iter().for_each(|ids| writer.document(ids).unwrap());
        assert!(writer.document(&[vocab]).is_err());
        assert!(!path.exists());
        let mut writer = TokenFileWriter::create(&path, kind).unwrap();
        documents.iter().for_each(|ids| writer.document(ids).unwrap());
        let count = writer.finish().unwrap();
        assert_eq!(count, documents.iter().map(|d| d.len() as u64 + 1).sum::<u64>());
        assert_eq!(fs::metadata(&path).unwrap().len(), 64 + count * width);
        let mut files = open(&path).unwrap();
        assert_eq!(files.tokens(), Some(kind));
        assert!(!files.has_text());
        let read: Vec<Vec<u32>> = read_all(&mut files).unwrap().0.into_iter().map(|(_, d)| d.ids).collect();
        assert_eq!(read, documents);
        check_places(&path);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_directory_is_its_known_files_in_order_of_name() {
    let directory = TempDir::new().unwrap();
    write(&directory, "b.jsonl", "{\"text\":\"second\"}\n{\"text\":\"third\"}\n");
    write(&directory, "a.txt", "first");
    write(&directory, "c.png", [0, 1, 2]);
    write(&directory, ".hidden.txt", "not this");
    fs::create_dir(directory.path().join("d.txt")).unwrap();
    fs::copy(testdata("snappy.parquet"), directory.path().join("e.parquet")).unwrap();
    fs::copy(testdata("lines.jsonl.zst"), directory.path().join("f.jsonl.zst")).unwrap();
    let mut expected = vec!["first".to_owned(), "second".to_owned(), "third".to_owned()];
    expected.extend(rows());
    expected.extend(rows());
    assert_eq!(texts(directory.path()), expected);
    check_places(directory.path());

    let before = open(directory.path()).unwrap().fingerprint();
    assert_eq!(before, open(directory.path()).unwrap().fingerprint());
    write(&directory, "a.txt", "first.");
    assert_ne!(before, open(directory.path()).unwrap().fingerprint());
}

#[test]
fn a_source_that_is_not_there_or_has_nothing_says_so() {
    let directory = TempDir::new().unwrap();
    let at = |path: &Path| path.display().to_string();
    let missing = directory.path().join("missing.txt");
    assert_eq!(message(&missing), at(&missing) + ": no such file or directory; check the path");
    let empty = write(&directory, "empty.jsonl", "");
    assert_eq!(message(&empty), at(&empty) + ": the file is empty; name one that holds text");
    // The same holds in a directory.
    assert_eq!(message(directory.path()), message(&empty));
    let other = TempDir::new().unwrap();
    write(&other, "picture.png", [1, 2]);
    let text = message(other.path());
    assert!(text.starts_with(&(at(other.path()) + ": no file in this directory is data (.txt, ")), "{text}");
}

#[test]
fn binary_and_badly_encoded_files_are_refused_at_their_byte() {
    let directory = TempDir::new().unwrap();
    let text = "Good text in a line.\n\n".repeat(40_000);
    let mut bytes = text.clone().into_bytes();
    bytes[700_001] = 0;
    let path = write(&directory, "a.txt", &bytes);
    assert!(message(&path).contains("a.txt: byte 700001 is NUL, so this is a binary file"));
    bytes[700_001] = 0xFF;
    let path = write(&directory, "b.txt", &bytes);
    assert!(message(&path).contains("b.txt: byte 700001 is not valid UTF-8"));
    // UTF-16 has both faults; the first one is named. A character cut off at the file's end is invalid.
    let path = write(&directory, "c.txt", b"\xFF\xFEa\0b\0");
    assert!(message(&path).contains("c.txt: byte 0 is not valid UTF-8"));
    let path = write(&directory, "d.txt", b"abc\xC3");
    assert!(message(&path).contains("d.txt: byte 3 is not valid UTF-8"));
    let path = write(&directory, "e.jsonl", b"{\"text\":\"ok\"}\n{\"text\":\"\xE9\"}\n");
    assert!(message(&path).contains("e.jsonl: byte 23 is not valid UTF-8"));
    let path = write(&directory, "f.jsonl", b"{\"text\":\"ok\"}\n\0\0");
    assert!(message(&path).contains("f.jsonl: byte 14 is NUL"));
}

#[test]
fn bad_lines_are_named_by_number() {
    let directory = TempDir::new().unwrap();
    let good = "{\"text\":\"ok\"}\n\n";
    for (line, expected) in [
        ("{\"text\":\"cut o", "line 3: not a JSON object (EOF while parsing a string, column 14)"),
        ("{\"text\":\"a\"} {}", "line 3: not a JSON object (trailing characters, column 14)"),
        ("[1, 2]", "line 3: not a JSON object (invalid type: sequence, expected an object)"),
        ("{\"id\":1,\"body\":\"x\"}", "line 3: no field \"text\"; its fields are id, body; name one"),
        ("{}", "line 3: no field \"text\"; its fields are none; name one"),
        ("{\"text\":17}", "line 3: the field \"text\" is not a string"),
        ("{\"text\":[null]}", "line 3: the field \"text\" is not a string"),
    ] {
        let path = write(&directory, "a.jsonl", format!("{good}{line}"));
        let message = message(&path);
        assert!(message.contains(expected), "{message}");
    }
    let options = SourceOptions { max_document: 1000, ..SourceOptions::default() };
    let fits = format!("{{\"text\":\"{}\"}}\n", "x".repeat(988));
    let path = write(&directory, "b.jsonl", fits.clone() + &"y".repeat(1001));
    let error = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("line 2: over 1000 bytes long; split it into several documents"), "{error}");
    assert_eq!(fits.len(), 1000);
}

#[test]
fn truncated_and_damaged_files_are_refused() {
    let directory = TempDir::new().unwrap();
    let zst = fs::read(testdata("lines.jsonl.zst")).unwrap();
    let path = write(&directory, "a.jsonl.zst", &zst[..zst.len() / 2]);
    let text = message(&path);
    assert!(text.contains("a.jsonl.zst: the compressed data ends in the middle, after "), "{text}");
    let path = write(&directory, "b.jsonl.zst", "this is not compressed");
    let text = message(&path);
    assert!(text.contains("b.jsonl.zst: not valid zstd after 0 bytes of text (Unknown frame descriptor)"), "{text}");

    let parquet = fs::read(testdata("snappy.parquet")).unwrap();
    for n in [3, 12, parquet.len() / 2, parquet.len() - 1] {
        let path = write(&directory, "a.parquet", &parquet[..n]);
        let text = message(&path);
        assert!(text.contains("a.parquet: cannot be read as parquet (its end is missing)"), "{text}");
    }
    // The end of the file is intact, the bytes before it are damaged: reading gives an error or wrong rows, never a
    // panic.
    let mut refused = 0;
    let random = Random::new(1, stream("damage"));
    for i in 0..2000 {
        let mut damaged = fs::read(testdata(["snappy.parquet", "zstd.parquet"][i as usize % 2])).unwrap();
        for j in 0..1 + random.below(8 * i, 4) {
            let at = random.below(8 * i + 2 * j + 1, damaged.len() as u64 - 8);
            damaged[at as usize] = random.bits(8 * i + 2 * j + 2) as u8;
        }
        let path = write(&directory, "b.parquet", &damaged);
        let read = open(&path).and_then(|mut files| read_all(&mut files));
        refused += u32::from(read.is_err_and(|e| e.to_string().contains("b.parquet")));
    }
    assert!(refused > 500, "{refused}");
    let text = message(&testdata("no_text.parquet"));
    assert!(
        text.contains("no_text.parquet: no text column \"text\", and none of its columns (id, meta.source) holds text"),
        "{text}"
    );
}

#[test]
fn every_parquet_file_of_a_directory_has_the_column_or_is_named_at_the_start() {
    let directory = TempDir::new().unwrap();
    let put = |from: &str, name: &str| fs::copy(testdata(from), directory.path().join(name)).map(|_| ());
    put("snappy.parquet", "a.parquet").unwrap();
    put("zstd.parquet", "c.parquet").unwrap();
    assert_eq!(texts(directory.path()).len(), 2 * rows().len());
    for name in ["b.parquet", "d.parquet"] {
        put("no_text.parquet", name).unwrap();
        let text = open(directory.path()).err().unwrap().to_string();
        let path = directory.path().join(name);
        let expected = format!(
            "{}: no text column \"text\", and none of its columns (id, meta.source) holds text",
            path.display()
        );
        assert!(text.starts_with(&expected) && text.lines().count() == 1, "{text}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_parquet_column_that_is_no_text_is_named_with_its_type_and_only_text_is_offered() {
    let said = |file: &str, field: &str| {
        let options = SourceOptions { text_field: field.to_owned(), ..SourceOptions::default() };
        Files::open(&testdata(file), &options).err().unwrap().to_string()
    };
    let integers = said("no_text.parquet", "id");
    assert!(
        integers.ends_with(
            ": the column \"id\" holds integers (INT64), not text; no other column holds text; write one of strings"
        ),
        "{integers}"
    );
    assert!(said("no_text.parquet", "meta").contains("the column \"meta\" holds records of fields, not text"));
    let other = said("snappy.parquet", "body");
    assert!(
        other.ends_with("no text column \"body\"; its columns are text; name one of them as the text field"),
        "{other}"
    );
}

#[test]
fn a_parquet_value_over_the_limit_is_refused_by_row() {
    let options = SourceOptions { max_document: 100, ..SourceOptions::default() };
    let mut files = Files::open(&testdata("snappy.parquet"), &options).unwrap();
    let text = read_all(&mut files).unwrap_err().to_string();
    // Row 6 has six greetings of 15 bytes and 10 more: exactly 100; row 7 one more.
    assert!(
        text.ends_with("snappy.parquet, row 7: the text has 115 bytes, over the 100 a document may have"),
        "{text}"
    );
}

#[test]
fn damaged_token_files_are_refused() {
    let directory = TempDir::new().unwrap();
    let kind = TokenKind { vocab: 300, bos: None, eos: Some(2), fingerprint: 5 };
    let make = |name: &str, kind| {
        let path = directory.path().join(name);
        let mut writer = TokenFileWriter::create(&path, kind).unwrap();
        writer.document(&[5, 6, 7]).unwrap();
        writer.finish().unwrap();
        path
    };
    let path = make("a.tokens", kind);
    let whole = fs::read(&path).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        message(&write(&directory, "b.tokens", changed))
    };
    let text = with(66, &[0x2C, 0x01]);
    assert!(text.contains("b.tokens: token 1 is id 300, outside its vocabulary of 300"), "{text}");
    assert!(with(8, &[9]).contains("token file of version 9; this program reads version 1"));
    assert!(with(12, &[3]).contains("damaged token file header (no such width of ids and size of vocabulary)"));
    assert!(with(20, &[0, 2, 0, 0]).contains("(a mark outside the vocabulary)"));
    let text = message(&write(&directory, "b.tokens", &whole[..whole.len() - 3]));
    assert!(text.contains("token file of 4 tokens that holds 2; it was cut short"), "{text}");
    assert!(message(&write(&directory, "b.tokens", &whole[..40])).contains("(shorter than a header)"));

    fs::remove_file(directory.path().join("b.tokens")).unwrap();
    let other = make("c.tokens", TokenKind { vocab: 301, ..kind });
    let text = message(directory.path());
    let expected = format!("{}: this token file's vocabulary size differs from {}'s", other.display(), path.display());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn a_long_text_is_read_in_bounded_storage() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("long.txt");
    let mut file = fs::File::create(&path).unwrap();
    for _ in 0..64 {
        file.write_all(&[b'x'; 1 << 20]).unwrap();
    }
    drop(file);
    let mut files = open(&path).unwrap();
    let mut document = Document::default();
    let (mut bytes, mut most) = (0, 0);
    while files.next(&mut document).unwrap() {
        bytes += document.text.len();
        most = most.max(document.text.capacity());
    }
    assert_eq!(bytes, 64 << 20);
    assert!(most <= 128 << 10, "{most}");
}

#[test]
fn of_a_directory_what_a_run_began_with_is_read() {
    let directory = TempDir::new().unwrap();
    let text = |name: &str, text: &str| write(&directory, name, text);
    text("b.txt", "second");
    text("c.jsonl", "{\"text\":\"third\"}\n");
    let began = open(directory.path()).unwrap().snapshot().unwrap();
    let options = SourceOptions { began: Some(std::sync::Arc::new(began)), ..SourceOptions::default() };
    let open = || Files::open(directory.path(), &options);
    let texts = || read_all(&mut open().unwrap()).unwrap().0.into_iter().map(|(_, d)| d.text).collect::<Vec<_>>();
    let (identity, fingerprint) = (open().unwrap().identity(), open().unwrap().fingerprint());
    // One file is added and another grows.
    text("a.txt", "before");
    text("c.jsonl", "{\"text\":\"third\"}\n{\"text\":\"fourth\"}\n");
    assert_eq!(texts(), ["second", "third"]);
    assert_eq!((open().unwrap().identity(), open().unwrap().fingerprint()), (identity, fingerprint));
    let now = Files::open(directory.path(), &SourceOptions::default()).unwrap();
    assert_ne!((now.identity(), now.snapshot().unwrap().fingerprint()), (identity, fingerprint));
    // One file is being read when another has become shorter.
    let mut files = open().unwrap();
    let mut document = Document::default();
    assert!(files.next(&mut document).unwrap());
    text("c.jsonl", "{\"text\":\"third\"}");
    let refused = files.next(&mut document).unwrap_err().to_string();
    assert!(refused.contains("c.jsonl: this data changed since the run began (16 bytes are left of 17)"), "{refused}");
    fs::remove_file(directory.path().join("b.txt")).unwrap();
    let refused = open().err().unwrap().to_string();
    assert!(refused.contains("b.txt: no such file"), "{refused}");
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_does_not_end_there() {
    let directory = TempDir::new().unwrap();
    for (name, line) in [("a.txt", "Some text in a line.\n"), ("a.jsonl", "{\"text\":\"some text\"}\n")] {
        let path = write(&directory, name, line.repeat(200_000));
        let mut files = open(&path).unwrap();
        assert!(files.next(&mut Document::default()).unwrap());
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let refused = read_all(&mut files).unwrap_err().to_string();
        let gone = line.len() * 200_000 - (1 << 20);
        assert!(
            refused
                .contains(&format!("{name}: this data changed since the run began (its last {gone} bytes are gone)")),
            "{refused}"
        );
    }
}

#[test]
fn a_long_part_without_text_is_refused_and_a_shorter_one_passed_over() {
    let directory = TempDir::new().unwrap();
    let (most, line) = (MOST_BLANK as usize, "{\"text\":\"ok\"}\n");
    let compressed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
    for (blank, refused) in [(most, false), (most + (1 << 20), true)] {
        let lines = line.to_owned() + &"\n".repeat(blank) + line;
        let text = "Some text.\n".to_owned() + &" ".repeat(blank) + "\nmore";
        for (name, bytes, place) in [
            ("a.jsonl", lines.clone().into_bytes(), "line 2"),
            ("a.jsonl.zst", compressed(&lines), "line 2"),
            ("a.txt", text.into_bytes(), "byte "),
        ] {
            let path = write(&directory, name, bytes);
            let read = open(&path).and_then(|mut files| read_all(&mut files));
            match read {
                Ok((all, _)) => assert!(all.len() == 2 && !refused, "{name}: {}", all.len()),
                Err(e) => {
                    let said = e.to_string();
                    let expected = format!("{name}: no text from {place}");
                    assert!(refused && said.contains(&expected) && said.contains("over 64.0 MiB"), "{said}");
                }
            }
        }
    }
}
