//! Optimizer states in 8 bits, and masters in 24: their bytes, their numbers, and resumed runs.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use capful_tests::runs::losses;
use capful_tests::safetensors;

const RUN: &str = "--json --schedule constant --warmup 1 --lr 0.01 --log-every 1 --save-every 1 --keep 99 --data tales";
/// Bytes of a block of 128 numbers.
const BYTES: usize = 132;

fn file(run: &Path, step: u32, name: &str) -> Vec<u8> {
    fs::read(run.join(format!("checkpoint-{step:08}/{name}"))).unwrap()
}

/// The numbers of blocks in f64, by the formulas in the configuration's documentation.
fn decoded(bytes: &[u8], square: bool) -> Vec<[f64; 2]> {
    let (blocks, rest) = bytes.as_chunks::<BYTES>();
    assert!(rest.is_empty());
    let number = |scale: f64, code: u8| {
        let (c, step) =
            if square { (f64::from(code) / 255.0, 1.0 / 255.0) } else { (f64::from(code as i8) / 127.0, 1.0 / 127.0) };
        // A number, and the distance to its neighbours.
        let of = |c: f64| if square { scale * c.powi(4) } else { scale * c / (2.0 - c.abs()) };
        [of(c), (of(c.abs() + step) - of(c.abs())).abs()]
    };
    let block = |block: &[u8; BYTES]| {
        let scale = f64::from(f32::from_le_bytes(block[..4].try_into().unwrap()));
        block[4..].iter().map(|code| number(scale, *code)).collect::<Vec<_>>()
    };
    blocks.iter().flat_map(block).collect()
}

#[test]
fn a_step_from_zero_moves_as_with_f32_and_keeps_the_nearest_codes() {
    let dir = directory();
    for (preset, second) in [("pythia-tiny", "second_moment."), ("neurogen-tiny --seq-len 16", "second_moment.")] {
        let tiny = if preset.starts_with("neuro") {
            "--set embedding=16 --batch-size 4 --eval-tokens 500 --baseline-tokens 0"
        } else {
            TINY
        };
        for (out, states) in [("f32", ""), ("coded", "--states 8bit")] {
            let _ = fs::remove_dir_all(dir.path().join(out));
            host(dir.path(), &format!("train --preset {preset} {tiny} {RUN} --steps 1 {states} --out {out}")).ok();
        }
        let at = |run: &str, name| dir.path().join(run).join("checkpoint-00000001").join(name);
        assert!(
            file(&dir.path().join("f32"), 1, "model.safetensors")
                == file(&dir.path().join("coded"), 1, "model.safetensors")
        );
        let [exact, coded] = ["f32", "coded"].map(|run| safetensors::read(&at(run, "optimizer.safetensors")));
        let mut compared = 0;
        for (name, tensor) in
            coded.iter().filter(|(name, _)| name.starts_with("first_moment.") || name.starts_with(second))
        {
            // For several tensors in a table, the first one's name stands for the whole table.
            let Some(expected) = exact.get(name).map(|tensor| tensor.numbers()) else { panic!("{name} is not there") };
            let found = decoded(&tensor.bytes, name.starts_with(second));
            assert!(found.len() >= expected.len(), "{name}");
            for (x, [y, step]) in expected.iter().zip(found) {
                assert!((f64::from(*x) - y).abs() <= 0.55 * step, "{name}: {x} is kept as {y}");
                compared += usize::from(y != 0.0);
            }
        }
        assert!(compared > 1000, "{preset}: {compared}");
    }
}

