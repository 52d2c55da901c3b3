//! Training on an emulated chip gives the bits of the reference device: losses, weights, moments, and the state after
//! each step.

use capful_core::device::{Rates, Single};
use capful_core::memory::Role;
use capful_core::train::Settings;
use capful_core::vocab::{FINGERPRINT, fingerprint};
use capful_host::config::AnyFamily;
use capful_host::device::{AnyProfile, Storage as _};
use capful_host::plan::{Constants, Laid, Sections};
use capful_host::run::{Rows, Session};
use capful_tests::emulated::{BOARDS, Board, line, start};

use super::recipe::{CLIP, IDS, NEUROGEN, OPTIMIZER, PYTHIA, RATE, SEED, STAGE};

/// The number of steps.
const STEPS: u32 = 20;

/// The text that the models read repeatedly.
const TEXT: &str = "a cat sat on a mat. a dog sat on a log. a hen sat in a pen. ";

fn tokens() -> Vec<u8> {
    let wanted = (STEPS * STAGE.tokens() + 1) as usize;
    TEXT.bytes().cycle().take(wanted).collect()
}

/// The results of training.
#[derive(Debug, PartialEq)]
struct Learnt {
    losses: Vec<f32>,
    weights: u64,
    moments: u64,
    state: u64,
}

/// The results of the host's session on the reference device, with its own layout and recorded programs.
fn learnt_on_the_host(family: &AnyFamily, tokens: &[u8]) -> Learnt {
    let profile = AnyProfile::Reference(Single);
    let sections = Sections {
        training: vec![STAGE],
        accumulate: vec![1],
        ranks: capful_core::train::Ranks::ALONE,
        evaluation: None,
        decoding: None,
        constants: Constants { optimizer: OPTIMIZER, pattern: STAGE.pattern },
        weights: None,
    };
    let laid = Laid::new(family, &profile, Rates::ONE, &sections).and_then(|laid| laid.recorded(family, &profile));
    let mut session = Session::start(laid.unwrap(), &profile, Some(SEED), IDS).unwrap();
    let (seq_len, piece) = (STAGE.seq_len as usize, (STEPS * STAGE.seq_len) as usize);
    let step = |step: u32| {
        let first = step as usize * seq_len;
        let settings = Settings::of(step.into(), RATE, &OPTIMIZER, CLIP, STAGE.tokens().into());
        session.begin(settings).unwrap();
        let rows = |skip: usize| -> Vec<u32> {
            let row = |r: usize| tokens[r * piece + first + skip..][..seq_len].iter().map(|id| u32::from(*id));
            (0..STAGE.batch as usize).flat_map(row).collect()
        };
        let offsets: Vec<u32> = (0..STAGE.batch).flat_map(|_| first as u32..(first + seq_len) as u32).collect();
        session.micro_batch(0, Rows { ids: &rows(0), targets: &rows(1), offsets: &offsets }, true).unwrap();
        let ticket = session.finish().unwrap();
        session.update().unwrap();
        session.results(ticket).unwrap().loss
    };
    let losses = (0..STEPS).map(step).collect();
    let mut sum = |role| {
        let entries = session.laid.lasting.iter().filter(|entry| entry.slot.role == role);
        let regions: Vec<_> = entries.flat_map(|e| (0..e.slot.layers).map(|layer| e.place.at(layer))).collect();
        regions.into_iter().fold(FINGERPRINT, |sum, region| {
            let mut bytes = vec![0; region.bytes() as usize];
            session.device.read(region, &mut bytes).unwrap();
            fingerprint(sum, &bytes)
        })
    };
    let (weights, moments, state) = (sum(Role::Weight), sum(Role::Moment), sum(Role::State));
    Learnt { losses, weights, moments, state }
}

/// Runs a program on a board; returns its exit status and its output.
fn run(name: &str, (_, board, address): Board, tokens: &[u8], steps: u32) -> (i32, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, tokens).unwrap();
    let words = [format!("{address:#x}"), tokens.len().to_string(), steps.to_string()];
    start(name, board, &words, &[(&file, address)])
}

/// The two numbers of a line `name A of B`.
fn pair(text: &str, name: &str) -> [u64; 2] {
    let (a, b) = line(text, name).split_once(" of ").expect("two numbers");
    [a, b].map(|n| n.parse().unwrap())
}

/// The results that a program prints.
fn said(text: &str) -> Learnt {
    let sum = |name| u64::from_str_radix(line(text, name), 16).unwrap();
    let losses = (0..STEPS).map(|step| {
        let bits = line(text, &format!("step {step} loss ")).split(' ').next().unwrap();
        f32::from_bits(u32::from_str_radix(bits, 16).unwrap())
    });
    Learnt { losses: losses.collect(), weights: sum("weights"), moments: sum("moments"), state: sum("state") }
}

/// A family's program on every chip, and the limit on its steps' cost.
fn learns(name: &str, family: &AnyFamily, most: u64) {
    let tokens = tokens();
    let expected = learnt_on_the_host(family, &tokens);
    let (first, last) = (expected.losses[0], expected.losses[STEPS as usize - 1]);
    println!("{name}: loss {first} → {last}");
    assert!(last < 0.85 * first, "{first} → {last}");
    for chip in BOARDS {
        let (status, text) = run(name, chip, &tokens, STEPS);
        assert_eq!(status, 0, "{chip:?}\n{text}");
        println!("{}:\n{text}", chip.0);
        assert_eq!(said(&text), expected, "{chip:?}");
        let [needed, storage] = pair(&text, "arena");
        assert_eq!(needed, storage, "{chip:?}: the program's storage is another size than the plan's");
        let [deep, whole] = pair(&text, "stack");
        assert!(deep < whole, "{chip:?}: the stack was full");
        for step in 0..STEPS {
            let instructions = line(&text, &format!("step {step} loss ")).rsplit(' ').next().unwrap();
            let instructions: u64 = instructions.parse().unwrap();
            assert!(instructions <= most, "{chip:?}: {instructions} instructions in step {step}");
        }
    }
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_pythia_learns_on_chips_with_the_references_bits() {
    learns("learn", &AnyFamily::Transformer(PYTHIA), 7_200_000);
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_neurogen_learns_on_chips_with_the_references_bits() {
    learns("spike", &AnyFamily::NeuroGen(NEUROGEN), 7_900_000);
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn tokens_that_no_step_can_use_are_refused() {
    let (chip, tokens) = (BOARDS[0], tokens());
    let (status, text) = run("learn", chip, &tokens[1..], STEPS);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("refused: 640 tokens, and the steps need 641"), "{text}");
    let mut other = tokens;
    other[77] = 200;
    let (status, text) = run("learn", chip, &other, STEPS);
    assert_eq!(status, 3, "{text}");
    assert!(text.contains("refused: a token 200, and the model has 128 ids"), "{text}");
}
