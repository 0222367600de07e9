#!/usr/bin/env bash
# Builds the fuzz targets (Clang, libFuzzer, ASan, UBSan) and runs each on its seeds for that many seconds, two at
# a time.
#   scripts/fuzz.sh [SECONDS [TARGET…]]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -eq 0 ] || shift
scripts/install-dependencies.sh clang libclang-rt-14-dev

run_target() {
    local name=$1 seconds=$2 work
    work=$(mktemp -d)
    mkdir "$work/corpus"
    if ! "build/fuzz/tests/fuzz/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=0 \
        -artifact_prefix="$work/" "$work/corpus" "tests/fuzz/seeds/${name#fuzz_}" >"$work/log" 2>&1; then
        echo "FAILED $name; the input is in $work:"
        tail -n 40 "$work/log"
        return 1
    fi
    echo "ok $name: $(grep -ao 'Done [0-9]* runs' "$work/log" | tail -n 1)"
    rm -rf "$work"
}
export -f run_target

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do targets+=("$(basename "$source" .c)"); done
fi
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target "${targets[@]}" -- --quiet
printf '%s\n' "${targets[@]}" | xargs -P 2 -I NAME bash -c 'run_target NAME '"$seconds"
