#!/usr/bin/env bash
# A rung of docs/speedrun.md: trains quick-70m on a text and prints one line for each run. On one GPU:
#   bash tests/speedrun.sh HOST TRAIN.jsonl VALIDATION.jsonl "STEPS ..." "SEEDS ..." [flags of host train]
set -euo pipefail
host=$(realpath "$1") train=$(realpath "$2") validation=$(realpath "$3") steps=$4 seeds=$5
shift 5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
now() { date +%s.%N; }
since() { python3 -c "print(f'{$(now) - $1:.1f}')"; }
# Seconds of the steps of a run: the time that it reports at its end includes the last evaluation and the saves.
training() {
  python3 - "$1/metrics.jsonl" <<'PYTHON'
import json, sys
seconds = before = 0
for line in map(json.loads, open(sys.argv[1])):
    if "tokens_per_s" in line:
        seconds += (line["tokens"] - before) / line["tokens_per_s"]
        before = line["tokens"]
print(f"{seconds:.2f} s, {before / seconds:.0f} tokens/s")
PYTHON
}

start=$(now)
"$host" data --in "$train" --tokenizer bpe --vocab-size 10000 --out "$work/shards" >"$work/log" 2>&1
echo "text, tokenizer and tokens: $(since "$start") s"
for count in $steps; do
  for seed in $seeds; do
    start=$(now)
    "$host" train --preset quick-70m --device cuda --precision bf16 --data "$work/shards" --validation "$validation" \
      --eval-tokens 250000 --eval-every 0 --baseline-tokens 0 --save-minutes 0 --save-every 0 --log-every 500 \
      --steps "$count" --seed "$seed" --out "$work/run" "$@" >"$work/log" 2>&1 || { tail -3 "$work/log"; exit 1; }
    bits=$(grep -o 'val_bits_per_byte":[0-9.]*' "$work/run/metrics.jsonl" | tail -1 | cut -d: -f2)
    echo "steps $count, seed $seed: $bits bits a byte; training $(training "$work/run"); whole command $(since "$start") s"
    rm -rf "$work/run"
  done
done
