//! Decides which files of a directory are data and which are not, and reports both.
//!
//! Subdirectories are read too, all files in order of their paths. Left out are hidden files, files that a run or `host
//! data` wrote, and links back into the directory. A .json or .csv file is data where its first element or its columns
//! have the text; documentation next to files of documents, such as README.md, is not.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, FileType};
use std::io;
use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::format::{FileFormat, Format, KNOWN, lower_name};
use super::input::{Input, Packing};
use super::json::JsonFile;
use super::shards;
use super::source::SourceOptions;
use capful_config::{CONFIG_FILE, PLAN_FILE};

/// Most names, and most kinds of files, that are listed of the files that are not read.
const NAMES: usize = 5;
const KINDS: usize = 8;
/// Files of a model of transformers.
const MODEL: [&str; 2] = ["config.json", "model.safetensors"];
/// Names of documentation, up to the first dot.
const DOCUMENTATION: [&str; 9] =
    ["readme", "license", "licence", "copying", "notice", "changelog", "contributing", "citation", "authors"];

/// The files of a source.
pub(super) struct Listing {
    root: PathBuf,
    directory: bool,
    pub(super) files: Vec<PathBuf>,
    /// The files that are not read, and why.
    left: Vec<(PathBuf, String)>,
}

impl Listing {
    /// The file at `path`, or the data files of the directory at `path`.
    pub(super) fn of(path: &Path, options: &SourceOptions) -> Result<Self, SourceError> {
        let directory = fs::metadata(path).map_err(|e| SourceError::io(path, e))?.is_dir();
        let mut listing = Self { root: path.to_path_buf(), directory, files: Vec::new(), left: Vec::new() };
        if !directory {
            listing.files.push(path.to_path_buf());
            return Ok(listing);
        }
        if options.formerly {
            listing.files = formerly(path)?;
            return Ok(listing);
        }
        let root = fs::canonicalize(path).map_err(|e| SourceError::io(path, e))?;
        let mut walk = Walk { entered: HashSet::from([root.clone()]), root, dangling: Vec::new(), inside: Vec::new() };
        walk.enter(path, &mut listing)?;
        listing.follow_inside(&walk);
        listing.leave_other_json(options)?;
        listing.leave_documentation(&mut walk.dangling);
        if let Some(path) = walk.dangling.into_iter().next() {
            let target = fs::read_link(&path).map_err(|e| SourceError::io(&path, e))?;
            return Err(SourceError::Dangling { path, target });
        }
        listing.files.sort();
        listing.left.sort();
        if listing.files.is_empty() {
            let left = listing.left();
            return Err(SourceError::NoFiles { path: path.to_path_buf(), known: KNOWN, left });
        }
        Ok(listing)
    }

    fn leave(&mut self, path: PathBuf, why: impl Into<String>) {
        self.left.push((path, why.into()));
    }

    /// Reads a file of the same tree that links lead to only once: by its own name, or by the first link where its own
    /// name is not that of data.
    fn follow_inside(&mut self, walk: &Walk) {
        let own: HashSet<PathBuf> = self.files.iter().cloned().collect();
        let mut read = HashSet::new();
        for (link, target) in &walk.inside {
            let itself = target.strip_prefix(&walk.root).map(|inner| self.root.join(inner));
            if itself.is_ok_and(|itself| own.contains(&itself)) || !read.insert(target) {
                self.leave(link.clone(), "link to a file of the same tree");
            } else {
                self.files.push(link.clone());
            }
        }
    }

    /// Leaves out .json and .csv files that hold no documents.
    fn leave_other_json(&mut self, options: &SourceOptions) -> Result<(), SourceError> {
        for path in std::mem::take(&mut self.files) {
            match other(&path, options)? {
                Some(why) => self.leave(path, why),
                None => self.files.push(path),
            }
        }
        Ok(())
    }

    /// Leaves out documentation where there are files of documents.
    fn leave_documentation(&mut self, dangling: &mut Vec<PathBuf>) {
        let kind = |path: &PathBuf| Format::named(path).map(|format| format.kind);
        if self.files.iter().all(|path| kind(path) == Some(FileFormat::Text)) {
            return;
        }
        let documentation = |path: &PathBuf| kind(path) == Some(FileFormat::Text) && is_documentation(path);
        for paths in [&mut self.files, dangling] {
            for path in paths.extract_if(.., |path| documentation(path)) {
                let why = format!("{} beside data", extension(&path));
                self.left.push((path, why));
            }
        }
    }

