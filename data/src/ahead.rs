//! Encodes documents ahead of the stream that reads them, on threads of their own.
//!
//! Pieces of documents go to the threads in loads, to one thread after the other, and come back in the same order: the
//! ids and their order are the same for any number of threads. The number of loads is fixed and their size is bounded.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::encode::{Coder, Encoder, Feed, LOAD_BYTES, LOAD_PIECES, Load, Piece};
use super::error::SourceError;
use super::loader::STACK_BYTES;
use super::source::SourcePosition;
use capful_base::allocations::{self, Activity};
use capful_config::Config;

/// Loads that each thread has at once, waiting or done: a slow load must not leave the other threads without work.
const DEPTH: usize = 4;
/// More threads than this would wait for the thread that reads the documents.
const MOST: u32 = 8;

/// Number of encoding threads for the run of `config`; 0 if the reader thread encodes by itself: the `word` and
/// `byte` tokenizers look tokens up faster than a load is handed over.
pub fn threads(config: &Config) -> u32 {
    let quick = matches!(config.tokenizer.as_str(), "word" | "byte");
    if quick || config.threads < 2 { 0 } else { config.threads.min(MOST) }
}

/// Number of threads that encode a whole source at once; 0 if the reader thread encodes it while reading.
pub fn builders(threads: u32) -> u32 {
    if threads < 2 { 0 } else { threads.min(2 * MOST) }
}

/// Most bytes that `threads` encoding threads allocate.
pub fn bytes(threads: u32) -> u64 {
    (u64::from(threads) * DEPTH as u64 + 1) * LOAD_BYTES
}

