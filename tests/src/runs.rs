//! The results of a run in its directory.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The logged training losses of the run `run` in `dir`, and its last validation loss.
pub fn losses(dir: &Path, run: &str) -> (Vec<f64>, f64) {
    let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| lines.iter().filter_map(|line| line[key].as_f64()).collect::<Vec<_>>();
    (of("loss"), *of("val_loss").last().unwrap())
}

/// The file of its weights after this many steps.
pub fn weights(dir: &Path, run: &str, step: u32) -> Vec<u8> {
    fs::read(dir.join(format!("{run}/checkpoint-{step:08}/model.safetensors"))).unwrap()
}
