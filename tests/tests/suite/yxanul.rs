//! The whole Yxanul on every device of this machine compared with the f64 oracle: factorised, plain and untied.

use std::fs;

use capful_core::model::Recompute;
use capful_host::device::AnyProfile;
use capful_host::run::Rows;
use capful_tests::binary::{TINY, directory, host};
use capful_tests::model::{LEVELS, Model, PATTERNS, assert_gradients, devices, tokens};
use capful_tests::oracle::attention::Pattern;
use capful_tests::oracle::differences::{relative_error, wave};
use capful_tests::oracle::llama_fixture;
use capful_tests::oracle::tensor::{Tensor, Tensors};
use capful_tests::oracle::train::Recipe;
use capful_tests::oracle::transformer::{Config, logits, loss, loss_and_gradients};
use capful_tests::oracle::{Batch, IGNORE, train};
use serde_json::Value;

const VOCAB: usize = 77;

/// Small and odd: 6 query heads of 4 dims on 2 key heads, a feed-forward of 23; 77 ids in 128 rows.
fn odd(attention: Pattern) -> Config {
    Config { rank: Some(5), attention, ..Config::llama(3, 24, 6, 2, 23, VOCAB) }
}

/// The three kinds of embeddings and heads.
fn kinds(attention: Pattern) -> [Config; 3] {
    let odd = odd(attention);
    [odd, Config { rank: None, ..odd }, Config { rank: None, tied: false, kv_heads: 6, ..odd }]
}

/// Two blocks of 16 and a short one, in 2 sequences.
const LENGTH: usize = 37;

#[test]
fn loss_and_every_gradient_are_the_oracles() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for config in PATTERNS.into_iter().flat_map(kinds) {
        let weights = config.formula_weights(0.4);
        let (expected_loss, expected) = loss_and_gradients(&config, &weights, batch);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::NONE);
            let got = model.loss(batch);
            let what = format!("{name}, {config:?}");
            assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{what}: {got}, {expected_loss} expected");
            assert_gradients(&what, &model.tensors("gradient."), &expected, 1e-4);
        }
    }
}

#[test]
fn recomputation_changes_no_bit_and_neither_do_threads() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for config in kinds(Pattern::Mixed { block: 16 }) {
        let weights = config.formula_weights(0.4);
        let run = |device: &AnyProfile, recompute| {
            let mut model = Model::new(device, &config, &weights, 2, LENGTH, recompute);
            let loss = model.loss(batch);
            (loss.to_bits(), model.bits("gradient."))
        };
        let [reference, one, two] = devices().map(|(_, device)| LEVELS.map(|level| run(&device, level)));
        for levels in [&reference, &one] {
            assert!(levels[0].1.iter().all(|(_, bits)| bits.iter().any(|&b| b != 0)));
            assert!(levels[0] == levels[1], "cheap differs");
            assert!(levels[0] == levels[2], "full differs");
        }
        assert!(one == two, "two threads differ from one");
    }
}

#[test]
fn micro_batches_add_up_to_one_large_batch() {
    let (inputs, targets) = tokens(3 * LENGTH, VOCAB as u32);
    let part = |i: usize| Batch {
        inputs: &inputs[i * LENGTH..][..LENGTH],
        targets: &targets[i * LENGTH..][..LENGTH],
        length: LENGTH,
    };
    for config in kinds(Pattern::Dense) {
        let weights = config.formula_weights(0.4);
        for (name, device) in devices() {
            let mut large = Model::new(&device, &config, &weights, 3, LENGTH, Recompute::NONE);
            let whole = large.loss(Batch { inputs: &inputs, targets: &targets, length: LENGTH });
            let expected = large.tensors("gradient.");
            for level in LEVELS {
                let mut small = Model::new(&device, &config, &weights, 1, LENGTH, level);
                // A previous step has no effect.
                small.loss(part(2));
                let sum = small.losses(&[part(0), part(1), part(2)]);
                assert!((sum - whole).abs() <= 1e-6 * whole, "{name}: {sum}, {whole}");
                assert_gradients(name, &small.tensors("gradient."), &expected, 1e-5);
            }
        }
    }
}

