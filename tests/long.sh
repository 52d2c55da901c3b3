#!/usr/bin/env bash
# Checks that take longer than the tests: by part, or all parts without an argument. Results are in docs/long-tests.md.
#   seeds    the default run over three seeds: validation loss at most 1.05 times the floor, in 90 s of training
#   natural  bytes of a natural text (the prose of the Rust documentation in the toolchain): loss below the trigram's
#   peers    speed compared with PyTorch (needs torch: tests/peers/README.md)
#   parity   20 steps compared with PyTorch at full size (needs torch)
#   export   exports in transformers and llama.cpp: logits, greedy tokens, ids (needs tests/peers/requirements-export.txt)
#   harness  an export under lm-evaluation-harness, on a task made here (the same)
#   tokenizers  ids and texts of every kind of tokenizer.json against Python's library (tests/peers/environment.sh)
#   nccl     two ranks on two GPUs: bits, repeatability, torchrun, a rank that is killed, throughput beside one, bytes over
#            NVLink (needs two GPUs and NCCL)
#   scaling  only the throughput of the previous part
#   faults   every call that touches a file fails once and is the last one once, in encodings, a training, exports and an import
#   targets  the core for thumb and aarch64, if these are installed
# CAPFUL_HOST names an existing binary, for a machine without cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
host=${CAPFUL_HOST:-${CARGO_TARGET_DIR:-target}/release/host}
[ -n "${CAPFUL_HOST:-}" ] || cargo build --release -q

seeds() {
  for seed in 0 1 2; do
    "$host" train --seed $seed --threads 2 --out "$work/seed-$seed" --json | tail -n 1 | "$python" -c '
import json, sys
r = json.load(sys.stdin)
ratio = r["val_loss"] / r["floor"]
print("seed", sys.argv[1], {k: r[k] for k in ("val_loss", "floor", "baselines", "seconds", "heap_allocations", "heap_bytes_per_save")}, "ratio %.4f" % ratio)
assert ratio <= 1.05 and r["seconds"] <= 90 and r["heap_allocations"] == 0 and r["heap_bytes_per_save"] <= 65536' $seed
  done
}

natural() {
  docs=$(rustc --print sysroot)/share/doc/rust/html
  "$python" - "$docs" "$work/prose.txt" <<'PY'
import html, pathlib, re, sys
out = open(sys.argv[2], "w")
total = 0
for path in sorted(p for book in ("book", "reference", "rust-by-example", "nomicon") for p in pathlib.Path(sys.argv[1], book).glob("*.html")):
    if path.name in ("print.html", "toc.html"):
        continue
    text = path.read_text(errors="replace")
    for paragraph in re.findall(r"<p>(.*?)</p>", text, re.S):
        words = html.unescape(re.sub(r"<[^>]+>", "", paragraph)).split()
        if len(words) > 5:
            total += out.write(re.sub(r"([.,;:!?()])", r" \1 ", " ".join(words)) + "\n\n")
print(total, "bytes of prose")
PY
  "$host" train --preset pythia-tiny --data "$work/prose.txt" --tokenizer byte --vocab-size 260 --steps ${STEPS:-2000} \
    --out "$work/natural" --json | tail -n 1 | "$python" -c '
import json, sys
r = json.load(sys.stdin)
print({k: r[k] for k in ("val_loss", "val_tokens", "baselines", "seconds", "tokens")})
assert r["val_loss"] < r["baselines"]["trigram"]'
}

peers() { "$python" tests/peers/compare.py --host "$host"; }

# Starts this many ranks of a run, as torchrun would: their processes are in pids.
start_ranks() {
  local count=$1 out=$2 rank
  shift 2
  pids=()
  for ((rank = 0; rank < count; rank++)); do
    RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
      "$host" train --device cuda --precision ${PRECISION:-bf16} --json --out "$work/$out" "$@" \
      >"$work/$out-$rank.jsonl" 2>"$work/$out-$rank.err" &
    pids+=($!)
  done
}

# Runs the ranks to their end.
ranks() {
  local rank pid
  start_ranks "$@"
  for rank in "${!pids[@]}"; do
    pid=${pids[rank]}
    wait "$pid" || { cat "$work/$2-$rank.err" >&2; return 1; }
  done
}

