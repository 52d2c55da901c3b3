//! Update rules, and groups of parameters with settings of their own: compared with PyTorch, and in runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use capful_core::device::{Device as _, Op, Reference};
use capful_core::memory::{Arena, Dtype, Region, Space};
use capful_core::ops::{Cut, Lion, MatrixMomentum, MatrixMove, Moved, Orthogonalise, Sgd};
use capful_core::optimizer::{Group, Muon, Rule};
use capful_core::train::{Results, Settings};
use capful_tests::binary::{TINY, directory, host};
use capful_tests::safetensors::{self, Tensor};
use serde_json::Value;

/// Writes `values` to a region of f32 at the beginning of the free part of `words`.
fn lay(words: &mut [u64], used: &mut u64, values: &[f32]) -> Region {
    let region =
        Region { space: Space::Arena, dtype: Dtype::F32, offset: *used, shape: [1, 1, 1, values.len() as u32] };
    *used = region.end().next_multiple_of(8);
    let mut arena = Arena::new(words);
    let [mut view] = arena.views([Some(region)]).unwrap();
    view.f32_mut().unwrap().copy_from_slice(values);
    region
}

fn numbers(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// tests/fixtures/optimizers.json has the results of PyTorch's optimizers for given gradients:
/// tests/peers/optimizer_fixture.py.
#[test]
fn rules_move_as_pytorchs_optimizers() {
    let text = include_str!("../../fixtures/optimizers.json");
    let cases: Value = serde_json::from_str(text).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    for case in cases {
        let (mut words, mut used) = (vec![0u64; 1024], 0);
        let weights = numbers(&case["weights"]);
        let number = |key: &str| case[key].as_f64().unwrap() as f32;
        // Without clipping.
        let settings = Settings { learning_rate: number("lr"), clip: f32::INFINITY, ..Settings::UNIT };
        let gradients = case["gradients"].as_array().unwrap();
        let moved = Moved {
            weight: lay(&mut words, &mut used, &weights),
            remainder: None,
            gradient: lay(&mut words, &mut used, &numbers(&gradients[0])),
            settings: lay(&mut words, &mut used, &<[f32; 16]>::from(settings)),
            results: lay(&mut words, &mut used, &<[f32; 2]>::from(Results { loss: 0.0, squared_norm: 1.0 })),
            group: Group::Matrix,
            rate: 1.0,
            decay: number("weight_decay"),
        };
        let state = lay(&mut words, &mut used, &vec![0.0; weights.len()]);
        let op: Op = match case["rule"].as_str().unwrap() {
            "sgd" => {
                let momentum = number("momentum");
                Sgd { moved, buffer: (momentum > 0.0).then_some(state), momentum }.into()
            }
            "lion" => {
                let [beta1, beta2] = [number("beta1"), number("beta2")];
                Lion { moved, momentum: state, beta1, beta2 }.into()
            }
            other => panic!("{other}"),
        };
        for (gradient, after) in gradients.iter().zip(case["after"].as_array().unwrap()) {
            let mut reference = Reference { arena: Arena::new(&mut words) };
            let [mut view] = reference.arena.views([Some(moved.gradient)]).unwrap();
            view.f32_mut().unwrap().copy_from_slice(&numbers(gradient));
            reference.run(&op).unwrap();
            for (found, expected) in reference.arena.f32(moved.weight).unwrap().iter().zip(numbers(after)) {
                let apart = (found - expected).abs();
                assert!(apart <= 1e-7 + 1e-6 * expected.abs(), "{case}: {found} and {expected}");
            }
        }
    }
    assert!(cases.len() >= 3);
}

/// tests/fixtures/muon.json has torch.optim.Muon's results for matrices, tall, wide and square:
/// tests/peers/muon_fixture.py. It orthogonalises in bf16, so paths of 20 steps agree to a part of their length.
#[test]
fn muon_goes_where_pytorchs_goes() {
    // Number n of [-0.5, 0.5), as in the script.
    let drawn = |n: u64| {
        let x = n.wrapping_mul(747_796_405).wrapping_add(2_891_336_453) as u32;
        let x = ((x >> ((x >> 28) + 4)) ^ x).wrapping_mul(277_803_737);
        f64::from((x >> 22) ^ x) / 2f64.powi(32) - 0.5
    };
    let fixture: Value = serde_json::from_str(include_str!("../../fixtures/muon.json")).unwrap();
    let (cases, steps) = (fixture["cases"].as_array().unwrap(), fixture["steps"].as_u64().unwrap());
    for case in cases {
        let (mut words, mut used) = (vec![0u64; 4096], 0);
        let expected = numbers(&case["after"]);
        let number = |key: &str| case[key].as_f64().unwrap() as f32;
        let (layer, [rows, columns]) = (expected.len() as u64, ["rows", "columns"].map(|key| number(key) as u32));
        let weights: Vec<f32> = (0..layer).map(|i| (2.0 * drawn(i)) as f32).collect();
        let cut = Cut { layers: 1, layer, parts: 1, rows, columns, first: 0, step: rows, run: rows, period: rows };
        let [m, n] = cut.wide();
        let shaped = |region: Region, shape| Region { shape, ..region };
        let mut zeros = |count: u32, shape| shaped(lay(&mut words, &mut used, &vec![0.0; count as usize]), shape);
        let [x, out] = [(); 2].map(|()| zeros(m * n, [1, 1, m, n]));
        let [gram, polynomial] = [(); 2].map(|()| zeros(m * m, [1, 1, m, m]));
        let [momentum, gradient] = [(); 2].map(|()| zeros(m * n, [1, 1, 1, m * n]));
        let settings = zeros(Settings::LEN as u32, [1, 1, 1, Settings::LEN as u32]);
        let results = Results { loss: 0.0, squared_norm: 1.0 };
        let results = lay(&mut words, &mut used, &<[f32; 2]>::from(results));
        let weight = lay(&mut words, &mut used, &weights);
        let group = Group::Matrix;
        let (rate, decay) = (1.0, number("weight_decay"));
        let (remainder, factors) = (None, None);
        let ops: [Op; 3] = [
            MatrixMomentum { gradient, momentum: Some(momentum), out: x, settings, results, group, cut }.into(),
            Orthogonalise { x, out, gram, polynomial }.into(),
            MatrixMove {
                weight,
                remainder,
                x: out,
                factors,
                settings,
                results,
                group,
                cut,
                rate,
                decay,
                cautious: false,
            }
            .into(),
        ];
        let muon = Rule::Muon(Muon { momentum: 0.95, cautious: false, row_norm: false });
        for step in 0..steps {
            let size = |i: u64| 10f64.powi((i / u64::from(columns) % 3) as i32 - 1);
            let of_step = (0..layer).map(|i| (drawn((step + 1) * layer + i) * size(i)) as f32).collect();
            let mut now = Settings { learning_rate: number("lr"), clip: f32::INFINITY, ..Settings::UNIT };
            now.corrections[group.index()] = muon.corrections(step);
            let mut reference = Reference { arena: Arena::new(&mut words) };
            let values = [(gradient, of_step), (settings, <[f32; Settings::LEN as usize]>::from(now).to_vec())];
            for (region, values) in values {
                let [mut view] = reference.arena.views([Some(region)]).unwrap();
                view.f32_mut().unwrap().copy_from_slice(&values);
            }
            ops.iter().for_each(|op| reference.run(op).unwrap());
        }
        let arena = Arena::new(&mut words);
        let found = arena.f32(weight).unwrap();
        let length = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        let (off, way) = (length(found, &expected), length(&expected, &weights));
        assert!(off < 0.01 * way, "{rows} × {columns}: off by {off:e}, and PyTorch's way is {way:e} long");
    }
    assert_eq!(cases.len(), 3);
}

/// Rules, or groups of rules, each with different state.
const KINDS: [(&str, &str); 8] = [
    ("muon", "--optimizer muon --cautious-decay"),
    ("rows", "--optimizer muon --muon-row-norm"),
    // A rank's norm sums other pieces, so a clip would change the last bits.
    ("apart", "--optimizer muon --set kv_heads=1 --set feed=swiglu --muon-momentum 0.9 --clip 0"),
    ("factored", "--optimizer adamw_factored --group head.optimizer=adamw"),
    ("lion", "--optimizer lion --lr 5e-3 --beta2 0.99"),
    ("sgd", "--optimizer sgd --lr 0.05"),
    ("plain", "--optimizer sgd --momentum 0 --lr 0.5"),
    (
        "mixed",
        "--group embedding.optimizer=frozen --group head.optimizer=sgd --group head.lr=10 --group vector.lr=0.5 \
         --group matrix.beta2=0.9",
    ),
];

fn last(dir: &Path, run: &str, step: u32) -> [BTreeMap<String, Tensor>; 2] {
    let checkpoint = dir.join(run).join(format!("checkpoint-{step:08}"));
    ["model.safetensors", "optimizer.safetensors"].map(|name| safetensors::read(&checkpoint.join(name)))
}

fn losses(dir: &Path, run: &str) -> Vec<f64> {
    let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

#[test]
fn runs_of_every_rule_learn_and_go_on_to_the_same_bits_alone_and_as_a_rank() {
    let dir = directory();
    let dir = dir.path();
    for (name, flags) in KINDS {
        let line = format!("train {TINY} {flags} --schedule constant --warmup 1 --threads 1 --log-every 1");
        host(dir, &format!("{line} --steps 12 --out {name}")).ok();
        let losses = losses(dir, name);
        assert!(losses[11] < losses[0] - 0.1, "{name}: {losses:?}");
        host(dir, &format!("{line} --steps 5 --out {name}-on")).ok();
        host(dir, &format!("train --resume --steps 12 --out {name}-on")).ok();
        assert!(last(dir, &format!("{name}-on"), 12) == last(dir, name, 12), "{name}: resumed, other bits");
        // With the layout of a rank, which adds micro-batch by micro-batch: with one micro-batch, the same sums.
        host(dir, &format!("{line} --steps 12 --exact-ranks --out {name}-rank")).ok();
        assert!(last(dir, &format!("{name}-rank"), 12)[0] == last(dir, name, 12)[0], "{name}: as a rank, other bits");
    }
}

#[test]
fn decay_that_follows_the_rate_changes_a_run_only_where_the_rate_falls() {
    let dir = directory();
    let dir = dir.path();
    // The constant rate is the highest from the first step on.
    for (name, schedule, same) in
        [("constant", "--schedule constant --warmup 0", true), ("linear", "--schedule linear", false)]
    {
        let line = format!("train {TINY} {schedule} --optimizer muon --weight-decay 0.5 --threads 1 --steps 4");
        host(dir, &format!("{line} --out {name}")).ok();
        host(dir, &format!("{line} --decay-follows-rate --out {name}-follows")).ok();
        assert_eq!(last(dir, name, 4) == last(dir, &format!("{name}-follows"), 4), same, "{name}");
    }
}

#[test]
fn a_rule_keeps_what_it_says_and_what_is_frozen_stays_as_it_was() {
    let dir = directory();
    let dir = dir.path();
    let plan = |flags: &str| {
        let plan = host(dir, &format!("plan {TINY} {flags} --json")).planned().json();
        let role = |role: &str| -> u64 {
            let entries = plan["regions"].as_array().unwrap().iter().filter(|line| line["role"] == role);
            entries.map(|line| line["bytes"].as_u64().unwrap()).sum()
        };
        [role("gradient"), role("moment")]
    };
    let [gradients, moments] = plan("");
    assert_eq!(moments, 2 * gradients);
    assert_eq!(plan("--optimizer sgd"), [gradients, gradients]);
    assert_eq!(plan("--optimizer sgd --momentum 0"), [gradients, 0]);
    assert_eq!(plan("--optimizer lion"), [gradients, gradients]);
    // One state for matrices, two for the rest.
    let [_, of_muon] = plan("--optimizer muon");
    assert!((gradients..moments).contains(&of_muon), "{of_muon} of {gradients}");
    // And a number for each row: of queries, keys and values, of attention's output, up and down.
    let rows = 48 + 16 + 32 + 16;
    assert_eq!(plan("--optimizer muon --muon-row-norm"), [gradients, of_muon + 4 * rows]);
    let table = 4 * 300u64.next_multiple_of(64) * 16;
    let [some, _] = plan("--group embedding.optimizer=frozen");
    assert!((gradients - table..gradients).contains(&some), "{some} of {gradients}");
    // For matrices and tables a number for each row and each column of the padded table instead of the second moments.
    let (table, sides) = (300 * 16, 320 + 16);
    let kept = of_muon - 4 * (table * 2) + 4 * (rows + 16 + 16 + 16 + 32 + 2 * sides);
    assert_eq!(plan("--optimizer adamw_factored"), [gradients, kept]);

    let (_, mixed) = KINDS[KINDS.len() - 1];
    host(dir, &format!("train {TINY} {mixed} --steps 3 --save-every 1 --keep 9 --out run")).ok();
    let [[first, _], [after, optimizer]] = [1, 3].map(|step| last(dir, "run", step));
    for (name, tensor) in &first {
        let frozen = name.contains("embed_in");
        assert_eq!(after[name] == *tensor, frozen, "{name}");
        let kept = |prefix: &str| optimizer.contains_key(&format!("{prefix}{name}"));
        let head = name.contains("embed_out");
        assert_eq!([kept("first_moment."), kept("second_moment.")], [!frozen && !head; 2], "{name}");
        assert_eq!(kept("momentum."), head, "{name}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused_and_leave_nothing() {
    let dir = directory();
    for (flags, says) in [
        ("--optimizer adam", "there are adamw"),
        ("--optimizer muon --momentum 0.5", "muon takes no momentum"),
        ("--cautious-decay", "only muon takes it"),
        ("--muon-row-norm", "--muon-row-norm: only muon takes it"),
        ("--group embedding.optimizer=muon", "it moves matrices only, which are the group matrix"),
        (
            "--group vector.optimizer=adamw_factored",
            "it moves matrices only, which are the groups matrix, embedding, head",
        ),
        (
            "--preset neurogen-tiny --group synapse.optimizer=adamw_factored",
            "it moves matrices only, which are the groups matrix, embedding, head",
        ),
        ("--optimizer adamw_factored --momentum 0.5", "adamw_factored takes no momentum"),
        (
            "--group embedding.optimizer=adamw_factored --states 8bit",
            "--states 8bit: adamw_factored keeps blocks of 128 columns, and gpt_neox.embed_in.weight has 16 of them; use \
             --states f32, or --group embedding.optimizer=adamw",
        ),
        ("--momentum 0.5", "adamw takes no momentum"),
        ("--optimizer sgd --beta1 0.5", "sgd takes no beta1"),
        ("--group vector.optimizer=frozen", "biases and gains always learn"),
        ("--group head.optimizer=frozen", "the table that makes the logits always learns"),
        ("--group synapse.lr=2", "this model has the groups"),
        ("--group bias.lr=2", "there are the groups matrix"),
        ("--group matrix=2", "GROUP.KEY=VALUE"),
        ("--preset neurogen-tiny --group embedding.lr=2", "this model has the groups"),
    ] {
        let preset = if flags.contains("--preset") { "" } else { TINY };
        host(dir.path(), &format!("train {preset} {flags} --out run")).refused(2, &[says]);
        assert!(!dir.path().join("run").exists(), "{flags}");
    }
    host(dir.path(), &format!("train {TINY} --optimizer sgd --steps 2 --out run")).ok();
    let says = ["--optimizer cannot change when a run goes on"];
    host(dir.path(), "train --resume --optimizer adamw --steps 4 --out run").refused(2, &says);
    host(dir.path(), &format!("train {TINY} --optimizer muon --steps 2 --out muon")).ok();
    let says = ["--muon-row-norm cannot change when a run goes on"];
    host(dir.path(), "train --resume --muon-row-norm --steps 4 --out muon").refused(2, &says);
}
