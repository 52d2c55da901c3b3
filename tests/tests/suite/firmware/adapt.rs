//! A tale model that continues learning on an emulated chip, with names that occur in no tale: the reference device's
//! bits.

use std::path::Path;

use capful_core::memory::Role;
use capful_core::train::Settings;
use capful_core::vocab::{FINGERPRINT, fingerprint};
use capful_host::device::Storage as _;
use capful_host::plan::{Constants, Sections};
use capful_host::run::checkpoint::Weights;
use capful_host::run::directory::{self, Trained};
use capful_host::run::{Rows, Session};
use capful_tests::binary::host;
use capful_tests::emulated::{self, BOARDS, Board, line};

use super::recipe::{ADAPT, ADAPT_RATE, CLIP, OPTIMIZER, start};

/// The tale model.
const MODEL: &str = "--preset pythia-tiny --set layers=2 --set d_model=32 --set heads=4 --set d_ff=64 --set context=32 \
                     --tokenizer bpe --vocab-size 320 --seq-len 32 --batch-size 16 --steps 1000 --lr 3e-3 --warmup 20 \
                     --eval-tokens 500 --baseline-tokens 0 --device cpu";
/// Steps on the chip.
const STEPS: u32 = 12;
/// The text that it learns. The names occur in no tale.
const LEARNT: &str = "Zuri had a red ball. Kwame saw the ball. Zuri and Kwame went to the park. \
                      Kwame gave the ball to Zuri. Zuri was happy. Kwame was happy too. \
                      Zuri saw a big dog. The dog ran to Kwame. Zuri and Kwame ran home. ";
/// The text for measuring the loss: other sentences with these names.
const HELD: &str = "Kwame had a blue kite. Zuri saw the kite. Kwame and Zuri went to the garden. \
                    Zuri gave the kite to Kwame. Kwame and Zuri were happy. ";

/// The results of adapting.
#[derive(Debug, PartialEq)]
struct Adapted {
    losses: [u32; 2],
    weights: u64,
    moments: u64,
}

/// The results of the host's session on the reference device, from the run's checkpoint and with the host's tokenizer.
fn adapted_on_the_host(dir: &Path, learnt: &str) -> Adapted {
    let config = directory::read_config(&dir.join("run")).unwrap().on(Some("reference".to_owned())).unwrap();
    let sections = Sections {
        training: vec![ADAPT],
        accumulate: vec![1],
        ranks: capful_core::train::Ranks::ALONE,
        evaluation: None,
        decoding: None,
        constants: Constants { optimizer: OPTIMIZER, pattern: ADAPT.pattern },
        weights: None,
    };
    let Trained { mut session, tokenizer } =
        Trained::load(&dir.join("run"), Weights::Last, &config, &sections).unwrap();
    let ids = [learnt, HELD].map(|text| {
        let mut ids = vec![];
        tokenizer.encode(text, &mut ids).unwrap();
        ids
    });
    let seq_len = ADAPT.seq_len as usize;
    let batch = |session: &mut Session, ids: &[u32], step: usize, moves: bool| -> f32 {
        let settings = Settings::of(step as u64, ADAPT_RATE, &OPTIMIZER, CLIP, ADAPT.tokens().into());
        session.begin(settings).unwrap();
        let rows = |skip: usize| -> Vec<u32> {
            let row = |r: usize| ids[start(step, r, ids.len()) + skip..][..seq_len].to_vec();
            (0..ADAPT.batch as usize).flat_map(row).collect()
        };
        let zeros = vec![0; ADAPT.tokens() as usize];
        session.micro_batch(0, Rows { ids: &rows(0), targets: &rows(1), offsets: &zeros }, true).unwrap();
        let ticket = session.finish().unwrap();
        if moves {
            session.update().unwrap();
        }
        session.results(ticket).unwrap().loss
    };
    let before = batch(&mut session, &ids[1], 0, false);
    (0..STEPS as usize).for_each(|step| {
        batch(&mut session, &ids[0], step, true);
    });
    let after = batch(&mut session, &ids[1], 0, false);
    let mut sum = |role| {
        let entries = session.laid.lasting.iter().filter(|entry| entry.slot.role == role);
        let regions: Vec<_> = entries.flat_map(|e| (0..e.slot.layers).map(|layer| e.place.at(layer))).collect();
        regions.into_iter().fold(FINGERPRINT, |sum, region| {
            let mut bytes = vec![0; region.bytes() as usize];
            session.device.read(region, &mut bytes).unwrap();
            fingerprint(sum, &bytes)
        })
    };
    let (weights, moments) = (sum(Role::Weight), sum(Role::Moment));
    Adapted { losses: [before, after].map(f32::to_bits), weights, moments }
}

/// Bytes of storage that the program needs.
const STORAGE: u64 = 879_104;

/// Runs the program on a board with the image of `dir`; returns its exit status and its output.
fn run(dir: &Path, (chip, board, memory): Board, storage: u64, text: &str) -> (i32, String) {
    // The M55's large memory is at another address.
    let memory = if chip == "Cortex-M55" { 0x6000_0000 } else { memory };
    let (image, file) = (dir.join("tales.img"), dir.join("text"));
    std::fs::write(&file, text).unwrap();
    let bytes = std::fs::metadata(&image).unwrap().len();
    let [at_text, place] = [memory + (4 << 20), memory + (8 << 20)];
    let command = format!("{memory:#x} {bytes} {place:#x} {storage} {at_text:#x} {} {STEPS}", text.len());
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    emulated::start("adapt", board, &words, &[(&image, memory), (&file, at_text)])
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_tale_teller_learns_new_names_on_chips() {
    let dir = tempfile::tempdir().unwrap();
    host(dir.path(), &format!("train {MODEL} --out run")).ok();
    host(dir.path(), "export --run run --to firmware tales.img").ok();
    let (expected, storage) = (adapted_on_the_host(dir.path(), LEARNT), STORAGE);
    let [before, after] = expected.losses.map(f32::from_bits);
    // The same sentences with other names teach the sentences but not the names.
    let others = LEARNT.replace("Zuri", "Lily").replace("Kwame", "Tom");
    let without = f32::from_bits(adapted_on_the_host(dir.path(), &others).losses[1]);
    println!("loss {before}, then {after}; {without} after other names");
    assert!(after < 0.55 * before && after < 0.7 * without, "{before}, {after}, {without}");
    let text = format!("{LEARNT}|{HELD}");
    for chip in BOARDS {
        let (status, said) = run(dir.path(), chip, storage, &text);
        println!("{}:\n{said}", chip.0);
        assert_eq!(status, 0, "{chip:?}\n{said}");
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (before, after) = line(&said, "bits").split_once(' ').unwrap();
        let losses = [before, after].map(|bits| hex(bits) as u32);
        let found = Adapted { losses, weights: hex(line(&said, "weights")), moments: hex(line(&said, "moments")) };
        assert_eq!(found, expected, "{chip:?}");
        let [deep, whole] = [0, 1].map(|i| line(&said, "stack").split(" of ").nth(i).unwrap().parse::<u64>().unwrap());
        assert!(deep < whole, "{chip:?}: the stack was full");
    }
    // A text too short for a step, and storage that is 8 bytes too small.
    let (status, said) = run(dir.path(), BOARDS[0], storage, "Zuri.|Kwame.");
    assert!(status == 3 && said.contains("give a longer one"), "{status}\n{said}");
    let (status, said) = run(dir.path(), BOARDS[0], storage - 8, &text);
    assert!(status == 3 && said.contains(&format!("{storage} are needed")), "{status}\n{said}");
}