#[test]
fn runs_go_on_and_end_where_those_with_f32_end() {
    let dir = directory();
    for preset in ["pythia-tiny", "quick-tiny"] {
        let run = |more: &str| host(dir.path(), &format!("train --preset {preset} {TINY} {RUN} {more}")).ok();
        let name = |what: &str| format!("{preset}-{what}");
        run(&format!("--steps 60 --out {}", name("f32")));
        run(&format!("--steps 60 --states 8bit --threads 1 --out {}", name("coded")));
        run(&format!("--steps 25 --states 8bit --threads 2 --out {}", name("parts")));
        run(&format!("--steps 60 --resume --threads 2 --out {}", name("parts")));
        for part in ["model.safetensors", "optimizer.safetensors"] {
            let [whole, parts] = ["coded", "parts"].map(|what| file(&dir.path().join(name(what)), 60, part));
            assert!(whole == parts, "{preset}: {part}");
        }
        let [(exact, _), (coded, _)] = ["f32", "coded"].map(|what| losses(dir.path(), &name(what)));
        let mean = |all: &[f64]| all[all.len() - 20..].iter().sum::<f64>() / 20.0;
        assert!(mean(&exact) < exact[0] - 0.5 && exact != coded, "{preset}");
        assert!((mean(&coded) / mean(&exact) - 1.0).abs() < 0.01, "{preset}: {} and {}", mean(&coded), mean(&exact));
    }
    host(dir.path(), &format!("train {TINY} --masters f24 --steps 1 --out other"))
        .refused(2, &["--masters f24: in f32 weights are their own masters"]);
    let line = format!("plan {TINY} --gpu h200 --precision bf16 --masters bf16 --ema 0.9");
    host(dir.path(), &line).refused(2, &["--masters bf16: --ema and --average are of masters"]);
    host(dir.path(), &format!("train {TINY} --states 4bit --steps 1 --out other")).refused(2, &["4bit"]);
}

/// A step computes its states in f32 before it stores them. So the second step of a run in 8 bits updates weights as
/// one in f32 does that begins with the first step's stored states, and the first step of one in f32 stores the numbers
/// that one in 8 bits would encode.
#[test]
fn states_of_a_checkpoint_become_those_of_the_run() {
    let dir = directory();
    for preset in ["pythia-tiny", "llama-tiny", "quick-tiny", "neurogen-tiny"] {
        let tiny = if preset.starts_with("neuro") {
            "--set embedding=16 --batch-size 4 --seq-len 16 --eval-tokens 500 --baseline-tokens 0"
        } else {
            TINY
        };
        let name = |what: &str| format!("{preset}-{what}");
        let run = |more: &str| host(dir.path(), &format!("train --preset {preset} {tiny} {RUN} {more}")).ok();
        run(&format!("--steps 2 --states 8bit --out {}", name("coded")));
        run(&format!("--steps 1 --states f32 --out {}", name("to-8bit")));
        run(&format!("--steps 1 --states 8bit --out {}", name("to-f32")));
        for states in ["8bit", "f32"] {
            let went_on = run(&format!("--steps 2 --resume --states {states} --out {}", name(&format!("to-{states}"))));
            assert!(went_on.err.contains(&format!(", this run in {states}: they are converted")), "{}", went_on.err);
            let again =
                host(dir.path(), &format!("train --resume --steps 3 --out {}", name(&format!("to-{states}")))).ok();
            assert!(!again.err.contains("they are converted"), "{}", again.err);
        }
        let [coded, to_8bit, to_f32] = ["coded", "to-8bit", "to-f32"].map(|what| dir.path().join(name(what)));
        for other in [&to_8bit, &to_f32] {
            assert!(file(&coded, 2, "model.safetensors") == file(other, 2, "model.safetensors"), "{}", other.display());
        }
        assert!(file(&coded, 2, "optimizer.safetensors") == file(&to_8bit, 2, "optimizer.safetensors"), "{preset}");
    }
}

