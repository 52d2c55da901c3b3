"""The effect of each mechanism of neurogen-tiny: makes the runs in the table of docs/neurogen.md, --parallel at once.

  python3 tests/peers/neurogen_ablations.py target/release/host prose.txt [--parallel 10] [--steps 600] [--out runs.jsonl]
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import tempfile

# No neuron reaches this threshold, so only the direct path remains.
SKIP_ONLY = ["threshold=1e9", "memory=0", "rule=frozen", "homeostasis=0.0"]
RUNS = {
    "default": [],
    "skip only": SKIP_ONLY,
    "frozen": ["rule=frozen"],
    "eprop-random": ["rule=eprop-random"],
    "bptt": ["rule=bptt"],
    "bptt, pipelined": ["rule=bptt", "mode=pipelined"],
    "pipelined": ["mode=pipelined"],
    "full eligibility": ["eligibility=full"],
    "one tap": ["taps=1"],
    "no direct path": ["skip=0"],
    "no memory": ["memory=0"],
    "slow memory": ["memory_decay=0.995"],
    "slow neurons": ["leak=0.85", "filter=0.6"],
    "competition": ["winners=9"],
    "no homeostasis": ["homeostasis=0.0"],
    "gate": ["gate=true"],
    "feedback": ["feedback=true"],
    "dopamine 0.5": ["dopamine=0.5"],
    "dopamine -0.5": ["dopamine=-0.5"],
    "novelty 0.5": ["novelty=0.5"],
    "novelty -0.3": ["novelty=-0.3"],
}


def run(arguments, name, seed):
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.host, "train", "--preset", "neurogen-tiny", "--data", arguments.data, "--json"]
        command += ["--threads", str(arguments.threads), "--steps", str(arguments.steps), "--seed", str(seed)]
        command += ["--eval-every", "0", "--keep", "1", "--out", str(pathlib.Path(folder, "run"))]
        for pair in RUNS[name]:
            command += ["--set", pair]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split("\n")
        result = json.loads(lines[-1])
    keys = ("val_loss", "seconds", "tokens", "baselines")
    return {"run": name, "seed": seed, **{key: result[key] for key in keys}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("data")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out")
    arguments = parser.parse_args()
    found = []
    with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
        pending = [pool.submit(run, arguments, name, seed) for seed in arguments.seeds for name in RUNS]
        for done in concurrent.futures.as_completed(pending):
            found.append(done.result())
            print(json.dumps(found[-1]), flush=True)
            if arguments.out:
                pathlib.Path(arguments.out).write_text("\n".join(map(json.dumps, found)) + "\n")
    for name in RUNS:
        losses = [r["val_loss"] for r in sorted(found, key=lambda r: r["seed"]) if r["run"] == name]
        print(f"| {name} | {' | '.join(f'{loss:.3f}' for loss in losses)} | {sum(losses) / len(losses):.3f} |")


if __name__ == "__main__":
    main()
