//! Loads a saved tokenizer of any kind.

use std::io;
use std::path::Path;

use capful_core::vocab::pieces::Cut;
use serde::Deserialize;
use serde_json::Value;

use super::bpe::BpeTokenizer;
use super::byte::ByteTokenizer;
use super::error::Refusal;
use super::hugging_face::HuggingFaceTokenizer;
use super::kept::Kept;
use super::marks::Beside;
use super::own_file::{GPT2_VERSION, Mark, VERSION};
use super::word::WordTokenizer;
use super::{Tokenizer, TokenizerError};
use capful_base::regular;

/// The file of a checkpoint that holds its tokenizer, in the format of Hugging Face's library. This program's own
/// tokenizers have a mark in it.
pub const FILE_NAME: &str = "tokenizer.json";

/// The first version of this program's own files, which have a `type` at the top. They are read, but no longer written.
pub(super) const FIRST_VERSION: u32 = 1;

/// Other file names in which tokenizers may be stored.
const OTHER_FILE_NAMES: [&str; 5] = ["tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json"];

/// Loads the tokenizer in the directory `dir` of a checkpoint, or of a model that another program saved. The files next
/// to [`FILE_NAME`], where they exist, say which tokens begin and end documents.
///
/// # Errors
/// [`TokenizerError::Read`], [`TokenizerError::Damaged`], [`TokenizerError::Unsupported`].
pub fn load(dir: &Path) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    load_file(&dir.join(FILE_NAME))
}

/// Loads a tokenizer from a file: one of this program's own files, or a Hugging Face `tokenizer.json`. For a file of
/// that name, the files next to it are read as in [`load()`].
///
/// # Errors
/// As [`load()`].
pub fn load_file(path: &Path) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    let content = regular::text_at_most(path, regular::TOKENIZER).map_err(|source| unread(path, source))?;
    let refused = |refusal: Refusal| refusal.at(path.to_owned());
    let own = parse_own(&content).map_err(refused)?;
    let dir = path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE_NAME));
    let beside = dir.map_or(Ok(Beside::default()), Beside::read)?;
    if let Some(own) = own {
        return Ok(Kept::with(own, beside));
    }
    Ok(Box::new(HuggingFaceTokenizer::parse(content, &beside).map_err(refused)?))
}

/// The error for a file that cannot be read.
fn unread(path: &Path, source: io::Error) -> TokenizerError {
    let other = || OTHER_FILE_NAMES.into_iter().find(|name| path.with_file_name(name).exists());
    if source.kind() == io::ErrorKind::NotFound
        && path.file_name().is_some_and(|name| name == FILE_NAME)
        && let Some(other) = other()
    {
        let what = format!(
            "it is not there, but {other} is: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of `transformers` \
             writes it"
        );
        return TokenizerError::Unsupported { path: path.to_owned(), what };
    }
    TokenizerError::Read { path: path.to_owned(), source }
}