/// Momenta in 8 bits together with moments of rows and columns, which stay f32: on 128 columns.
#[test]
fn moments_of_rows_and_columns_go_on_beside_momenta_in_8_bits() {
    let dir = directory();
    let wide = "--set d_model=128 --set d_ff=128 --optimizer adamw_factored";
    let schedule = RUN.replace("--lr 0.01", "--lr 2e-3");
    let run = |more: &str| host(dir.path(), &format!("train --preset pythia-tiny {TINY} {schedule} {more}")).ok();
    run(&format!("{wide} --steps 40 --out f32"));
    run(&format!("{wide} --steps 40 --states 8bit --threads 1 --out coded"));
    run(&format!("{wide} --steps 15 --states 8bit --threads 2 --ema 0.9 --out parts"));
    host(dir.path(), "train --resume --steps 40 --threads 2 --out parts").ok();
    for part in ["model.safetensors", "optimizer.safetensors"] {
        let [whole, parts] = ["coded", "parts"].map(|what| file(&dir.path().join(what), 40, part));
        assert!(whole == parts, "{part}");
    }
    let kept = safetensors::read(&dir.path().join("coded/checkpoint-00000040/optimizer.safetensors"));
    let name = "gpt_neox.layers.0.attention.query_key_value.weight";
    assert_eq!(kept[&format!("first_moment.{name}")].bytes.len(), 3 * 128 * BYTES);
    assert_eq!(kept[&format!("row_column_square.{name}")].numbers().len(), 3 * 128 + 128);
    assert!(!kept.contains_key(&format!("second_moment.{name}")));
    let [(exact, _), (coded, _)] = ["f32", "coded"].map(|what| losses(dir.path(), what));
    let mean = |all: &[f64]| all[all.len() - 10..].iter().sum::<f64>() / 10.0;
    assert!(mean(&exact) < exact[0] - 0.5 && exact != coded, "{exact:?}");
    assert!((mean(&coded) / mean(&exact) - 1.0).abs() < 0.01, "{} and {}", mean(&coded), mean(&exact));
}

/// Bytes of the roles that training stores, by `host plan`.
fn bytes(flags: &str) -> f64 {
    let dir = directory();
    let line = format!(
        "plan --preset pythia-70m --vocab-size 10000 --gpu h200 --precision bf16 --gradients bf16 {flags} --json"
    );
    let plan = host(dir.path(), &line).ok().json();
    let regions = plan["regions"].as_array().unwrap();
    let of = |role: &str| -> f64 {
        regions
            .iter()
            .filter(|r| r["role"] == role)
            .map(|r| r["bytes"].as_f64().unwrap() + r["padding"].as_f64().unwrap())
            .sum()
    };
    let all: f64 = ["weight", "gradient", "master", "moment"].map(of).iter().sum();
    all / plan["params"].as_f64().unwrap()
}

#[test]
fn adamw_keeps_7_bytes_a_parameter() {
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
    // Including the rows that pad the vocabulary.
    let all = bytes("");
    assert!((14.0..14.05).contains(&all));
    near(bytes("--states 8bit") / all, (6.0 + 2.0 * 132.0 / 128.0) / 14.0);
    near(bytes("--states 8bit --masters f24") / all, (5.0 + 2.0 * 132.0 / 128.0) / 14.0);
    near(bytes("--states 8bit --masters bf16") / all, (4.0 + 2.0 * 132.0 / 128.0) / 14.0);
    // A number for each row and column of a layer's matrices and of the padded tables instead of 1.03 bytes for each
    // element.
    let (matrices, tables) = (6 * (4 + 8) * 512 * 512, 2 * 10_048 * 512);
    let sides = 6 * ((1536 + 512) + (512 + 512) + 2 * (2048 + 512)) + 2 * (10_048 + 512);
    let parameters = f64::from(6 * (12 * 512 * 512 + 13 * 512) + 1024 + 2 * 10_000 * 512);
    let [all, factored] = ["", " --optimizer adamw_factored"].map(|more| bytes(&format!("--states 8bit{more}")));
    let less = f64::from(matrices + tables) * 132.0 / 128.0 - f64::from(4 * sides);
    near((all - factored) * parameters / less, 1.0);
    let of_matrices = "--states 8bit --masters f24 --optimizer muon";
    assert!(bytes(of_matrices) < bytes("--states 8bit --masters f24") - 0.3);
}