struct Worker {
    work: Option<SyncSender<Load>>,
    done: Receiver<Load>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(coder: Coder) -> Result<Worker, SourceError> {
        let (work, waiting) = sync_channel::<Load>(DEPTH);
        let (finished, done) = sync_channel(DEPTH);
        let run = move || {
            while let Ok(mut load) = waiting.recv() {
                load.encode(&coder);
                if finished.send(load).is_err() {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("encoder".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || allocations::during(Activity::Read, run));
        let thread = thread.map_err(|reason| SourceError::Thread { reason })?;
        Ok(Worker { work: Some(work), done, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.work = None;
        // The thread may be waiting to hand over a load.
        while self.done.recv().is_ok() {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The pieces of an [`Encoder`], encoded, in order.
pub(super) struct Ahead {
    encoder: Encoder,
    coder: Coder,
    workers: Vec<Worker>,
    free: Vec<Load>,
    /// Loads handed out and taken back since the last seek.
    sent: usize,
    taken: usize,
    /// How reading ended; reported after everything that was read before the end is taken.
    end: Option<Result<(), SourceError>>,
    load: Load,
    /// The piece after the current one.
    next: usize,
}

impl Ahead {
    /// With 0 threads the pieces are encoded by the thread that calls [`Ahead::advance`].
    pub(super) fn new(feed: Feed, threads: u32) -> Result<Self, SourceError> {
        // Ids need no encoding.
        let threads = if feed.documents.has_text() { threads } else { 0 };
        let encoder = Encoder::new(feed)?;
        let coder = encoder.coder();
        let workers = (0..threads).map(|_| Worker::start(coder.clone())).collect::<Result<_, _>>()?;
        let (free, load) = (Vec::new(), Load::default());
        Ok(Self { encoder, coder, workers, free, sent: 0, taken: 0, end: None, load, next: 0 })
    }

    /// Goes to the next piece; returns `false` at the end of the source.
    pub(super) fn advance(&mut self) -> Result<bool, SourceError> {
        while self.next >= self.load.pieces().len() {
            if !self.take()? {
                return Ok(false);
            }
        }
        self.next += 1;
        Ok(true)
    }

    /// Replaces the load by the next one.
    fn take(&mut self) -> Result<bool, SourceError> {
        self.next = 0;
        self.load.clear();
        self.send()?;
        if self.sent > self.taken {
            let worker = &self.workers[self.taken % self.workers.len()];
            let done = worker.done.recv().map_err(|_| SourceError::ReaderLost)?;
            self.free.push(std::mem::replace(&mut self.load, done));
            self.taken += 1;
            self.load.failed(|| self.encoder.name())?;
            // To the thread that has just become free.
            self.send()?;
            return Ok(true);
        }
        match self.end.take() {
            None => {
                // There is no thread to send the load to, and no reason to read ahead.
                let filled = self.encoder.fill(&mut self.load, 1);
                self.end = ended(filled);
                self.load.encode(&self.coder);
                self.load.failed(|| self.encoder.name())?;
                Ok(true)
            }
            Some(Ok(())) => {
                self.end = Some(Ok(()));
                Ok(false)
            }
            Some(Err(error)) => Err(error),
        }
    }

    /// Gives every thread as many loads as it may have at once.
    fn send(&mut self) -> Result<(), SourceError> {
        while self.end.is_none() && self.sent - self.taken < self.workers.len() * DEPTH {
            let mut load = self.free.pop().unwrap_or_default();
            let filled = self.encoder.fill(&mut load, LOAD_PIECES);
            self.end = ended(filled);
            if load.pieces().is_empty() {
                self.free.push(load);
                continue;
            }
            let worker = &self.workers[self.sent % self.workers.len()];
            let Some(work) = &worker.work else { return Err(SourceError::ReaderLost) };
            work.send(load).map_err(|_| SourceError::ReaderLost)?;
            self.sent += 1;
        }
        Ok(())
    }

    /// The current piece.
    pub(super) fn piece(&self) -> Option<&Piece> {
        self.load.pieces().get(self.next.checked_sub(1)?)
    }

    /// The ids of the current piece, marks included.
    pub(super) fn ids(&self) -> &[u32] {
        self.next.checked_sub(1).map_or(&[], |at| self.load.ids(at))
    }

    /// Goes to a place between documents of reading `epoch`.
    pub(super) fn seek(&mut self, epoch: u32, place: SourcePosition) -> Result<(), SourceError> {
        while self.sent > self.taken {
            let worker = &self.workers[self.taken % self.workers.len()];
            self.free.push(worker.done.recv().map_err(|_| SourceError::ReaderLost)?);
            self.taken += 1;
        }
        (self.sent, self.taken, self.end, self.next) = (0, 0, None, 0);
        self.load.clear();
        self.encoder.seek(epoch, place)
    }

    /// The vocabulary's size, the id that begins a document, the one that ends it.
    pub(super) fn marks(&self) -> (u32, Option<u32>, Option<u32>) {
        self.coder.marks()
    }

    pub(super) fn name(&self) -> String {
        self.encoder.name()
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.encoder.fingerprint()
    }

    pub(super) fn nothing(&self) -> SourceError {
        self.encoder.nothing()
    }
}

fn ended(filled: Result<bool, SourceError>) -> Option<Result<(), SourceError>> {
    match filled {
        Ok(true) => None,
        Ok(false) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::fixtures::{Numbered, feed};
    use super::super::stream::TokenStream;
    use super::super::tokenizer::{EncodeError, Tokenizer};
    use super::*;

    /// A byte tokenizer that is slow on some documents; its `Arc` counts the threads that still use it.
    struct Slow {
        calls: AtomicU32,
        panics_at: u32,
    }

    impl Tokenizer for Slow {
        fn vocab_size(&self) -> u32 {
            258
        }
        fn bos(&self) -> Option<u32> {
            None
        }
        fn eos(&self) -> Option<u32> {
            Some(257)
        }
        fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            assert!(call != self.panics_at, "a fault in a tokenizer, on purpose");
            if call.is_multiple_of(97) {
                thread::sleep(std::time::Duration::from_millis(1));
            }
            ids.extend(text.bytes().map(u32::from));
            Ok(())
        }
        fn decode(&self, _: &[u32]) -> String {
            String::new()
        }
    }

    fn stream(count: u64, panics_at: u32, threads: u32) -> (TokenStream, Arc<Slow>) {
        let slow = Arc::new(Slow { calls: AtomicU32::new(0), panics_at });
        let mut feed = feed(Numbered::finite(count));
        feed.tokenizer = Some(slow.clone());
        (TokenStream::with_threads(feed, threads).unwrap(), slow)
    }

    #[test]
    fn threads_that_take_turns_unevenly_keep_the_order_and_end_with_the_stream() {
        let read = |threads| {
            let (mut stream, slow) = stream(5000, u32::MAX, threads);
            let ids: Vec<u32> = (0..300_000).map(|_| stream.next_token().unwrap().unwrap().id).collect();
            stream.seek(Default::default()).unwrap();
            assert_eq!(stream.next_token().unwrap().unwrap().id, ids[0]);
            drop(stream);
            // No thread has a reference to it any more.
            assert_eq!(Arc::strong_count(&slow), 1);
            ids
        };
        let alone = read(0);
        for threads in [1, 2, 5] {
            assert!(read(threads) == alone, "{threads} threads");
        }
    }

    #[test]
    fn a_thread_that_is_lost_is_an_error_and_not_a_wait() {
        let (mut stream, _) = stream(5000, 700, 2);
        let mut tokens = 0;
        let error = loop {
            match stream.next_token() {
                Ok(_) => tokens += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, SourceError::ReaderLost), "{error}");
        assert!(tokens < 700 * 60, "{tokens}");
    }

    #[test]
    fn a_load_holds_no_more_than_is_said() {
        let mut encoder = Encoder::new(feed(Numbered::endless())).unwrap();
        encoder.seek(0, Default::default()).unwrap();
        let mut load = Load::default();
        for _ in 0..20 {
            encoder.fill(&mut load, LOAD_PIECES).unwrap();
            load.encode(&encoder.coder());
            assert!(load.pieces().len() <= LOAD_PIECES);
        }
        assert_eq!(bytes(2), 9 * LOAD_BYTES);
    }
}
