#!/usr/bin/env python3
"""Runs capful and PyTorch on the same training shapes, alternately, and prints a table of the medians.

  cargo build --release
  python3 tests/peers/compare.py --host target/release/host [--rounds 3] [--threads 2] [--only tiny,small]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {  # name: layers, d, heads
    "tiny": (4, 128, 4),
    "small": (6, 256, 8),
    "pythia70m": (6, 512, 8),
}


def sides(a, name):
    """Each competitor's name and command; every command prints JSON with tokens_per_s on its last line."""
    layers, d, heads = SHAPES[name]
    t = str(a.threads)
    sizes = [f"layers={layers}", f"d_model={d}", f"heads={heads}", f"d_ff={4 * d}"]
    ours = [a.host, "bench", "--preset", "pythia-70m", "--vocab-size", str(a.vocab), "--batch-size", str(a.batch)]
    ours += ["--seq-len", str(a.seq), "--threads", t, "--precision", "f32", "--steps", str(a.steps), "--json"]
    ours += [x for size in sizes for x in ("--set", size)]
    peer = [a.python, os.path.join(HERE, "torch_lm.py"), "--device", "cpu", "--arch", "neox", "--layers", str(layers)]
    peer += ["--d", str(d), "--heads", str(heads), "--vocab", str(a.vocab), "--seq", str(a.seq)]
    peer += ["--batch", str(a.batch), "--threads", t, "--steps", str(a.steps)]
    yield "capful", ours
    for malloc in a.malloc.split(","):
        yield f"torch eager, {malloc}", peer + ["--malloc", malloc]
        yield f"torch compiled, {malloc}", peer + ["--malloc", malloc, "--compile", "1"]


def measure(command):
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print(f"failed with {run.returncode}:", " ".join(command), file=sys.stderr, flush=True)
        return None
    return json.loads(run.stdout.strip().splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--host", default="target/release/host")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--only", default=",".join(SHAPES))
    p.add_argument("--malloc", default="tuned", help="comma-separated: default, tuned, huge")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--vocab", type=int, default=10000)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq", type=int, default=128)
    a = p.parse_args()
    print(f"V {a.vocab}, T {a.seq}, B {a.batch}, {a.threads} threads, f32, {a.rounds} rounds of {a.steps} steps\n")
    print("| shape | program | tokens/s, median | lowest | highest | peak RSS MiB | load |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in a.only.split(","):
        commands, results, loads = dict(sides(a, name)), {}, {}
        for _ in range(a.rounds):
            for side, command in commands.items():
                loads.setdefault(side, []).append(os.getloadavg()[0])
                results.setdefault(side, []).append(measure(command))
        for side, found in results.items():
            found = [r for r in found if r]
            if not found:
                print(f"| {name} | {side} | failed | | | | |")
                continue
            speed = [r["tokens_per_s"] for r in found]
            rss = max(r["peak_rss_mib"] if "peak_rss_mib" in r else r["peak_rss_bytes"] >> 20 for r in found)
            print(f"| {name} | {side} | {statistics.median(speed):,.0f} | {min(speed):,.0f} | {max(speed):,.0f} "
                  f"| {rss:,} | {statistics.median(loads[side]):.1f} |", flush=True)


if __name__ == "__main__":
    main()
