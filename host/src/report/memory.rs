//! The memory of a run as a treemap: its regions by purpose, and memory outside the arena.

use capful_base::human_bytes;
use serde::Serialize;

use super::known::{Planned, Region};
use super::scale::rounded;
use super::treemap::{Rect, squarified};

/// A region's rectangle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Its position.
    pub rect: Rect,
    /// The number of the part that it belongs to.
    pub part: usize,
    /// Its name and size.
    pub title: String,
    /// The lines of its title for which there is room.
    pub lines: Vec<String>,
    /// Its bytes.
    pub bytes: u64,
}

/// All regions of one purpose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Their purpose.
    pub name: &'static str,
    /// The number of its colour.
    pub colour: usize,
    /// Bytes.
    pub bytes: u64,
    /// The bytes, for people.
    pub shown: String,
    /// Its percentage of all bytes.
    pub share: String,
}

/// The memory of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// The drawing's size.
    pub width: f64,
    /// See [`Memory::width`].
    pub height: f64,
    /// Parts, the largest first.
    pub parts: Vec<Part>,
    /// The rectangles to draw.
    pub cells: Vec<Cell>,
    /// Bytes of the arena and outside of it.
    pub bytes: u64,
    /// The bytes, for people.
    pub shown: String,
}

/// Parts with the roles of the ledger that belong to them, as in the plan's summary.
const PARTS: [(&str, &[&str]); 7] = [
    ("weights", &["weight"]),
    ("gradients", &["gradient"]),
    ("optimizer state", &["master", "moment"]),
    ("averaged weights", &["average"]),
    ("activations", &["saved"]),
    ("scratch", &["work"]),
    ("state, tables, batch", &[]),
];
const OUTSIDE: &str = "outside the arena";
/// The number of the part for all other roles. Memory outside the arena has the next number.
const OTHER: usize = PARTS.len() - 1;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 340.0;
/// The width of a character, and the height of a line.
const LETTER: f64 = 6.3;
const LINE: f64 = 14.0;

/// Names and bytes.
type Sizes = Vec<(String, u64)>;

/// The number of the part that a region belongs to.
fn part_of(region: &Region) -> usize {
    PARTS.iter().position(|(_, roles)| roles.contains(&&*region.role)).unwrap_or(OTHER)
}

