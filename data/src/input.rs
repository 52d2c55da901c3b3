//! Reads the bytes of a file from a given byte on, decompressed where the file is compressed.
//!
//! A plain file is opened at the byte. A compressed file is decompressed from its beginning up to the byte, which costs
//! time and no memory. Only a buffer and the format's window are in memory, whatever the decompressed size.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::error::SourceError;

const BUFFER: usize = 128 << 10;
/// zstd windows that are accepted in any case, and the largest accepted one, as powers of two: level 19 writes 8 MiB;
/// the largest is that of `--ultra -22` and `--long`.
const WINDOW_LOG: u32 = 23;
const LARGEST_WINDOW_LOG: u32 = 27;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// Not compressed.
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    /// The compression that a file's name, in lower case, means, and the name without its extension.
    pub(super) fn of(name: &str) -> (Self, &str) {
        match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
            (Some(name), _) => (Self::Gzip, name),
            (None, Some(name)) => (Self::Zstd, name),
            (None, None) => (Self::Plain, name),
        }
    }

    /// Most bytes that decompressing the file at `path` takes, in addition to fixed buffers.
    pub(super) fn memory(self, path: &Path) -> u64 {
        if self == Self::Zstd { 1 << window_log(path) } else { 0 }
    }
}

/// The window, as a power of two, that a zstd file may request: that of its first frame, at least 8 MiB.
fn window_log(path: &Path) -> u32 {
    let mut header = Vec::new();
    let read = File::open(path).and_then(|file| file.take(14).read_to_end(&mut header));
    // A file that cannot be read is reported when it is opened.
    let window = read.ok().and_then(|_| window(&header));
    window
        .map_or(LARGEST_WINDOW_LOG, |window| window.next_power_of_two().trailing_zeros())
        .clamp(WINDOW_LOG, LARGEST_WINDOW_LOG)
}

/// The window that a zstd frame's header names (RFC 8878, 3.1.1.1); `None` if no frame begins there.
fn window(header: &[u8]) -> Option<u64> {
    const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
    let rest = header.strip_prefix(&MAGIC)?;
    let (&descriptor, rest) = rest.split_first()?;
    let single_segment = descriptor & 0x20 != 0;
    if !single_segment {
        let window = *rest.first()?;
        let base = 1u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    // The window is the content; its size is stored after the dictionary's number.
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (size, more) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let bytes = rest.get(dictionary..dictionary + size)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)) + more)
}

/// Reads one file.
pub(super) struct Input {
    path: PathBuf,
    packing: Packing,
    /// Number of bytes to read of a plain file.
    length: u64,
    reader: Box<dyn BufRead + Send>,
    offset: u64,
}

impl Input {
    /// Opens `path` at byte `offset` of the decompressed data. `length` limits the bytes that are read of a plain file.
    pub(super) fn open(path: &Path, packing: Packing, length: u64, offset: u64) -> Result<Self, SourceError> {
        let io = |e| SourceError::io(path, e);
        let mut file = File::open(path).map_err(io)?;
        let reader: Box<dyn BufRead + Send> = match packing {
            Packing::Plain => {
                file.seek(SeekFrom::Start(offset)).map_err(io)?;
                Box::new(BufReader::with_capacity(BUFFER, file.take(length.saturating_sub(offset))))
            }
            Packing::Gzip => {
                let unpacked = MultiGzDecoder::new(BufReader::with_capacity(BUFFER, file));
                Box::new(BufReader::with_capacity(BUFFER, unpacked))
            }
            Packing::Zstd => {
                let mut unpacked = zstd::Decoder::new(file).map_err(io)?;
                unpacked.window_log_max(window_log(path)).map_err(io)?;
                Box::new(BufReader::with_capacity(BUFFER, unpacked))
            }
        };
        let begun = if packing == Packing::Plain { offset } else { 0 };
        let mut input = Self { path: path.to_path_buf(), packing, length, reader, offset: begun };
        while input.offset < offset {
            let available = input.fill()?.len() as u64;
            if available == 0 {
                let what = format!("it ends before byte {offset} of its text");
                return Err(SourceError::Altered { path: path.to_path_buf(), what });
            }
            input.consume(available.min(offset - input.offset) as usize);
        }
        Ok(input)
    }

    /// The next bytes; none at the end.
    pub(super) fn fill(&mut self) -> Result<&[u8], SourceError> {
        let ended = loop {
            match self.reader.fill_buf() {
                Ok(available) => break available.is_empty(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error(e)),
            }
        };
        if ended && self.packing == Packing::Plain && self.offset < self.length {
            return Err(SourceError::cut(&self.path, self.length - self.offset));
        }
        // Returns the bytes that are already buffered.
        self.reader.fill_buf().map_err(|e| SourceError::io(&self.path, e))
    }

