#!/usr/bin/env bash
# Times two binaries of `host` with the same flags of `host bench`, alternately, and compares speed and start-up:
#   tests/compare_bench.sh OLD NEW TURNS FLAGS...
#   tests/compare_bench.sh old/host target/release/host 5 --preset pythia-70m --device cuda --precision bf16 --batch-size 32
# One line for each turn, then the medians. Start-up is everything but the timed steps: reading, initialising, tuning.
set -euo pipefail
[ $# -ge 4 ] || { sed -n 2,5p "$0"; exit 2; }
exec python3 - "$@" <<'PYTHON'
import json, statistics, subprocess, sys, time

old, new, turns, *flags = sys.argv[1:]
STEPS = 20
seen = {"old": [], "new": []}
for turn in range(int(turns)):
    for which, binary in (("old", old), ("new", new)):
        began = time.monotonic()
        command = [binary, "bench", "--json", "--steps", str(STEPS), *flags]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{binary} ended with {done.returncode}")
        line = json.loads(done.stdout)
        start = time.monotonic() - began - STEPS * line["ms_per_step"] / 1e3
        seen[which].append((line["tokens_per_s"], start))
        print(f"{turn + 1} {which}: {line['tokens_per_s']:.0f} tokens/s, start {start:.2f} s", flush=True)
speed, start = ({which: statistics.median(s[i] for s in seen[which]) for which in seen} for i in (0, 1))
print(f"speed {speed['old']:.0f} -> {speed['new']:.0f} tokens/s, {100 * (speed['new'] / speed['old'] - 1):+.1f} %")
print(f"start {start['old']:.2f} -> {start['new']:.2f} s")
PYTHON
