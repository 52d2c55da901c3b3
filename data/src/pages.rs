//! Reads the pages of a column of a parquet file and refuses pages above a size limit.
//!
//! A page's header declares the page's size, compressed and uncompressed, and its number of values; the library
//! allocates as much as the header declares. So the headers are checked first, whoever wrote the file.

use capful_base::human_bytes;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::unpack::Codec;

/// Most bytes of a page, compressed and uncompressed. Writers make pages of about 1 MiB, and larger ones only for long
/// documents. A reader has a page, its compressed form and a dictionary page in memory.
pub const LARGEST_PAGE: u64 = 256 << 20;
/// Most values of a dictionary, or of a page of differences: the library's tables have 32 bytes for each value.
pub const MOST_VALUES: u64 = LARGEST_PAGE / 64;

fn error(reason: String) -> ParquetError {
    ParquetError::General(reason)
}

/// Refuses a page that declares `bytes`, if that is too many.
fn require_size(bytes: u64) -> Result<()> {
    if bytes <= LARGEST_PAGE {
        return Ok(());
    }
    let (bytes, most) = (human_bytes(bytes), human_bytes(LARGEST_PAGE));
    Err(error(format!("a page of {bytes}, and {most} is the most that is read")))
}

fn require_values(values: u64, most: u64) -> Result<()> {
    let most = most.min(MOST_VALUES);
    if values <= most { Ok(()) } else { Err(error(format!("a page of {values} values that can have {most}"))) }
}

/// A file that returns at most the bytes of one page at a time; it stores the uncompressed size in the header read
/// last.
struct Chunks {
    file: File,
    claimed: Arc<AtomicU64>,
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for Chunks {
    type T = Header;

    /// The library reads only the headers of pages this way.
    fn get_read(&self, start: u64) -> Result<Header> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(Header { input: BufReader::new(file), claimed: Some(Arc::clone(&self.claimed)) })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        require_size(length as u64)?;
        self.file.get_bytes(start, length)
    }
}

/// A page's header, checked before the library reads it.
struct Header {
    input: BufReader<File>,
    /// Where the declared size is stored; `None` once it is known.
    claimed: Option<Arc<AtomicU64>>,
}

impl Read for Header {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(claimed) = &self.claimed {
            let [uncompressed, compressed] = sizes(self.input.fill_buf()?)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a page's header has no sizes"))?;
            for size in [uncompressed, compressed] {
                require_size(size).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, reason(e)))?;
            }
            claimed.store(uncompressed, Ordering::Relaxed);
            self.claimed = None;
        }
        self.input.read(bytes)
    }
}

