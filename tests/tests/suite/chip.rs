//! The sizes of flash and RAM that `host plan --chip` reports are those that `host export --to firmware` writes, and
//! its advice fits.

use std::path::Path;

use capful_tests::binary::host;
use serde_json::Value;

const MODELS: [&str; 4] = [
    "--preset llama-tiny --set context=80 --tokenizer bpe --vocab-size 300 --seq-len 80",
    "--preset yxanul-tiny --set context=64 --tokenizer word --vocab-size 300 --seq-len 64",
    "--preset pythia-tiny --set context=96 --tokenizer byte --seq-len 96",
    "--preset neurogen-tiny --set memory=0 --tokenizer byte --seq-len 48",
];

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// A constant of the Rust file next to an image.
fn constant(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(&format!("const {name}:"))).expect("it is there");
    line.split('=').nth(1).unwrap().trim().trim_end_matches(';').parse().unwrap()
}

fn plan(dir: &Path, flags: &str) -> Value {
    host(dir, &format!("plan --chip 16MiB/2MiB --json {flags}")).ok().json()
}

#[test]
fn the_plan_of_a_chip_is_the_image_and_the_storage_to_the_byte() {
    for model in MODELS {
        let dir = tempfile::tempdir().unwrap();
        host(
            dir.path(),
            &format!(
                "train {model} --device cpu --batch-size 2 --steps 1 --eval-tokens 100 --baseline-tokens 0 --out run"
            ),
        )
        .ok();
        let spiking = model.contains("neurogen");
        for weights in ["f32", "int8", "int4"].into_iter().take(if spiking { 1 } else { 3 }) {
            host(dir.path(), &format!("export --run run --to firmware --weights {weights} {weights}.img")).ok();
            let image = std::fs::metadata(dir.path().join(format!("{weights}.img"))).unwrap().len();
            let constants = std::fs::read_to_string(dir.path().join(format!("{weights}.rs"))).unwrap();
            let planned = plan(dir.path(), &format!("--run run --weights {weights}"));
            let parts = ["weights", "scales", "tables", "vocabulary", "frame"];
            let parts = parts.map(|name| number(&planned["sizes"], name));
            assert_eq!(parts.iter().sum::<u64>(), image, "{model} {weights}");
            assert_eq!(constant(&constants, "IMAGE_BYTES"), image);
            assert_eq!(number(&planned, "flash_bytes"), image + number(&planned, "code"), "{model} {weights}");
            let storage = 8 * constant(&constants, "ARENA_WORDS");
            // As in the program: ids of the whole context, and 272 further bytes.
            assert_eq!(number(&planned, "statics"), 272 + 4 * constant(&constants, "CONTEXT"));
            let beside = number(&planned, "stack") + number(&planned, "statics");
            assert_eq!(number(&planned, "ram_bytes"), storage + beside, "{model} {weights}");

            // With fewer positions, both agree as well.
            host(
                dir.path(),
                &format!("export --run run --to firmware --weights {weights} --context 9 {weights}-9.img"),
            )
            .ok();
            let constants = std::fs::read_to_string(dir.path().join(format!("{weights}-9.rs"))).unwrap();
            let fewer = plan(dir.path(), &format!("--run run --weights {weights} --context 9"));
            assert_eq!(constant(&constants, "CONTEXT"), 9);
            assert_eq!(number(&fewer, "statics"), 272 + 4 * 9);
            let ram = 8 * constant(&constants, "ARENA_WORDS") + number(&fewer, "stack") + number(&fewer, "statics");
            assert_eq!(number(&fewer, "ram_bytes"), ram, "{model} {weights}");

            // Without the run everything except the vocabulary is the same.
            let before = plan(dir.path(), &format!("{model} --weights {weights}"));
            for name in ["weights", "scales", "tables", "cache", "arena"] {
                assert_eq!(before["sizes"][name], planned["sizes"][name], "{model} {weights} {name}");
            }
            assert_eq!(before["vocabulary_known"], model.contains("byte"));
        }
    }
}

#[test]
fn what_is_too_large_is_refused_with_what_fits() {
    let dir = tempfile::tempdir().unwrap();
    let model = MODELS[0];
    let whole = plan(dir.path(), model);
    let (flash, ram) = (number(&whole, "flash_bytes"), number(&whole, "ram_bytes"));
    let asked =
        |flash: u64, ram: u64, more: &str| host(dir.path(), &format!("plan {model} --chip {flash}/{ram} {more}"));
    asked(flash, ram, "").ok();
    for (flash, ram, expected) in [
        (flash - 1, ram + 4096, "--weights int8 fits"),
        (flash, ram - 1, "--weights f32 --context 7"),
        (120 << 10, 16 << 10, "no type of weights fits"),
    ] {
        let outcome = asked(flash, ram, "");
        let advice = outcome.refused(2, &[expected]).trim().rsplit("; ").next().unwrap();
        if let Some(flags) = advice.strip_suffix(" fits").filter(|flags| flags.starts_with("--")) {
            asked(flash, ram, flags).ok();
            // One more position does not fit.
            if let Some((flags, context)) = flags.split_once("--context ") {
                let more = format!("{flags} --context {}", context.parse::<u32>().unwrap() + 1);
                asked(flash, ram, &more).refused(2, &["bytes of flash"]);
            }
        }
    }
    for (wrong, said) in [
        ("plan --preset llama-tiny --chip stm32", "is no chip"),
        ("plan --preset neurogen-tiny --chip rp2350 --weights int8", "a NeuroGen has no weights in integers"),
        ("plan --preset neurogen-tiny --chip 1MiB/1MiB", "plan a smaller model or a larger chip"),
        ("plan --preset llama-tiny --chip rp2350 --context 0", "--context 0"),
        ("plan --chip rp2350 --run nowhere", "holds no run"),
        ("plan --run nowhere", "--chip"),
    ] {
        host(dir.path(), wrong).refused(2, &[said]);
    }
}