#[test]
fn an_update_moves_every_weight_as_the_oracle_does() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    let batches = [(batch, 0.002), (batch, 0.01), (batch, 0.005)];
    for config in kinds(Pattern::Dense) {
        let mut expected = train::Training::new(config.formula_weights(0.1));
        train::train(&config, &mut expected, Recipe::pythia(), &batches);
        for (name, device) in devices() {
            let weights = config.formula_weights(0.1);
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::FULL);
            for (i, &(batch, lr)) in batches.iter().enumerate() {
                model.step(i as i32 + 1, lr, batch);
            }
            for (prefix, expected) in
                [("", &expected.weights), ("first_moment.", &expected.first), ("second_moment.", &expected.second)]
            {
                let got = model.tensors(prefix);
                for (tensor, expected) in expected {
                    let error = relative_error(&got[tensor].data, &expected.data);
                    assert!(error <= 1e-3, "{name}: {prefix}{tensor}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn decoding_gives_the_logits_of_an_evaluation_and_of_the_oracle() {
    let (inputs, _) = tokens(LENGTH, VOCAB as u32);
    for config in PATTERNS.into_iter().flat_map(kinds) {
        let weights = config.formula_weights(0.4);
        let expected = logits(&config, &weights, &inputs, LENGTH);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::NONE);
            let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
            for (way, got) in [("evaluation", wide(model.logits(&inputs))), ("decoding", wide(model.decoded(&inputs)))]
            {
                let error = relative_error(&got, &expected);
                assert!(error <= 1e-5, "{name}, {config:?}, {way}: {error:e}");
            }
        }
    }
}

#[test]
fn an_evaluation_scores_what_the_oracle_does() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    for config in kinds(Pattern::Dense) {
        let weights = config.formula_weights(0.4);
        let mean = loss(&config, &weights, Batch { inputs: &inputs, targets: &targets, length: LENGTH });
        let expected = mean * targets.iter().filter(|&&t| t != IGNORE).count() as f64;
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::NONE);
            let got =
                model.session.evaluate(Rows { ids: &inputs, targets: &targets, offsets: &[] }).expect("an evaluation");
            assert!((got - expected).abs() <= 1e-5 * expected, "{name}: {got}, {expected} expected");
        }
    }
}

#[test]
fn a_later_token_changes_no_earlier_logit() {
    let (inputs, _) = tokens(LENGTH, VOCAB as u32);
    let config = odd(Pattern::Dense);
    let weights = config.formula_weights(0.4);
    for (name, device) in devices() {
        let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::NONE);
        let base = model.logits(&inputs);
        for changed in [0, 1, 15, 16, LENGTH - 1] {
            let mut inputs = inputs.clone();
            inputs[changed] = (inputs[changed] + 1) % VOCAB as u32;
            let now = model.logits(&inputs);
            let (before, own) = (changed * VOCAB, changed * VOCAB + VOCAB);
            assert_eq!(now[..before], base[..before], "{name}, {changed}");
            assert_ne!(now[before..own], base[before..own], "{name}, {changed}");
        }
    }
}

