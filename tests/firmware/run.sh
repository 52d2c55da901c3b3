#!/usr/bin/env bash
# Builds the programs for a Cortex-M, inspects the binaries, and runs the tests that start them on emulated chips.
#
# Uses rustup's target if it is installed, otherwise Debian's compiler for the web browser, which can build the core
# library for other machines from its own source. Installs what it needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=thumbv7em-none-eabihf

missing=()
command -v qemu-system-arm >/dev/null || missing+=(qemu-system-arm)
command -v arm-none-eabi-objdump >/dev/null || missing+=(binutils-arm-none-eabi)
installed() { rustup target list --installed 2>/dev/null | grep -qx "$target"; }
installed || for package in rustc-web cargo-web rust-web-src lld; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

# The host's build flags must not apply to the chip's build.
build=(--manifest-path tests/firmware/Cargo.toml --target-dir target/firmware --target "$target" --release --locked --quiet)
cargo fmt --manifest-path tests/firmware/Cargo.toml --check
# A panic message contains the path of its source, whose length must not decide whether the program fits.
paths="--remap-path-prefix=$PWD=capful --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
chip() {
  local RUSTFLAGS="${RUSTFLAGS:-} $paths"
  export RUSTFLAGS
  # A wrapper of the host's compiler does not work for the chip's.
  if installed; then
    env -u RUSTC_WORKSPACE_WRAPPER cargo "$@"
  else
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_THUMBV7EM_NONE_EABIHF_LINKER=ld.lld \
      env -u RUSTC_WORKSPACE_WRAPPER /usr/bin/cargo "$@" -Zbuild-std=core
  fi
}
chip build "${build[@]}"
# The standard library has only core: code that uses alloc must not compile. rustup's target includes alloc, so this
# check proves nothing there.
if ! installed; then
  refused=$(chip build "${build[@]}" --lib --features alloc 2>&1) && { echo "tests/firmware/run.sh: alloc compiled"; exit 1; }
  grep -q "can't find crate for \`alloc\`" <<< "$refused" || { echo "$refused"; exit 1; }
fi
# The bits depend on libm: the chip's packages must be the workspace's.
python3 - Cargo.lock tests/firmware/Cargo.lock <<'PYTHON'
import sys, tomllib
host, chip = ({(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(open(f, "rb"))["package"]} for f in sys.argv[1:])
other = [name for name, sum in chip.items() if sum and host.get(name) != sum]
sys.exit(f"tests/firmware/Cargo.lock has other packages than Cargo.lock: {other}" if other else 0)
PYTHON
program=$PWD/target/firmware/$target/release/speak

# Results are the same bits everywhere because nothing is contracted: vfma rounds once where the host rounds twice.
objdump=arm-none-eabi-objdump
for name in speak speak_spiking large quick learn spike adapt; do
  asm=target/firmware/$name.asm
  "$objdump" -d "${program%/*}/$name" > "$asm"
  grep -q vmul "$asm" || { echo "tests/firmware/run.sh: no float instruction was found in $name"; exit 1; }
  if grep -E '\bvf(n)?m[as]\.' "$asm"; then
    echo "tests/firmware/run.sh: a fused multiply-add in $name; the bits would differ"
    exit 1
  fi
  size=$("$objdump" -h "${program%/*}/$name" | awk '$2 ~ /^\.(vectors|text|rodata|data)$/ { print $3 }')
  total=0
  for bytes in $size; do total=$((total + 16#$bytes)); done
  echo "$name: $total bytes of code and constants"
done

# Where the program that speaks could panic: calls of panicking functions, each with its caller. There must be none.
panics=target/firmware/speak.panics
awk -F '\t' '
  /^[0-9a-f]+ <.*>:$/ { function_of = $0; sub(/^[0-9a-f]+ </, "", function_of); sub(/>:$/, "", function_of) }
  match($0, /\tb[a-z.]*\t[0-9a-f]+ </) {
    to = substr($0, RSTART + RLENGTH); sub(/>$/, "", to)
    fails = "core::panicking|slice_index_fail|len_mismatch_fail|slice_error_fail|unwrap_failed|expect_failed|something_went_wrong"
    if (to ~ fails && function_of !~ fails) print function_of ": " to
  }' <("$objdump" -dC "$program") | sort | uniq -c | sort -rn > "$panics"
count=$(awk '{ n += $1 } END { print n + 0 }' "$panics")
echo "speak: $count calls of what panics, listed in $panics"
# Whether a program has panicking functions. Reads all output: a broken pipe is a failure here.
panics() { "$objdump" -tC "$1" | grep "core::panicking" >/dev/null; }
# The search may find no call only if none of these functions is linked.
[ "$count" -gt 0 ] || ! panics "$program" || { echo "$0: no call was found"; exit 1; }
[ "$count" -eq 0 ] || { cat "$panics"; exit 1; }
# The same search must find calls in a program that has them.
panics "${program%/*}/learn" || { echo "$0: panics are called otherwise"; exit 1; }

CAPFUL_FIRMWARE=$program cargo test --workspace --test suite --locked "$@" firmware:: -- --ignored --nocapture
