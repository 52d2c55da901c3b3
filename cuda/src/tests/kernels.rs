//! Checks the kernels of each file against its source.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The sources in a folder and its subfolders.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "cu") {
            found.push(path);
        }
    }
    found
}

/// Whether a kernel file exports a kernel of this name: the file contains the name, or a macro's prefix of the name. A
/// driver searches a kernel only in the code of its own file; the stand-in has all kernels in one.
pub fn exports(module: &str, kernel: &str) -> bool {
    static BEGINNINGS: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    let beginnings = BEGINNINGS.get_or_init(|| {
        let of = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap();
            let calls = text.lines().filter_map(|line| line.trim().strip_prefix("EXPORT")?.split_once('('));
            let names = calls.filter_map(|(_, arguments)| arguments.split([',', '#', ')']).next());
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            (stem, names.filter(|name| !matches!(*name, "" | "name")).map(str::to_owned).collect())
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda");
        sources(&folder).into_iter().map(of).collect()
    });
    beginnings.get(module).is_some_and(|names| names.iter().any(|name| kernel.starts_with(name.as_str())))
}