    /// Skips the next `bytes`, which [`Input::fill`] has returned.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
    }

    /// Offset of the next byte in the decompressed data.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    fn error(&self, reason: io::Error) -> SourceError {
        let (path, after) = (self.path.clone(), self.offset);
        let kind = match self.packing {
            _ if reason.raw_os_error().is_some() => return SourceError::io(&path, reason),
            Packing::Plain => return SourceError::io(&path, reason),
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        };
        match reason.kind() {
            io::ErrorKind::UnexpectedEof => SourceError::Truncated { path, after },
            _ => SourceError::Packed { path, kind, after, reason: reason.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn all(path: &Path, packing: Packing, offset: u64) -> Result<Vec<u8>, SourceError> {
        let length = std::fs::metadata(path).unwrap().len();
        let (mut input, mut bytes) = (Input::open(path, packing, length, offset)?, Vec::new());
        loop {
            let available = input.fill()?;
            if available.is_empty() {
                assert_eq!(input.offset(), offset + bytes.len() as u64);
                return Ok(bytes);
            }
            bytes.extend_from_slice(available);
            let n = available.len();
            input.consume(n);
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn a_file_is_entered_at_any_byte_and_members_follow_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it");
        let text: Vec<u8> = (0..700_000u32).map(|i| (u64::from(i).pow(2) % 251) as u8).collect();
        let (one, two) = text.split_at(300_000);
        let zstd = |bytes| zstd::encode_all(bytes, 1).unwrap();
        for (packing, bytes) in [
            (Packing::Plain, text.clone()),
            (Packing::Gzip, [gzip(one), gzip(two)].concat()),
            (Packing::Zstd, [zstd(one), zstd(two)].concat()),
        ] {
            std::fs::write(&path, &bytes).unwrap();
            for offset in [0, 1, 131_072, 299_999, 300_000, 650_001, 700_000] {
                assert!(all(&path, packing, offset).unwrap() == text[offset as usize..], "{packing:?} at {offset}");
            }
            if packing != Packing::Plain {
                let said = all(&path, packing, 700_001).unwrap_err().to_string();
                assert!(said.contains("ends before byte 700001"), "{said}");
                for cut in [3, 12, bytes.len() / 2, bytes.len() - 1] {
                    std::fs::write(&path, &bytes[..cut]).unwrap();
                    let said = all(&path, packing, 0).unwrap_err().to_string();
                    assert!(said.contains("it: the compressed data ends in the middle, after "), "{packing:?}: {said}");
                }
            }
        }
        std::fs::write(&path, "no gzip at all").unwrap();
        let said = all(&path, Packing::Gzip, 0).unwrap_err().to_string();
        assert!(said.contains("it: not valid gzip after 0 bytes of text (invalid gzip header)"), "{said}");
        let mut bytes = gzip(&text);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        std::fs::write(&path, bytes).unwrap();
        let said = all(&path, Packing::Gzip, 0).unwrap_err().to_string();
        assert!(said.contains("it: not valid gzip after "), "{said}");
    }

    #[test]
    fn the_window_of_zstd_is_known_beforehand() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it.zst");
        let write = |log: u32, content: bool| {
            let mut packed = zstd::Encoder::new(File::create(&path).unwrap(), 1).unwrap();
            packed.window_log(log).unwrap();
            if content {
                packed.set_pledged_src_size(Some(70_000)).unwrap();
            }
            packed.write_all(&[7; 70_000]).unwrap();
            packed.finish().unwrap();
            let mut header = Vec::new();
            File::open(&path).unwrap().take(14).read_to_end(&mut header).unwrap();
            window(&header)
        };
        assert_eq!(write(21, false), Some(1 << 21));
        assert_eq!(Packing::Zstd.memory(&path), 8 << 20);
        assert_eq!(write(21, true), Some(70_000));
        assert_eq!(write(25, false), Some(1 << 25));
        assert_eq!(Packing::Zstd.memory(&path), 32 << 20);
        assert_eq!(all(&path, Packing::Zstd, 69_999).unwrap(), [7]);
        // A larger window than any setting of the command writes.
        assert_eq!(write(28, false), Some(1 << 28));
        let said = all(&path, Packing::Zstd, 0).unwrap_err().to_string();
        assert!(said.contains("too much memory"), "{said}");
        assert_eq!(window(b"no frame at all"), None);
    }
}
