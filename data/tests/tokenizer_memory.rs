//! Building a tokenizer takes no more memory than is said beforehand.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use capful_data::tokenizer::{build, training_bytes};

/// The system's allocator, with the bytes that are allocated and the most that ever were.
struct Peak;
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator, and counts. A block that grows is one beside the other for a
// time, as `realloc` of this trait does it.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        MOST.fetch_max(now, Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Peak = Peak;

/// Makes a document.
type Document = fn(&mut u64) -> String;

const DOCUMENT: usize = 1 << 16;

/// Numbers that look random.
fn noise(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// The most bytes that building takes beside the documents, which are made one by one.
fn peak(kind: &str, cap: u32, mut document: impl FnMut(&mut u64) -> String) -> usize {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock();
    let mut seed = 1;
    let mut documents = (0..120).map(|_| Ok(document(&mut seed)));
    let before = NOW.load(Ordering::SeqCst);
    MOST.store(before, Ordering::SeqCst);
    let built = build(kind, Some(cap), true, &mut documents).unwrap();
    assert!(built.tokenizer.vocab_size() > 260);
    let most = MOST.load(Ordering::SeqCst) - before;
    drop(alone);
    most
}

/// Words of one to eight letters, which grow no rarer.
fn words(seed: &mut u64) -> String {
    let mut text = String::with_capacity(DOCUMENT + 16);
    while text.len() < DOCUMENT {
        text.extend((0..=noise(seed) % 8).map(|_| char::from(b'a' + (noise(seed) % 26) as u8)));
        text.push(' ');
    }
    text
}

/// One word of letters of two bytes.
fn word(seed: &mut u64) -> String {
    (0..DOCUMENT / 2).map(|_| char::from_u32(0x400 + (noise(seed) % 80) as u32).unwrap()).collect()
}

/// Words of 200 letters of which there are ten thousand, so that tokens grow long.
fn lines(seed: &mut u64) -> String {
    let line = |mut kind: u64| (0..200).map(move |_| char::from(b'a' + (noise(&mut kind) % 26) as u8));
    (0..DOCUMENT / 201).flat_map(|_| line(noise(seed) % 10_000).chain([' '])).collect()
}

#[test]
fn bpe_takes_no_more_than_is_said() {
    let texts: [(&str, Document); 3] = [("words", words), ("word", word), ("lines", lines)];
    for (name, document) in texts {
        let (peak, said) = (peak("bpe", 8192, document), training_bytes("bpe", Some(8192)));
        println!("{name}: {} KiB of {} KiB", peak >> 10, said >> 10);
        // Two documents, of which one is being cut.
        assert!(peak as u64 <= said + 4 * DOCUMENT as u64, "{name}: {peak} of {said} bytes");
    }
    assert!(training_bytes("bpe", Some(8192)) < 160 << 20);
}

#[test]
fn words_take_no_more_than_is_said() {
    let (peak, said) = (peak("word", 10_000, words), training_bytes("word", Some(10_000)));
    println!("{} KiB of {} KiB", peak >> 10, said >> 10);
    assert!(peak as u64 <= said + 4 * DOCUMENT as u64, "{peak} of {said} bytes");
    assert_eq!(training_bytes("byte", None), 0);
}
