#!/usr/bin/env bash
# Runs the tests of the GPU's operations under compute-sanitizer, one after the other, each within a time limit, and
# prints a table of the findings. Only cases with small operands run, once: a large one takes hours there.
#   tests/racecheck.sh LIBTEST [NAME...]
# LIBTEST is the library's test binary of a build with the feature cuda, on a machine with a GPU:
#   cargo test -p capful-cuda --features cuda --lib --no-run
# NAMEs are parts of tests' names; without them all tests run. Variables with their defaults:
#   TOOL=racecheck      the sanitizer's tool: memcheck, racecheck, initcheck, synccheck
#   LIMIT=300           seconds that a test may take
#   SANITIZER=compute-sanitizer
#   CAPFUL_TEST_MOST    bytes of a case's operands: 32,768, more where a kernel has no case as small as that
set -uo pipefail
[ $# -ge 1 ] || { sed -n 2,11p "$0"; exit 2; }
libtest=$(realpath "$1"); shift
names=("$@")
tool=${TOOL:-racecheck} limit=${LIMIT:-300} sanitizer=${SANITIZER:-compute-sanitizer}
command -v "$sanitizer" >/dev/null || { echo "racecheck: $sanitizer is not there; install CUDA 13's" >&2; exit 2; }

# Logits with rows too long for a block's registers, modules with packed spikes, tiles of warpgroups, wide heads.
most() {
    case ${1##*::} in
        *long_rows* | *spikes_are* | *warpgroups_multiply* | *turned_as_they* | *folded_head*) echo 2097152 ;;
        *head_loss* | *fused_head* | *reads_all_once* | *attention* | *sequences*) echo 262144 ;;
        *) echo 32768 ;;
    esac
}

wanted() {
    [ ${#names[@]} -gt 0 ] || return 0
    for name in "${names[@]}"; do [[ $1 == *$name* ]] && return 0; done
    return 1
}

summary() { grep -oE '(RACECHECK|ERROR) SUMMARY: .*' "$1" | tail -1; }

log=$(mktemp); trap 'rm -f "$log"' EXIT
failed=0
printf '| test | seconds | %s |\n| --- | --- | --- |\n' "$tool"
for test in $("$libtest" --list --format terse | sed -n 's/: test$//p' |
    grep -E '^tests::(attention|bias_sums|head|operations|products|neurogen|fp8|witness)::'); do
    wanted "$test" || continue
    began=$SECONDS
    CAPFUL_TEST_MOST=${CAPFUL_TEST_MOST:-$(most "$test")} timeout -k 10 "$limit" \
        "$sanitizer" --tool "$tool" --error-exitcode 9 "$libtest" --exact "$test" </dev/null >"$log" 2>&1
    status=$?
    found=$(summary "$log")
    case $status in
        0) ;;
        9) failed=1 ;;
        124 | 137) failed=1 found="not finished in $limit s" ;;
        *)
            if grep -q '^test result: ok' "$log"; then
                found="uses no GPU"
            else
                failed=1 found="failed: $(grep -m1 -E 'panicked|rror' "$log")"
            fi
            ;;
    esac
    printf '| %s | %s | %s |\n' "${test#tests::}" $((SECONDS - began)) "${found:-nothing said}"
done
exit $failed