#[derive(Deserialize)]
struct Header {
    r#type: Option<String>,
    version: Option<Value>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Model {
    capful: Option<Mark>,
}

/// A tokenizer of this program's own; `None` for a file of another program.
fn parse_own(content: &str) -> Result<Option<Box<dyn Tokenizer>>, Refusal> {
    let header: Header = serde_json::from_str(content).map_err(Refusal::damaged)?;
    if let Some(Model { capful: Some(mark) }) = header.model {
        return parse_second(content, &mark).map(Some);
    }
    header.r#type.map(|kind| parse_first(content, &kind, header.version)).transpose()
}

fn parse_second(content: &str, mark: &Mark) -> Result<Box<dyn Tokenizer>, Refusal> {
    Ok(match (mark.kind.as_str(), mark.version) {
        ("word", VERSION) => Box::new(WordTokenizer::parse(content, mark)?),
        ("byte", VERSION) => Box::new(ByteTokenizer::parse(content)?),
        ("bpe", VERSION) => Box::new(BpeTokenizer::parse(content, Cut::Runs)?),
        ("bpe", GPT2_VERSION) => Box::new(BpeTokenizer::parse(content, Cut::Gpt2)?),
        (kind, VERSION) => return Err(other_kind(kind)),
        (_, version) => return Err(other_version(&version.to_string())),
    })
}

fn parse_first(content: &str, kind: &str, version: Option<Value>) -> Result<Box<dyn Tokenizer>, Refusal> {
    if version.as_ref().and_then(Value::as_u64) != Some(u64::from(FIRST_VERSION)) {
        return Err(other_version(&version.map_or("none".to_owned(), |version| version.to_string())));
    }
    Ok(match kind {
        "word" => Box::new(WordTokenizer::parse_first(content)?),
        "byte" => Box::new(ByteTokenizer),
        "bpe" => Box::new(BpeTokenizer::parse_first(content)?),
        kind => return Err(other_kind(kind)),
    })
}

fn other_version(version: &str) -> Refusal {
    Refusal::Unsupported(format!(
        "its version is {version}, this program reads versions {FIRST_VERSION} and {VERSION}, of bpe {GPT2_VERSION} too"
    ))
}

fn other_kind(kind: &str) -> Refusal {
    Refusal::Unsupported(format!("its type is `{kind}`, known are word, byte and bpe"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::bpe::tests::{RUNS, TRAINED, encode};
    use super::super::{CLASS_FILE_NAME, MAP_FILE_NAME, TEMPLATE_FILE_NAME, build};
    use super::*;

    fn word() -> Box<dyn Tokenizer> {
        let text = "der Bär \"sprach\" <unk> \\ u\u{301} der Bär 🐻".to_owned();
        build("word", Some(9), true, &mut [Ok(text)].into_iter()).unwrap().tokenizer
    }

    fn written(tokenizer: &dyn Tokenizer) -> String {
        let mut out = vec![];
        tokenizer.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let all: [Box<dyn Tokenizer>; 4] =
            [word(), Box::new(ByteTokenizer), Box::new(TRAINED.clone()), Box::new(RUNS.clone())];
        let mut fingerprints = vec![];
        for tokenizer in &all {
            let dir = tempfile::tempdir().unwrap();
            tokenizer.save(dir.path()).unwrap();
            let loaded = load(dir.path()).unwrap();
            assert_eq!(loaded.vocab_size(), tokenizer.vocab_size());
            assert_eq!((loaded.bos(), loaded.eos()), (Some(2), Some(3)));
            for id in 0..=tokenizer.vocab_size() {
                assert_eq!(loaded.token(id), tokenizer.token(id));
            }
            let text = "DER Bär karito, 17 neu \"sprach\" 🐻\n";
            assert_eq!(encode(&*loaded, text), encode(&**tokenizer, text));
            assert_eq!(written(&*loaded), written(&**tokenizer));
            assert_eq!(loaded.fingerprint(), tokenizer.fingerprint());
            fingerprints.push(loaded.fingerprint());
        }
        fingerprints.sort_unstable();
        fingerprints.dedup();
        assert_eq!(fingerprints.len(), all.len());
    }

    #[test]
    fn what_others_put_beside_ours_is_kept_and_changes_no_id() {
        let (dir, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| dir.path().join(name);
        TRAINED.save(dir.path()).unwrap();
        let ours = fs::read_to_string(at(CLASS_FILE_NAME)).unwrap();
        assert!(load(dir.path()).unwrap().beside().is_empty());
        fs::write(at(TEMPLATE_FILE_NAME), "{{ messages }}").unwrap();
        fs::write(at(MAP_FILE_NAME), r#"{"pad_token": "<pad>"}"#).unwrap();
        load(dir.path()).unwrap().save(again.path()).unwrap();
        let saved = |name: &str| fs::read_to_string(again.path().join(name)).unwrap();
        assert_eq!((saved(TEMPLATE_FILE_NAME), saved(CLASS_FILE_NAME)), ("{{ messages }}".to_owned(), ours.clone()));
        assert!(saved(MAP_FILE_NAME).contains(r#""pad_token": "<pad>""#));
        let mut config: Value = serde_json::from_str(&ours).unwrap();
        (config["chat_template"], config["model_max_length"]) = (json!("{{ t }}"), json!(77));
        fs::write(at(CLASS_FILE_NAME), config.to_string()).unwrap();
        fs::remove_file(at(TEMPLATE_FILE_NAME)).unwrap();
        let loaded = load(dir.path()).unwrap();
        assert_eq!(super::super::template::of(&*loaded), [(None, "{{ t }}".to_owned())]);
        assert!(loaded.config().contains("\"model_max_length\": 77"), "{}", loaded.config());
        assert_eq!((loaded.fingerprint(), loaded.bos()), (TRAINED.fingerprint(), TRAINED.bos()));
        assert_eq!(encode(&*loaded, "der Bär 🐻"), encode(&*TRAINED, "der Bär 🐻"));
    }

    fn identity(tokenizer: &dyn Tokenizer) -> String {
        let mut out = vec![];
        tokenizer.write_identity(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Files that 0.1.0 wrote; runs and caches store hashes of them.
    #[test]
    fn files_of_the_first_version_are_read_and_are_the_identity() {
        let words = r#"{"type":"word","version":1,"lower_case":true,"words":["<pad>","<unk>","<bos>","<eos>","der","bär","\"sprach\"","\\","ú"]}"#
            .replace('ú', "u\u{301}");
        let bytes = r#"{"type":"byte","version":1}"#.to_owned();
        let merges: Vec<_> = RUNS.merges().iter().map(|merge| [merge.left, merge.right]).collect();
        let merges = format!(r#"{{"type":"bpe","version":1,"merges":{}}}"#, serde_json::to_string(&merges).unwrap());
        for (tokenizer, first) in [(&*word(), words), (&ByteTokenizer, bytes), (&*RUNS, merges)] {
            assert_eq!(identity(tokenizer), first);
            let loaded = parse_own(&first).unwrap().unwrap();
            assert_eq!((identity(&*loaded), loaded.fingerprint()), (first, tokenizer.fingerprint()));
            assert_eq!(written(&*loaded), written(tokenizer));
        }
        // The hash of 0.1.0.
        assert_eq!(ByteTokenizer.fingerprint(), 0x22c5_32fb_b061_d016);
    }

    #[test]
    fn bytes_are_restored_where_no_letter_is_changed_or_unknown() {
        let restores = [&*word() as &dyn Tokenizer, &ByteTokenizer, &*TRAINED].map(Tokenizer::restores_bytes);
        assert_eq!(restores, [false, true, true]);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        for tokenizer in [&*word(), &ByteTokenizer, &*TRAINED, &*RUNS] {
            for content in [written(tokenizer), identity(tokenizer)] {
                let ends: Vec<usize> = content.char_indices().map(|(end, _)| end).collect();
                // All prefixes of a short file, some of a long one.
                for &end in ends.iter().step_by(ends.len() / 500 + 1) {
                    assert!(matches!(parse_own(&content[..end]), Err(Refusal::Damaged(_))), "{}", &content[..end]);
                }
            }
        }
    }

    #[test]
    fn damaged_files_are_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let specials = r#""<pad>","<unk>","<bos>","<eos>""#;
        let (word, bytes, bpe) = (written(&*word()), written(&ByteTokenizer), written(&*TRAINED));
        let change = |content: &str, pointer: &str, value: Value| {
            let mut file: Value = serde_json::from_str(content).unwrap();
            *file.pointer_mut(pointer).unwrap() = value;
            file.to_string()
        };
        for (content, expected) in [
            (String::new(), "damaged: EOF while parsing"),
            ("[1, 2]".to_owned(), "damaged: invalid type: integer"),
            ("{}".to_owned(), "damaged: it has no `model`"),
            (r#"{"type":"words","version":1}"#.to_owned(), "cannot be used: its type is `words`"),
            (r#"{"type":"byte"}"#.to_owned(), "cannot be used: its version is none"),
            (
                r#"{"type":"byte","version":2}"#.to_owned(),
                "cannot be used: its version is 2, this program reads versions 1 and 2",
            ),
            (r#"{"type":"word","version":1,"words":[]}"#.to_owned(), "damaged: missing field `lower_case`"),
            (
                r#"{"type":"word","version":1,"lower_case":true,"words":[]}"#.to_owned(),
                "damaged: the vocabulary does not start",
            ),
            (
                format!(r#"{{"type":"word","version":1,"lower_case":true,"words":[{specials},"a","a"]}}"#),
                "damaged: word 5 of the",
            ),
            (
                format!(r#"{{"type":"word","version":1,"lower_case":true,"words":[{specials},"a\nb"]}}"#),
                "damaged: a word holds a line end",
            ),
            (r#"{"type":"bpe","version":1,"merges":[[4,999]]}"#.to_owned(), "damaged: merge 0 joins id 999"),
            (r#"{"type":"bpe","version":1,"merges":[[4,-1]]}"#.to_owned(), "damaged: invalid value: integer `-1`"),
            (change(&word, "/model/capful/version", json!(3)), "cannot be used: its version is 3, this program reads"),
            (change(&bpe, "/model/capful/version", json!(4)), "cannot be used: its version is 4, this program reads"),
            (change(&word, "/model/capful/type", json!("wrod")), "cannot be used: its type is `wrod`"),
            (change(&word, "/model/capful/lower_case", json!(null)), "damaged: missing field `lower_case`"),
            (change(&word, "/model/vocab/<eos>", json!(4)), "damaged: two of its tokens have one id"),
            (change(&word, "/model/vocab/<eos>", json!(90)), "damaged: the id 90 of `<eos>` leaves a gap"),
            (change(&bytes, "/model/vocab/a", json!(102)), "damaged: two of its tokens have one id"),
            (change(&bytes, "/model/vocab", json!({"a": 0})), "damaged: its token `a` has id 0, which its merges do"),
            (change(&bpe, "/model/merges/0/0", json!("zz")), "damaged: a merge joins `zz`, which has no id"),
            (change(&bpe, "/model/merges", json!([])), "which its merges do not give"),
            (change(&bpe, "/model/merges/1", json!(["a", "b"])), "damaged: "),
        ] {
            fs::write(&path, &content).unwrap();
            let error = load(dir.path()).err().expect(&content).to_string();
            assert!(error.starts_with(&format!("the tokenizer {}", path.display())), "{error}");
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(load(dir.path()), Err(TokenizerError::Read { .. })));
    }

    #[test]
    fn missing_places_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let error = load(&missing).err().unwrap().to_string();
        assert!(error.starts_with(&format!("cannot read the tokenizer {}", missing.display())), "{error}");
        let error = ByteTokenizer.save(&missing).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the tokenizer"), "{error}");
    }
}
