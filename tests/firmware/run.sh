#!/usr/bin/env bash
# Builds the programs for a Cortex-M, looks at what was built, and runs the tests that start them on emulated chips.
#
# With the target of rustup if it is installed; else with Debian's compiler for the web browser, which is the one that
# makes the core library for other machines of its own source. Installs what it needs.
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

# A flag for the host's build is none for the chip's.
build=(--manifest-path tests/firmware/Cargo.toml --target-dir target/firmware --target "$target" --release --locked --quiet)
cargo fmt --manifest-path tests/firmware/Cargo.toml --check
# A panic's message holds the path of its source, whose length must not decide whether the program fits.
paths="--remap-path-prefix=$PWD=capful --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
chip() {
  local RUSTFLAGS="${RUSTFLAGS:-} $paths"
  export RUSTFLAGS
  # What wraps the host's compiler is not made for the chip's.
  if installed; then
    env -u RUSTC_WORKSPACE_WRAPPER cargo "$@"
  else
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_THUMBV7EM_NONE_EABIHF_LINKER=ld.lld \
      env -u RUSTC_WORKSPACE_WRAPPER /usr/bin/cargo "$@" -Zbuild-std=core
  fi
}
chip build "${build[@]}"
# Of the standard library there is nothing but core: a line that asks for the part that allocates does not compile.
# rustup's target brings that part along, so this proves nothing there.
if ! installed; then
  refused=$(chip build "${build[@]}" --lib --features alloc 2>&1) && { echo "tests/firmware/run.sh: alloc compiled"; exit 1; }
  grep -q "can't find crate for \`alloc\`" <<< "$refused" || { echo "$refused"; exit 1; }
fi
# The bits depend on libm: the chip's packages are the workspace's.
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

# Where the program that speaks could panic: calls of what panics, each with the function that it stands in. There is none.
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
# Whether a program has functions that panic. All is read: a pipe that breaks is a failure here.
panics() { "$objdump" -tC "$1" | grep "core::panicking" >/dev/null; }
# None may be found only where none of these functions is there.
[ "$count" -gt 0 ] || ! panics "$program" || { echo "$0: no call was found"; exit 1; }
[ "$count" -eq 0 ] || { cat "$panics"; exit 1; }
# The same looks find some in a program that has them.
panics "${program%/*}/learn" || { echo "$0: panics are called otherwise"; exit 1; }

CAPFUL_FIRMWARE=$program cargo test --workspace --test suite --locked "$@" firmware:: -- --ignored --nocapture
