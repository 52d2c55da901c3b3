//! Several processes train one model, under the machine's own mpirun.

#![cfg(unix)]

use std::fs;

use capful_tests::binary::{Outcome, TINY, command, directory};

/// Runs `host train` as a rank, with a launcher's variables but without the launcher.
fn alone(line: &str, variables: &[(&str, &str)]) -> Outcome {
    let dir = directory();
    let mut command = command(dir.path(), line);
    command.envs(variables.iter().copied());
    let outcome = Outcome::of(line, command.output().expect("the binary starts"));
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "{line}: something is left");
    outcome
}

/// The output of ranks that failed: one line, from one of them.
#[track_caller]
#[cfg(any(feature = "mpi", feature = "cuda"))]
fn refused(outcome: &Outcome, status: i32, says: &[&str]) {
    assert_eq!(outcome.status, Some(status), "{}\n{}{}", outcome.line, outcome.out, outcome.err);
    let lines: Vec<_> = outcome.err.lines().filter(|line| line.starts_with("host: ")).collect();
    assert_eq!(lines.len(), 1, "{}", outcome.err);
    for what in says {
        assert!(lines[0].contains(what), "no '{what}' in\n{}", lines[0]);
    }
}

#[test]
fn a_launcher_that_says_too_little_is_refused() {
    let line = format!("train {TINY} --steps 2 --out run");
    alone(&line, &[("WORLD_SIZE", "2")]).refused(2, &["WORLD_SIZE is set and RANK is not"]);
    alone(&line, &[("RANK", "2"), ("WORLD_SIZE", "2")]).refused(2, &["RANK is 2", "numbered from 0"]);
    let says = if cfg!(feature = "mpi") { "the launcher says 2 ranks and MPI 1" } else { "built without MPI" };
    alone(&line, &[("RANK", "0"), ("WORLD_SIZE", "2")]).refused(2, &[says]);
}

#[cfg(feature = "mpi")]
mod mpi {
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use capful_tests::binary::{Outcome, TINY, directory, of_a_model, path};
    use serde_json::Value;

    use super::{fs, refused};

