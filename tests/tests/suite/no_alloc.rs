//! The core needs no allocator: a program without one that trains a Pythia in storage on its stack links and runs.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use capful_tests::oracle::Batch;
use capful_tests::oracle::differences::wave;
use capful_tests::oracle::transformer::{Config, loss};

/// One micro-batch, an update and another micro-batch without std, without an allocator, without unwinding panics.
/// Exits with 0 if the loss is as expected and decreases.
const PROGRAM: &str = r#"
#![no_std]
#![no_main]
use capful_core::device::{Reference, Single};
use capful_core::memory::{Arena, Entry, Layout, Region, Role};
use capful_core::model::{Family, FirstValues, Products, Purpose, Recompute, MicroBatch, Transformer};
use capful_core::ops::{Chance, Pattern};
use capful_core::optimizer::Optimizer;
use capful_core::train::{Ranks, Results, Settings};

#[link(name = "c")]
unsafe extern "C" {}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

const EXPECTED: f64 = EXPECTED_LOSS;

fn floats<'a>(arena: &'a mut Arena<'_>, region: Region, write: impl Fn(usize) -> f32) {
    if let Ok([mut view]) = arena.views([Some(region)]) {
        view.f32_mut().into_iter().flatten().enumerate().for_each(|(i, x)| *x = write(i));
    }
}

fn ids(arena: &mut Arena<'_>, region: Region, write: impl Fn(u32) -> u32) {
    if let Ok([mut view]) = arena.views([Some(region)]) {
        view.u32_mut().into_iter().flatten().zip(0..).for_each(|(x, i)| *x = write(i));
    }
}

fn train() -> Option<()> {
    let model = Transformer {
        layers: 2, d_model: 16, heads: 2, kv_heads: 2, head_size: 8, d_ff: 24, vocab_size: 19, context: 12,
        rotary_dims: 2,
        ..Transformer::GPT_NEOX
    };
    let stage = MicroBatch { batch: 2, seq_len: 6, chunk: 5, recompute: Recompute::CHEAP, pattern: Pattern::DENSE, products: Products::Wide, dropout: Chance::NONE, documents: false };
    model.validate().ok()?;
    model.validate_micro_batch(&stage).ok()?;
    let mut entries = [None::<Entry>; 128];
    let mut count = 0;
    let mut note = |entry: &Entry| {
        if let Some(place) = entries.get_mut(count) {
            *place = Some(*entry);
        }
        count += 1;
    };
    let mut layout = Layout::new(&mut note);
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    let lasting = model.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
    let training = model.lay_training(&stage, &Single, &mut layout);
    let bytes = layout.high_water().ok()?;
    let mut storage = [0u64; 24 << 10];
    let storage = storage.get_mut(..bytes as usize / 8)?;
    let mut device = Reference { arena: Arena::new(storage) };
    let arena = &mut device.arena;
    let mut number = 0;
    for entry in entries.iter().flatten() {
        if entry.slot.role == Role::Weight {
            let one = if entry.slot.name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            for layer in 0..entry.slot.layers {
                let n = number as f64;
                floats(arena, entry.place.at(layer), |i| {
                    (one + 0.2 * libm::sin(0.37 * (i as f64 * i as f64) + n)) as f32
                });
                number += 1;
            }
        }
        if entry.slot.role == Role::Constant {
            let values = FirstValues::new(&entry.slot, 0, 0);
            floats(arena, entry.place.first, |i| values.at(i as u64));
        }
    }
    let batch = Transformer::training_batch(&training);
    ids(arena, batch.ids, |i| i * 7 % 19);
    ids(arena, batch.targets, |i| (i * 7 + 3) % 19);
    let control = lasting.control;
    let mut losses = [0.0; 2];
    for (step, loss) in (0..).zip(&mut losses) {
        let settings = <[f32; 16]>::from(Settings::of(step, 1e-2, &optimizer, 1.0, 12));
        floats(&mut device.arena, control.settings, |i| settings[i]);
        model.micro_batch(&mut device, &lasting, &training, &stage, true).ok()?;
        model.update(&mut device, &lasting, None).ok()?;
        *loss = f64::from(Results::from_slice(device.arena.f32(control.results).ok()?).ok()?.loss);
    }
    let right = (losses[0] - EXPECTED).abs() < 1e-4 * EXPECTED && losses[1] < losses[0] - 0.01;
    right.then_some(())
}

#[unsafe(no_mangle)]
pub extern "C" fn main() -> i32 {
    CONTROL
    if train().is_some() { 0 } else { 7 }
}
"#;

const MANIFEST: &str = r#"
[package]
name = "no-alloc"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
capful-core = { path = "CORE" }
libm = { version = "*", default-features = false }

