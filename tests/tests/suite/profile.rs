//! `host bench --profile --trace`: how a step's time is spent.

use std::fs;

use capful_tests::binary::{TINY, directory, host};
use capful_tests::profile::check;

#[test]
fn a_profile_has_the_operations_of_the_plan_and_a_trace_the_same_times() {
    let dir = directory();
    let dir = dir.path();
    let neurogen = "--preset neurogen-tiny --set span=64 --batch-size 4 --seq-len 16";
    for (flags, micro_batches) in [
        (format!("{TINY} --threads 2 --accumulate 3 --recompute full"), 3),
        (format!("{TINY} --device reference"), 1),
        (neurogen.to_owned(), 1),
    ] {
        check(dir, &flags, micro_batches, |line| host(dir, line));
    }
}

#[test]
fn a_trace_is_written_whole_or_not_at_all() {
    let dir = directory();
    let dir = dir.path();
    let bench = format!("bench {TINY} --warm 1 --steps 1");
    fs::create_dir(dir.join("taken")).expect("a directory");
    host(dir, &format!("{bench} --trace taken")).refused(2, &["--trace taken", "directory"]);
    host(dir, &format!("{bench} --trace nowhere/trace.json")).refused(2, &["--trace nowhere/trace.json"]);
    host(dir, &format!("{bench} --budget 1KiB --trace trace.json")).refused(2, &["--recompute"]);
    let names =
        |dir: &std::path::Path| fs::read_dir(dir).expect("it").map(|e| e.expect("it").file_name()).collect::<Vec<_>>();
    assert_eq!(names(dir), ["taken"]);
    // A trace alone prints no table, and replaces the previous one.
    fs::write(dir.join("trace.json"), "old").expect("a file");
    let said = host(dir, &format!("{bench} --trace trace.json")).ok();
    assert!(!said.out.contains("profile"), "{}", said.out);
    assert!(fs::read_to_string(dir.join("trace.json")).expect("it").starts_with("{\"displayTimeUnit\""));
    assert_eq!(names(dir).len(), 2);
    let table = host(dir, &format!("{bench} --profile")).ok();
    assert!(table.out.contains("operations take") && table.out.contains("head_loss"), "{}", table.out);
}