    /// The work of ranks: how many run a line, in a directory, through a shell in which a limit may be set.
    struct Part<'a> {
        ranks: u32,
        line: &'a str,
        dir: &'a Path,
        before: &'a str,
    }

    fn mpirun(parts: &[Part<'_>]) -> Command {
        let mut command = Command::new("mpirun");
        // Any number of ranks on the available cores; a container's root.
        command.args(["--allow-run-as-root", "--oversubscribe", "--quiet"]);
        for (i, Part { ranks, line, dir, before }) in parts.iter().enumerate() {
            if i > 0 {
                command.arg(":");
            }
            let script = format!("{before} exec \"$0\" {}", of_a_model(line));
            command.args(["-n", &ranks.to_string(), "--wdir"]).arg(dir).args(["bash", "-c", &script]).arg(path());
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(ranks: u32, dir: &Path, line: &str) -> Outcome {
        let parts = [Part { ranks, line, dir, before: "" }];
        Outcome::of(line, mpirun(&parts).output().expect("mpirun starts"))
    }

    fn tensors(dir: &Path, step: u32) -> [Vec<u8>; 2] {
        let checkpoint = dir.join(format!("checkpoint-{step:08}"));
        ["model.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap())
    }

    /// The logged steps and evaluations, without times.
    fn logged(dir: &Path) -> Vec<[Value; 4]> {
        let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| ["step", "loss", "norm", "val_loss"].map(|key| line[key].clone())).collect()
    }

    fn text() -> String {
        let document = |d: usize| {
            let words = (0..300).map(|w| ["one", "two", "three", "four", "five"][(d + w * (w + d)) % 5]);
            format!("{} {d}\n\n", words.collect::<Vec<_>>().join(" "))
        };
        (0..60).map(document).collect()
    }

    const SIX: &str =
        "--steps 8 --accumulate 6 --threads 1 --log-every 1 --eval-every 4 --schedule constant --warmup 2";

    /// The first rank's clock decides, and all ranks end after the same step, with the same schedule.
    #[test]
    fn ranks_end_on_the_first_ones_time() {
        let dir = directory();
        let dir = dir.path();
        let tiny = TINY.replace("--baseline-tokens 20000", "--baseline-tokens 0");
        let line = format!(
            "train {tiny} --schedule wsd --decay 0.5 --warmup 2 --threads 1 --accumulate 2 --time 5s --log-every 1 --save-minutes 0 \
             --out run --json"
        );
        let done = run(2, dir, &line);
        assert_eq!(done.status, Some(0), "{}", done.err);
        let last: Value = serde_json::from_str(done.out.lines().last().unwrap()).unwrap();
        let seconds = last["seconds_of_time"].as_f64().unwrap();
        assert!((3.5..7.5).contains(&seconds), "{seconds} s");
        let text = fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let rates: Vec<f64> = lines.filter_map(|line| line["lr"].as_f64()).collect();
        assert_eq!(last["steps"].as_u64(), Some(rates.len() as u64));
        let (highest, last) = (rates[3], *rates.last().unwrap());
        let falls = rates.iter().filter(|rate| **rate < highest).count();
        assert!(falls > rates.len() / 4 && last < 0.2 * highest, "{falls} of {}, {last} of {highest}", rates.len());
    }

    #[test]
    fn any_number_of_exact_ranks_gives_the_bits_of_one_and_goes_on_with_another() {
        let dir = directory();
        let dir = dir.path();
        fs::write(dir.join("corpus.txt"), text()).unwrap();
        for (name, data) in [
            ("tales", "--data tales"),
            ("random", "--data corpus.txt --tokenizer byte --set value_tables=1 --set stream_scalars=true"),
            (
                "pool",
                "--data corpus.txt --tokenizer byte --cache none --pool 12KiB --dropout 0.1 --optimizer muon --muon-row-norm \
                 --set layers=3",
            ),
            (
                "consecutive",
                "--data corpus.txt --tokenizer byte --order consecutive --preset yxanul-tiny --set rank=8 --set kv_heads=1",
            ),
        ] {
            let line = |out: &str| format!("train {TINY} {data} {SIX} --exact-ranks --out {name}-{out}");
            run(1, dir, &line("alone")).ok();
            let alone = dir.join(format!("{name}-alone"));
            for (ranks, zero) in [(2, 1), (3, 1), (2, 2)] {
                let out = format!("{ranks}-{zero}");
                run(ranks, dir, &format!("{} --zero {zero}", line(&out))).ok();
                let ours = dir.join(format!("{name}-{out}"));
                assert!(tensors(&ours, 8) == tensors(&alone, 8), "{name}: {ranks} ranks, --zero {zero}: other bits");
                assert_eq!(logged(&ours), logged(&alone), "{name}: {ranks} ranks, --zero {zero}");
            }
            let resumed = |steps: u32| format!("train --out {name}-on --resume --steps {steps}");
            run(2, dir, &line("on").replace("--steps 8", "--steps 3")).ok();
            run(3, dir, &format!("{} --zero 2", resumed(5))).ok();
            run(1, dir, &resumed(8)).ok();
            let on = dir.join(format!("{name}-on"));
            assert!(tensors(&on, 8) == tensors(&alone, 8), "{name}: resumed by others, other bits");
        }
    }

    /// All ranks know the best and the patience, and end together; resuming with another number of ranks works.
    #[test]
    fn the_best_and_the_patience_are_those_of_one() {
        let dir = directory();
        let dir = dir.path();
        fs::write(dir.join("corpus.txt"), text()).unwrap();
        fs::write(dir.join("val.txt"), "five five four one\n\n".repeat(40)).unwrap();
        let line = |out: &str| {
            format!(
                "train {TINY} --data corpus.txt --validation val.txt --tokenizer byte --schedule constant --warmup 1 --lr 0.03 \
                 --steps 60 --accumulate 2 --eval-every 3 --log-every 1 --threads 1 --exact-ranks --keep 1 --keep-best \
                 --patience 2 --out {out}"
            )
        };
        let checkpoints = |run: &Path| {
            let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut steps: Vec<u32> = names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).collect();
            steps.sort_unstable();
            steps
        };
        let assert_same = |steps: &[u32]| {
            let runs = ["alone", "two"].map(|run| dir.join(run));
            for run in &runs {
                assert_eq!(checkpoints(run), steps, "{}", run.display());
            }
            for step in steps {
                assert!(tensors(&runs[0], *step) == tensors(&runs[1], *step), "step {step}: other bits");
                let states = runs.each_ref().map(|run| {
                    let text = fs::read(run.join(format!("checkpoint-{step:08}/trainer_state.json"))).unwrap();
                    serde_json::from_slice::<Value>(&text).unwrap()["evaluations"].clone()
                });
                assert_eq!(states[0], states[1]);
            }
        };
        run(1, dir, &line("alone")).ok();
        run(2, dir, &line("two")).ok();
        let steps = checkpoints(&dir.join("alone"));
        let [best, end] = steps[..] else { panic!("{steps:?}") };
        assert!(end < 60 && end == best + 6, "{steps:?}");
        assert_same(&steps);
        assert_eq!(logged(&dir.join("alone")), logged(&dir.join("two")));
        run(2, dir, &format!("train --out alone --resume --steps {} --patience 0", end + 5)).ok();
        run(1, dir, &format!("train --out two --resume --steps {} --patience 0", end + 5)).ok();
        assert_same(&checkpoints(&dir.join("alone")));
    }

    #[test]
    fn ranks_give_the_same_bits_twice() {
        let dir = directory();
        let line = |out| format!("train {TINY} {SIX} --out {out}");
        for out in ["once", "again"] {
            run(3, dir.path(), &line(out)).ok();
        }
        let [once, again] = ["once", "again"].map(|out| dir.path().join(out));
        assert!(tensors(&once, 8) == tensors(&again, 8) && logged(&once) == logged(&again));
        // And the losses of one rank except for rounding.
        run(1, dir.path(), &line("alone")).ok();
        let losses = |dir: &Path| logged(dir).iter().filter_map(|line| line[1].as_f64()).collect::<Vec<_>>();
        for (a, b) in losses(&once).iter().zip(losses(&dir.path().join("alone"))) {
            assert!((a - b).abs() < 2e-5 * b, "{a} {b}");
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_names_its_ranks() {
        let dir = directory();
        let line = format!("train {TINY} {SIX} --skip-non-finite 0 --lr 1e30 --out run");
        refused(&run(2, dir.path(), &line), 1, &["the loss is NaN", "(the loss of rank 0, 1)", "lower --lr"]);
    }

    /// A run of two ranks that continues until it is ended, and the process numbers of its ranks.
    fn long_run(dir: &Path, parts: &[Part<'_>], out: &str) -> (Child, Vec<u32>) {
        let child = mpirun(parts).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
        let log = dir.join(out).join("metrics.jsonl");
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(&log).map_or(0, |text| text.lines().count()) < 5 {
            assert!(Instant::now() < deadline, "the run does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        let ranks = Command::new("pgrep").args(["-P", &child.id().to_string()]).output().expect("pgrep is there");
        let ranks = String::from_utf8(ranks.stdout).unwrap();
        (child, ranks.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
    }

    fn kill(signal: &str, pid: u32) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }

    const ENDLESS: &str =
        "--steps 1000000 --accumulate 2 --threads 1 --log-every 1 --exact-ranks --schedule constant --warmup 2";

    #[test]
    fn a_signal_to_one_rank_saves_on_all_and_the_run_goes_on_with_the_same_bits() {
        let dir = directory();
        let dir = dir.path();
        let line = format!("train {TINY} {ENDLESS} --out run");
        let (child, ranks) = long_run(dir, &[Part { ranks: 2, line: &line, dir, before: "" }], "run");
        assert_eq!(ranks.len(), 2);
        kill("-TERM", ranks[1]);
        let ended = Outcome::of(&line, child.wait_with_output().unwrap());
        refused(&ended, 130, &["interrupted after step", "--resume"]);
        let mut saved =
            fs::read_dir(dir.join("run")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let step = saved.find_map(|name| name.strip_prefix("checkpoint-")?.parse::<u32>().ok()).expect("a checkpoint");
        let more = step + 2;
        run(1, dir, &format!("train --out run --resume --steps {more}")).ok();
        run(1, dir, &line.replace("1000000", &more.to_string()).replace("--out run", "--out whole")).ok();
        assert!(tensors(&dir.join("run"), more) == tensors(&dir.join("whole"), more));
    }

    #[test]
    fn a_rank_that_is_killed_ends_the_others_and_the_run_goes_on_from_its_checkpoint() {
        let dir = directory();
        let dir = dir.path();
        let line = format!("train {TINY} {ENDLESS} --save-every 2 --out run");
        let (child, ranks) = long_run(dir, &[Part { ranks: 2, line: &line, dir, before: "" }], "run");
        let began = Instant::now();
        kill("-KILL", ranks[1]);
        let ended = Outcome::of(&line, child.wait_with_output().unwrap());
        assert!(ended.status != Some(0) && began.elapsed() < Duration::from_secs(60), "{ended:?}");
        run(2, dir, "train --out run --resume --steps 1000").ok();
        let line = line.replace("1000000", "1000").replace("--out run", "--out whole").replace("--save-every 2", "");
        run(1, dir, &line).ok();
        assert!(tensors(&dir.join("run"), 1_000) == tensors(&dir.join("whole"), 1_000));
    }

    #[test]
    fn a_rank_that_loses_its_data_or_its_disk_ends_all_and_is_named() {
        let root = directory();
        let root = root.path();
        let out = root.join("out");
        let dirs = ["a", "b"].map(|name| root.join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("corpus.txt"), text()).unwrap();
        }
        let data = "--data corpus.txt --tokenizer byte --order consecutive --cache none";
        let line = format!("train {TINY} {ENDLESS} {data} --out {}", out.join("lost").display());
        let part = |i: usize| Part { ranks: 1, line: &line, dir: &dirs[i], before: "" };
        let (child, _) = long_run(&out, &[part(0), part(1)], "lost");
        fs::remove_file(dirs[1].join("corpus.txt")).unwrap();
        let ended = Outcome::of(&line, child.wait_with_output().unwrap());
        refused(&ended, 1, &["rank 1: ", "corpus.txt", "the last good checkpoint is"]);

        // A limit of 16 KiB on rank 1's files: its part of the tensors exceeds it.
        let large = TINY.replace("300", "402");
        let line = format!("train {large} {SIX} --save-every 2 --out {}", out.join("full").display());
        let limited = "trap '' XFSZ; ulimit -f 16;";
        let parts = [
            Part { ranks: 1, line: &line, dir: root, before: "" },
            Part { ranks: 1, line: &line, dir: root, before: limited },
        ];
        let ended = Outcome::of(&line, mpirun(&parts).output().unwrap());
        refused(&ended, 1, &["the checkpoint of step 2 was not written", "rank 1: ", "there is no checkpoint yet"]);
        let left =
            fs::read_dir(out.join("full")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!left.into_iter().any(|name| name.starts_with("checkpoint")), "something half-written is left");
    }

    #[test]
    fn ranks_that_do_not_belong_together_are_refused_in_one_line() {
        let root = directory();
        let root = root.path();
        let dirs = ["a", "b"].map(|name| root.join(name));
        for (dir, text) in dirs.iter().zip([text(), text().replace("one", "six")]) {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("corpus.txt"), text).unwrap();
        }
        let out = root.join("out");
        let line = |more: &str| {
            let micro_batches = if more.contains("--accumulate") { "" } else { "--accumulate 6" };
            format!("train {TINY} --steps 8 --threads 1 {micro_batches} {more} --out {}", out.display())
        };
        let both = |lines: [&str; 2]| {
            let part = |i: usize| Part { ranks: 1, line: lines[i], dir: &dirs[i], before: "" };
            let outcome = Outcome::of(lines[0], mpirun(&[part(0), part(1)]).output().unwrap());
            assert!(!out.exists(), "{} left something", lines[0]);
            outcome
        };
        let same = |more: &str| both([&line(more), &line(more)]);
        refused(&both([&line(""), &line("--lr 0.5")]), 2, &["rank 1", "configuration is another"]);
        refused(&same("--data corpus.txt --tokenizer byte --cache none"), 2, &["rank 1", "data is another"]);
        // Another build, simulated by appending a zero byte to this one.
        let own = Part { ranks: 1, line: &line(""), dir: &dirs[0], before: "" };
        let copy = r#"cp "$0" copy; printf '\0' >> copy; BASH_ARGV0=./copy;"#;
        let other = Part { ranks: 1, line: &line(""), dir: &dirs[1], before: copy };
        let outcome = Outcome::of(own.line, mpirun(&[own, other]).output().unwrap());
        refused(&outcome, 2, &["rank 1: its program is another"]);
        assert!(!out.exists());
        refused(&both([&line(""), &line("--zero 2")]), 2, &["rank 1", "configuration is another"]);
        refused(&same("--zero 3"), 2, &["--zero 3: use 1, where ranks share"]);
        refused(&same("--accumulate 3"), 2, &["2 ranks share a step of 3 micro-batches", "--accumulate 4"]);
        let spiking = format!("train --preset neurogen-tiny --steps 2 --out {}", out.display());
        refused(&both([&spiking, &spiking]), 2, &["2 ranks: a NeuroGen"]);
        refused(&same("--device cuda:1"), 2, &["ranks on GPUs"]);
        refused(&both([&line("--data gone.txt"), &line("")]), 2, &["gone.txt"]);
        refused(&same("--budget 1MiB"), 2, &["more than the 1.0 MiB"]);
        fs::create_dir(&out).unwrap();
        fs::write(out.join("something"), "").unwrap();
        let parts = [Part { ranks: 2, line: &line(""), dir: root, before: "" }];
        refused(&Outcome::of("", mpirun(&parts).output().unwrap()), 2, &["the directory is not empty"]);
    }
}

/// Ranks as torchrun starts them, each with a stand-in for a GPU and one for NCCL.
#[cfg(feature = "cuda")]
mod gpus {
    use std::net::TcpListener;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use capful_tests::binary::{Outcome, command, directory};

    use super::{fs, refused};

    /// Few tokens: every thread of a kernel is simulated.
    const SMALL: &str = "--json --set value_tables=1 --set stream_scalars=true --set layers=2 --set d_model=16 --set heads=2 \
                         --set d_ff=32 --vocab-size 300 --seq-len 16 --batch-size 2 --eval-tokens 60 --schedule constant \
                         --warmup 2 --accumulate 6 --log-every 1 --baseline-tokens 0";

    fn start(rank: u32, count: u32, port: u16, dir: &Path, line: &str, variables: &[(&str, &str)]) -> Child {
        let mut command = command(dir, line);
        let [rank, count] = [rank, count].map(|n| n.to_string());
        command.env("CAPFUL_CUDA_DRIVER", capful_kernels::STAND_IN).env("CAPFUL_STAND_IN_GPUS", "3");
        command.envs([("RANK", &rank), ("WORLD_SIZE", &count), ("LOCAL_RANK", &rank)]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("TORCHELASTIC_RUN_ID", "test")]);
        command.env("CAPFUL_PORT", port.to_string()).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    /// The output of each rank.
    fn run(count: u32, dir: &Path, line: &str) -> Vec<Outcome> {
        run_with(count, dir, |_| (line.to_owned(), Vec::new()))
    }

    fn run_with(
        count: u32,
        dir: &Path,
        of: impl Fn(u32) -> (String, Vec<(&'static str, &'static str)>),
    ) -> Vec<Outcome> {
        let ranks: Vec<_> = begun(count, dir, of).collect();
        ranks.into_iter().map(|(line, child)| Outcome::of(&line, child.wait_with_output().unwrap())).collect()
    }

    /// The command of each rank, and its process.
    fn begun(
        count: u32,
        dir: &Path,
        of: impl Fn(u32) -> (String, Vec<(&'static str, &'static str)>),
    ) -> impl Iterator<Item = (String, Child)> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        (0..count).map(move |rank| {
            let (line, variables) = of(rank);
            let child = start(rank, count, port, dir, &line, &variables);
            (line, child)
        })
    }

    /// As `run`, with messages exchanged as early as the graph allows; `run` exchanges them as late as possible.
    fn run_early(count: u32, dir: &Path, line: &str) -> Vec<Outcome> {
        run_with(count, dir, |_| (line.to_owned(), vec![("CAPFUL_STAND_IN_EAGER", "1")]))
    }

    fn tensors(dir: &Path, step: u32) -> [Vec<u8>; 2] {
        let checkpoint = dir.join(format!("checkpoint-{step:08}"));
        ["model.safetensors", "optimizer.safetensors"].map(|name| fs::read(checkpoint.join(name)).unwrap())
    }

    /// Where each rank has one micro-batch, the order of micro-batches is that of the ranks, so the bits are those of
    /// exact ranks.
    #[test]
    fn what_is_sent_beside_the_backward_pass_changes_no_bit() {
        let dir = directory();
        let dir = dir.path();
        for precision in ["f32", "bf16"] {
            let line = |micro_batches: u32, out: &str| {
                let shape = SMALL.replace("--accumulate 6", &format!("--accumulate {micro_batches}"));
                format!("train --device cuda --precision {precision} {shape} --steps 3 --out {precision}-{out}")
            };
            run(1, dir, &format!("{} --exact-ranks", line(2, "alone"))).remove(0).ok();
            run(2, dir, &line(2, "late")).into_iter().for_each(|rank| drop(rank.ok()));
            run_early(2, dir, &line(2, "early")).into_iter().for_each(|rank| drop(rank.ok()));
            run(2, dir, &line(6, "late-of-six")).into_iter().for_each(|rank| drop(rank.ok()));
            run_early(2, dir, &line(6, "early-of-six")).into_iter().for_each(|rank| drop(rank.ok()));
            let of = |out: &str| tensors(&dir.join(format!("{precision}-{out}")), 3);
            let alone = of("alone");
            assert!(of("late") == alone && of("early") == alone, "{precision}");
            assert!(of("late-of-six") == of("early-of-six"), "{precision}: three micro-batches a rank");
        }
    }

    #[test]
    fn exact_ranks_on_gpus_have_the_bits_of_one() {
        let dir = directory();
        let dir = dir.path();
        let muon = "bf16 --optimizer muon --muon-row-norm --set layers=3";
        for (name, precision) in [("f32", "f32"), ("bf16", "bf16"), ("muon", muon)] {
            let line = |out: &str, steps: u32| {
                format!(
                    "train --device cuda --precision {precision} {SMALL} --exact-ranks --steps {steps} --out {name}-{out}"
                )
            };
            let alone = dir.join(format!("{name}-alone"));
            run(1, dir, &line("alone", 3)).remove(0).ok();
            for (count, zero) in [(2, 1), (3, 1), (2, 2)] {
                let out = format!("{count}-{zero}");
                let run = if zero == 2 { run_early } else { run };
                let ended = run(count, dir, &format!("{} --zero {zero}", line(&out, 3)));
                assert!(ended[1..].iter().all(|rank| rank.out.is_empty() && rank.err.is_empty()), "{ended:?}");
                ended.into_iter().for_each(|rank| drop(rank.ok()));
                let ours = dir.join(format!("{name}-{out}"));
                assert!(tensors(&ours, 3) == tensors(&alone, 3), "{name}: {count} ranks, --zero {zero}: other bits");
            }
            run(2, dir, &line("on", 1)).into_iter().for_each(|rank| drop(rank.ok()));
            let resumed = run(3, dir, &format!("train --json --out {name}-on --resume --steps 3"));
            resumed.into_iter().for_each(|rank| drop(rank.ok()));
            assert!(tensors(&dir.join(format!("{name}-on")), 3) == tensors(&alone, 3), "{name}: resumed");
        }
        // In fp8 as well, after the sixteen steps of warm-up for the scales.
        let line = |out: &str| {
            let two = SMALL.replace("--accumulate 6", "--accumulate 2");
            format!("train --device cuda --precision fp8 {two} --exact-ranks --steps 18 --out fp8-{out}")
        };
        for (count, zero) in [(1, 1), (2, 2)] {
            let line = format!("{} --zero {zero}", line(&count.to_string()));
            run(count, dir, &line).into_iter().for_each(|rank| drop(rank.ok()));
        }
        assert!(tensors(&dir.join("fp8-1"), 18) == tensors(&dir.join("fp8-2"), 18), "fp8");
    }

    #[test]
    fn what_gpus_cannot_share_is_refused_by_all_in_one_line() {
        let dir = directory();
        let dir = dir.path();
        let line = format!("train --device cuda {SMALL} --steps 2 --out run");
        let all_refused = |ended: Vec<Outcome>, says: &[&str]| {
            assert!(ended.iter().all(|rank| rank.status == Some(2)), "{ended:?}");
            ended[0].refused(2, says);
            assert!(ended[1..].iter().all(|rank| rank.out.is_empty() && rank.err.is_empty()), "{ended:?}");
            assert!(!dir.join("run").exists());
        };
        all_refused(run(2, dir, &line.replace("cuda", "cuda:1")), &["--device cuda:1", "use --device cuda"]);
        all_refused(run(2, dir, &line.replace("--accumulate 6", "--accumulate 5")), &["2 ranks share a step of 5"]);
        let other =
            |rank| (line.clone(), if rank == 1 { vec![("CAPFUL_STAND_IN_NAME", "Another GPU")] } else { Vec::new() });
        all_refused(run_with(2, dir, other), &["rank 1: its GPU is another"]);
        // Variables of rank 1 only.
        for (name, value, says) in [
            ("CAPFUL_STAND_IN_TOTAL", "100000", "rank 1"),
            ("CAPFUL_WAIT", "soon", "rank 1: CAPFUL_WAIT is 'soon'; set it to the longest wait in seconds"),
            // A stack that fits on no machine.
            ("RUST_MIN_STACK", "1000000000000000", "rank 1: the thread that looks after waits cannot start"),
        ] {
            let of = |rank| (line.clone(), if rank == 1 { vec![(name, value)] } else { Vec::new() });
            all_refused(run_with(2, dir, of), &[says]);
        }
    }

    #[test]
    fn a_rank_that_is_killed_or_stopped_ends_the_other_in_time_and_the_run_goes_on() {
        let dir = directory();
        let dir = dir.path();
        let line = |steps: u32, out: &str| {
            format!(
                "train --device cuda --precision f32 {SMALL} --exact-ranks --eval-every 0 --steps {steps} --out {out}"
            )
        };
        run(2, dir, &line(2, "run")).into_iter().for_each(|rank| drop(rank.ok()));
        let logged = || fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap().lines().count();
        // The second time an abort does not end, so that its whole grace period passes.
        for (signal, ended, hangs, seconds) in [("-KILL", 1, "0", 8), ("-STOP", 0, "1", 18)] {
            let before = logged();
            let variables = vec![("CAPFUL_WAIT", "8"), ("CAPFUL_STAND_IN_ABORT_HANGS", hangs)];
            let long = |_| (format!("{} --resume", line(1_000_000, "run")), variables.clone());
            let mut ranks: Vec<_> = begun(2, dir, long).collect();
            let (_, mut lost) = ranks.remove(ended);
            let (line, waits) = ranks.remove(0);
            let deadline = Instant::now() + Duration::from_secs(60);
            while logged() < before + 3 {
                assert!(Instant::now() < deadline, "the run does not go on");
                std::thread::sleep(Duration::from_millis(20));
            }
            let began = Instant::now();
            assert!(Command::new("kill").args([signal, &lost.id().to_string()]).status().unwrap().success());
            let outcome = Outcome::of(&line, waits.wait_with_output().unwrap());
            let took = began.elapsed();
            lost.kill().unwrap();
            lost.wait().unwrap();
            let who = format!("rank {} has waited 8 s for the GPUs of the other ranks", 1 - ended);
            refused(&outcome, 1, &[&who, "gone or hangs", "--resume"]);
            // The wait began before the signal, by at most one step.
            let (least, most) = (Duration::from_millis(1000 * seconds - 500), Duration::from_secs(seconds + 5));
            assert!((least..most).contains(&took), "{signal}: {took:?}");
        }
        run(2, dir, &format!("{} --resume", line(4, "run"))).into_iter().for_each(|rank| drop(rank.ok()));
        run(2, dir, &line(4, "whole")).into_iter().for_each(|rank| drop(rank.ok()));
        assert!(tensors(&dir.join("run"), 4) == tensors(&dir.join("whole"), 4));
    }
}
