//! Decompresses pages of parquet files that are compressed with gzip, brotli or lz4, at most to the size in their
//! header. The parquet library would continue up to any end of the compressed data.

use std::io::Read as _;

use brotli_decompressor::Decompressor;
use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};

/// Compressions of pages that are not left to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Gzip,
    Brotli,
    /// Blocks of LZ4 after their sizes, as Hadoop writes them, or a single block.
    Lz4,
    /// One block of LZ4.
    Lz4Raw,
}

/// The largest window of brotli.
pub const BROTLI_WINDOW: u64 = 16 << 20;

impl Codec {
    pub(super) fn of(compression: Compression) -> Option<Self> {
        match compression {
            Compression::GZIP(_) => Some(Self::Gzip),
            Compression::BROTLI(_) => Some(Self::Brotli),
            Compression::LZ4 => Some(Self::Lz4),
            Compression::LZ4_RAW => Some(Self::Lz4Raw),
            _ => None,
        }
    }

    /// The first `levels` bytes unchanged, followed by the rest decompressed, `size` bytes in all.
    pub(super) fn unpack(self, page: &[u8], levels: usize, size: u64) -> Result<Bytes> {
        let other = |reason: &str| ParquetError::General(format!("a compressed page {reason}"));
        let whole = usize::try_from(size).ok().filter(|size| *size >= levels);
        let (Some(whole), Some((head, packed))) = (whole, page.split_at_checked(levels)) else {
            return Err(other("is shorter than its levels"));
        };
        // Room for one excess byte too.
        let mut bytes = Vec::with_capacity(whole + 1);
        bytes.extend_from_slice(head);
        if whole > levels {
            match self {
                // A single excess byte is detected.
                Self::Gzip => {
                    MultiGzDecoder::new(packed).take((whole - levels) as u64 + 1).read_to_end(&mut bytes)?;
                }
                Self::Brotli => {
                    // A window above 16 MiB is outside RFC 7932; the crate would allocate up to 1 GiB for it.
                    if packed.first().is_some_and(|first| first & 0x7f == 0x11) {
                        return Err(other("needs a window of more than 16 MiB"));
                    }
                    Decompressor::new(packed, 4096).take((whole - levels) as u64 + 1).read_to_end(&mut bytes)?;
                }
                Self::Lz4 | Self::Lz4Raw => {
                    bytes.resize(whole, 0);
                    let framed = self == Self::Lz4 && blocks(packed, &mut bytes[levels..]);
                    if !framed && block(packed, &mut bytes[levels..]) != Some(whole - levels) {
                        return Err(other("is damaged"));
                    }
                }
            }
        }
        if bytes.len() == whole { Ok(bytes.into()) } else { Err(other("has another size than its header says")) }
    }
}

/// The decompressed length of the block `packed`, where it fits in `to`.
fn block(packed: &[u8], to: &mut [u8]) -> Option<usize> {
    lz4_flex::block::decompress_into(packed, to).ok()
}

/// Decompresses blocks, each after its two sizes, uncompressed and compressed; returns whether they fill `to` exactly.
fn blocks(mut packed: &[u8], mut to: &mut [u8]) -> bool {
    while let Some((sizes, rest)) = packed.split_first_chunk::<8>() {
        let [size, length] =
            [&sizes[..4], &sizes[4..]].map(|bytes| bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b)));
        let (Some((one, rest)), Some((out, left))) = (rest.split_at_checked(length), to.split_at_mut_checked(size))
        else {
            return false;
        };
        if block(one, out) != Some(size) {
            return false;
        }
        (packed, to) = (rest, left);
    }
    packed.is_empty() && to.is_empty()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    /// In Hadoop's format, with `each` bytes a block.
    fn hadoop(bytes: &[u8], each: usize) -> Vec<u8> {
        let block = |bytes: &[u8]| {
            let packed = lz4_flex::block::compress(bytes);
            let sizes = [bytes.len(), packed.len()].map(|size| (size as u32).to_be_bytes());
            [&sizes.concat()[..], &packed].concat()
        };
        bytes.chunks(each).flat_map(block).collect()
    }

    #[test]
    fn what_is_unpacked_has_the_size_that_was_said_and_levels_before_it() {
        let text: Vec<u8> = (0..5000u32).map(|i| (i % 7 * i % 31) as u8).collect();
        for (codec, packed) in [
            (Codec::Gzip, gzip(&text)),
            (Codec::Lz4Raw, lz4_flex::block::compress(&text)),
            (Codec::Lz4, hadoop(&text, 5000)),
            (Codec::Lz4, hadoop(&text, 1999)),
            // Some writers use the name for a single block.
            (Codec::Lz4, lz4_flex::block::compress(&text)),
        ] {
            let page = [b"levels", &packed[..]].concat();
            assert_eq!(codec.unpack(&page, 6, 5006).unwrap()[6..], text, "{codec:?}");
            assert_eq!(&codec.unpack(&page, 6, 5006).unwrap()[..6], b"levels");
            for size in [0, 5, 4000, 5005, 5007, 100_000] {
                assert!(codec.unpack(&page, 6, size).is_err(), "{codec:?} {size}");
            }
            assert!(codec.unpack(&page[..page.len() - 1], 6, 5006).is_err(), "{codec:?}");
            assert!(codec.unpack(b"lev", 6, 5006).is_err());
            assert_eq!(codec.unpack(b"levels", 6, 6).unwrap(), &b"levels"[..]);
        }
        // A window of 2^30 bytes.
        let said = Codec::Brotli.unpack(&[0x11, 0x1e, 0, 0], 0, 10).unwrap_err().to_string();
        assert!(said.contains("16 MiB"), "{said}");
    }
}
