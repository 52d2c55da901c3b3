//! The rooms of the host import each other in one order.

use std::fs;
use std::path::{Path, PathBuf};

/// A room may use those before it.
const ORDER: [&str; 9] = ["device", "plan", "format", "suggest", "run", "report", "live", "cli", "main"];

fn sources(of: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(of).unwrap_or_else(|e| panic!("{}: {e}", of.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.extension() {
            _ if path.is_dir() => sources(&path, into),
            Some(extension) if extension == "rs" => into.push(path),
            _ => {}
        }
    }
}

/// The rooms that a file uses: the first names of paths from the crate's root, with their lines.
fn used(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        let paths = code.match_indices("crate::").map(|(at, prefix)| &code[at + prefix.len()..]);
        found.extend(
            paths
                .flat_map(|path| match path.strip_prefix('{') {
                    Some(group) => group.split(',').map(str::trim).collect(),
                    None => vec![path],
                })
                .map(|path| (number + 1, path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(""))),
        );
    }
    found
}

#[test]
fn every_room_uses_only_those_before_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/src");
    let place = |room: &str| ORDER.iter().position(|name| *name == room);
    let mut counted = 0;
    for (own, room) in ORDER.iter().enumerate().filter(|(_, room)| root.join(room).is_dir()) {
        let mut files = Vec::new();
        sources(&root.join(room), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for (line, name) in used(&text) {
                let Some(other) = place(name) else { continue };
                counted += 1;
                assert!(other <= own, "{}:{line}: {room} uses {name}, which comes after it", file.display());
            }
        }
    }
    // Every folder has a place, and the paths were found.
    let folders = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap()).filter(|entry| entry.path().is_dir());
    assert!(folders.map(|entry| entry.file_name()).all(|name| place(&name.to_string_lossy()).is_some()));
    assert!(counted > 100, "{counted}");
}
