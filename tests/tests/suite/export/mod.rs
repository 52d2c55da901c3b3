//! `host export` to other programs: `tensors` are the checkpoint's, row by row; `files` are complete or not written at
//! all, and models that another format cannot represent are refused; a tokenizer and a card are written as well:
//! `words`.

#![cfg(unix)]

mod files;
mod tensors;
mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capful_tests::binary::{Outcome, command, directory, forget_digests, host, host_with};
use capful_tests::gguf::{Gguf, Value as Meta};
use capful_tests::safetensors::{self, Tensor};
use serde_json::{Value, json};

/// Two layers of odd sizes: 2 query heads of 16, so that no two kinds of matrices have the same shape.
const SIZES: &str = "--set layers=2 --set d_model=32 --set heads=2 --set d_ff=48 --set context=64 --tokenizer byte \
                     --vocab-size 262 --seq-len 32 --batch-size 2 --eval-tokens 500 --baseline-tokens 0 --seed 3 \
                     --threads 1";

/// Trains a run of two steps; returns its last checkpoint.
fn train(dir: &Path, flags: &str) -> PathBuf {
    host(dir, &format!("train --json --steps 2 --out run {SIZES} {flags}")).ok();
    dir.join("run/checkpoint-00000002")
}

fn checkpoint(dir: &Path) -> BTreeMap<String, Tensor> {
    safetensors::read(&dir.join("run/checkpoint-00000002/model.safetensors"))
}

fn export(dir: &Path, flags: &str) -> Outcome {
    host(dir, &format!("export --run run {flags}"))
}

/// The files that `--to hf` wrote for a run: its tensors and its config.json.
fn hugging_face(dir: &Path, flags: &str) -> (BTreeMap<String, Tensor>, Value) {
    export(dir, &format!("--to hf out {flags}")).ok();
    let out = dir.join("out");
    let config = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    (safetensors::read(&out.join("model.safetensors")), config)
}

fn gguf(dir: &Path, flags: &str) -> Gguf {
    export(dir, &format!("--to gguf out.gguf {flags}")).ok();
    let file = Gguf::read(&fs::read(dir.join("out.gguf")).unwrap());
    fs::remove_file(dir.join("out.gguf")).unwrap();
    file
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
