//! `host data`.

use capful_base::human_bytes;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use capful_core::random::stream;
use serde_json::json;

use super::opened::encoded;
use super::output::{say, tell};
use super::reading::Reading;
use super::{Failure, request, work};
use crate::data::ahead;
use crate::data::conversation::ChatTemplate;
use crate::data::corpus::CorpusError;
use crate::data::dedup::{Copies, Unique};
use crate::data::error::SourceError;
use crate::data::files::{Files, describe};
use crate::data::lengths::Lengths;
use crate::data::portrait::Portrait;
use crate::data::shards::build::{Event, estimate, open_or_build};
use crate::data::shards::{Origin, Shards};
use crate::data::source::{Document, Documents, SourceOptions};
use crate::data::split::{Part, Split};
use crate::data::stream::Feed;
use crate::data::tokenizer::{self, DocumentError, Tokenizer, TokenizerError, template};

/// Flags of `host data`.
#[derive(Debug, clap::Args)]
pub struct Data {
    /// What to encode: files, or directories of files; several times, or several after one
    #[arg(long = "in", value_name = "SOURCE", required = true, num_args = 1..)]
    sources: Vec<PathBuf>,
    /// word, byte, bpe, or a tokenizer.json; the first and the third are built from all documents
    #[arg(long, value_name = "KIND|FILE", default_value = "bpe")]
    tokenizer: String,
    /// Token ids of a tokenizer that is built, special ones included
    #[arg(long, value_name = "N")]
    vocab_size: Option<u32>,
    /// The directory of the token shards, for `--data DIR`
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How conversations become text: the file of a template in Jinja; the tokenizer's, else the default, if not given
    #[arg(long, value_name = "FILE")]
    chat_template: Option<String>,
    /// Leaves out documents that are copies of earlier ones, or nearly so: four fifths of their runs of eight words stood
    /// before
    #[arg(long)]
    dedup: bool,
    #[command(flatten)]
    reading: Reading,
    /// Threads that encode; all cores if not given
    #[arg(long, value_name = "N")]
    threads: Option<u32>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Data {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.out.is_file() {
            return Err(request(format!("--out {}: it is a file; name a directory", self.out.display())));
        }
        let named = self.named()?;
        let template = match (&self.chat_template, named.as_deref()) {
            (Some(path), tokenizer) => ChatTemplate::of_file(path, tokenizer).map_err(request)?,
            (None, Some(tokenizer)) => ChatTemplate::of(tokenizer),
            (None, None) => ChatTemplate::default(),
        };
        let options = SourceOptions { template, ..self.reading.options() };
        for source in &self.sources {
            // Errors of one source are reported when all are opened.
            describe(source, &options, None).ok().flatten().iter().for_each(|line| tell!("{line}"));
        }
        let open = || Files::open_all(&self.sources, &options);
        let identity = open().map_err(request)?.identity();
        let identity = if self.dedup { stream(&format!("{identity:x}/without copies")) } else { identity };
        let copies = Arc::new(Mutex::new(Copies::default()));
        let tokenizer = named.map_or_else(|| self.tokenizer(&open, &options.template), Ok)?;
        let fingerprint = tokenizer.fingerprint();
        std::fs::create_dir_all(&self.out).map_err(|e| request(format!("{}: {e}", self.out.display())))?;
        let feed = || -> Result<Feed, SourceError> {
            let documents = Box::new(Unique::new(open()?, self.dedup, Arc::clone(&copies)));
            let split = Split::new(0, 0.0)?;
            Ok(Feed { documents, tokenizer: Some(Arc::clone(&tokenizer)), split, part: Part::All })
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let threads = ahead::builders(self.threads.unwrap_or(cores));
        let origin = Origin { source: identity, tokenizer: fingerprint };
        let start = std::time::Instant::now();
        let made = open_or_build(&self.out, origin, || estimate(feed()?), feed, threads, &mut |event| self.say(event));
        let shards = made.and_then(Shards::verified).map_err(|e| encoded(CorpusError::Source(e)))?;
        let written = shards.manifest().template().map(|_| options.template.source());
        let has = template::of(tokenizer.as_ref()).into_iter().next();
        match written.filter(|source| has.is_none_or(|(_, text)| text != *source)) {
            Some(source) => tokenizer::with_template(tokenizer, source).save(&self.out),
            None => tokenizer.save(&self.out),
        }
        .map_err(work)?;
        options.noticed.news().iter().for_each(|line| tell!("{line}"));
        let seconds = start.elapsed().as_secs_f64();
        let mut documents = open().map_err(request)?;
        let has_text = documents.has_text();
        let portrait = has_text.then(|| Portrait::of(&mut documents)).transpose().map_err(work)?;
        let copies = *copies.lock().unwrap_or_else(PoisonError::into_inner);
        self.report(&shards, portrait, copies, seconds)
    }

    fn say(&self, event: Event) {
        let out = self.out.display();
        match event {
            Event::Of(source) => tell!("{source}:"),
            Event::Waiting => tell!("waiting for another process that encodes into {out}"),
            Event::Begun { about: Some(bytes), found: 0 } => {
                tell!("encoding into {out}, about {}", human_bytes(bytes))
            }
            Event::Begun { found: 0, .. } => tell!("encoding into {out}"),
            Event::Begun { found, .. } => tell!("encoding into {out}, behind the {found} tokens that are there"),
            Event::Encoded(tokens) => tell!("  {tokens} tokens"),
        }
    }

    /// The tokenizer in a file, if one is named.
    fn named(&self) -> Result<Option<Arc<dyn Tokenizer>>, Failure> {
        if matches!(self.tokenizer.as_str(), "word" | "byte" | "bpe") {
            return Ok(None);
        }
        let built = tokenizer::build(&self.tokenizer, self.vocab_size, true, &mut std::iter::empty());
        Ok(Some(built.map_err(request)?.tokenizer.into()))
    }

    fn tokenizer(
        &self,
        open: &dyn Fn() -> Result<Files, SourceError>,
        template: &ChatTemplate,
    ) -> Result<Arc<dyn Tokenizer>, Failure> {
        let files = open().map_err(request)?;
        let mut documents: Box<dyn Documents> = match self.dedup {
            true => Box::new(Unique::new(files, true, Arc::default())),
            false => Box::new(files),
        };
        let mut document = Document::default();
        let mut texts = std::iter::from_fn(|| match documents.next(&mut document) {
            Ok(true) if !document.parts.is_empty() => Some(Ok(template.unmarked(&document.text))),
            Ok(true) => Some(Ok(std::mem::take(&mut document.text))),
            Ok(false) => None,
            Err(e) => Some(Err(DocumentError::from(e))),
        });
        let built = tokenizer::build(&self.tokenizer, self.vocab_size, true, &mut texts);
        match built {
            Ok(built) => Ok(built.tokenizer.into()),
            Err(e @ TokenizerError::NoWords(_)) => Err(request(format!("{e} source with --in"))),
            Err(e) => Err(request(e)),
        }
    }

    fn report(&self, shards: &Shards, portrait: Option<Portrait>, copies: Copies, seconds: f64) -> Result<(), Failure> {
        let manifest = shards.manifest();
        let mut lengths = Lengths::default();
        shards.each_document(|_, tokens, _| lengths.add(tokens)).map_err(work)?;
        let (same, copied) = shards.copies().map_err(work)?;
        let bytes_a_token = manifest.bytes as f64 / manifest.tokens as f64;
        // There are no counts for documents read by an earlier attempt, or for sets that existed before.
        let found = Some(copies).filter(|copies| copies.whole && copies.documents > 0);
        if self.json {
            let line = json!({
                "out": self.out.display().to_string(),
                "documents": manifest.documents,
                "tokens": manifest.tokens,
                "bytes": manifest.bytes,
                "bytes_per_token": bytes_a_token,
                "duplicates": same,
                "duplicate_tokens": copied,
                "read_documents": found.map(|copies| copies.documents),
                "copies": found.map(|copies| copies.same[0]),
                "near_copies": found.map(|copies| copies.near[0]),
                "copied_bytes": found.map(|copies| copies.same[1] + copies.near[1]),
                "dropped": self.dedup,
                "lengths": lengths.pairs(),
                "shards": manifest.shards,
                "vocab_size": manifest.vocab,
                "seconds": seconds,
            });
            say!("{line}")?;
            return Ok(());
        }
        say!("{} documents, {} tokens, {bytes_a_token:.3} bytes a token", manifest.documents, manifest.tokens)?;
        match found {
            Some(Copies { documents, bytes, same, near, .. }) => {
                let percent = 100.0 * (same[1] + near[1]) as f64 / bytes.max(1) as f64;
                let done = if self.dedup { "left out" } else { "kept; --dedup leaves them out" };
                say!(
                    "{} of {documents} documents are copies of earlier ones and {} nearly so, {percent:.1} % of the bytes: \
                     {done}",
                    same[0],
                    near[0]
                )?;
            }
            None => say!("{same} documents are exact copies of another: {copied} tokens")?,
        }
        if let Some(portrait) = portrait {
            say!("{}", portrait.line())?;
        }
        for line in lengths.lines() {
            say!("{line}")?;
        }
        say!("{}, read with --data {0}; {seconds:.1} s", self.out.display())?;
        Ok(())
    }
}