#[test]
fn twenty_steps_follow_transformers() {
    let cases = llama_fixture::cases();
    assert_eq!(cases.len(), 7);
    for case in &cases {
        for (name, device) in devices() {
            let what = format!("{name}, {:?}", case.config);
            let mut model = Model::new(&device, &case.config, &case.weights(), 2, case.length, Recompute::NONE);
            let show = |model: &mut Model, expected: &[f64], apart: f64| {
                let both = [case.prompt(), case.prompt()].concat();
                let got = model.logits(&both);
                for (got, expected) in got.iter().zip(expected) {
                    assert!((f64::from(*got) - expected).abs() <= apart, "{what}: {got}, transformers {expected}");
                }
            };
            show(&mut model, &case.logits[0], 1e-4);
            for (i, (batch, lr)) in case.batches().into_iter().enumerate() {
                let loss = model.step(i as i32 + 1, lr, batch);
                let theirs = case.losses[i];
                assert!((loss - theirs).abs() <= 1e-4, "{what}, step {i}: {loss}, transformers {theirs}");
                if i > 0 {
                    continue;
                }
                for (tensor, gradient) in model.tensors("gradient.") {
                    let [norm, along] = case.first_gradients[&tensor];
                    let g = gradient.data.iter();
                    let got_norm = g.clone().map(|g| g * g).sum::<f64>().sqrt();
                    let got_along: f64 = g.enumerate().map(|(i, g)| g * wave(1, i)).sum();
                    assert!((got_norm - norm).abs() <= 1e-4 * norm, "{what}: {tensor}: {got_norm}, theirs {norm}");
                    assert!((got_along - along).abs() <= 1e-4 * norm, "{what}: {tensor}: {got_along}, theirs {along}");
                }
            }
            show(&mut model, &case.logits[1], 1e-4);
        }
    }
}

/// The tensors of a file as others read them.
fn saved(path: &std::path::Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, info)| {
            let numbers = |key: &str| -> Vec<usize> {
                info[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
            };
            let at = numbers("data_offsets");
            let (words, _) = data[at[0]..at[1]].as_chunks::<4>();
            let values = words.iter().map(|&w| f64::from(f32::from_le_bytes(w))).collect();
            (name, Tensor::new(&numbers("shape"), values))
        })
        .collect()
}

#[test]
fn a_saved_model_has_llamas_names_and_gives_its_logits_under_them() {
    for (flags, rank, tied) in [
        ("--preset yxanul-tiny --set rank=5", Some(5), true),
        ("--preset llama-tiny", None, true),
        ("--preset llama-tiny --set tied=false", None, false),
    ] {
        let dir = directory();
        let dir = dir.path();
        // Three steps, so that no gain is 1 and no row has its initial value.
        let flags = format!("{flags} {TINY} --set heads=4 --set kv_heads=2 --recompute cheap");
        host(dir, &format!("train --json {flags} --steps 3 --lr 0.01 --warmup 1 --out run")).ok();
        let config = Config { rank, tied, ..Config::llama(1, 16, 4, 2, 32, 300) };
        let checkpoint = dir.join("run/checkpoint-00000003");
        let weights = saved(&checkpoint.join("model.safetensors"));
        let shapes = |of: Vec<(String, Vec<usize>)>| of.into_iter().collect::<std::collections::BTreeMap<_, _>>();
        let found = weights.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
        assert_eq!(shapes(found), shapes(config.tensors()));

        let (ids, _) = tokens(9, 300);
        let expected = logits(&config, &weights, &ids, ids.len());
        let line = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let rows = host(dir, &format!("logits --json --run run --ids {line}")).ok().json();
        let rows = rows["logits"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        let rows: Vec<f64> = rows.map(|x| x.as_f64().unwrap()).collect();
        let error = relative_error(&rows, &expected);
        assert!(error <= 1e-5, "{flags}: {error:e}");

        let text = fs::read(checkpoint.join("config.json")).unwrap();
        let written: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(written["model_type"], if rank.is_some() { "yxanul" } else { "llama" });
        assert_eq!((&written["num_key_value_heads"], &written["vocab_size"]), (&2.into(), &300.into()));
        assert_eq!(written["tie_word_embeddings"], tied);
        let told = host(dir, "generate --json --run run --max-tokens 5 --temperature 0").ok().json();
        assert!(told["ids"].as_array().is_some_and(|ids| ids.len() <= 5), "{told}");
        host(dir, "eval --json --run run --eval-tokens 100").ok();
    }
}