impl Memory {
    /// The memory of `plan`, with at most `most` regions a part shown by themselves.
    pub fn of(plan: &Planned, most: usize) -> Option<Memory> {
        let mut parts: Vec<(usize, &'static str, Sizes)> =
            PARTS.iter().enumerate().map(|(number, (name, _))| (number, *name, Vec::new())).collect();
        for region in &plan.regions {
            let times = if region.layers > 1 { format!(" × {}", region.layers) } else { String::new() };
            let name = format!("{}{times}, {}", region.name, region.dtype);
            parts[part_of(region)].2.push((name, region.bytes.saturating_add(region.padding)));
        }
        let outside = plan.outside.iter().map(|one| (one.name.clone(), one.bytes)).collect();
        parts.push((PARTS.len(), OUTSIDE, outside));
        let sum = |regions: &[(String, u64)]| regions.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        parts.retain(|(.., regions)| sum(regions) > 0);
        parts.sort_by_key(|(number, _, regions)| (std::cmp::Reverse(sum(regions)), *number));
        let bytes = parts.iter().fold(0u64, |all, (.., regions)| all.saturating_add(sum(regions)));
        let room = Rect { x: 0.0, y: 0.0, w: WIDTH, h: HEIGHT };
        let weights: Vec<f64> = parts.iter().map(|(.., regions)| sum(regions) as f64).collect();
        let mut cells = Vec::new();
        for ((number, part, regions), room) in parts.iter_mut().zip(squarified(&weights, room)) {
            gather(regions, most);
            let weights: Vec<f64> = regions.iter().map(|(_, bytes)| *bytes as f64).collect();
            for ((name, bytes), rect) in regions.iter().zip(squarified(&weights, room)).filter(|((_, b), _)| *b > 0) {
                let title = format!("{part}: {name}, {}", human_bytes(*bytes));
                let lines = lines(name, *bytes, &rect);
                let Rect { x, y, w, h } = rect;
                let rect = Rect { x: rounded(x), y: rounded(y), w: rounded(w), h: rounded(h) };
                cells.push(Cell { rect, part: *number, title, lines, bytes: *bytes });
            }
        }
        let parts = parts.iter().map(|(number, name, regions)| Part {
            name,
            colour: *number,
            bytes: sum(regions),
            shown: human_bytes(sum(regions)),
            share: format!("{:.1} %", 100.0 * sum(regions) as f64 / bytes as f64),
        });
        let parts = parts.collect();
        (bytes > 0).then(|| Memory { width: WIDTH, height: HEIGHT, parts, cells, bytes, shown: human_bytes(bytes) })
    }
}

/// Sorts the largest first, and merges the smallest so that at most `most` remain.
fn gather(regions: &mut Sizes, most: usize) {
    regions.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    if regions.len() > most {
        let rest = regions.split_off(most.saturating_sub(1));
        let bytes = rest.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        regions.push((format!("{} smaller ones", rest.len()), bytes));
    }
}

/// The name, or as much of its end as there is room for; below it the bytes.
fn lines(name: &str, bytes: u64, rect: &Rect) -> Vec<String> {
    let fits = |text: &str| LETTER * text.chars().count() as f64 + 8.0 <= rect.w;
    let name = name.split(", ").next().unwrap_or(name);
    let (stem, times) = name.split_once(" × ").map_or((name, ""), |(stem, times)| (stem, times));
    let times = if times.is_empty() { String::new() } else { format!(" × {times}") };
    // The end of a name is shown rather than its beginning, which most regions share.
    let ends = std::iter::once(stem).chain(stem.match_indices('.').map(|(at, _)| &stem[at + 1..]));
    let shown = ends.map(|end| format!("{end}{times}")).find(|text| fits(text));
    let bytes = Some(human_bytes(bytes)).filter(|text| fits(text));
    let lines = [shown, bytes].into_iter().flatten();
    lines.take(((rect.h - 4.0).max(0.0) / LINE) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::super::known::Named;
    use super::*;

    fn plan() -> Planned {
        let region = |name: &str, role: &str, layers, bytes, padding| Region {
            name: name.to_owned(),
            role: role.to_owned(),
            dtype: "f32".to_owned(),
            layers,
            bytes,
            padding,
        };
        let mut regions = vec![
            region("a.layers.*.weight", "weight", 4, 4000, 96),
            region("moments", "moment", 1, 8000, 0),
            region("something", "new", 1, 10, 0),
        ];
        regions.extend((1..=40).map(|n| region(&format!("saved.{n}"), "saved", 1, n, 0)));
        let arena_bytes = regions.iter().map(|region| region.bytes + region.padding).sum();
        Planned {
            params: 1,
            arena_bytes,
            regions,
            outside: vec![Named { name: "the program".to_owned(), bytes: 5000 }],
            needed_bytes: 0,
            budget_bytes: None,
            budget_from: String::new(),
            flops_per_token: 0,
            roofline_seconds: 0.0,
            tokens_per_step: 0,
        }
    }

    #[test]
    fn every_byte_is_drawn_and_areas_are_in_proportion() {
        let plan = plan();
        for most in [8, 80] {
            let memory = Memory::of(&plan, most).unwrap();
            assert_eq!(memory.bytes, plan.arena_bytes + 5000);
            assert_eq!(memory.cells.iter().map(|cell| cell.bytes).sum::<u64>(), memory.bytes);
            assert_eq!(memory.parts.iter().map(|part| part.bytes).sum::<u64>(), memory.bytes);
            let names: Vec<_> = memory.parts.iter().map(|part| part.name).collect();
            assert_eq!(names, ["optimizer state", OUTSIDE, "weights", "activations", "state, tables, batch"]);
            for cell in &memory.cells {
                let expected = WIDTH * HEIGHT * cell.bytes as f64 / memory.bytes as f64;
                // Coordinates have two decimals.
                let off = 0.02 * (cell.rect.w + cell.rect.h) + 0.01;
                assert!((cell.rect.w * cell.rect.h - expected).abs() <= off, "{cell:?}: {expected}");
            }
        }
        let few = Memory::of(&plan, 8).unwrap();
        assert!(few.cells.iter().any(|cell| cell.title.contains("33 smaller ones")), "{few:?}");
        let nothing = Planned { regions: Vec::new(), outside: Vec::new(), ..plan };
        assert_eq!(Memory::of(&nothing, 8), None);
    }

    #[test]
    fn names_are_no_wider_than_their_place() {
        let room = |w, h| Rect { x: 0.0, y: 0.0, w, h };
        let name = "gpt_neox.layers.*.mlp.weight × 4, f32";
        assert_eq!(lines(name, 1024, &room(300.0, 50.0)), ["gpt_neox.layers.*.mlp.weight × 4", "1.0 KiB"]);
        assert_eq!(lines(name, 1024, &room(90.0, 50.0)), ["weight × 4", "1.0 KiB"]);
        assert_eq!(lines(name, 1024, &room(90.0, 20.0)), ["weight × 4"]);
        assert!(lines(name, 1024, &room(90.0, 12.0)).is_empty() && lines(name, 1024, &room(20.0, 50.0)).is_empty());
    }
}
