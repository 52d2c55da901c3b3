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
command -v llvm-objdump >/dev/null || command -v arm-none-eabi-objdump >/dev/null || missing+=(binutils-arm-none-eabi)
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
if installed; then
  cargo build "${build[@]}"
else
  RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_THUMBV7EM_NONE_EABIHF_LINKER=ld.lld \
    /usr/bin/cargo build -Zbuild-std=core "${build[@]}"
fi
program=$PWD/target/firmware/$target/release/speak

# Results are the same bits everywhere because nothing is contracted: vfma rounds once where the host rounds twice.
objdump=$(command -v arm-none-eabi-objdump || command -v llvm-objdump)
for name in speak large learn spike; do
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

CAPFUL_FIRMWARE=$program cargo test -p capful-tests --test firmware --test firmware_learn --locked "$@" -- --ignored --nocapture