# One of two ranks gets a signal that stops it: the other ends with an error line and status 1, at most 11 s after its
# longest wait, and the run can be resumed.
lost() {
  local signal=$1 lost=$2 waits=$((1 - $2)) out=lost-$2 status=0 began took
  shift 2
  ranks 2 "$out" "$@" --steps 4
  CAPFUL_WAIT=20 start_ranks 2 "$out" "$@" --steps 100000000 --resume
  while [ "$(wc -l <"$work/$out/metrics.jsonl")" -lt 20 ]; do
    sleep 0.1
    kill -0 "${pids[waits]}"
  done
  kill -"$signal" "${pids[lost]}"
  began=$SECONDS
  wait "${pids[waits]}" || status=$?
  took=$((SECONDS - began))
  kill -KILL "${pids[lost]}" 2>/dev/null || true
  wait "${pids[lost]}" 2>/dev/null || true
  grep "host: rank $waits has waited 20 s for the GPUs of the other ranks" "$work/$out-$waits.err"
  echo "rank $lost got SIG$signal: rank $waits ended with $status after $took s"
  [ $status = 1 ]
  [ $took -le 31 ]
  ranks 2 "$out" "$@" --steps 6 --resume
  ranks 2 "$out-whole" "$@" --steps 6
  cmp "$work/$out/checkpoint-00000006/model.safetensors" "$work/$out-whole/checkpoint-00000006/model.safetensors"
}

# Two ranks started by torchrun: they repeat the earlier run, which was started without it.
launched() {
  command -v torchrun >/dev/null || { echo "there is no torchrun: not checked"; return; }
  torchrun --nproc-per-node 2 --no-python "$host" train --device cuda --precision ${PRECISION:-bf16} --json \
    --out "$work/launched" "$@" >"$work/launched.jsonl" 2>"$work/launched.err" || { cat "$work/launched.err"; return 1; }
  cmp "$work/once/checkpoint-00000020/model.safetensors" "$work/launched/checkpoint-00000020/model.safetensors"
  echo "torchrun: the same bits"
}

# The KiB that the first GPU's links have sent; empty where the driver does not report it.
sent() {
  nvidia-smi nvlink -gt d -i 0 2>/dev/null | awk '/Tx/ { sum += $(NF - 1) } END { if (NR) print sum }'
}

# Bytes that rank 0 sends in a step, by its GPU's own counters: the difference of a long run and a short one.
traffic() {
  local shape="--preset pythia-160m --seq-len 512 --batch-size 8 --accumulate 2 --eval-every 0 --tokenizer byte --vocab-size 260"
  [ -n "$(sent)" ] || { echo "the driver does not count bytes over NVLink: not checked"; return; }
  local before between after
  before=$(sent)
  ranks 2 short $shape --steps 20
  between=$(sent)
  ranks 2 long $shape --steps 120
  after=$(sent)
  "$host" plan $shape --device cuda --precision ${PRECISION:-bf16} --ranks 2 --json >"$work/plan.json"
  "$python" - "$work/plan.json" $before $between $after <<'PY'
import json, sys
before, between, after = map(int, sys.argv[2:])
planned = json.load(open(sys.argv[1]))["stages"][-1]["sent_per_step"]
counted = 1024 * (after - between - (between - before)) / 100
print(f"rank 0 sends {planned} bytes a step by its plan, {counted:.0f} by its GPU's counters")
# NCCL sends flags in addition to the content of short messages.
assert 0 <= counted / planned - 1 < 0.01
PY
}

nccl() {
  [ -n "${CAPFUL_HOST:-}" ] || cargo build --release -q --features cuda
  local small="--preset pythia-tiny --accumulate 6 --steps 20 --schedule constant --warmup 2"
  ranks 1 one $small --exact-ranks
  ranks 2 two $small --exact-ranks
  ranks 2 thin $small --zero 2
  ranks 2 once $small
  ranks 2 again $small
  for pair in "one two" "one thin" "once again"; do
    read -r a b <<<"$pair"
    for file in model optimizer; do
      cmp "$work/$a/checkpoint-00000020/$file.safetensors" "$work/$b/checkpoint-00000020/$file.safetensors"
    done
    echo "$a and $b: the same bits"
  done
  # Without evaluations, during which ranks also communicate over TCP.
  local endless="${small/--steps 20 /} --exact-ranks --eval-every 0 --log-every 1"
  lost KILL 1 $endless
  lost STOP 0 $endless
  launched $small
  traffic
  scaling
}

