//! Checks that a profile and its trace agree with the plan, the listed programs and each other.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::binary::Outcome;

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is no list in {value}"))
}

fn sum(values: &[Value], key: &str) -> f64 {
    values.iter().map(|value| number(value, key)).sum()
}

#[track_caller]
fn near(a: f64, b: f64, most: f64) {
    assert!((a - b).abs() <= most, "{a} and {b} differ by more than {most}");
}

/// Runs `bench FLAGS` with a profile and a trace through `host`, and compares it with `plan FLAGS`. The step has
/// `micro_batches` micro-batches.
pub fn check(dir: &Path, flags: &str, micro_batches: usize, host: impl Fn(&str) -> Outcome) {
    let bench = host(&format!("bench --json --warm 1 --steps 3 --profile --trace trace.json {flags}")).ok().json();
    let plan = host(&format!("plan --json {flags}")).ok().json();
    let programs = host(&format!("plan --json --program {flags}")).ok().json();
    let profile = &bench["profile"];
    let (operations, totals) = (list(profile, "operations"), list(profile, "totals"));

    // The operations are those of the programs, in order.
    let of = |name: &str| {
        let starts = |p: &&Value| p["program"].as_str().is_some_and(|p| p.starts_with(name));
        list(programs.as_array().into_iter().flatten().find(starts).expect("the program"), "operations")
    };
    let mut expected: Vec<(String, usize, &Value)> = Vec::new();
    for i in 0..micro_batches {
        let program = of(if i == 0 { "training: the step's first" } else { "training: each further" });
        expected.extend(program.iter().enumerate().map(|(n, o)| (format!("micro-batch {}", i + 1), n, o)));
    }
    expected.extend(of("update").iter().enumerate().map(|(n, o)| ("update".to_owned(), n, o)));
    assert_eq!(operations.len(), expected.len());
    for (o, (part, n, listed)) in operations.iter().zip(&expected) {
        assert_eq!((o["part"].as_str(), o["number"].as_u64()), (Some(part.as_str()), Some(*n as u64)));
        for key in ["operation", "operands", "bytes", "flops"] {
            assert_eq!(o[key], listed[key], "{key}");
        }
        assert_eq!(o["roofline_seconds"], listed["seconds"]);
    }

    // The sums equal the plan's and each other.
    for (key, of_plan) in [("flops", "flops_per_step"), ("bytes", "bytes_per_step")] {
        assert_eq!(sum(operations, key), number(&plan, of_plan), "{key}");
        assert_eq!(sum(totals, key), number(&plan, of_plan), "{key}");
    }
    assert_eq!(sum(totals, "count"), number(&plan, "operations_per_step"));
    let seconds = number(profile, "seconds");
    assert!(seconds > 0.0, "{profile}");
    for values in [operations, totals] {
        near(sum(values, "seconds"), seconds, 1e-9 * seconds);
        near(sum(values, "share"), 1.0, 1e-9);
    }
    for total in totals {
        let kind: Vec<Value> = operations.iter().filter(|o| o["operation"] == total["operation"]).cloned().collect();
        near(sum(&kind, "seconds"), number(total, "seconds"), 1e-9 * seconds);
    }
    assert!(totals.is_sorted_by(|a, b| number(a, "seconds") >= number(b, "seconds")));
    // Steps of a few milliseconds on a machine with other work: only the order of magnitude is certain.
    let step = number(&bench, "ms_per_step") / 1e3;
    assert!(seconds > step / 4.0 && seconds < step * 4.0, "{seconds} s of operations, {step} s of a step");

    trace(dir, operations, seconds);
}

/// The trace has an event for each operation; events do not overlap and last as long as the table says.
fn trace(dir: &Path, operations: &[Value], seconds: f64) {
    let text = fs::read_to_string(dir.join("trace.json")).expect("the trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = list(&trace, "traceEvents");
    let track = |tid: u64| -> Vec<Value> {
        events.iter().filter(|e| e["ph"] == "X" && e["tid"].as_u64() == Some(tid)).cloned().collect()
    };
    let (parts, each) = (track(1), track(2));
    // Times are whole nanoseconds, expressed in microseconds.
    const NANOSECOND: f64 = 1e-3;
    for track in [&parts, &each] {
        for pair in track.windows(2) {
            let end = number(&pair[0], "ts") + number(&pair[0], "dur");
            assert!(end <= number(&pair[1], "ts") + NANOSECOND / 2.0, "{} and {} overlap", pair[0], pair[1]);
        }
        near(sum(track, "dur"), seconds * 1e6, 2.0 * NANOSECOND);
    }
    assert_eq!(each.len(), operations.len());
    for (event, o) in each.iter().zip(operations) {
        assert_eq!(event["name"], o["operation"]);
        near(number(event, "dur"), number(o, "seconds") * 1e6, 2.0 * NANOSECOND);
        for key in ["number", "part", "operands", "bytes", "flops", "seconds"] {
            assert_eq!(event["args"][key], o[key], "{key}");
        }
        near(number(&event["args"], "roofline_us"), number(o, "roofline_seconds") * 1e6, NANOSECOND);
    }
    let names: Vec<_> = parts.iter().map(|part| part["name"].clone()).collect();
    let mut expected: Vec<_> = operations.iter().map(|o| o["part"].clone()).collect();
    expected.dedup();
    assert_eq!(names, expected);
    assert_eq!(sum(&parts.iter().map(|p| p["args"].clone()).collect::<Vec<_>>(), "operations"), each.len() as f64);
}
