//! What the kernels take lies where the host puts it: every struct of arguments of one side is there on the other, with
//! the same fields at the same bytes. The offsets of `repr(C)` are computed from the sources here and held against those
//! of a C++ compiler, by assertions behind each file of kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A struct of the host's, by the name that the kernels give it.
struct Mirror {
    file: String,
    /// Its own name.
    name: String,
    /// Names and types.
    fields: Vec<(String, String)>,
    /// Whether all of them begin at byte 0.
    union: bool,
}

fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, extensions));
        } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every struct under a comment that says what it mirrors, but for the driver's own.
fn mirrors() -> (BTreeMap<String, Mirror>, BTreeMap<String, u64>) {
    let (mut mirrors, mut lengths) = (BTreeMap::new(), BTreeMap::new());
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/cuda"), &["rs"]) {
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            if let Some((name, length)) = line.strip_prefix("const ").and_then(|l| l.split_once(": usize = ")) {
                lengths.insert(name.to_owned(), length.trim_end_matches(';').parse().unwrap_or(0));
            }
        }
        for part in text.split("/// Mirrors ").skip(1).filter(|part| !part.starts_with("CU")) {
            let mirrored: String = part.chars().take_while(|c| c.is_alphanumeric()).collect();
            let union = part.lines().any(|line| line.starts_with("union "));
            let (attributes, rest) = part.split_once(if union { "union " } else { "struct " }).expect("a struct");
            assert!(attributes.contains("#[repr(C)]"), "{mirrored} is not laid out as in C");
            let (name, rest) = rest.split_once(" {\n").unwrap();
            let fields = rest.split_once("\n}").unwrap().0.lines().map(str::trim);
            let field = |line: &str| {
                let (name, kind) = line
                    .trim_start_matches("pub(super) ")
                    .trim_start_matches("pub ")
                    .trim_end_matches(',')
                    .split_once(": ")
                    .unwrap();
                (name.to_owned(), kind.to_owned())
            };
            let fields = fields.filter(|line| !line.starts_with("//")).map(field).collect();
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            let before = mirrors.insert(mirrored.clone(), Mirror { file, name: name.to_owned(), fields, union });
            assert!(before.is_none(), "{mirrored} has two mirrors");
        }
    }
    (mirrors, lengths)
}

/// Of all mirrors, and the lengths of arrays that have names.
struct Layouts {
    mirrors: BTreeMap<String, Mirror>,
    lengths: BTreeMap<String, u64>,
}

impl Layouts {
    /// Size and alignment of a type.
    fn of(&self, kind: &str) -> [u64; 2] {
        match kind {
            "u64" => return [8, 8],
            "u32" | "f32" => return [4, 4],
            _ => {}
        }
        if let Some((element, length)) = kind.strip_prefix('[').and_then(|k| k.trim_end_matches(']').split_once("; ")) {
            let [size, alignment] = self.of(element);
            let length = length.parse().unwrap_or_else(|_| self.lengths[length]);
            return [size * length, alignment];
        }
        let mirror = self.mirrors.values().find(|mirror| mirror.name == kind);
        let (size, alignment, _) = self.fields(mirror.unwrap_or_else(|| panic!("what is {kind}?")));
        [size, alignment]
    }

    /// Size, alignment and the fields' offsets of a struct.
    fn fields<'a>(&self, mirror: &'a Mirror) -> (u64, u64, Vec<(&'a str, u64)>) {
        let (mut end, mut most, mut offsets) = (0u64, 1, Vec::new());
        for (name, kind) in &mirror.fields {
            let [size, alignment] = self.of(kind);
            let offset = if mirror.union { 0 } else { end.next_multiple_of(alignment) };
            offsets.push((name.as_str(), offset));
            (end, most) = (end.max(offset + size), most.max(alignment));
        }
        (end.next_multiple_of(most), most, offsets)
    }
}

/// A file of kernels with all that it includes.
fn whole(path: &Path, seen: &mut BTreeSet<PathBuf>) -> String {
    if !seen.insert(path.canonicalize().unwrap()) {
        return String::new();
    }
    let text = fs::read_to_string(path).unwrap();
    let included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    let mut all: String = included.map(|name| whole(&path.parent().unwrap().join(name), seen)).collect();
    all.push_str(&text);
    all
}

/// The structs of a text that kernels take or have fields of.
fn structs(text: &str) -> Vec<&str> {
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix("struct ").or(line.strip_prefix("union "))?.strip_suffix(" {"));
    names.filter(|name| name.ends_with("Args") || matches!(*name, "Heads" | "Pattern" | "Order")).collect()
}

/// The kernels of a file whose argument is called otherwise, so that nobody would look for its mirror.
fn misnamed(text: &str) -> Vec<&str> {
    let kinds = ["EXPORT(", "EXPORT_PAIR(", "EXPORT_MANY(", "EXPORT_BOTH("];
    let exported = |line: &&str| kinds.iter().any(|kind| line.starts_with(kind));
    let argument = |line: &str| line.split(", ").nth(1).is_some_and(|name| name.ends_with("Args"));
    text.lines().filter(exported).filter(|line| !argument(line)).collect()
}

/// Whether a file of kernels exports one of this name: it names it, or what a macro makes it of begins like it. A
/// driver looks for a kernel in its own file's code only; the stand-in has all of them in one.
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
        files(&folder, &["cu"]).into_iter().map(of).collect()
    });
    beginnings.get(module).is_some_and(|names| names.iter().any(|name| kernel.starts_with(name.as_str())))
}

#[test]
fn every_struct_of_arguments_lies_the_same_on_both_sides() {
    let (mirrors, lengths) = mirrors();
    let layouts = Layouts { mirrors, lengths };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/cuda");
    let (mut found, mut asserted) = (BTreeSet::new(), BTreeSet::new());
    for path in files(&folder, &["cu", "cuh"]) {
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(misnamed(&text), Vec::<&str>::new(), "a kernel's argument is a struct called …Args");
        found.extend(structs(&text).into_iter().map(str::to_owned));
    }
    let mirrored: BTreeSet<String> = layouts.mirrors.keys().cloned().collect();
    assert_eq!(found, mirrored, "structs of the kernels, and those that the host mirrors");

    let scratch = tempfile::tempdir().unwrap();
    for path in files(&folder, &["cu"]) {
        let text = whole(&path, &mut BTreeSet::new());
        let mut code = format!("#include {:?}\n", path.canonicalize().unwrap());
        for name in structs(&text).into_iter().filter(|name| asserted.insert((*name).to_owned())) {
            let mirror = &layouts.mirrors[name];
            let (size, _, offsets) = layouts.fields(mirror);
            let file = &mirror.file;
            writeln!(code, "static_assert(sizeof({name}) == {size}, \"{file}: {size} bytes\");").unwrap();
            for (field, offset) in offsets {
                let text = format!("{file}: {field} at byte {offset}");
                writeln!(code, "static_assert(offsetof({name}, {field}) == {offset}, \"{text}\");").unwrap();
            }
        }
        if !code.contains("static_assert") {
            continue;
        }
        code.insert_str(0, "#include <stddef.h>\n");
        let source = scratch.path().join("asserted.cpp");
        fs::write(&source, code).unwrap();
        let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "g++".into()));
        compiler.args(["-std=c++17", "-fsyntax-only", "-w", "-DCAPFUL_STAND_IN"]).arg(&source);
        let output = compiler.output().expect("the compiler that made the stand-in");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", path.display());
    }
    assert_eq!(asserted, mirrored, "every one is held against the compiler's");
}