    /// Describes what is read and what is not, for people; `None` for a single file.
    pub(super) fn describe(&self) -> Option<String> {
        if !self.directory {
            return None;
        }
        let kinds = self.files.iter().map(|path| extension(path));
        let (files, root) = (files(self.files.len()), self.root.display());
        Some(format!("reading {files} ({}) below {root}{}", counted(kinds), self.left()))
    }

    /// The description for a run that continues with the files it `began` with.
    pub(super) fn describe_since(&mut self, began: &HashSet<PathBuf>) -> Option<String> {
        let added: Vec<_> = self.files.extract_if(.., |path| !began.contains(path)).collect();
        self.left = added.into_iter().map(|path| (path, "not among them".to_owned())).collect();
        let (files, root) = (files(began.len()), self.root.display());
        self.directory.then(|| format!("reading {files} below {root} that the run began with{}", self.left()))
    }

    /// Describes the files that are not read.
    fn left(&self) -> String {
        if self.left.is_empty() {
            return String::new();
        }
        let kinds = counted(self.left.iter().map(|(_, why)| why.clone()));
        let names = self.left.iter().take(NAMES).map(|(path, _)| {
            let name = path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
            name.replace(|c: char| c.is_control(), "?")
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let more = if self.left.len() > NAMES { ", …" } else { "" };
        format!("; not read: {} ({kinds}): {names}{more}", self.left.len())
    }
}

fn files(count: usize) -> String {
    format!("{count} {}", if count == 1 { "file" } else { "files" })
}

/// The number of files of each kind, the most frequent first.
fn counted(kinds: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::new();
    kinds.for_each(|kind| *counts.entry(kind).or_insert(0u64) += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let more = counts.iter().skip(KINDS).map(|(_, count)| count).sum::<u64>();
    let mut shown: Vec<_> = counts.iter().take(KINDS).map(|(kind, count)| format!("{count} {kind}")).collect();
    shown.extend((more > 0).then(|| format!("{more} others")));
    shown.join(", ")
}

/// The kind of a file by the end of its name, including the extension of its compression.
fn extension(path: &Path) -> String {
    let whole = lower_name(path);
    let (packing, name) = Packing::of(&whole);
    let end = name.rsplit_once('.').map(|(_, end)| end).filter(|end| !end.is_empty() && end.len() <= 12);
    let packed = if packing == Packing::Plain { "" } else { &whole[name.len()..] };
    match end {
        Some(end) => format!(".{end}{packed}").replace(|c: char| c.is_control(), "?"),
        None if packed.is_empty() => "without an extension".to_owned(),
        None => packed.to_owned(),
    }
}

/// Whether a file is text about the data next to it.
fn is_documentation(path: &Path) -> bool {
    let name = lower_name(path);
    let first = name.split('.').next().unwrap_or_default();
    Packing::of(&name).1.ends_with(".md") || DOCUMENTATION.contains(&first)
}

/// Why a .json or .csv file holds no documents; `None` if it does, or if it is another kind of file.
fn other(path: &Path, options: &SourceOptions) -> Result<Option<String>, SourceError> {
    let Some(format) = Format::named(path) else { return Ok(None) };
    let length = fs::metadata(path).map_err(|e| SourceError::io(path, e))?.len();
    if length == 0 {
        // Every empty file is reported elsewhere.
        return Ok(None);
    }
    let strict = SourceOptions { skip_bad_lines: false, ..options.clone() };
    let looked = match format.kind {
        FileFormat::Csv => format.open(path, length, &strict, (0, 0)).map(|_| true),
        FileFormat::Json => {
            let input = |offset| Input::open(path, format.packing, length, offset);
            JsonFile::open(path, input, &strict, (0, 0)).and_then(|mut file| file.first())
        }
        _ => return Ok(None),
    };
    let kind = extension(path);
    match looked {
        Ok(true) => Ok(None),
        Ok(false)
        | Err(SourceError::NoColumn { .. } | SourceError::NoField { .. } | SourceError::NotAString { .. }) => {
            Ok(Some(format!("{kind} without {:?}", options.text_field)))
        }
        Err(SourceError::JsonFile { .. } | SourceError::Csv { .. }) => Ok(Some(format!("{kind} of another form"))),
        Err(e) if e.is_of_one_document() => Ok(Some(format!("{kind} of another form"))),
        Err(e) => Err(e),
    }
}

/// The files that earlier versions read from a directory.
fn formerly(path: &Path) -> Result<Vec<PathBuf>, SourceError> {
    const ENDS: [&str; 9] = [".txt", ".text", ".md", ".raw", ".tokens", ".jsonl", ".ndjson", ".jsonl.zst", ".parquet"];
    let entries = fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = entries.map_err(|e| SourceError::io(path, e))?;
    paths.retain(|path| {
        let name = lower_name(path);
        !name.starts_with('.') && ENDS.iter().any(|end| name.ends_with(end)) && path.is_file()
    });
    paths.sort();
    if paths.is_empty() {
        return Err(SourceError::NoFiles { path: path.to_path_buf(), known: KNOWN, left: String::new() });
    }
    Ok(paths)
}

/// A walk through a directory and its subdirectories.
struct Walk {
    root: PathBuf,
    /// Canonical paths of the directories that were entered.
    entered: HashSet<PathBuf>,
    /// Broken links whose names are those of data.
    dangling: Vec<PathBuf>,
    /// Links with names of data to files of the same tree, and those files.
    inside: Vec<(PathBuf, PathBuf)>,
}

impl Walk {
    fn enter(&mut self, dir: &Path, listing: &mut Listing) -> Result<(), SourceError> {
        let entries = fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        let mut entries: Vec<PathBuf> = entries.map_err(|e| SourceError::io(dir, e))?;
        entries.sort();
        for path in entries {
            if lower_name(&path).starts_with('.') {
                listing.leave(path, "hidden");
                continue;
            }
            let is_link = path.is_symlink();
            let kind = match fs::metadata(&path) {
                Ok(metadata) => metadata.file_type(),
                Err(_) if is_link => {
                    match Format::named(&path) {
                        Some(_) => self.dangling.push(path),
                        None => listing.leave(path, "broken link"),
                    }
                    continue;
                }
                // The file has vanished since the directory was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(SourceError::io(&path, e)),
            };
            if kind.is_dir() {
                match self.no_data(&path, is_link)? {
                    Some(why) => listing.leave(path, why),
                    None => self.enter(&path, listing)?,
                }
            } else if !kind.is_file() {
                listing.leave(path, special(kind));
            } else if Format::named(&path).is_some() {
                let target = is_link.then(|| fs::canonicalize(&path)).transpose();
                match target.map_err(|e| SourceError::io(&path, e))?.filter(|target| target.starts_with(&self.root)) {
                    Some(target) => self.inside.push((path, target)),
                    None => listing.files.push(path),
                }
            } else {
                let kind = extension(&path);
                listing.leave(path, kind);
            }
        }
        Ok(())
    }

    /// Why a directory is not entered; `None` if it is.
    fn no_data(&mut self, dir: &Path, is_link: bool) -> Result<Option<&'static str>, SourceError> {
        let place = fs::canonicalize(dir).map_err(|e| SourceError::io(dir, e))?;
        Ok(if is_link && (place.starts_with(&self.root) || self.root.starts_with(&place)) {
            Some("link to a directory of the same tree")
        } else if !self.entered.insert(place) {
            Some("link to a directory that is read already")
        } else if [CONFIG_FILE, PLAN_FILE].iter().all(|name| dir.join(name).exists()) {
            Some("run of capful")
        } else if shards::begun(dir) || dir.join(shards::MANIFEST).exists() {
            Some("directory of token shards")
        } else if MODEL.iter().all(|name| dir.join(name).exists()) {
            Some("model")
        } else if dir.file_name().is_some_and(|name| name == "lost+found") {
            Some("lost+found")
        } else {
            None
        })
    }
}

/// The name of a file type that is neither a file nor a directory.
#[cfg(unix)]
fn special(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt as _;
    match () {
        () if kind.is_fifo() => "FIFO",
        () if kind.is_socket() => "socket",
        () => "device",
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> &'static str {
    "special file"
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
