//! Checks that no bit changed: against committed digests on the reference device, which gives the same bits on every
//! machine; and between two binaries on the other devices (tests/digests.sh).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use capful_tests::binary::{self, directory, host};
use capful_tests::digests::{CASES, Setting, checkpoint};
use rayon::prelude::*;

/// One file for all cases. To write it anew: `CAPFUL_DIGESTS=write cargo test -p capful-tests --test suite digests::`;
/// the change must explain why bits changed.
const COMMITTED: &str = "fixtures/digests.txt";

#[test]
fn the_reference_device_gives_the_committed_bits() {
    let dir = directory();
    let setting = Setting { host: binary::path(), device: "reference", algorithms: None, driver: None };
    let found: Vec<_> = CASES.par_iter().map(|case| setting.run(case, dir.path()).expect("it runs")).collect();
    let mut text = String::new();
    for (case, lines) in CASES.iter().zip(&found) {
        lines.iter().for_each(|line| writeln!(text, "{}: {line}", case.name).expect("a string grows"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(COMMITTED);
    if std::env::var_os("CAPFUL_DIGESTS").is_some_and(|v| v == "write") {
        fs::write(&path, &text).expect("the file is written");
    }
    assert_same(&fs::read_to_string(&path).expect("committed digests"), &text);
}

/// Runs that version 0.1.0 saved at step 10, each with its configuration.
#[test]
fn runs_of_an_earlier_version_go_on_as_if_begun_today() {
    let dir = directory();
    for name in ["pythia", "yxanul", "neurogen"] {
        let saved = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/runs").join(name);
        copy(&saved, &dir.path().join(name));
        let ten = checkpoint(&saved.join("checkpoint-00000010"));
        host(dir.path(), &format!("train --json --resume --steps 20 --out {name}")).ok();
        let config = saved.join("config.toml");
        host(dir.path(), &format!("train --json --config {} --steps 20 --out {name}-whole", config.display())).ok();
        let [resumed, whole] = [name, &format!("{name}-whole")]
            .map(|run| checkpoint(&dir.path().join(run).join("checkpoint-00000020")).join("\n"));
        assert_same(&whole, &resumed);
        assert_ne!(ten.join("\n"), whole, "{name} stood still");
        let line = format!("generate --json --run {} --prompt Once --max-tokens 3 --temperature 0", saved.display());
        host(dir.path(), &line).ok();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).expect("an entry");
        match path.is_dir() {
            true => copy(&path, &to.join(name)),
            false => fs::copy(&path, to.join(name)).map(drop).expect("a file is copied"),
        }
    }
}

/// With `CAPFUL_OLD`, `CAPFUL_NEW` and `CAPFUL_DEVICES`, the last separated by commas: see tests/digests.sh.
#[test]
#[ignore = "needs an old binary and a new one: tests/digests.sh OLD NEW runs this, by hand"]
fn two_binaries_leave_the_same_bits() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let [old, new] = ["CAPFUL_OLD", "CAPFUL_NEW"].map(|name| PathBuf::from(variable(name)));
    #[cfg(feature = "cuda")]
    let driver = (!std::env::var("CAPFUL_GPU").is_ok_and(|v| v == "1")).then_some(capful_kernels::STAND_IN);
    #[cfg(not(feature = "cuda"))]
    let driver = None;
    let only = variable("CAPFUL_CASES");
    for device in variable("CAPFUL_DEVICES").split(',') {
        let compared = CASES.par_iter().filter(|case| case.name.contains(&only)).filter(|case| {
            let [before, after] = [directory(), directory()];
            let setting = Setting { host: &old, device, algorithms: None, driver };
            let Some(expected) = setting.run(case, before.path()) else { return false };
            // Algorithms chosen by timing would differ from run to run.
            let plan = before.path().join(case.name).join("plan.json");
            let algorithms = device.starts_with("cuda").then_some(plan.as_path());
            let found = Setting { host: &new, algorithms, ..setting }.run(case, after.path()).expect("it runs");
            assert_same(&expected.join("\n"), &found.join("\n"));
            true
        });
        println!("{device}: {} cases leave the same bits", compared.count());
    }
}

#[track_caller]
fn assert_same(expected: &str, found: &str) {
    let different: Vec<_> = expected.lines().zip(found.lines()).filter(|(a, b)| a != b).collect();
    let shown: String = different.iter().take(20).map(|(a, b)| format!("- {a}\n+ {b}\n")).collect();
    assert!(different.is_empty(), "{} lines differ:\n{shown}", different.len());
    assert_eq!(expected.lines().count(), found.lines().count(), "lines are missing");
}
