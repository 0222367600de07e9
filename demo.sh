#!/bin/sh
# Builds qrun and shows what it does with the small model that ships in examples/model: quantises it to 4 bits, inspects the
# result, and answers a batch of prompts at once. Installs the packages it needs first (see
# scripts/install-dependencies.sh). Everything it writes is under build/.
set -eu
cd "$(dirname "$0")"

scripts/install-dependencies.sh
cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log; rm -f build-configure.log; exit 1; }
rm -f build-configure.log
echo "Building (about a minute the first time) …"
cmake --build --preset release --target qrun -- --quiet

qrun=build/release/cli/qrun
demo=build/demo
rm -rf "$demo"
mkdir -p "$demo"

step() { printf '\n$ %s\n' "$*"; "$@"; }

step $qrun quantize --model examples/model --out $demo/model-nf4
step $qrun generate --model $demo/model-nf4 --prompts examples/prompts.jsonl --output $demo/answers.jsonl --stats
