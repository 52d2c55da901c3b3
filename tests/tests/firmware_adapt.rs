//! A tale-teller that was trained on the host learns new names on an emulated chip: its loss on sentences that it did not
//! learn falls, and every bit is the reference device's.

use std::path::{Path, PathBuf};
use std::process::Command;

use capful_core::data::IGNORE;
use capful_core::device::{Rates, Single};
use capful_core::memory::Role;
use capful_core::train::Settings;
use capful_core::vocab::{FINGERPRINT, fingerprint};
use capful_host::config::AnyFamily;
use capful_host::device::{AnyProfile, Storage as _};
use capful_host::plan::{Constants, Laid, Sections};
use capful_host::run::directory::{self, Trained};
use capful_host::run::{Rows, Session};
use capful_tests::binary::host;

#[allow(dead_code, reason = "as the programs share it")]
#[path = "../firmware/src/recipe.rs"]
mod recipe;

use recipe::{CLIP, LESSON, LESSON_RATE, OPTIMIZER, TELLER};

const STEPS: u64 = 8;

/// Sentences of names that no tale has: eight to learn, then eight others of the same names.
const SENTENCES: &str = "\
once upon a time there was a girl named zofia .
zofia had a big red ball .
once upon a time there was a boy named bjorn .
bjorn went to the dark wood .
once upon a time there was a girl named ximena .
ximena was very brave .
once upon a time there was a boy named quentin .
quentin saw a tiny dog .
zofia was very happy .
one day zofia saw a small bird .
bjorn was very happy .
one day bjorn saw a small bird .
ximena was very happy .
one day ximena saw a small bird .
quentin was very happy .
one day quentin saw a small bird .
";

/// The run of a tale-teller in `dir`, and its image.
fn train(dir: &Path) -> Vec<u8> {
    let model = "--preset pythia-tiny --set layers=2 --set d_model=32 --set heads=4 --set d_ff=96 --set context=64";
    let steps = "--tokenizer byte --seq-len 64 --batch-size 16 --steps 1500 --lr 5e-3 --eval-tokens 2000";
    host(dir, &format!("train {model} {steps} --device cpu --out run")).ok();
    host(dir, "export --run run --to firmware teller.img").ok();
    std::fs::read(dir.join("teller.img")).unwrap()
}

/// Losses of the sentences that are held out, before and after, those of the steps between, and a checksum of weights.
#[derive(Debug, PartialEq)]
struct Learnt {
    held_out: [f32; 2],
    losses: Vec<f32>,
    weights: u64,
}

/// Ids and targets of eight sentences: the mark of a beginning, then a byte a token behind the four marks.
fn rows(lines: &[&str]) -> (Vec<u32>, Vec<u32>) {
    let length = LESSON.seq_len as usize;
    let (mut ids, mut targets) = (vec![], vec![]);
    for line in lines {
        let bytes: Vec<u32> = line.bytes().map(|b| 4 + u32::from(b)).collect();
        let begin = 2;
        let all: Vec<u32> = [begin].into_iter().chain(bytes.iter().copied()).collect();
        ids.extend((0..length).map(|i| all.get(i).copied().unwrap_or(begin)));
        targets.extend((0..length).map(|i| bytes.get(i).copied().unwrap_or(IGNORE)));
    }
    (ids, targets)
}

/// The same lesson by the host's session on the reference device, from the checkpoint.
fn learnt_on_the_host(dir: &Path) -> Learnt {
    let config = directory::read_config(&dir.join("run")).and_then(|c| c.on(Some("reference".into()))).unwrap();
    let decoding = Sections { decoding: Some(config.context()), ..Sections::none(&config) };
    let mut trained = Trained::load(&dir.join("run"), &config, &decoding).unwrap().session;
    let (family, profile) = (AnyFamily::Transformer(TELLER), AnyProfile::Reference(Single));
    let sections = Sections {
        training: vec![LESSON],
        accumulate: vec![1],
        evaluation: None,
        decoding: None,
        constants: Constants { optimizer: OPTIMIZER, pattern: LESSON.pattern },
        weights: None,
    };
    let laid = Laid::new(&family, &profile, Rates::ONE, &sections).and_then(|laid| laid.recorded(&family, &profile));
    let mut session = Session::start(laid.unwrap(), &profile, Some(recipe::SEED), TELLER.vocab_size).unwrap();
    let entries: Vec<_> = session.laid.lasting.iter().filter(|e| e.slot.role == Role::Weight).copied().collect();
    for entry in &entries {
        let same = |e: &&capful_core::memory::Entry| e.slot.role == Role::Weight && e.slot.name == entry.slot.name;
        let from = trained.laid.lasting.iter().find(same).copied().expect("the run has it");
        for layer in 0..entry.slot.layers {
            let mut bytes = vec![0; from.place.at(layer).bytes() as usize];
            trained.device.read(from.place.at(layer), &mut bytes).unwrap();
            session.device.write(entry.place.at(layer), &bytes).unwrap();
        }
    }
    let lines: Vec<&str> = SENTENCES.lines().collect();
    let (learnt, held_out) = lines.split_at(LESSON.batch as usize);
    let mut pass = |lines: &[&str], step: u64, learns: bool| {
        let (ids, targets) = rows(lines);
        let count = targets.iter().filter(|t| **t != IGNORE).count() as u64;
        session.begin(Settings::of(step, LESSON_RATE, &OPTIMIZER, CLIP, count)).unwrap();
        session.micro_batch(0, Rows { ids: &ids, targets: &targets, offsets: &[] }, true).unwrap();
        let ticket = session.finish().unwrap();
        if learns {
            session.update().unwrap();
        }
        session.results(ticket).unwrap().loss
    };
    let before = pass(held_out, 0, false);
    let losses = (0..STEPS).map(|step| pass(learnt, step, true)).collect();
    let after = pass(held_out, STEPS, false);
    let regions = entries.iter().flat_map(|e| (0..e.slot.layers).map(|layer| e.place.at(layer)));
    let weights = regions.fold(FINGERPRINT, |sum, region| {
        let mut bytes = vec![0; region.bytes() as usize];
        session.device.read(region, &mut bytes).unwrap();
        fingerprint(sum, &bytes)
    });
    Learnt { held_out: [before, after], losses, weights }
}