/// The message of an error of the library.
pub(super) fn reason(error: ParquetError) -> String {
    match error {
        ParquetError::General(reason) | ParquetError::EOF(reason) | ParquetError::NYI(reason) => reason,
        ParquetError::External(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Reads numbers of 7 bits a byte, lowest bits first.
struct Varints<'a>(&'a [u8]);

impl Varints<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn next(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A number with its sign in the lowest bit; a negative number counts as larger than any size.
    fn size(&mut self) -> Option<u64> {
        self.next().map(|n| if n & 1 == 0 { n >> 1 } else { u64::MAX })
    }
}

/// The sizes in a page's header, uncompressed and compressed. A header is a struct of Thrift's compact protocol whose
/// first three fields are 32-bit numbers: the page's type and the sizes.
fn sizes(header: &[u8]) -> Option<[u64; 2]> {
    /// The header byte of a number field whose id is one above the id of the previous field.
    const NEXT_NUMBER: u8 = 0x15;
    let mut header = Varints(header);
    let mut numbers = [0; 3];
    for number in &mut numbers {
        if header.byte()? != NEXT_NUMBER {
            return None;
        }
        *number = header.size()?;
    }
    Some([numbers[1], numbers[2]])
}

/// Reads the pages of a column of one row group.
pub(super) struct Pages {
    reader: SerializedPageReader<Chunks>,
    /// Number of the kinds of levels stored before the values of a page of version 1: repetition levels (where lists
    /// begin) and definition levels (where a value is missing).
    levels: usize,
    /// The compression of the pages, where the library receives them as uncompressed pages, and the declared
    /// uncompressed size of the last page.
    codec: Option<Codec>,
    claimed: Arc<AtomicU64>,
}

impl Pages {
    pub(super) fn new(file: &File, column: &ColumnChunkMetaData, rows: usize) -> Result<Self> {
        let claimed = Arc::new(AtomicU64::new(0));
        let chunks = Arc::new(Chunks { file: file.try_clone()?, claimed: Arc::clone(&claimed) });
        let described = column.column_descr();
        let levels = usize::from(described.max_rep_level() > 0) + usize::from(described.max_def_level() > 0);
        let codec = Codec::of(column.compression());
        let reader = match codec {
            Some(_) => {
                let column = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
                SerializedPageReader::new(chunks, &column, rows, None)?
            }
            None => SerializedPageReader::new(chunks, column, rows, None)?,
        };
        Ok(Self { reader, levels, codec, claimed })
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.reader.get_next_page()?;
        let page = page.map(|page| self.unpacked(page)).transpose()?;
        self.counted(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.reader.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.reader.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        // The declared size would be that of another page.
        self.codec.is_none() && self.reader.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let page = self.reader.take_deferred_dictionary()?;
        self.counted(page)
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.reader.at_record_boundary()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl Pages {
    /// Decompresses a page that the library left compressed.
    fn unpacked(&self, mut page: Page) -> Result<Page> {
        let Some(codec) = self.codec else { return Ok(page) };
        let size = self.claimed.load(Ordering::Relaxed);
        let (buf, levels) = match &mut page {
            Page::DataPageV2 { is_compressed: false, .. } => return Ok(page),
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                (buf, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)
            }
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0),
        };
        *buf = codec.unpack(buf, levels, size)?;
        Ok(page)
    }

    /// Refuses a page that declares more values than its bytes can hold, where the library allocates tables by that
    /// number.
    fn counted(&self, page: Option<Page>) -> Result<Option<Page>> {
        match &page {
            Some(Page::DictionaryPage { buf, num_values, .. }) => {
                // Each text follows its four-byte length.
                require_values((*num_values).into(), buf.len() as u64 / 4)?;
            }
            Some(page) => self.require_differences(page)?,
            None => {}
        }
        Ok(page)
    }

    /// Streams of differences contain their own number of values.
    fn require_differences(&self, page: &Page) -> Result<()> {
        let streams = match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        let values = u64::from(page.num_values());
        require_values(values, values)?;
        let mut rest = self.behind_levels(page);
        for _ in 0..streams {
            let stream = rest.and_then(differences);
            let (count, length) = stream.ok_or_else(|| error("a page of differences that ends early".to_owned()))?;
            require_values(count, values)?;
            rest = rest.and_then(|bytes| bytes.get(length..));
        }
        Ok(())
    }

    /// The values of a page: the bytes after the levels, which say which rows have a value.
    fn behind_levels<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        let bytes: &[u8] = page.buffer();
        if let Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } = page {
            return bytes.get(*def_levels_byte_len as usize + *rep_levels_byte_len as usize..);
        }
        // Each kind of levels follows its length.
        (0..self.levels).try_fold(bytes, |bytes, _| {
            let (length, rest) = bytes.split_first_chunk()?;
            rest.get(u32::from_le_bytes(*length) as usize..)
        })
    }
}

/// The declared number of values of a stream of differences, and its length in bytes.
fn differences(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut rest = Varints(bytes);
    let [block, parts, count, _first] = [rest.next()?, rest.next()?, rest.next()?, rest.next()?];
    let each = block.checked_div(parts).filter(|each| *each > 0)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        rest.next()?;
        let widths = rest.0.get(..usize::try_from(parts).ok()?)?;
        rest.0 = &rest.0[widths.len()..];
        for width in widths.iter().take(left.div_ceil(each).min(parts) as usize) {
            let length = usize::try_from(u64::from(*width).checked_mul(each)? / 8).ok()?;
            rest.0 = rest.0.get(length..)?;
        }
        left = left.saturating_sub(each.saturating_mul(parts));
    }
    Some((count, bytes.len() - rest.0.len()))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use parquet::column::writer::ColumnWriter;
    use parquet::data_type::ByteArray;
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::files::Files;
    use super::super::source::{Document, Documents as _, SourceOptions};
    use super::*;

    /// Writes a column of `texts` with `properties`; every third row has no value where the column is `nullable`.
    fn written(dir: &Path, properties: WriterProperties, texts: &[String], nullable: bool) -> PathBuf {
        let path = dir.join("a.parquet");
        let kind = if nullable { "OPTIONAL" } else { "REQUIRED" };
        let schema = parse_message_type(&format!("message m {{ {kind} BINARY text (UTF8); }}")).unwrap();
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let ColumnWriter::ByteArrayColumnWriter(out) = column.untyped() else { panic!("a column of bytes") };
        let values: Vec<ByteArray> = texts.iter().map(|text| text.as_str().into()).collect();
        let levels: Vec<i16> = (0..).map(|row| i16::from(row % 3 > 0)).take(values.len() * 3 / 2).collect();
        out.write_batch(&values, nullable.then_some(&levels[..]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        path
    }

    fn read(path: &Path) -> std::result::Result<Vec<String>, String> {
        let said = |e: super::super::error::SourceError| e.to_string();
        let mut files = Files::open(path, &SourceOptions::default()).map_err(said)?;
        let (mut texts, mut document) = (Vec::new(), Document::default());
        while files.next(&mut document).map_err(said)? {
            texts.push(document.text.clone());
        }
        Ok(texts)
    }

    fn texts(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("prefix {} {}", i * i % 97, "and some more ".repeat(1 + i % 13))).collect()
    }

    #[test]
    fn every_encoding_of_text_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for (version, encoding) in
            [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0].into_iter().flat_map(|version| {
                let all = [
                    None,
                    Some(Encoding::PLAIN),
                    Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
                    Some(Encoding::DELTA_BYTE_ARRAY),
                ];
                all.map(|encoding| (version, encoding))
            })
        {
            for (count, nullable) in [(2, false), (2, true), (128, true), (130, false), (1000, true)] {
                let properties =
                    WriterProperties::builder().set_writer_version(version).set_compression(Compression::SNAPPY);
                let properties =
                    properties.set_dictionary_enabled(encoding.is_none()).set_data_page_row_count_limit(300);
                let properties = encoding.into_iter().fold(properties, |p, encoding| p.set_encoding(encoding));
                let path = written(dir.path(), properties.build(), &texts(count), nullable);
                assert_eq!(read(&path).unwrap(), texts(count), "{version:?} {encoding:?} {count} {nullable}");
            }
        }
    }

    /// A number in a header's encoding.
    fn varint(number: u64) -> Vec<u8> {
        let mut number = number << 1;
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    #[test]
    fn sizes_that_a_header_only_claims_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for compression in [Compression::SNAPPY, Compression::ZSTD(Default::default()), Compression::UNCOMPRESSED] {
            for dictionary in [false, true] {
                let properties =
                    WriterProperties::builder().set_compression(compression).set_dictionary_enabled(dictionary);
                let path = written(dir.path(), properties.build(), &texts(1000), false);
                let good = std::fs::read(&path).unwrap();
                let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
                let column = reader.metadata().row_group(0).column(0).clone();
                let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset()) as usize;
                let [uncompressed, compressed] = sizes(&good[begin..]).unwrap();
                let kind = good[begin + 1];
                let claimed = |sizes: [u64; 2]| {
                    let mut header = vec![0x15, kind, 0x15];
                    header.extend(varint(sizes[0]));
                    header.push(0x15);
                    header.extend(varint(sizes[1]));
                    header
                };
                let length = claimed([uncompressed, compressed]).len();
                for size in [LARGEST_PAGE + 1, i32::MAX as u64] {
                    // Longer numbers take their room from the page.
                    let taken = claimed([size, compressed]).len() - length;
                    let fewer = compressed - taken as u64;
                    let header = claimed([size, fewer]);
                    let mut bad = good[..begin].to_vec();
                    bad.extend(&header);
                    // The rest of the header is unchanged.
                    bad.extend(&good[begin + length..]);
                    bad.drain(begin + header.len() + 40..begin + header.len() + 40 + header.len() - length);
                    assert_eq!(bad.len(), good.len());
                    std::fs::write(&path, bad).unwrap();
                    let message = read(&path).unwrap_err();
                    assert!(message.contains("a.parquet") && message.contains("256.0 MiB is the most"), "{message}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_values_that_a_page_cannot_have_are_refused() {
        require_values(7, 7).unwrap();
        assert!(require_values(8, 7).is_err() && require_values(MOST_VALUES + 1, u64::MAX).is_err());
        // Blocks of 128 values in 4 parts: 130 values have one whole block and one part of the next.
        let stream = |count: u64| {
            let mut bytes = vec![0x80, 1, 4];
            let mut left = count;
            while left > 0x7f {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            bytes.push(20);
            bytes
        };
        assert_eq!(differences(&stream(1)), Some((1, 5)));
        let mut two = stream(130);
        two.extend([0, 3, 3, 3, 3]);
        two.extend([0; 4 * 12]);
        two.extend([0, 5, 9, 9, 9]);
        two.extend([0; 20]);
        assert_eq!(differences(&two), Some((130, two.len())));
        two.extend([1, 2, 3]);
        assert_eq!(differences(&two), Some((130, two.len() - 3)));
        assert_eq!(differences(&two[..30]), None);
        assert_eq!(differences(&stream(u64::from(u32::MAX))), None);
    }
}