[profile.release]
panic = "abort"
lto = true

[workspace]
"#;

/// A crate of this name with two programs, `proof` and `control`, which differ by one vector.
fn write_crate(expected: f64, name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(dir.join("src/bin")).unwrap();
    let core = tests.join("../core").canonicalize().unwrap();
    fs::write(dir.join("Cargo.toml"), MANIFEST.replace("CORE", core.to_str().unwrap())).unwrap();
    // The workspace's own versions, so that nothing is downloaded.
    fs::copy(tests.join("../Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    let program = PROGRAM.replace("EXPECTED_LOSS", &format!("{expected:?}"));
    fs::write(dir.join("src/bin/proof.rs"), program.replace("CONTROL", "")).unwrap();
    let control = "extern crate alloc;\n    let kept = alloc::vec::Vec::<u64>::with_capacity(512);\n    \
                   core::hint::black_box(&kept);";
    fs::write(dir.join("src/bin/control.rs"), program.replace("CONTROL", control)).unwrap();
    dir
}

fn cargo(dir: &Path, command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([command, "--offline", "--quiet"]).current_dir(dir);
    cargo.arg("--target-dir").arg(dir.join("target")).env_remove("RUSTFLAGS").env_remove("RUSTC_WORKSPACE_WRAPPER");
    cargo
}

fn build(dir: &Path, name: &str) -> Output {
    cargo(dir, "build").args(["--release", "--bin", name]).output().expect("cargo runs")
}

/// The code of the page about the core, one block after the other, and that of the README in a function.
fn documented() -> String {
    let library = code(include_str!("../../../docs/library.md"));
    let front = code(include_str!("../../../README.md"));
    format!(
        "{library}
/// The front page.
#[allow(unused)]
pub fn front() -> Result<u64, capful_core::memory::LayoutError> {{
    {front}
    Ok(bytes)
}}"
    )
}

fn code(page: &str) -> String {
    page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The loss that the program must compute, from the f64 oracle: weights by the same formula, numbered in the order of
/// the layout.
fn expected_loss() -> f64 {
    let config = Config::pythia(2, 16, 2, 24, 19);
    let laid = [
        "gpt_neox.embed_in.weight",
        "*.attention.query_key_value.weight",
        "*.attention.dense.weight",
        "*.mlp.dense_h_to_4h.weight",
        "*.mlp.dense_4h_to_h.weight",
        "embed_out.weight",
        "*.input_layernorm.weight",
        "*.input_layernorm.bias",
        "*.post_attention_layernorm.weight",
        "*.post_attention_layernorm.bias",
        "*.attention.query_key_value.bias",
        "*.attention.dense.bias",
        "*.mlp.dense_h_to_4h.bias",
        "*.mlp.dense_4h_to_h.bias",
        "gpt_neox.final_layer_norm.weight",
        "gpt_neox.final_layer_norm.bias",
    ];
    let mut weights = config.formula_weights(0.0);
    let mut number = 0;
    for name in laid {
        let names = match name.strip_prefix('*') {
            Some(tail) => (0..2).map(|l| format!("gpt_neox.layers.{l}{tail}")).collect(),
            None => vec![name.to_owned()],
        };
        for name in names {
            let one = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            let data = &mut weights.get_mut(&name).unwrap().data;
            data.iter_mut().enumerate().for_each(|(i, x)| *x = f64::from((one + 0.2 * wave(number, i)) as f32));
            number += 1;
        }
    }
    assert_eq!(number, weights.len());
    let inputs: Vec<u32> = (0..12).map(|i| i * 7 % 19).collect();
    let targets: Vec<u32> = (0..12).map(|i| (i * 7 + 3) % 19).collect();
    loss(&config, &weights, Batch { inputs: &inputs, targets: &targets, length: 6 })
}

#[test]
fn a_program_without_an_allocator_trains_a_pythia() {
    let dir = write_crate(expected_loss(), "no_alloc");
    let built = build(&dir, "proof");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(dir.join("target/release/proof")).status().expect("it runs");
    assert_eq!(ran.code(), Some(0), "the loss is not the oracle's or does not fall");

    // The same program with one vector does not link: it has no allocator.
    let refused = build(&dir, "control");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("no global memory allocator"), "{message}");
}

#[test]
fn the_code_of_the_documentation_compiles() {
    let dir = write_crate(0.0, "documented");
    fs::write(dir.join("src/lib.rs"), documented()).unwrap();
    let mut check = cargo(&dir, "check");
    let checked = check.arg("--lib").env("RUSTFLAGS", "-D warnings").output().expect("cargo runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