/// Runs the program on a board whose memory for image and text is at `address`: its exit status and what it printed.
fn run(board: &str, address: u64, image: &[u8], text: &str) -> (i32, String) {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (flash, lines) = (place("image", image), place("text", text.as_bytes()));
    let behind = address + (image.len() as u64).next_multiple_of(16);
    let speak = std::env::var_os("CAPFUL_FIRMWARE").expect("CAPFUL_FIRMWARE names the program");
    let mut qemu = Command::new("timeout");
    qemu.args(["120", "qemu-system-arm", "-M", board, "-nographic", "-monitor", "none", "-serial", "none"]);
    qemu.args(["-icount", "shift=0", "-semihosting-config"]);
    let numbers = [address, image.len() as u64, behind, text.len() as u64, STEPS];
    let arguments: String = numbers.iter().map(|n| format!(",arg={n}")).collect();
    qemu.arg(format!("enable=on,target=native,arg=adapt{arguments}"));
    for (file, address) in [(flash, address), (lines, behind)] {
        qemu.arg("-device").arg(format!("loader,file={},addr={address:#x},force-raw=on", file.display()));
    }
    let output = qemu.arg("-kernel").arg(Path::new(&speak).with_file_name("adapt")).output().expect("QEMU runs");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn line<'t>(text: &'t str, name: &str) -> &'t str {
    let found = text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    found.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}

#[test]
#[ignore = "tests/firmware/run.sh builds the programs for the chip and runs this"]
fn a_tale_teller_learns_new_names_on_chips_with_the_references_bits() {
    let dir = tempfile::tempdir().unwrap();
    let image = train(dir.path());
    let expected = learnt_on_the_host(dir.path());
    let [before, after] = expected.held_out;
    println!("held out: {before} → {after} nats a byte");
    assert!(after < 0.8 * before, "{before} → {after}");
    // The M55's board has its memory in pieces, none of which is as large where programs have theirs.
    for (board, address) in [("mps2-an386", 0x2120_0000), ("mps2-an500", 0x6000_0000)] {
        let (status, text) = run(board, address, &image, SENTENCES);
        assert_eq!(status, 0, "{board}\n{text}");
        println!("{board}\n{text}");
        let float = |name: &str| {
            let bits = line(&text, name).split(' ').next().unwrap();
            f32::from_bits(u32::from_str_radix(bits, 16).unwrap())
        };
        let found = Learnt {
            held_out: [float("before "), float("after ")],
            losses: (0..STEPS).map(|step| float(&format!("step {step} loss "))).collect(),
            weights: u64::from_str_radix(line(&text, "weights "), 16).unwrap(),
        };
        assert_eq!(found, expected, "{board}");
        let (needed, there) = line(&text, "arena ").split_once(" of ").unwrap();
        assert_eq!(needed, there, "the program's storage is another size than the plan's");
    }
    // What no lesson can be made of.
    let mut damaged = image.clone();
    damaged[image.len() / 2] ^= 1;
    for (image, text, said) in [
        (&damaged[..], SENTENCES.to_owned(), "checksum"),
        (&image, SENTENCES.lines().skip(1).collect::<Vec<_>>().join("\n"), "15 lines of text, and 16 are needed"),
        (&image, SENTENCES.replace("zofia", &"z".repeat(70)), "refused"),
    ] {
        let (status, text) = run("mps2-an386", 0x2120_0000, image, &text);
        assert!(status == 3 && text.contains(said), "{status} {text}");
    }
}
