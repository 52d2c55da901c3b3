#!/usr/bin/env bash
# Profiles steps on a GPU and prints the difference between the operations' sum and an unprofiled step:
#   tests/profile.sh target/release/host [OUT]
# Traces and JSON are stored in OUT (default ./profiles). Exits with 1 where a sum is off by more than 3 %.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,4p "$0"; exit 2; }
host=$(realpath "$1") out=${2:-profiles}
mkdir -p "$out"
yxanul="--preset yxanul-197m --device cuda --precision bf16 --accumulate 1 --chunk 4096 --steps 8"
profile() {
    local name=$1
    shift
    "$host" bench --json --profile --trace "$out/$name.trace.json" "$@" >"$out/$name.json"
}
profile yxanul-t128 $yxanul --seq-len 128 --batch-size 512 --recompute cheap
profile yxanul-t2048 $yxanul --seq-len 2048 --batch-size 32
profile yxanul-t2048-full $yxanul --seq-len 2048 --batch-size 32 --recompute full
profile pythia-t128 --preset pythia-70m --device cuda --precision bf16 --seq-len 128 --batch-size 32 --steps 20
profile neurogen --preset neurogen-tiny --device cuda --precision bf16 --batch-size 32 --seq-len 64 --steps 6
exec python3 - "$out" <<'PYTHON'
import glob, json, sys

worst = 0.0
for path in sorted(glob.glob(f"{sys.argv[1]}/*.json")):
    if path.endswith(".trace.json"):
        continue
    bench = json.load(open(path))
    profile, step = bench["profile"], bench["ms_per_step"] / 1e3
    off = profile["seconds"] / step - 1
    worst = max(worst, abs(off))
    trace = json.load(open(path.replace(".json", ".trace.json")))["traceEvents"]
    events = [e for e in trace if e["ph"] == "X" and e["tid"] == 2]
    assert len(events) == len(profile["operations"])
    print(f"{path}: step {step * 1e3:.3f} ms, {len(events)} operations {profile['seconds'] * 1e3:.3f} ms, {off * 100:+.2f} %")
    for t in profile["totals"][:8]:
        print(f"  {t['operation']:<18} {t['count']:>6} {t['seconds'] * 1e3:>9.3f} ms {100 * t['share']:>5.1f} %"
              f"  roofline {t['roofline_seconds'] * 1e3:>9.3f} ms")
print(f"farthest from its step: {100 * worst:.2f} %")
sys.exit(worst > 0.03)
PYTHON
