use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use super::super::files::Files;
use super::super::files::tests::{
    check_places, check_places_with, message, read_all, testdata, texts, texts_with, write,
};
use super::super::snapshot::Snapshot;
use super::super::source::{Documents as _, SourcePosition};
use super::*;
use capful_config::InvalidUtf8;

/// The texts of testdata/make_tables.py.
fn rows() -> Vec<String> {
    let text = |i: usize| {
        let quoted = if i.is_multiple_of(3) { ", \"quoted\", 'so'\r\n\n\tand on" } else { "" };
        format!("Row {i}: {}end{quoted}", "grüße 世界 ".repeat(i % 13))
    };
    (0..300).filter(|i| i % 7 != 3 && i % 11 != 5).map(text).collect()
}

/// The lines in which a reading of `path` reports its findings.
fn noticed(path: &Path, options: &SourceOptions) -> Vec<String> {
    let options = SourceOptions { noticed: Default::default(), ..options.clone() };
    texts_with(path, &options);
    options.noticed.news()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn files_of_other_writers_give_their_texts() {
    for name in
        ["lines.jsonl.gz", "array.json.gz", "objects.json.gz", "strings.json.gz", "table.csv.gz", "table.tsv.gz"]
    {
        assert_eq!(texts(&testdata(name)), rows(), "{name}");
        check_places(&testdata(name));
    }
    // 43 rows are null: i % 7 = 3 below 300.
    let said = noticed(&testdata("lines.jsonl.gz"), &SourceOptions::default());
    assert_eq!(said, [format!("{}: 43 texts are null and were passed over", testdata("lines.jsonl.gz").display())]);
    assert!(noticed(&testdata("table.csv.gz"), &SourceOptions::default()).is_empty());
    let text = texts(&testdata("text.txt.gz"));
    assert!(text.len() > 20 && text.concat().starts_with("Row 0: end, \"quoted\", 'so'\r\n\n\tand on\n\nRow 1: "));
    check_places(&testdata("text.txt.gz"));
}

#[test]
fn pages_of_every_compression_give_their_rows() {
    for codec in ["gzip", "brotli", "lz4"] {
        for version in [1, 2] {
            let path = testdata(&format!("{codec}-{version}.parquet"));
            assert_eq!(texts(&path), rows(), "{codec} {version}");
            check_places(&path);
        }
    }
}

#[test]
fn damaged_pages_of_every_compression_are_refused() {
    let directory = TempDir::new().unwrap();
    let random = capful_core::random::Random::new(1, capful_core::random::stream("damage"));
    for (codec, name) in ["gzip-1", "gzip-2", "brotli-1", "brotli-2", "lz4-1", "lz4-2"].into_iter().enumerate() {
        let good = fs::read(testdata(&format!("{name}.parquet"))).unwrap();
        let mut refused = 0;
        for i in 0..150 {
            let index = 1000 * codec as u64 + 2 * i;
            let mut damaged = good.clone();
            let at = random.below(index, good.len() as u64 - 8) as usize;
            damaged[at] ^= 1 << random.below(index + 1, 8);
            let path = write(&directory, "b.parquet", &damaged);
            let read = Files::open(&path, &SourceOptions::default()).and_then(|mut files| read_all(&mut files));
            refused += u32::from(read.is_err_and(|e| e.to_string().contains("b.parquet")));
        }
        assert!(refused > 40, "{name}: {refused}");
    }
}

#[test]
fn a_table_is_read_record_by_record() {
    let directory = TempDir::new().unwrap();
    for (table, expected) in [
        ("text\na\nb", vec!["a", "b"]),
        ("text\r\na\r\n\r\n\r\nb\r\n", vec!["a", "b"]),
        ("\u{feff}\"text\",\"id\"\n\"a \"\"b\"\"\n,\",1\n,2\n\"c\"d,\n", vec!["a \"b\"\n,", "cd"]),
        ("id,text\n1,a\"b\n2,\"\"\n3,\"\"\"\"\n4, \"x\"\n", vec!["a\"b", "\"", " \"x\""]),
        ("id,text,more\n1,\u{feff}a,\n,b,\"\n\"\r2,c", vec!["\u{feff}a", "b", "c"]),
    ] {
        let path = write(&directory, "a.csv", table);
        assert_eq!(texts(&path), expected, "{table:?}");
        check_places(&path);
    }
    for (table, expected) in [
        ("id,body\n1,2\n", "a.csv: no text column \"text\"; its columns are id, body; name one"),
        ("id,text\n1,a\n2\n", "a.csv, record 2: not a record of a table (it has 1 fields, and \"text\" is the 2.)"),
        ("id,text\n1,a\n2,\"b\n\n3,c\n", "a.csv, record 2: not a record of a table (the file ends inside quotes"),
    ] {
        let path = write(&directory, "a.csv", table);
        let said = message(&path);
        assert!(said.contains(expected), "{said}");
    }
    let path = write(&directory, "a.csv", b"id,text\n\xff,a\n1,b\xE9\n");
    assert!(message(&path).contains("a.csv, record 2: byte 1 of the text is not valid UTF-8"), "{}", message(&path));
    let options = SourceOptions { max_document: 1000, ..SourceOptions::default() };
    let path = write(&directory, "b.csv", format!("text,id\n{},1\n{0}y,2\n", "x".repeat(1000)));
    let said = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
    assert!(said.ends_with("record 2: over 1000 bytes long; split it into several documents"), "{said}");
    // In a directory, a table about something else is not data.
    write(&directory, "a.csv", "id,body\n1,2\n");
    assert_eq!(texts(directory.path()).len(), 2);
}

#[test]
fn a_json_file_is_an_array_or_values_that_follow_each_other() {
    let directory = TempDir::new().unwrap();
    let long = "x".repeat(200_000);
    for (json, expected) in [
        (r#"{"text": "one object"}"#.to_owned(), vec!["one object"]),
        (
            "{\n \"id\": [{}],\n \"text\": \"a } ] \\\" b\"\n}\n{\"text\":\"c\"}{\"text\":\"d\"}".to_owned(),
            vec!["a } ] \" b", "c", "d"],
        ),
        (r#" [ "a" ,{"text":"b"},null,"",{"text":null} , "c" ]  "#.to_owned(), vec!["a", "b", "c"]),
        (format!("[\"{long}\"\n,\n{{\"n\":\"{long}\",\"text\":\"{long}\"}}]"), vec![&long, &long]),
    ] {
        let path = write(&directory, "a.json", &json);
        assert_eq!(texts(&path), expected);
        check_places(&path);
        let path = write(&directory, "a.json.zst", zstd::encode_all(json.as_bytes(), 1).unwrap());
        assert_eq!(texts(&path), expected);
        check_places(&path);
        fs::remove_file(path).unwrap();
    }
    for (json, expected) in [
        (r#"["a" "b"]"#, "element 2: not a JSON array or objects that follow each other (no comma before it)"),
        (
            r#"["a","b""#,
            "element 3: not a JSON array or objects that follow each other (the file ends inside the array)",
        ),
        (
            r#"["a",{"text":"b""#,
            "element 2: not a JSON array or objects that follow each other (the file ends inside it)",
        ),
        (r#"["a",]"#, "element 2: not a JSON array or objects that follow each other (the array ends behind a comma)"),
        (
            r#"["a"] {}"#,
            "element 2: not a JSON array or objects that follow each other (more follows behind the array)",
        ),
        (r#"["a", 17]"#, "element 2: not a JSON object (invalid type: integer"),
        (r#"["a", {"b": 1}]"#, "element 2: no field \"text\"; its fields are b; name one"),
        (r#"["a", {"text": {}}]"#, "element 2: the field \"text\" is not a string"),
        (r#"{"text":"a"},{"text":"b"}"#, "element 2: not a JSON object (expected value, column 1)"),
    ] {
        let path = write(&directory, "a.json", json);
        let said = message(&path);
        assert!(said.contains(&format!("a.json, {expected}")), "{json}: {said}");
    }
}

#[test]
fn a_small_file_that_unpacks_to_a_long_line_is_refused_where_the_line_is_too_long() {
    let directory = TempDir::new().unwrap();
    let options = SourceOptions { max_document: 10_000, ..SourceOptions::default() };
    for (name, head) in [("a.jsonl.gz", "{\"text\":\"a\"}\n"), ("a.json.gz", "[\"a\",\""), ("a.csv.gz", "text\na\n\"")]
    {
        let path = write(&directory, name, gzip((head.to_owned() + &"y".repeat(3 << 20)).as_bytes()));
        let said = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
        assert!(said.ends_with(" 2: over 10000 bytes long; split it into several documents"), "{said}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn what_cannot_be_read_is_skipped_and_counted_where_that_is_asked_for() {
    let directory = TempDir::new().unwrap();
    let options = SourceOptions { skip_bad_lines: true, max_document: 100, ..SourceOptions::default() };
    let long = "x".repeat(100);
    let lines = format!(
        "{{\"text\":\"a\"}}\nnot JSON\n{{\"body\":1}}\n{{\"text\":\"b\"}}\n{{\"text\":\"{long}\"}}\n{{\"text\":7}}\n\0\n{{\"text\":null}}\n{{\"text\":\"c\"}}"
    );
    let path = write(&directory, "a.jsonl", &lines);
    assert_eq!(texts_with(&path, &options), ["a", "b", "c"]);
    check_places_with(&path, &options);
    let at = path.display();
    assert_eq!(
        noticed(&path, &options),
        [format!(
            "{at}: 1 text is null and was passed over; 5 documents cannot be read and were skipped, the first: {at}, line 2: \
             not a JSON object (expected ident, column 2)"
        )]
    );
    let path = write(&directory, "a.csv", format!("id,text\n1,a\n2\n3,\"{long}y\"\n4,b\n"));
    assert_eq!(texts_with(&path, &options), ["a", "b"]);
    check_places_with(&path, &options);
    assert!(noticed(&path, &options)[0].contains(": 2 documents cannot be read and were skipped, the first: "));
    let path = write(&directory, "a.json", format!("[\"a\", 3, \"{long}\", {{}}, \"b\"]"));
    assert_eq!(texts_with(&path, &options), ["a", "b"]);
    check_places_with(&path, &options);
    assert!(noticed(&path, &options)[0].contains(": 3 documents cannot be read and were skipped, the first: "));
    // The cut end of a file is no document that could be skipped.
    let path = write(&directory, "b.jsonl.gz", &gzip(lines.as_bytes())[..40]);
    let said = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
    assert!(said.contains("the compressed data ends in the middle"), "{said}");
    let path = write(&directory, "c.jsonl", "{}\n{}\n");
    let said = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
    let at = path.display();
    let first = format!(
        "{at}, line 1: no field \"text\"; its fields are none; name one of them as the text field (a conversation has \
         messages, or prompt and completion)"
    );
    assert_eq!(said, format!("{at}: none of its documents can be read, 2 were skipped; the first: {first}"));
}

#[test]
fn bytes_that_are_no_utf8_are_replaced_where_that_is_asked_for() {
    let directory = TempDir::new().unwrap();
    let options = SourceOptions { invalid_utf8: InvalidUtf8::Replace, ..SourceOptions::default() };
    let text = b"caf\xE9 \xF0\x9F\x98 gr\xC3\xBC\xC3\x9Fe\xFF".to_vec();
    let whole = String::from_utf8_lossy(&text).into_owned();
    for (name, bytes) in [
        ("a.txt", text.clone()),
        ("a.txt.gz", gzip(&text)),
        ("a.jsonl", [b"{\"text\":\"", &text[..], b"\"}\n"].concat()),
        ("a.json", [b"[\"", &text[..], b"\"]\n"].concat()),
        ("a.csv", [b"text\n", &text[..]].concat()),
    ] {
        let path = write(&directory, name, bytes);
        assert!(message(&path).contains("is not valid UTF-8"), "{name}: {}", message(&path));
        assert_eq!(texts_with(&path, &options), [whole.as_str()], "{name}");
        let said = noticed(&path, &options);
        assert_eq!(said, [format!("{}: 3 invalid UTF-8 sequences became U+FFFD", path.display())]);
        fs::remove_file(path).unwrap();
    }
    // A binary file is not text.
    let path = write(&directory, "a.txt", b"\xFF\xFEa\0b\0");
    let said = read_all(&mut Files::open(&path, &options).unwrap()).unwrap_err().to_string();
    assert!(said.contains("NUL"), "{said}");
}

#[test]
fn what_changes_the_documents_changes_the_identity() {
    let directory = TempDir::new().unwrap();
    let path = write(&directory, "a.jsonl", "{\"text\":\"a\"}\n");
    let of = |options: &SourceOptions| {
        let files = Files::open(&path, options).unwrap();
        (files.identity(), files.fingerprint())
    };
    let plain = SourceOptions::default();
    let skips = SourceOptions { skip_bad_lines: true, ..plain.clone() };
    let replaces = SourceOptions { invalid_utf8: InvalidUtf8::Replace, ..plain.clone() };
    let both = SourceOptions { skip_bad_lines: true, ..replaces.clone() };
    let all = [&plain, &skips, &replaces, &both].map(of);
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other.0 != one.0 && other.1 != one.1), "{i}");
    }
    // The value that earlier versions computed for this name and length.
    assert_eq!(all[0].1, capful_core::random::stream("0/a.jsonl/13"));
}

#[test]
fn a_run_that_read_a_table_as_text_goes_on_so() {
    let directory = TempDir::new().unwrap();
    let path = write(&directory, "a.json", "[\"a\"]\n");
    let began = Files::open(&path, &SourceOptions::default()).unwrap().snapshot().unwrap();
    let mut saved = serde_json::to_value(&began).unwrap();
    assert_eq!(saved["files"][0]["format"], "json");
    let with = |saved: &serde_json::Value| {
        let began: Snapshot = serde_json::from_value(saved.clone()).unwrap();
        let options = SourceOptions { began: Some(Arc::new(began)), ..SourceOptions::default() };
        (texts_with(&path, &options), Files::open(&path, &options).unwrap().fingerprint())
    };
    let now = with(&saved);
    assert_eq!(now.0, ["a"]);
    // In the form that earlier versions wrote.
    saved["files"][0].as_object_mut().unwrap().remove("format");
    let then = with(&saved);
    assert_eq!(then.0, ["[\"a\"]\n"]);
    assert_ne!(now.1, then.1);
}

#[test]
fn a_reading_that_stops_says_how_far_it_came_and_news_are_told_once() {
    let directory = TempDir::new().unwrap();
    let path = write(
        &directory,
        "a.jsonl",
        "{\"text\":null}\n{\"text\":\"a\"}\n{\"text\":null}\n{\"text\":null}\n{\"text\":\"b\"}\n",
    );
    let options = SourceOptions::default();
    let mut document = Default::default();
    let mut files = Files::open(&path, &options).unwrap();
    files.next(&mut document).unwrap();
    let middle = files.place();
    drop(files);
    let at = path.display();
    let said = options.noticed.news();
    assert_eq!(said, [format!("{at}, first 1 documents: 1 text is null and was passed over")]);
    assert!(options.noticed.news().is_empty());
    // A reading that starts in the middle knows nothing about the documents before it.
    let mut files = Files::open(&path, &options).unwrap();
    files.seek(middle).unwrap();
    while files.next(&mut document).unwrap() {}
    drop(files);
    assert!(options.noticed.news().is_empty());
    let mut files = Files::open(&path, &options).unwrap();
    while files.next(&mut document).unwrap() {}
    files.seek(SourcePosition::default()).unwrap();
    while files.next(&mut document).unwrap() {}
    drop(files);
    assert_eq!(options.noticed.news(), [format!("{at}: 3 texts are null and were passed over")]);
    assert!(options.noticed.news().is_empty());
}
