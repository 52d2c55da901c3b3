//! Runs that end on time.

use std::fs;
use std::path::Path;
use std::time::Instant;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

fn lines(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn steps_of(run: &Path) -> Vec<(u64, f64, f64)> {
    let number = |line: &Value, key: &str| line[key].as_f64();
    let step = |line: Value| Some((line["step"].as_u64()?, number(&line, "loss")?, number(&line, "lr")?));
    lines(run).into_iter().filter_map(step).collect()
}

fn state(checkpoint: &Path) -> Value {
    serde_json::from_slice(&fs::read(checkpoint.join("trainer_state.json")).unwrap()).unwrap()
}

fn line(time: &str) -> String {
    let tiny = TINY.replace("--baseline-tokens 20000", "--baseline-tokens 0");
    format!(
        "train --preset quick-tiny {tiny} --decay 0.5 --warmup 4 --eval-every 0 --save-minutes 0 --log-every 1 --time {time}"
    )
}

#[test]
fn a_run_ends_on_time_and_goes_on_from_before_its_rate_fell() {
    let dir = directory();
    let (dir, run) = (dir.path(), dir.path().join("run"));
    let begun = Instant::now();
    let ended = host(dir, &format!("{} --out run --json", line("4s"))).ok();
    let took = begun.elapsed().as_secs_f64();
    let last: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    let seconds = last["seconds_of_time"].as_f64().unwrap();
    // Other tests run at the same time: the accuracy on an idle machine is measured elsewhere, not tested.
    assert!((3.2..4.8).contains(&seconds) && took > 3.2, "{seconds} s, {took} s");
    let (steps, done) = (last["steps"].as_u64().unwrap(), steps_of(&run));
    assert_eq!((last["steps_done"].as_u64(), done.len() as u64), (Some(steps), steps));
    assert_eq!(done.last().unwrap().2, 0.0, "the rate of the last step");
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("time = \"4s\"") && config.contains(&format!("\nsteps = {steps}\n")), "{config}");

    // The rate is constant up to the second-to-last checkpoint.
    let fall = state(&run.join(format!("checkpoint-{steps:08}")))["timed"]["fall"].clone();
    let falls = fall["begun"].as_u64().unwrap();
    let stable = state(&run.join(format!("checkpoint-{falls:08}")));
    assert!(stable["timed"]["fall"].is_null() && stable["timed"]["seconds"].as_f64().unwrap() < seconds, "{stable}");
    let highest = done[4].2;
    assert!(done.iter().all(|(step, _, lr)| *step <= 4 || (*lr == highest) == (*step <= falls)), "{falls}: {done:?}");

    // With more time it resumes from there, as if it had had that time from the beginning; later steps are replaced.
    let more = host(dir, &format!("{} --out run --resume --json", line("6s"))).ok();
    let last: Value = serde_json::from_str(more.out.lines().last().unwrap()).unwrap();
    let now = steps_of(&run);
    // A machine that is slowed down in the meantime may take fewer steps than before.
    assert!(now.len() as u64 > falls && now[..falls as usize] == done[..falls as usize], "{} steps", now.len());
    assert_eq!(now[falls as usize].2, highest, "the rate goes on");
    let seconds = last["seconds_of_time"].as_f64().unwrap();
    assert!((4.8..7.2).contains(&seconds), "{seconds} s");
    assert!(!run.join(format!("checkpoint-{steps:08}")).exists(), "of the run that had less time");

    // A run of this many steps is the same until its rate falls.
    host(dir, &format!("{} --out plain", line("4s").replace("--time 4s", &format!("--steps {}", 2 * falls)))).ok();
    assert!(steps_of(&dir.join("plain"))[..falls as usize] == done[..falls as usize]);
}

#[test]
fn what_does_not_go_with_a_time_is_refused() {
    let dir = directory();
    let dir = dir.path();
    for (flags, says) in [
        ("--time 30", "'30' is no span of time; write for example 90s, 30m, 8h or 1h30m"),
        ("--time 4s --epochs 2", "time is given beside epochs"),
        ("--time 4s --schedule cosine", "--time 4s beside --schedule cosine, which needs to know the run's steps"),
        ("--time 4s --average 10", "--time 4s beside --average 10"),
        ("--preset yxanul-197m --time 4s", "beside the stages of a curriculum"),
        ("--time 1ms", "is no span of time"),
        ("--time 0.01s", "--time 0.01s is too short: what comes before the first step took"),
    ] {
        let line = line("4s").replace("--time 4s", flags);
        let line = if flags.starts_with("--preset") { format!("train {flags}") } else { line };
        host(dir, &format!("{line} --out run")).refused(2, &[says]);
        assert!(!dir.join("run").exists(), "{flags}");
    }
}