# Tokens per second of two ranks compared with one, with one micro-batch for each rank.
scaling() {
  local preset shape
  for preset in ${PRESETS:-yxanul-197m:2048:32:200005 pythia-160m:2048:16:50304}; do
    IFS=: read -r preset seq_len batch vocabulary <<<"$preset"
    shape="--preset $preset --seq-len $seq_len --batch-size $batch --steps ${STEPS:-100} --eval-tokens 4096"
    shape="$shape --vocab-size $vocabulary"
    ranks 1 "$preset-1" $shape --accumulate 1
    ranks 2 "$preset-2" $shape --accumulate 2
    "$python" - "$work/$preset-1-0.jsonl" "$work/$preset-2-0.jsonl" $preset <<'PY'
import json, statistics, sys
def speed(path):
    lines = [json.loads(line) for line in open(path)]
    return statistics.median([l["tokens_per_s"] for l in lines if "tokens_per_s" in l][2:])
one, two = map(speed, sys.argv[1:3])
print(f"{sys.argv[3]}: {one:.0f} tokens/s on one GPU, {two:.0f} on two: {two / one:.2f} times")
PY
  done
}

parity() { cargo test --release -q -p capful-tests --test suite pythia::; }

# A run with the byte tokenizer, and both of its exports.
exported() {
  local name=$1; shift
  "$host" train --steps 60 --threads 2 --tokenizer byte --eval-tokens 2000 --out "$work/$name" --json "$@" >/dev/null
  "$host" export --run "$work/$name" --to hf "$work/$name-hf"
  "$host" export --run "$work/$name" --to gguf "$work/$name.gguf"
}

export() {
  local llama="--preset llama-tiny" stretched="--set rotary_scaling=llama3 --set rotary_factor=8 --set rotary_original=64"
  exported pythia --preset pythia-tiny
  exported llama $llama
  exported yxanul --preset yxanul-tiny
  exported biased $llama --set bias=qkv
  exported stretched $llama $stretched
  exported normed $llama --set qk_norm=true --set head_size=48
  for name in pythia llama yxanul biased stretched normed; do
    "$python" tests/peers/export_parity.py --host "$host" --run "$work/$name" --export "$work/$name-hf"
    "$python" tests/peers/gguf_parity.py --host "$host" --run "$work/$name" --export "$work/$name.gguf" \
      --tokenizer "$work/$name-hf/tokenizer.json" --exact
  done
  for weights in q8_0 q4_0; do
    "$host" export --run "$work/llama" --to gguf --weights $weights "$work/llama-$weights.gguf"
    "$python" tests/peers/gguf_parity.py --host "$host" --run "$work/llama" --export "$work/llama-$weights.gguf"
  done
  cat docs/*.md tests/peers/*.py > "$work/text.txt"
  "$python" tests/peers/tokenizers_of_splits.py "$work/text.txt" "$work/splits"
  for split in gpt2 qwen2 llama3 llama3-merges; do
    "$host" train $llama --steps 3 --threads 2 --tokenizer "$work/splits/$split/tokenizer.json" --data "$work/text.txt" \
      --eval-tokens 500 --out "$work/split-$split" --json >/dev/null
    "$host" export --run "$work/split-$split" --to gguf "$work/$split.gguf"
    "$python" tests/peers/gguf_parity.py --host "$host" --run "$work/split-$split" --export "$work/$split.gguf" \
      --tokenizer "$work/splits/$split/tokenizer.json" --exact
  done
}

harness() {
  exported scored --preset llama-tiny
  HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 "$python" tests/peers/harness.py --host "$host" --run "$work/scored" \
    --export "$work/scored-hf" --work "$work/harness"
}

tokenizers() {
  bash tests/corpus/make.sh "$work/corpus"
  "$python" tests/peers/tokenizer_parity.py --host "$host" --natural "$work/corpus/docs.jsonl"
  "$python" tests/peers/tokenizer_parity.py --host "$host" --classes
}

faults() {
  CAPFUL_FAULTS=all cargo test -q -p capful-tests --test suite faults:: -- --include-ignored --nocapture --test-threads 2
}

targets() {
  for target in thumbv7em-none-eabihf aarch64-unknown-none; do
    if rustc --print target-libdir --target $target | xargs test -d; then
      cargo build -q -p capful-core --target $target && echo "$target builds"
    else
      echo "$target is not installed: not checked"
    fi
  done
}

for part in "${@:-seeds natural peers parity targets}"; do for p in $part; do echo "== $p"; $p; done; done
