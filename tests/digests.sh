#!/usr/bin/env bash
# Runs an old binary and a new one over the cases of tests/src/digests.rs and compares every tensor by name, losses,
# plans, logits and samples, on devices whose bits depend on the machine or the compiler:
#   tests/digests.sh OLD NEW [DEVICES [CASES]]
# DEVICES, separated by commas, are cpu and, for binaries with the feature cuda, cuda with further flags; the default is
# cpu. The GPU is the stand-in unless CAPFUL_GPU=1. With cuda, all cases take minutes for each precision. CASES is a part
# of the names of the cases to run.
#   tests/digests.sh old/host target/release/host "cpu,cuda,cuda --precision bf16,cuda --precision fp8"
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,8p "$0"; exit 2; }
export CAPFUL_OLD CAPFUL_NEW CAPFUL_DEVICES CAPFUL_CASES
CAPFUL_OLD=$(realpath "$1") CAPFUL_NEW=$(realpath "$2") CAPFUL_DEVICES=${3:-cpu} CAPFUL_CASES=${4:-}
cd "$(dirname "$0")/.."
features=()
[[ $CAPFUL_DEVICES != *cuda* ]] || features=(--features cuda)
cargo test -p capful-tests "${features[@]}" --test suite digests:: -- --ignored --nocapture
